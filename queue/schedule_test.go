package queue_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// TestSequence: IDs grow, whatever the clock says, and a sequence that stood still for long begins anew.
func TestSequence(t *testing.T) {
	var s queue.Sequence
	at := time.UnixMilli(1_700_000_000_000)
	first := s.Next(at)
	back := s.Next(at.Add(-time.Second))
	if first.N() != 1 || back.N() != 2 || back.Producer() != first.Producer() || back.Compare(first) <= 0 {
		t.Errorf("%v and then %v, a second before", first, back)
	}
	if next := s.Next(at.Add(9 * time.Minute)); next.N() != 3 || next.Producer() != first.Producer() {
		t.Errorf("number %d of %016x after nine minutes, want 3 of %016x", next.N(), next.Producer(), first.Producer())
	}
	if late := s.Next(at.Add(20 * time.Minute)); late.N() != 1 || late.Producer() == first.Producer() {
		t.Errorf("number %d of %016x after eleven minutes without any", late.N(), late.Producer())
	}
}
