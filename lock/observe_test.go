package lock_test

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/lock"
)

// The memory of a Locker is bounded, however many names and failures it sees.
func TestMemoryOfALockerIsBounded(t *testing.T) {
	var o lock.Observations
	for i := range 2 * lock.MaxObservations {
		o.Saw(fmt.Sprint("n", i), lock.Record{})
	}
	if n := o.Names(); n > lock.MaxObservations {
		t.Errorf("%d names are remembered", n)
	}
	var ids []lock.HoldID
	for range 2 * lock.MaxDead {
		ids = append(ids, lock.NewHoldID())
		o.Bury(ids[len(ids)-1])
		o.Bury(ids[len(ids)-1])
	}
	if o.IsDead(ids[0]) || !o.IsDead(ids[len(ids)-1]) || !o.IsDead(ids[len(ids)-lock.MaxDead]) {
		t.Error("the latest dead ids must be remembered, and no more")
	}
}
