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
	"github.com/fencepost/fencepost/storage"
	"pgregory.net/rapid"
)

// publishKeyed publishes a message for every key, as a producer of its own.
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
		window := func(c *Config) { c.DedupeWindow = time.Hour; c.UntilEmpty = true }
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

// A backlog that waited for longer than the window is judged by when its messages were published.
func TestKeysAreComparedByPublishTimes(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		window := func(c *Config) { c.DedupeWindow = time.Hour; c.UntilEmpty = true }
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
// others. It returns the payloads that are in the files and the keys that were published.
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
			if op == queuetest.OpAck && n > round { // so that what it has appended is delivered again
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		p := r.start(func(c *Config) { c.MaxFileBytes, c.Batch = 1<<20, 40 })
		time.Sleep(10 * time.Second)
		p.cancel()
		<-p.done
	}
	r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
	drain := func() {
		if err := r.drain(func(c *Config) { c.MaxFileBytes = 1 << 20 }); err != nil {
			r.t.Fatal(err)
		}
	}
	drain()
	// How far the others came is by chance; by now all keys are behind checkpoints.
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

// A message that is not appended leaves its number in the file, or those behind it would wait for it: one worker sees the second message
// with a key, and another one the message behind it.
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

// What is put aside is not in the file: the key is free for a message that is published again.
func TestDeadLetterDoesNotOccupyItsKey(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publishKeyed("ends in", "7")
		if err := r.drain(func(c *Config) { c.Filter = no7 }); err != nil {
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

// Today's skip entries have no message's headers; one that has them is no message all the same.
func TestSkipEntryNotesNoKey(t *testing.T) {
	m := message(1, 1)
	m.Headers = map[string]string{queue.KeyHeader: "a"}
	for kind, want := range map[storage.Kind]bool{storage.KindMessage: true, storage.KindAfterGap: true, storage.KindSkipped: false} {
		k := keys{window: time.Hour, most: 10}
		k.replayKey(storage.Record{Kind: kind, Headers: headers(m.Headers)}, m.ID)
		if got := k.copied(m); got != want {
			t.Errorf("after a record of kind %v: copied = %v, want %v", kind, got, want)
		}
	}
}

// Behind missing messages a skip entry says that they are missing, as a message would.
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
		if err := r.drain(func(c *Config) { c.Filter = no7 }); err != nil {
			t.Fatal(err)
		}
		if got, skipped := r.inFile(); len(got) != 1 || skipped != 2 { // inFile audits
			t.Errorf("the file holds %q and %d skip entries", got, skipped)
		}
	})
}

// keys against a model that remembers everything.
func TestKeysAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = time.Hour
		l, _ := testLedger()
		l.keys.window = window
		type noted struct{ at, seen int64 }
		model := map[string][]noted{}
		var n uint64
		at := epoch
		for range rapid.IntRange(0, 100).Draw(t, "messages") {
			at = at.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute)
			late := time.Duration(rapid.IntRange(0, 14).Draw(t, "late")) * time.Minute
			drained := time.Duration(rapid.IntRange(0, 300).Draw(t, "drained later")) * time.Minute
			l.keys.now = max(l.keys.now, at.Add(drained).UnixMilli())
			if rapid.IntRange(0, 9).Draw(t, "clock") == 7 { // of the future
				late = at.Sub(time.UnixMilli(l.keys.now)) - time.Duration(rapid.IntRange(1, 300).Draw(t, "ahead"))*time.Minute
			}
			key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
			n++
			m := &queue.Message{ID: queue.NewID(at.Add(-late), 1, n), Headers: map[string]string{queue.KeyHeader: key}}
			this := noted{ms(m.ID), min(ms(m.ID), l.keys.now)}
			want := slices.ContainsFunc(model[key], func(n noted) bool {
				return min(distance(n.at, this.at), distance(n.at, this.seen), distance(n.seen, this.at)) <= window.Milliseconds()
			})
			if got := l.keys.copied(m); got != want {
				t.Fatalf("key %s published at %v: copied = %v, the others were at %v", key, m.ID.Time(), got, model[key])
			}
			if !want {
				l.keys.note(key, m.ID)
				model[key] = append(model[key], this)
			}
			if l.keys.forget() {
				t.Fatal("forgotten early")
			}
			if rapid.Bool().Draw(t, "restart") {
				next, _ := testLedger()
				next.keys.window, next.keys.now = window, l.keys.now
				if err := next.restore(l.state()); err != nil {
					t.Fatal(err)
				}
				l = next
			}
		}
		if n := len(l.keys.order); n > 100 {
			t.Fatalf("%d entries", n)
		}
	})
}

func TestKeysAreBounded(t *testing.T) {
	k := keys{window: time.Hour, most: 10}
	early := false
	for i := range 30 {
		k.now = epoch.UnixMilli() + int64(i)*1000
		k.note(fmt.Sprint(i), queue.NewID(epoch.Add(time.Duration(i)*time.Second), 1, uint64(i+1)))
		early = k.forget() || early
	}
	if len(k.at) != 10 || len(k.order) != 10 || !early {
		t.Errorf("%d keys, %d in order, early %v; want the last 10", len(k.at), len(k.order), early)
	}
	k.note("much later", queue.NewID(epoch.Add(3*time.Hour), 1, 31))
	if k.forget(); len(k.at) != 9 || k.at[hashKey("20")] != 0 || k.at[hashKey("29")] == 0 {
		t.Errorf("%d keys after a message from the future", len(k.at))
	}
	k.now = epoch.Add(3 * time.Hour).UnixMilli()
	k.note("a second later", queue.NewID(epoch.Add(3*time.Hour), 1, 32))
	if k.forget(); len(k.at) != 2 {
		t.Errorf("%d keys are remembered, some for longer than the window and the slack", len(k.at))
	}
}

// One message from the future, and all from the future as the worker's clock is behind: memory is bounded, and others are forgotten in time.
func TestKeysFromTheFutureAreBounded(t *testing.T) {
	for _, ahead := range []int{1, 1000} { // of a thousand
		k := keys{window: time.Hour, most: 100}
		for i := range 1000 {
			at := epoch.Add(time.Duration(i) * 10 * time.Minute)
			k.now = at.UnixMilli()
			if i < ahead {
				at = at.Add(10000 * time.Hour)
			}
			k.note(fmt.Sprint(i), queue.NewID(at, 1, uint64(i+1)))
			k.forget()
			want := min(i+1, 50) // each takes two places
			if ahead == 1 {
				want = min(i+1, 9) // the one and those of 75 minutes
			}
			if n := len(k.at); n != want || len(k.order)+len(k.ahead) != n || len(k.seen) != min(ahead, n) || len(k.more) != 0 {
				t.Fatalf("%d of 1000 ahead: %d keys, %d and %d in order, %d of them from the future; want %d", ahead, n, len(k.order), len(k.ahead), len(k.seen), want)
			}
		}
	}
}

// Several publish the same thing within seconds, one by a clock that is an hour ahead: one message gets into the file, whoever comes first, and
// whether they are drained by one worker or by one after the other.
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

// A worker's clock that is behind makes no copies of messages that were published long after each other.
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
