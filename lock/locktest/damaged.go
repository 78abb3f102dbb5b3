package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// Damaged checks what a store says of a record that it cannot read, and that it can be removed. damage spoils the record of a name.
func Damaged(t *testing.T, s lock.Store, damage func(name string)) {
	t.Helper()
	remover := s.(lock.Remover)
	for _, name := range []string{"a", "b", "c"} {
		if ok, err := s.Create(t.Context(), name, newHold(20*time.Second), lock.NewVersion()); !ok || err != nil {
			t.Fatalf("create %s: %t, %v", name, ok, err)
		}
	}
	damage("b")
	var damaged *lock.DamagedError
	if _, _, err := s.Read(t.Context(), "b"); !errors.As(err, &damaged) || damaged.Name != "b" || !errors.Is(err, lock.ErrPermanent) {
		t.Errorf("read: %v; want a DamagedError, for good", err)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 3 || list[1].Name != "b" || list[1].Damaged == nil || !list[0].Held() || !list[2].Held() {
		t.Errorf("list: %+v, %v; want b damaged, and the others", list, err)
	}
	for name, want := range map[string]bool{"a": false, "none": false, "b": true} {
		if ok, err := remover.RemoveDamaged(t.Context(), name); ok != want || err != nil {
			t.Errorf("remove the damaged %s: %t, %v; want %t", name, ok, err, want)
		}
	}
	for name, want := range map[string]bool{"a": true, "b": false} {
		if _, found, err := s.Read(t.Context(), name); found != want || err != nil {
			t.Errorf("%s is there: %t, %v; want %t", name, found, err, want)
		}
	}
}
