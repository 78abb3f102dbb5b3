package queuetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// testFileRegistry: the first file that is registered stays, another file changes nothing, and epoch and durable index only grow. A worker
// that opens the wrong file is refused because of this.
func testFileRegistry(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	mine := queue.RegistryEntry{FileID: [16]byte{1, 0, 0xff}, Generation: 1, Epoch: 5, DurableIndex: 100}
	if _, ok, err := q.RegistryEntry(ctx, "orders"); ok || err != nil {
		t.Fatalf("RegistryEntry = %v, %v before it was registered", ok, err)
	}
	if updated, err := q.UpdateFile(ctx, "orders", mine); updated || err != nil {
		t.Fatalf("UpdateFile = %v, %v before it was registered", updated, err)
	}
	if got, err := q.RegisterFile(ctx, "orders", mine); got != mine || err != nil {
		t.Fatalf("RegisterFile = %+v, %v", got, err)
	}
	want := func(f queue.RegistryEntry) {
		t.Helper()
		if got, ok, err := q.RegistryEntry(ctx, "orders"); got != f || !ok || err != nil {
			t.Errorf("RegistryEntry = %+v, %v, %v, want %+v", got, ok, err, f)
		}
	}
	want(mine)
	other := queue.RegistryEntry{FileID: [16]byte{2}, Epoch: 9, DurableIndex: 999}
	if got, err := q.RegisterFile(ctx, "orders", other); got != mine || err != nil {
		t.Errorf("RegisterFile of another file = %+v, %v: set once", got, err)
	}
	if updated, err := q.UpdateFile(ctx, "orders", other); updated || err != nil {
		t.Errorf("UpdateFile of another file = %v, %v", updated, err)
	}
	want(mine)
	for _, step := range []struct{ epoch, index, wantEpoch, wantIndex uint64 }{
		{5, 101, 5, 101}, {6, 50, 6, 101}, {1, 1, 6, 101}, {6, 101, 6, 101}, {0, 200, 6, 200}, {1 << 62, 1 << 62, 1 << 62, 1 << 62},
	} {
		updated, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: mine.FileID, Epoch: step.epoch, DurableIndex: step.index})
		if !updated || err != nil {
			t.Errorf("UpdateFile = %v, %v", updated, err)
		}
		want(queue.RegistryEntry{FileID: mine.FileID, Generation: 1, Epoch: step.wantEpoch, DurableIndex: step.wantIndex})
	}
	if _, ok, err := q.RegistryEntry(ctx, "orders0"); ok || err != nil {
		t.Errorf("another type has a file: %v, %v", ok, err)
	}
	// A place is set and replaced, but never removed.
	moved := queue.RegistryEntry{FileID: mine.FileID, Generation: 1, Epoch: 1 << 62, DurableIndex: 1 << 62}
	for _, step := range [][2]string{{"", ""}, {"a:/data", "a:/data"}, {"", "a:/data"}, {"s3://b/ö", "s3://b/ö"}} {
		if updated, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: mine.FileID, Place: step[0]}); !updated || err != nil {
			t.Errorf("UpdateFile = %v, %v", updated, err)
		}
		moved.Place = step[1]
		want(moved)
	}
	first := queue.RegistryEntry{FileID: [16]byte{3}, Generation: 1, Place: "mongodb:"}
	if got, err := q.RegisterFile(ctx, "orders", first); got != moved || err != nil {
		t.Errorf("RegisterFile of another file = %+v, %v: set once", got, err)
	}
	if got, err := q.RegisterFile(ctx, "orders1", first); got != first || err != nil {
		t.Errorf("RegisterFile = %+v, %v", got, err)
	}
	for _, place := range []string{"", "a:/data"} {
		next := queue.RegistryEntry{FileID: [16]byte{4, byte(len(place))}, Generation: 2, Place: place}
		now, ok, err := q.SucceedFile(ctx, "orders1", first.FileID, next)
		if next.Place == "" {
			next.Place = first.Place
		}
		if now != next || !ok || err != nil {
			t.Errorf("SucceedFile = %+v, %v, %v, want %+v", now, ok, err, next)
		}
		first = next
	}
	if types, err := q.Types(ctx); err != nil || !slices.Equal(types, []string{"orders", "orders1"}) {
		t.Errorf("Types = %v, %v: a type with only a file must be listed", types, err)
	}
}

// testFileRace: of many concurrent registrations one wins, and all callers learn which; values never decrease.
func testFileRace(t *testing.T, open func(t *testing.T) queue.Queue) {
	const processes, each = 4, 4
	var mu sync.Mutex
	registered := map[[16]byte]bool{}
	var wg sync.WaitGroup
	for p := range processes {
		q := open(t)
		for g := range each {
			wg.Go(func() {
				got, err := q.RegisterFile(t.Context(), "orders", queue.RegistryEntry{FileID: [16]byte{byte(p + 1), byte(g + 1)}})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				registered[got.FileID] = true
				mu.Unlock()
				top := uint64(0)
				for i := range uint64(10) {
					v := i*processes*each + uint64(p*each+g)
					if ok, err := q.UpdateFile(t.Context(), "orders", queue.RegistryEntry{FileID: got.FileID, Epoch: v, DurableIndex: 2 * v}); !ok || err != nil {
						t.Errorf("UpdateFile = %v, %v", ok, err)
					}
					f, _, err := q.RegistryEntry(t.Context(), "orders")
					if err != nil || f.Epoch < top || f.Epoch < v || f.DurableIndex < 2*v {
						t.Errorf("RegistryEntry = %+v, %v after %d was written and %d seen", f, err, v, top)
					}
					top = f.Epoch
				}
			})
		}
	}
	wg.Wait()
	if len(registered) != 1 {
		t.Errorf("%d different files won: %v", len(registered), registered)
	}
	f, ok, err := open(t).RegistryEntry(t.Context(), "orders")
	if want := uint64(10*processes*each - 1); !ok || err != nil || f.Epoch != want || f.DurableIndex != 2*want {
		t.Errorf("RegistryEntry = %+v, %v, %v, want the highest values, %d", f, ok, err, want)
	}
}

// testAckFile: raising the registry entry and removing messages are one atomic step, which only the registered writer may take.
func testAckFile(t *testing.T, open func(t *testing.T) queue.Queue) {
	ctx, q, other := t.Context(), open(t), open(t)
	file := func(id byte, epoch, index uint64) queue.RegistryEntry {
		return queue.RegistryEntry{FileID: [16]byte{id, 0, 0xff}, Generation: 1, Epoch: epoch, DurableIndex: index}
	}
	msgs := numbered("orders", 1, 60)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders0", numbered("orders0", 1, 1))
	left := 60
	ack := func(q queue.Queue, f queue.RegistryEntry, n int, wantOK bool, want queue.RegistryEntry) {
		t.Helper()
		if ok, err := q.AckFile(ctx, "orders", f, ids(msgs[:n])); ok != wantOK || err != nil {
			t.Fatalf("AckFile(%+v) = %v, %v, want %v", f, ok, err, wantOK)
		}
		if wantOK {
			msgs, left = msgs[n:], left-n
		}
		if got := fetchAll(t, other, "orders"); len(got) != left {
			t.Errorf("%d messages are pending after AckFile(%+v), want %d", len(got), f, left)
		}
		if got, _, err := other.RegistryEntry(ctx, "orders"); got != want || err != nil {
			t.Errorf("RegistryEntry = %+v, %v after AckFile(%+v), want %+v", got, err, f, want)
		}
	}
	ack(q, file(1, 5, 10), 10, false, queue.RegistryEntry{}) // no file is registered, before or after
	register(t, q, file(1, 5, 0))
	ack(q, file(1, 5, 10), 10, true, file(1, 5, 10))
	ack(q, file(1, 5, 20), 25, true, file(1, 5, 20))
	ack(q, file(1, 5, 3), 1, true, file(1, 5, 20)) // a lower index changes nothing
	ack(q, file(2, 9, 99), 3, false, file(1, 5, 20))
	ack(other, file(1, 6, 21), 1, true, file(1, 6, 21)) // a later writer …
	ack(q, file(1, 5, 99), 3, false, file(1, 6, 21))    // … and from then on no earlier one
	ack(q, file(1, 6, 22), 0, true, file(1, 6, 22))
	if ok, err := q.AckFile(ctx, "orders", file(1, 6, 22), ids(numbered("orders", 1, 5))); !ok || err != nil {
		t.Errorf("AckFile of messages that are gone = %v, %v", ok, err)
	}
	next := file(2, 7, 22)
	if _, ok, err := q.SucceedFile(ctx, "orders", file(1, 0, 0).FileID, next); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ack(q, file(1, 7, 99), 3, false, next) // the file's successor is registered
	ack(q, file(2, 7, 40), len(msgs), true, file(2, 7, 40))
	if got := fetchAll(t, q, "orders0"); len(got) != 1 {
		t.Errorf("%d messages of another type, want 1", len(got))
	}
}

// register registers a file and fails the test unless it is the one that is registered.
func register(t *testing.T, q queue.Queue, f queue.RegistryEntry) {
	t.Helper()
	got, err := q.RegisterFile(t.Context(), "orders", f)
	if f.Generation = max(f.Generation, 1); got != f || err != nil {
		t.Fatalf("RegisterFile = %+v, %v, want %+v", got, err, f)
	}
}

// testFileSuccession: a successor takes the entry over from the file that it names, and from no other; values never decrease.
func testFileSuccession(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	id := func(b byte) [16]byte { return [16]byte{b, 0, 0xff} }
	succeed := func(old byte, f, want queue.RegistryEntry) {
		t.Helper()
		now, ok, err := q.SucceedFile(ctx, "orders", id(old), f)
		if now != want || !ok || err != nil {
			t.Errorf("SucceedFile(%d, %+v) = %+v, %v, %v, want %+v", old, f, now, ok, err, want)
		}
		if now, ok, err := q.RegistryEntry(ctx, "orders"); now != want || !ok || err != nil {
			t.Errorf("RegistryEntry = %+v, %v, %v after SucceedFile(%d, %+v), want %+v", now, ok, err, old, f, want)
		}
	}
	second := queue.RegistryEntry{FileID: id(2), Generation: 2, Epoch: 7, DurableIndex: 120}
	if now, ok, err := q.SucceedFile(ctx, "orders", id(1), second); ok || err != nil || now != (queue.RegistryEntry{}) {
		t.Errorf("SucceedFile of a type without a file = %+v, %v, %v", now, ok, err)
	}
	if _, ok, err := q.RegistryEntry(ctx, "orders"); ok || err != nil {
		t.Fatalf("it made an entry: %v, %v", ok, err)
	}
	register(t, q, queue.RegistryEntry{FileID: id(1), Epoch: 5, DurableIndex: 100}) // generation 1 by default
	succeed(1, second, second)
	succeed(1, second, second) // repeated after an unclear answer
	succeed(1, queue.RegistryEntry{FileID: id(9), Generation: 2, Epoch: 99, DurableIndex: 999}, second)
	succeed(8, queue.RegistryEntry{FileID: id(9), Generation: 3, Epoch: 99, DurableIndex: 999}, second)
	if ok, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: id(1), Epoch: 99, DurableIndex: 999}); ok || err != nil {
		t.Errorf("UpdateFile of the predecessor = %v, %v", ok, err)
	}
	if ok, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{FileID: id(2), Epoch: 8, DurableIndex: 150}); !ok || err != nil {
		t.Errorf("UpdateFile of the successor = %v, %v", ok, err)
	}
	succeed(1, second, queue.RegistryEntry{FileID: id(2), Generation: 2, Epoch: 8, DurableIndex: 150}) // a late retry: no value decreases
	if got, err := q.RegisterFile(ctx, "orders", queue.RegistryEntry{FileID: id(1)}); got.FileID != id(2) || err != nil {
		t.Errorf("RegisterFile of the predecessor = %+v, %v", got, err)
	}
	third := queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 1, DurableIndex: 2}
	succeed(2, third, queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 8, DurableIndex: 150})
	succeed(1, second, queue.RegistryEntry{FileID: id(3), Generation: 3, Epoch: 8, DurableIndex: 150}) // executed much too late
	succeed(3, queue.RegistryEntry{FileID: id(4)}, queue.RegistryEntry{FileID: id(4), Generation: 1, Epoch: 8, DurableIndex: 150})
	if _, ok, err := q.RegistryEntry(ctx, "orders0"); ok || err != nil {
		t.Errorf("another type has a file: %v, %v", ok, err)
	}
}

// testFileSuccessionRace: of many concurrent successors of one file exactly one wins, and all callers learn which.
func testFileSuccessionRace(t *testing.T, open func(t *testing.T) queue.Queue) {
	const processes, rounds = 4, 8
	last := queue.RegistryEntry{Generation: 1}
	register(t, open(t), last)
	queues := make([]queue.Queue, processes)
	for p := range queues {
		queues[p] = open(t)
	}
	for round := range rounds {
		var mu sync.Mutex
		registered := map[queue.RegistryEntry]bool{}
		var wg sync.WaitGroup
		for p, q := range queues {
			wg.Go(func() {
				mine := queue.RegistryEntry{FileID: [16]byte{byte(p + 1), byte(round + 1)}, Generation: uint64(round + 2), Epoch: uint64(round), DurableIndex: uint64(round)}
				now, ok, err := q.SucceedFile(t.Context(), "orders", last.FileID, mine)
				if !ok || err != nil {
					t.Errorf("SucceedFile = %v, %v", ok, err)
				}
				mu.Lock()
				registered[now] = true
				mu.Unlock()
			})
		}
		wg.Wait()
		now, ok, err := queues[0].RegistryEntry(t.Context(), "orders")
		if len(registered) != 1 || !registered[now] || now.FileID == last.FileID || !ok || err != nil {
			t.Fatalf("round %d: File = %+v, %v, %v, the callers were told %v", round, now, ok, err, registered)
		}
		last = now
	}
}

// testFileSuccessionFaults: a retry succeeds, whether the answer or the operation was lost.
func testFileSuccessionFaults(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	last := queue.RegistryEntry{Generation: 1}
	register(t, q, last)
	for i, kind := range []Kind{LostAnswer, Lost, HangPerformed, Hang, Unreachable} {
		var used bool
		faulty := &Faulty{Queue: q, Next: func(op Op, _ string, _ int) Fault {
			if used || op != OpSucceedFile {
				return Fault{}
			}
			used = true
			return Fault{Kind: kind}
		}}
		next := queue.RegistryEntry{FileID: [16]byte{byte(i + 1)}, Generation: last.Generation + 1, Epoch: uint64(i), DurableIndex: uint64(i)}
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		if _, ok, err := faulty.SucceedFile(short, "orders", last.FileID, next); ok || err == nil {
			t.Errorf("kind %d: SucceedFile = %v, %v", kind, ok, err)
		}
		cancel()
		if now, ok, err := faulty.SucceedFile(ctx, "orders", last.FileID, next); now != next || !ok || err != nil {
			t.Errorf("kind %d: repeated SucceedFile = %+v, %v, %v, want %+v", kind, now, ok, err, next)
		}
		last = next
	}
}
