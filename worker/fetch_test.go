package worker

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// A message from a clock that is ahead delays no other message, whether it is appended or held back by a gap.
func TestMessageFromTheFutureDelaysNobody(t *testing.T) {
	for _, ahead := range []time.Duration{59 * time.Second, 2 * time.Minute, 48 * time.Hour} {
		for _, first := range []bool{true, false} {
			for _, n := range []uint64{1, 2} {
				t.Run(fmt.Sprint(ahead, " ", first, " ", n), func(t *testing.T) {
					onRig(t, func(t *testing.T, r *rig) { futureMessage(t, r, ahead, first, n) })
				})
			}
		}
	}
}

func futureMessage(t *testing.T, r *rig, ahead time.Duration, first bool, n uint64) {
	p := r.start(nil)
	insert := func(id queue.ID) {
		t.Helper()
		if err := r.queue.Queue.Insert(t.Context(), typ, []queue.Message{{Type: typ, ID: id, Payload: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	var sent uint64
	other := func() {
		t.Helper()
		sent++
		id := queue.NewID(time.Now(), 9, sent)
		insert(id)
		began := time.Now()
		for time.Since(began) <= 2*longEvery+heldRetryMax+time.Second {
			msgs, err := r.queue.Queue.Fetch(t.Context(), typ, id.Prev(), queue.Limit{Messages: 1})
			if err != nil {
				t.Fatal(err)
			}
			if len(msgs) == 0 || msgs[0].ID != id {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("message %d of another producer is not appended after %v", sent, time.Since(began))
	}
	if !first {
		for range 20 {
			other()
			time.Sleep(500 * time.Millisecond)
		}
	}
	insert(queue.NewID(time.Now().Add(ahead), 5, n))
	time.Sleep(100 * time.Millisecond)
	for range 60 {
		other()
		time.Sleep(777 * time.Millisecond)
	}
	for range 3 {
		time.Sleep(fullSweepEvery + 7*time.Second)
		other()
	}
	p.stop()
}

// However far ahead the newest ID is, and whichever messages wait.
func TestWalkGoesBackAndNeverForward(t *testing.T) {
	here, ahead := message(1, 1).ID, queue.NewID(epoch.Add(48*time.Hour), 2, 2)
	for _, what := range []string{"held", "long", "short"} {
		now := time.Now()
		f := &fetcher{session: &session{}, after: here, newest: ahead, short: true, lastFull: now, lastLong: now, lastShort: now}
		switch what {
		case "held":
			f.held.Store(&ledger.Held{First: ahead})
		case "long":
			f.lastLong = time.Time{}
		case "short":
			f.lastShort = time.Time{}
		}
		if err := f.goBack(t.Context()); err != nil || f.after != here {
			t.Errorf("%s: the walk went from %v to %v (%v)", what, here, f.after, err)
		}
	}
}

// A session that only drains does not end with its first fetch if a message of it waits.
func TestUntilEmptyReadsAgainWhatWaits(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1, 3)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		if got, want := contents(t, r.disk, testFile), []string{"1/1", "1/3"}; !slices.Equal(got, want) {
			t.Errorf("the file holds %q, want %q", got, want)
		}
	})
}
