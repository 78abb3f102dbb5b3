package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// publishKeyed publishes a message for every key, each with a producer of its own.
func (r *rig) publishKeyed(payload string, keys ...string) {
	r.t.Helper()
	p, err := queue.NewPublisher(context.Background(), r.queue, queue.PublisherOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Close(context.Background())
	for _, k := range keys {
		if _, err := p.Publish(context.Background(), typ, []byte(payload+" "+k), map[string]string{queue.KeyHeader: k}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestOfMessagesWithOneKeyOneIsAppended(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		window := func(c *Config) { c.UntilEmpty = true; inFiles(func(f *Files) { f.DedupeWindow = time.Hour })(c) }
		r.publishKeyed("first", "a", "b", "a")
		p := r.start(window)
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Repeated != 1 || s.Appended != 2 || s.Duplicates != 0 {
			t.Errorf("stats %+v", s)
		}
		time.Sleep(30 * time.Minute)
		r.publishKeyed("second", "b", "c", "a", "a")
		if err := r.drain(window); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Minute) // an hour after the first ones
		r.publishKeyed("third", "a", "c")
		if err := r.drain(window); err != nil {
			t.Fatal(err)
		}
		got, skipped := r.inFile()
		if want := []string{"first a", "first b", "second c", "third a"}; !slices.Equal(got, want) || skipped != 5 {
			t.Errorf("the file holds %q and %d skip entries, want %q and 5", got, skipped, want)
		}
		if n := len(r.letters()); n != 0 || r.pending() != 0 {
			t.Errorf("%d dead letters, %d pending: a second message is neither", n, r.pending())
		}
	})
}

// A backlog that waited for longer than the window is judged by the times at which its messages were published.
func TestKeysAreComparedByPublishTimes(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		window := func(c *Config) { c.UntilEmpty = true; inFiles(func(f *Files) { f.DedupeWindow = time.Hour })(c) }
		r.publishKeyed("0:00", "drained at once")
		if err := r.drain(window); err != nil {
			t.Fatal(err)
		}
		r.publishKeyed("0:00", "a")
		time.Sleep(30 * time.Minute)
		r.publishKeyed("0:30", "a", "drained at once")
		time.Sleep(time.Hour)
		r.publishKeyed("1:30", "a")
		time.Sleep(24 * time.Hour)
		if err := r.drain(window); err != nil {
			t.Fatal(err)
		}
		got, _ := r.inFile()
		if want := []string{"0:00 drained at once", "0:00 a", "1:30 a"}; !slices.Equal(got, want) {
			t.Errorf("the file holds %q, want %q", got, want)
		}
	})
}

// keysAcrossDeaths lets worker after worker die right after its appends, in files of 1 MiB, with messages that repeat the keys of
// others. It returns the payloads in the files and the published keys.
func keysAcrossDeaths(r *rig) (got []string, keys int) {
	pad := strings.Repeat("x", 4000)
	keys = 300
	for round := range 4 {
		var batch []string
		for k := range keys {
			if (k+round)%2 == 0 || round == 3 {
				batch = append(batch, fmt.Sprint(k))
			}
		}
		r.publishKeyed(pad, batch...)
		r.disturb(func(op queuetest.Op, n int) queuetest.Fault {
			if op == queuetest.OpAck && n > round { // so that the appended messages are delivered again
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		p := r.start(func(c *Config) { c.Batch = 40; inFiles(func(f *Files) { f.MaxBytes = 1 << 20 })(c) })
		time.Sleep(10 * time.Second)
		p.cancel()
		<-p.done
	}
	r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
	drain := func() {
		if err := r.drain(inFiles(func(f *Files) { f.MaxBytes = 1 << 20 })); err != nil {
			r.t.Fatal(err)
		}
	}
	drain()
	// How far the others got is random; by now all keys are in checkpoints.
	var all []string
	for k := range keys {
		all = append(all, fmt.Sprint(k))
	}
	r.publishKeyed(pad, all...)
	drain()
	for _, payload := range r.chain(typ) {
		if k, ok := strings.CutPrefix(payload, pad); ok {
			got = append(got, k)
		}
	}
	return got, keys
}

func TestKeysSurviveDeathsAndSizeLimits(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		got, keys := keysAcrossDeaths(r)
		slices.Sort(got)
		if n := len(got); n != keys || len(slices.Compact(got)) != keys {
			t.Errorf("%d messages for %d keys", n, keys)
		}
		if files := r.generations(typ); len(files) < 2 {
			t.Errorf("the files %v: no size limit was reached", files)
		}
		if strings.Contains(r.log.String(), "declared gap") {
			t.Error("a gap was declared")
		}
	})
}

// A message that is not appended leaves its number in the file, or the messages after it would wait for it: one worker sees the second
// message with a key, and another one the message after that.
func TestSecondMessageLeavesNoGap(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p, err := queue.NewPublisher(context.Background(), r.queue, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(context.Background())
		for range 3 {
			for range 2 {
				if _, err := p.Publish(context.Background(), typ, []byte("x"), map[string]string{queue.KeyHeader: "k"}); err != nil {
					t.Fatal(err)
				}
			}
			w := r.start(nil)
			time.Sleep(time.Second)
			w.cancel() // without a last checkpoint
			<-w.done
		}
		if n := r.pending(); n != 0 || strings.Contains(r.log.String(), "declared gap") {
			t.Errorf("%d messages are pending; see the log", n)
		}
	})
}

// A message that is put aside is not in the file: its key is free for one that is published again.
func TestDeadLetterDoesNotOccupyItsKey(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publishKeyed("ends in", "7")
		if err := r.drain(inFiles(func(f *Files) { f.Filter = no7 })); err != nil {
			t.Fatal(err)
		}
		if n := len(r.letters()); n != 1 {
			t.Fatalf("%d dead letters", n)
		}
		r.publishKeyed("again", "7")
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.inFile(); !slices.Equal(got, []string{"again 7"}) {
			t.Errorf("the file holds %q", got)
		}
	})
}

// After missing messages a skip entry declares the gap, as a message would.
func TestSkipEntryBehindAGapDeclaresIt(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publishKeyed("first", "k")
		m := *message(7, 3)
		m.Type, m.ID = typ, queue.NewID(time.Now(), 7, 3)
		m.Payload, m.Headers = []byte("second"), map[string]string{queue.KeyHeader: "k"}
		if err := r.queue.Queue.Insert(context.Background(), typ, []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
		m.ID, m.Headers = queue.NewID(time.Now(), 8, 2), nil
		m.Payload = []byte("ends in 7")
		if err := r.queue.Queue.Insert(context.Background(), typ, []queue.Message{m}); err != nil {
			t.Fatal(err)
		}
		if err := r.drain(inFiles(func(f *Files) { f.Filter = no7 })); err != nil {
			t.Fatal(err)
		}
		if got, skipped := r.inFile(); len(got) != 1 || skipped != 2 { // inFile audits
			t.Errorf("the file holds %q and %d skip entries", got, skipped)
		}
	})
}

// Several publishers publish the same message within seconds, one by a clock that is an hour ahead: one message is appended, in whichever order
// they publish, and whether one worker drains them or one worker after the other.
func TestKeyOfAPublisherWhoseClockIsAhead(t *testing.T) {
	for _, ahead := range []int{0, 2} { // which of the publishers
		for _, each := range []bool{true, false} {
			onRig(t, func(t *testing.T, r *rig) {
				var by atomic.Int64
				right := r.queue.Queue
				for i := range 5 {
					if by.Store(0); i == ahead {
						by.Store(int64(61 * time.Minute))
					}
					r.queue.Queue = offClock{right, &by}
					r.publishKeyed(fmt.Sprint(i), "order-17")
					r.queue.Queue = right
					if each {
						r.mustDrain(nil)
					}
					time.Sleep(time.Second)
				}
				r.mustDrain(nil)
				if got, skipped := r.inFile(); len(got) != 1 || skipped != 4 {
					t.Errorf("publisher %d is ahead, drained each: %v: the file holds %q and %d skip entries", ahead, each, got, skipped)
				}
			})
		}
	}
}

// If a worker's clock is slow, messages that were published long after each other are not taken for copies.
func TestKeysOfAWorkerWhoseClockIsBehind(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for i := range 3 {
			r.publishKeyed(fmt.Sprint(i), "order-17")
			time.Sleep(61 * time.Minute)
		}
		var by atomic.Int64
		by.Store(-int64(48 * time.Hour))
		r.mustDrain(func(c *Config) { c.Queue = offClock{c.Queue, &by} })
		r.publishKeyed("3", "order-17")
		r.mustDrain(nil)
		if got, _ := r.inFile(); len(got) != 4 {
			t.Errorf("the file holds %q", got)
		}
	})
}
