package storage_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

var firstTime = time.Unix(1_700_000_000, 0)

// replay makes a writer read the records after the last checkpoint, as a worker does.
func replay(storage.Record) error { return nil }

// spoiledFile creates a file of a few MiB and returns its records: sessions that end in a power failure which random blocks survive, large and
// small batches, times out of order by up to a minute.
func spoiledFile(t *testing.T, seed uint64) (mem *storagetest.Mem, path string, all []storage.Record) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	mem = storagetest.NewMem(512)
	n := 0
	for epoch := uint64(1); epoch <= 6; epoch++ {
		w, err := storage.Open(t.Context(), "/data", "orders", epoch,
			storage.Options{FS: mem, CheckpointBatches: 30, Compress: epoch%2 == 0, Replay: replay})
		must(t, err)
		path = w.Path()
		for range 60 {
			var recs []storage.Record
			for range 1 + rng.IntN(4) {
				payload := make([]byte, rng.IntN(12<<10))
				for i := range payload {
					payload[i] = byte(rng.Uint32() >> 9) // incompressible, so that the sizes stay different
				}
				at := firstTime.Add(time.Duration(n)*time.Second + time.Duration(rng.IntN(60_000))*time.Millisecond)
				recs = append(recs, storage.Record{ID: fmt.Appendf(nil, "id-%06d", n), Time: at.UnixNano(), Payload: payload})
				n++
			}
			must(t, w.Append(recs))
			switch rng.IntN(6) {
			case 0, 1, 2:
				_, err = w.Sync()
			case 3:
				if w.CheckpointDue() {
					err = w.Checkpoint(nil)
				}
			}
			must(t, err)
		}
		if epoch%3 == 0 {
			must(t, w.Close())
		} else {
			mem.Crash(storagetest.Crash{Keep: func(string, int64) bool { return rng.IntN(20) > 0 }, KeepSize: func(string) bool { return true }})
		}
	}
	all, errs := salvage(t, mem.ReadFile(path))
	if len(errs) > 0 || len(all) < 100 {
		t.Fatalf("the sample is not healthy: %d records, %v", len(all), errs)
	}
	return mem, path, all
}

// readStart returns the records that a Reader returns, and the offset where it started.
func readStart(t *testing.T, path string, o storage.ReaderOptions) (recs []storage.Record, start int64) {
	t.Helper()
	r, err := storage.OpenReader(path, o)
	must(t, err)
	defer r.Close()
	start = r.Pos()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return recs, start
		}
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		recs = append(recs, copyOf(rec))
	}
}

// askedFor returns the records that a Reader with the options must return.
func askedFor(all []storage.Record, o storage.ReaderOptions) []storage.Record {
	return slices.DeleteFunc(slices.Clone(all), func(r storage.Record) bool {
		return r.Index < o.From || !o.Since.IsZero() && r.When().Before(o.Since)
	})
}

// TestReadersStartAnywhere: wherever a Reader starts, it returns all requested records.
func TestReadersStartAnywhere(t *testing.T) {
	race.Skip(t)
	for seed := range uint64(4) {
		mem, path, all := spoiledFile(t, seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		ahead := map[string]int{}
		for range 100 {
			o := storage.ReaderOptions{FS: mem}
			kind := [...]string{"index", "time", "both"}[rng.IntN(3)]
			if kind != "time" {
				o.From = rng.Uint64N(uint64(len(all) + 3))
			}
			if kind != "index" {
				o.Since = firstTime.Add(time.Duration(rng.IntN(len(all)+120)) * time.Second)
			}
			got, start := readStart(t, path, o)
			if want := askedFor(all, o); !slices.EqualFunc(got, want, equal) {
				t.Fatalf("From %d, Since %v: %d records, want %d (started at byte %d)", o.From, o.Since, len(got), len(want), start)
			}
			if start > 4096 {
				ahead[kind]++
			}
		}
		for _, kind := range []string{"index", "time", "both"} {
			if ahead[kind] < 10 {
				t.Errorf("seed %d: %v readers started ahead", seed, ahead)
			}
		}
	}
}

// TestReaderStartsAtATime: a reader with Since reads the checkpoints from the end back to the one before that time, and the records after it.
// The same holds in a store, where it bounds the number of requests.
func TestReaderStartsAtATime(t *testing.T) {
	const batches = 240
	mem, store := storagetest.NewMem(4096), slotstest.NewMem(1<<20)
	path := marked(t, mem, batches)
	marked(t, slotsOf(store), batches)
	all, _ := readStart(t, path, storage.ReaderOptions{FS: mem})
	behind := all[len(all)/2+1].When() // the checkpoint in the middle
	first := func(o storage.ReaderOptions) {
		t.Helper()
		o.Since = behind
		r, err := storage.OpenReader(path, o)
		must(t, err)
		defer r.Close()
		if rec, err := r.Next(); err != nil || rec.Index != uint64(len(all)/2+1) {
			t.Fatalf("%d, %v", rec.Index, err)
		}
	}
	read := int64(0)
	first(storage.ReaderOptions{FS: &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpRead {
			read += c.Len
		}
		return nil
	}}})
	if read > 2<<20 { // of 19 MiB
		t.Errorf("%d bytes were read", read)
	}
	var slots atomic.Int64
	first(storage.ReaderOptions{FS: slotsOf(&slotstest.Tap{Store: store, Before: func(c slotstest.Call) *slotstest.Fault {
		if c.Op == slotstest.OpRead {
			slots.Add(1)
		}
		return nil
	}})})
	if n := slots.Load(); n > 60 { // of 240; each first read of several in a row reads 4 MiB ahead
		t.Errorf("%d of the slots were read", n)
	}
}

// TestTimesThatAreNotKnown: a checkpoint of an earlier version does not state the times before it, and a writer without Replay does not know them.
// Later times do not hide that.
func TestTimesThatAreNotKnown(t *testing.T) {
	at := func(n int, after time.Duration) []storage.Record {
		return []storage.Record{{ID: fmt.Appendf(nil, "id-%d", n), Time: firstTime.Add(after).UnixNano()}}
	}
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem, Replay: replay})
	mustAppend(t, w, at(0, time.Hour))
	must(t, w.Close())
	w = mustOpen(t, "/d", 2, storage.Options{FS: mem}) // does not read the times
	mustAppend(t, w, at(1, time.Minute))
	must(t, w.Checkpoint(nil))
	mustAppend(t, w, at(2, 2*time.Minute))
	must(t, w.Close())
	w = mustOpen(t, "/d", 3, storage.Options{FS: mem, Replay: replay}) // starts at a checkpoint with an unknown time
	mustAppend(t, w, at(3, 3*time.Minute))
	must(t, w.Checkpoint(nil))
	mustAppend(t, w, at(4, 4*time.Minute))
	must(t, w.Close())
	for minutes := range 6 {
		o := storage.ReaderOptions{FS: mem, Since: firstTime.Add(time.Duration(minutes) * time.Minute)}
		got, start := readStart(t, w.Path(), o)
		if len(got) != min(5, 6-minutes) || got[0].Index != 0 || start != 4096 {
			t.Errorf("since minute %d: %d records, started at byte %d", minutes, len(got), start)
		}
	}
	// A successor starts over.
	w = mustOpen(t, "/d", 4, storage.Options{FS: mem, Replay: replay})
	next, err := w.Rotate(t.Context(), nil)
	must(t, err)
	mustAppend(t, next, at(5, 5*time.Minute))
	must(t, next.Checkpoint(nil))
	mustAppend(t, next, at(6, 6*time.Minute))
	must(t, next.Close())
	for minutes, want := range map[int]int{0: 2, 5: 2, 6: 1, 7: 0} {
		o := storage.ReaderOptions{FS: mem, Since: firstTime.Add(time.Duration(minutes) * time.Minute)}
		if got, start := readStart(t, next.Path(), o); len(got) != want || start == 4096 {
			t.Errorf("since minute %d: %d records, want %d; started at byte %d", minutes, len(got), want, start)
		}
	}
}

// TestMarkIntoVoid: after a batch torn by a power failure lies one that is whole and at its intended offset, but void. No reader
// starts at it, even if a checkpoint names it.
func TestMarkIntoVoid(t *testing.T) {
	b := newBuilder()
	b.region(1, 77, storage.Holder{})
	payload := bytes.Repeat([]byte("x"), 70<<10)
	add := func(n, count int) {
		recs := messages(n, count)
		recs[0].Payload = payload
		b.batch(recs, 0)
	}
	add(0, 2)
	b.synced = int64(len(b.data))
	add(2, 3)
	b.synced = int64(len(b.data))
	accepted, next, chain, anchor := b.end, b.next, b.chain, b.anchor
	add(5, 2)
	clear(b.data[accepted+4096 : accepted+8192]) // torn
	void, voidTime := int64(len(b.data)), messages(7, 1)[0].Time
	add(7, 4)
	add(11, 1)
	b.end, b.next, b.chain, b.anchor = accepted, next, chain, anchor
	b.region(2, 78, storage.Holder{})
	add(5, 9)
	b.synced = int64(len(b.data))
	b.add("FPC1", storage.MarkedCheckpointBody(0, 7, void, voidTime), 0, 0, 0)
	add(14, 1)
	all, _ := salvage(t, b.data)
	if rep := verifyBytes(t, b.data); rep.Err() != nil || len(rep.Void) != 1 || len(all) != 15 {
		t.Fatalf("scenario: %d records, %+v", len(all), rep)
	}
	for from := range uint64(16) {
		o := storage.ReaderOptions{FS: storage.BytesFS(b.data), From: from}
		if got, start := readStart(t, "void.fpl", o); !slices.EqualFunc(got, askedFor(all, o), equal) || start == void {
			t.Errorf("from %d: %d records, started at %d", from, len(got), start)
		}
	}
}
