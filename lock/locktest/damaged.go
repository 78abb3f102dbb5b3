package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// Damaged tests how a store handles a record that it cannot decode: it reports a lock.DamagedError for that record only, other records in
// the same batch or list are not affected, and an operator can remove the record. s must be empty; damage makes the record of a name
// undecodable.
func Damaged(t *testing.T, s lock.Store, damage func(name string)) {
	t.Helper()
	remover := s.(lock.Remover)
	var batch []lock.Renewal
	for _, name := range []string{"a", "b", "c"} {
		h := newHold(20 * time.Second)
		if ok, err := s.Create(t.Context(), name, h, lock.NewVersion()); !ok || err != nil {
			t.Fatalf("create %s: %t, %v", name, ok, err)
		}
		if ok, err := s.Ask(t.Context(), name, h, "please"); !ok || err != nil {
			t.Fatalf("ask for %s: %t, %v", name, ok, err)
		}
		batch = append(batch, renewal(name, h))
	}
	damage("b")
	if b, ok := s.(lock.BatchRenewer); ok {
		batch[1].Hold.ID = lock.NewHoldID()        // not found: the record has another ID or none
		_, _ = b.RenewMany(t.Context(), batch[:2]) // the answer for b does not matter
		if r, _, err := s.Read(t.Context(), "a"); err != nil || r.Version != batch[0].Version {
			t.Errorf("a was not renewed in a batch with a damaged record: %v", err)
		}
		asked, err := b.Requests(t.Context(), []string{"a", "b", "c"})
		if err != nil || asked[batch[0].Hold.ID] != "please" || asked[batch[2].Hold.ID] != "please" {
			t.Errorf("requests: %v, %v; want those of a and c", asked, err)
		}
	}
	var damaged *lock.DamagedError
	if _, _, err := s.Read(t.Context(), "b"); !errors.As(err, &damaged) || damaged.Name != "b" || !errors.Is(err, lock.ErrPermanent) {
		t.Errorf("read: %v; want a permanent DamagedError", err)
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
