package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// salvaged repairs the file of type orders in /d.
func salvaged(t *testing.T, mem *storagetest.Mem, epoch uint64, o storage.Options) (*storage.CompactReport, error) {
	t.Helper()
	o.FS, o.Salvage = mem, true
	w, err := storage.Open(t.Context(), "/d", "orders", epoch, o)
	if err != nil {
		return nil, err
	}
	next, report, err := w.Compact(t.Context(), nil, storage.CompactOptions{})
	if err == nil {
		must(t, next.Close())
	}
	return report, err
}

// TestRepairOfMuchDamage: for a file full of damage a repair keeps the first errors and counts all of them, each once.
func TestRepairOfMuchDamage(t *testing.T) {
	const batches = 10_500
	for _, replay := range []func(storage.Record) error{nil, func(storage.Record) error { return nil }} {
		b := newBuilder()
		b.region(1, 1000, storage.Holder{})
		b.batch(messages(0, 1), 0)
		for range batches {
			b.add("FPB1", []byte{9}, 1, 0, 0) // not a valid batch
		}
		mem := storagetest.NewMem(4096)
		must(t, mem.Mkdir("/d"))
		mem.WriteFile("/d/orders.fpl", b.data)
		report, err := salvaged(t, mem, 2, storage.Options{Replay: replay})
		must(t, err)
		if len(report.Damage) != 10_000 || report.DamageCount != batches || report.Lost != batches {
			t.Errorf("replayed %v: %d errors of %d, %d lost", replay != nil, len(report.Damage), report.DamageCount, report.Lost)
		}
		distinct := map[string]bool{}
		for _, err := range report.Damage {
			distinct[err.Error()] = true
		}
		if len(distinct) != len(report.Damage) {
			t.Errorf("replayed %v: %d different errors", replay != nil, len(distinct))
		}
	}
}

// TestManyRetractions: the kept retractions give the same answer for every record as all of them, and redundant ones are not kept.
func TestManyRetractions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := make([]storage.Retraction, rnd.IntN(20))
		for i := range all {
			all[i] = storage.Retraction{Offset: int64(i*10 + 10), First: rnd.Uint64N(30)}
		}
		_, retracted := storage.Retracted(all)
		for off := int64(0); off < 230; off += 5 {
			for base := range uint64(32) {
				want := slices.ContainsFunc(all, func(r storage.Retraction) bool { return off < r.Offset && base >= r.First })
				if retracted(off, base) != want {
					t.Fatalf("%v: the batch %d at %d: %v, want %v", all, base, off, !want, want)
				}
			}
		}
	}
	again := make([]storage.Retraction, 100_000)
	for i := range again {
		again[i] = storage.Retraction{Offset: int64(i), First: 7}
	}
	if kept, _ := storage.Retracted(again); kept != 1 {
		t.Errorf("%d retractions from the same index are kept", kept)
	}
}

// TestRepairOfAFirstCheckpoint: if the checkpoint at the start of a successor does not decode, a repair omits it if a later one has the
// state. Without a state the repair requires AcceptLoss.
func TestRepairOfAFirstCheckpoint(t *testing.T) {
	for _, later := range []bool{true, false} {
		mem := storagetest.NewMem(4096)
		w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
		mustAppend(t, w, messages(0, 3))
		w, err := w.Rotate(t.Context(), []byte("first"))
		must(t, err)
		must(t, w.Close())
		mem.WriteFile(w.Path(), spoilState(t, mem.ReadFile(w.Path())))
		w = mustOpen(t, "/d", 2, storage.Options{FS: mem})
		mustAppend(t, w, messages(3, 2))
		if later {
			must(t, w.Checkpoint([]byte("later")))
		}
		must(t, w.Close())

		var state []byte
		o := storage.Options{Restore: func(b []byte) error { state = bytes.Clone(b); return nil }}
		report, err := salvaged(t, mem, 3, o)
		if !later {
			if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "the checkpoint at the start of every successor is missing") {
				t.Fatalf("without a state: %v", err)
			}
			o.AcceptLoss = true
			report, err = salvaged(t, mem, 4, o)
		}
		must(t, err)
		if report.Records != 2 || report.Lost != 0 || report.DamageCount != 1 || later != (string(state) == "later") {
			t.Errorf("%+v, state %q", report, state)
		}
	}
}

// spoilState makes the state of the first checkpoint of a file longer than its body, with good checksums. It is the last record.
func spoilState(t *testing.T, data []byte) []byte {
	t.Helper()
	table, le := crc32.MakeTable(crc32.Castagnoli), binary.LittleEndian
	head := bytes.Index(data, slices.Concat(data[32:48], []byte("FPC1"))) + 16
	if head < 16 {
		t.Fatal("no checkpoint")
	}
	h := data[head : head+96]
	state := data[head+96:][:le.Uint32(h[40:])]
	state[9]++ // the length of the state, after prev_checkpoint and no marks
	seed := crc32.Checksum(data[16:32], table)
	le.PutUint32(h[88:], crc32.Update(seed, table, data[head+96:]))
	le.PutUint32(h[4:], crc32.Update(crc32.Update(seed, table, h[:4]), table, h[8:]))
	return data
}
