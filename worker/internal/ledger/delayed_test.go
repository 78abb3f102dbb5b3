package ledger

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"pgregory.net/rapid"
)

// A list of spans behaves like a set of numbers, and stays ascending and joined.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		want := map[uint64]bool{}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			n := rapid.Uint64Range(1, 20).Draw(t, "n")
			if rapid.Bool().Draw(t, "add") {
				spans, want[n] = With(spans, n), true
			} else {
				spans = without(spans, n)
				delete(want, n)
			}
			for n := range uint64(22) {
				if _, in := Find(spans, n); in != want[n] {
					t.Fatalf("%v has %d: %v", spans, n, in)
				}
			}
			for i := 1; i < len(spans); i++ {
				if spans[i].From <= spans[i-1].To+1 || spans[i].From > spans[i].To {
					t.Fatalf("%v is not ascending, or not joined", spans)
				}
			}
		}
	})
}

// Memory and checkpoints are bounded: the producers that have been silent longest are forgotten first.
func TestDelayedIDsAreBounded(t *testing.T) {
	l, _ := testLedger()
	d := &l.delayed
	d.most = 100
	for i := range uint64(150) {
		d.Record(queue.NewID(epoch, i%3, 2*(i/3)+1), int64(i%3)) // every second number: a span for each
		early := d.trim()
		if d.spans > 100 || early != (d.spans < 76 && i >= 100) {
			t.Fatalf("%d spans after %d messages, some forgotten: %v", d.spans, i+1, early)
		}
		if early {
			break
		}
	}
	if d.of[0] != nil || d.of[1] == nil || d.of[2] == nil {
		t.Errorf("left are %v, want the two that were seen last", slices.Collect(maps.Keys(d.of)))
	}
	if d.forget(1, time.Hour); d.of[1] == nil || d.of[2] == nil {
		t.Error("forgotten before their time")
	}
	d.of[1].since = d.of[1].since.Add(-time.Hour)
	if d.forget(1, time.Hour); d.of[1] != nil || d.of[2] == nil || d.spans != len(d.of[2].ns) {
		t.Errorf("left are %v, %d spans", slices.Collect(maps.Keys(d.of)), d.spans)
	}
}
