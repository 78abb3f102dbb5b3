package share

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// asleep is a session that does nothing.
type asleep struct{}

func (asleep) QuietFor() time.Duration { return 0 }
func (asleep) Halt()                   {}

// A type counts as free unless this pool holds it, and is woken, or another living one does, and stays.
func TestWakeSession(t *testing.T) {
	r := New(nil, nil, queue.Member{Instance: "self"}, zerolog.Nop())
	r.Join(false, "mine", "free", "theirs", "left", "orphaned")
	r.Holds("mine", asleep{})
	now := time.Now()
	r.readAt = now
	r.sights = map[string]sighting{"other": {at: now, read: now}, "dead": {at: now.Add(-time.Hour), read: now}}
	r.claims = map[string]holding{"theirs": {by: "other"}, "left": {by: "other", leaving: true}, "orphaned": {by: "dead"}}
	for typ, want := range map[string]bool{"mine": false, "free": true, "theirs": false, "left": true, "orphaned": true, "unknown": true} {
		if free := r.WakeSession(typ); free != want {
			t.Errorf("%s: free %t", typ, free)
		}
		woken := false
		if it := r.types[typ]; it != nil {
			select {
			case <-it.wake:
				woken = true
			default:
			}
		}
		if woken != (typ == "mine") {
			t.Errorf("%s: woken %t", typ, woken)
		}
	}
}
