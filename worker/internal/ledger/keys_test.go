package ledger

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"pgregory.net/rapid"
)

// Skip entries written today have no message headers; an entry with them is still not a message.
func TestSkipEntryNotesNoKey(t *testing.T) {
	m := message(1, 1)
	m.Headers = map[string]string{queue.KeyHeader: "a"}
	for kind, want := range map[storage.Kind]bool{storage.KindMessage: true, storage.KindAfterGap: true, storage.KindSkipped: false} {
		k := keys{window: time.Hour, most: 10}
		k.replay(storage.Record{Kind: kind, Headers: []storage.Header{{Key: queue.KeyHeader, Value: "a"}}}, m.ID)
		if got := k.copied(m); got != want {
			t.Errorf("after a record of kind %v: copied = %v, want %v", kind, got, want)
		}
	}
}

// TestKeysAgainstAModel compares keys with a model that remembers everything.
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
				l.keys.record(key, m.ID)
				model[key] = append(model[key], this)
			}
			if l.keys.forget() {
				t.Fatal("forgotten early")
			}
			if rapid.Bool().Draw(t, "restart") {
				next, _ := testLedger()
				next.keys.window, next.keys.now = window, l.keys.now
				if err := next.Restore(l.State()); err != nil {
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
		k.record(fmt.Sprint(i), queue.NewID(epoch.Add(time.Duration(i)*time.Second), 1, uint64(i+1)))
		early = k.forget() || early
	}
	if len(k.at) != 10 || len(k.order) != 10 || !early {
		t.Errorf("%d keys, %d in order, early %v; want the last 10", len(k.at), len(k.order), early)
	}
	k.record("much later", queue.NewID(epoch.Add(3*time.Hour), 1, 31))
	if k.forget(); len(k.at) != 9 || k.at[hashKey("20")] != 0 || k.at[hashKey("29")] == 0 {
		t.Errorf("%d keys after a message from the future", len(k.at))
	}
	k.now = epoch.Add(3 * time.Hour).UnixMilli()
	k.record("a second later", queue.NewID(epoch.Add(3*time.Hour), 1, 32))
	if k.forget(); len(k.at) != 2 {
		t.Errorf("%d keys are remembered, some for longer than the window and the slack", len(k.at))
	}
}

// The records after a checkpoint may have more keys than a state can hold: a compaction of the file writes its state without TrimHistory.
func TestKeysOfReplayedRecordsAreBounded(t *testing.T) {
	l, _ := testLedger()
	l.keys.window, l.keys.most = time.Hour, 15
	for i := range uint64(5) {
		expect(t, l, loose(i+10), Append)
	}
	now := epoch.Add(time.Hour).UnixMilli()
	l.SetClock(now)
	for n := range uint64(30) {
		id := message(1, n+1).ID
		if _, _, err := l.Replay(storage.Record{ID: id[:], Headers: []storage.Header{{Key: queue.KeyHeader, Value: fmt.Sprint(n + 1)}}}); err != nil {
			t.Fatal(err)
		}
	}
	again, _ := testLedger()
	again.SetClock(now)
	if err := again.Restore(l.State()); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Ledger{l, again} { // five loose messages count as six keys
		if n := len(l.keys.at); n != 9 || l.keys.at[hashKey("21")] != 0 || l.keys.at[hashKey("22")] == 0 {
			t.Errorf("%d keys, want those of the last 9 messages", n)
		}
	}
}

// With the longest possible window, keys never expire.
func TestKeysAreRememberedForEver(t *testing.T) {
	k := keys{window: math.MaxInt64, most: 10, now: epoch.UnixMilli()}
	m := message(1, 1)
	m.Headers = map[string]string{queue.KeyHeader: "order-17"}
	k.record("order-17", queue.NewID(epoch, 1, 1))
	if early := k.forget(); early || !k.copied(m) {
		t.Errorf("the key is forgotten, early %v", early)
	}
}

// One message from the future, and all from the future because the worker's clock is slow: memory is bounded, and other keys expire in time.
func TestKeysFromTheFutureAreBounded(t *testing.T) {
	for _, ahead := range []int{1, 1000} { // of a thousand
		k := keys{window: time.Hour, most: 100}
		for i := range 1000 {
			at := epoch.Add(time.Duration(i) * 10 * time.Minute)
			k.now = at.UnixMilli()
			if i < ahead {
				at = at.Add(10000 * time.Hour)
			}
			k.record(fmt.Sprint(i), queue.NewID(at, 1, uint64(i+1)))
			k.forget()
			want := min(i+1, 50) // each takes two entries
			if ahead == 1 {
				want = min(i+1, 9) // the one, and those of 75 minutes
			}
			if n := len(k.at); n != want || len(k.order)+len(k.ahead) != n || len(k.seen) != min(ahead, n) || len(k.more) != 0 {
				t.Fatalf("%d of 1000 ahead: %d keys, %d and %d in order, %d of them from the future; want %d", ahead, n, len(k.order), len(k.ahead), len(k.seen), want)
			}
		}
	}
}

// A message may be stored up to a quarter of an hour after the time in its ID. By then the file may have keys that are newer than its copy's by
// more than the window.
func TestKeyOutlastsTheWindowByTheSlack(t *testing.T) {
	k := keys{window: time.Hour, most: 10, now: epoch.Add(2 * time.Hour).UnixMilli()}
	at := func(after time.Duration) queue.ID { return queue.NewID(epoch.Add(after), 1, 1) }
	k.record("order-17", at(0))
	k.record("another", at(70*time.Minute))
	k.forget()
	late := &queue.Message{ID: at(59 * time.Minute), Headers: map[string]string{queue.KeyHeader: "order-17"}}
	if !k.copied(late) {
		t.Error("the key is forgotten when a copy of its message can still arrive")
	}
}
