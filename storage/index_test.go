package storage_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// indexed is a file on disk, with all that is in it.
type indexed struct {
	path    string
	data    []byte
	records []storage.Record
}

func (x *indexed) write(t testing.TB, data []byte) {
	t.Helper()
	must(t, os.WriteFile(x.path, data, 0o600))
}

var indexEpoch = time.Unix(1_700_000_000, 0)

// newIndexed writes a file of a few MiB: sessions that end in a power failure of which any blocks survive, large and small
// batches, times out of order.
func newIndexed(t testing.TB, seed uint64) *indexed {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	mem := storagetest.NewMem(512)
	n := 0
	for epoch := uint64(1); epoch <= 6; epoch++ {
		w, err := storage.Open(t.Context(), "/data", "orders", epoch, storage.Options{FS: mem, CheckpointBatches: 30, Compress: epoch%2 == 0})
		must(t, err)
		for range 60 {
			var recs []storage.Record
			for range 1 + rng.IntN(4) {
				// Out of order by up to a minute; random bytes, so that compression leaves the sizes apart.
				payload := make([]byte, rng.IntN(12<<10))
				for i := range payload {
					payload[i] = byte(rng.Uint32() >> 9)
				}
				at := indexEpoch.Add(time.Duration(n)*time.Second + time.Duration(rng.IntN(60_000))*time.Millisecond)
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
	x := &indexed{path: filepath.Join(t.TempDir(), "orders.fpl"), data: mem.ReadFile("/data/orders.fpl")}
	x.write(t, x.data)
	records, errs := salvage(t, x.data)
	if len(errs) > 0 || len(records) < 100 {
		t.Fatalf("the sample is not healthy: %d records, %v", len(records), errs)
	}
	x.records = records
	return x
}

// read returns what a Reader returns, and where it started.
func (x *indexed) read(t testing.TB, o storage.ReaderOptions) (recs []storage.Record, start int64) {
	t.Helper()
	r, err := storage.OpenReader(x.path, o)
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

// check compares what Readers return with all that is in the file, for many starts. It returns how many of them started
// where an index led them, and how many of these may as well have followed the marks of a checkpoint.
func (x *indexed) check(t testing.TB, rng *rand.Rand, n int) (used, marked int) {
	t.Helper()
	for range n {
		var o storage.ReaderOptions
		if rng.IntN(3) > 0 {
			o.From = rng.Uint64N(uint64(len(x.records) + 3))
		}
		if rng.IntN(3) > 0 {
			o.Since = indexEpoch.Add(time.Duration(rng.IntN(len(x.records)+120)) * time.Second)
		}
		want := slices.DeleteFunc(slices.Clone(x.records), func(r storage.Record) bool {
			return r.Index < o.From || !o.Since.IsZero() && r.When().Before(o.Since)
		})
		got, start := x.read(t, o)
		if !slices.EqualFunc(got, want, equal) {
			t.Fatalf("From %d, Since %v: %d records, want %d (started at byte %d)", o.From, o.Since, len(got), len(want), start)
		}
		if b := x.data[start:]; start > 4096 && string(b[:4]) == "FPB1" { // the ordinary way starts at anchors
			used++
			if o.From > 0 {
				marked++
			}
		}
	}
	return used, marked
}

func (x *indexed) build(t testing.TB, want storage.IndexState) *storage.IndexReport {
	t.Helper()
	r, err := storage.BuildIndex(t.Context(), x.path, storage.IndexOptions{})
	must(t, err)
	if r.State != want {
		t.Errorf("the index is %s (%s), want %s", r.State, r.Reason, want)
	}
	return r
}

func (x *indexed) checkIndex(t *testing.T) error {
	t.Helper()
	_, err := storage.BuildIndex(t.Context(), x.path, storage.IndexOptions{Check: true})
	return err
}

// TestIndexChangesNothing: with a side index, of all of the file or of an earlier state of it, a Reader returns exactly what
// it returns without.
func TestIndexChangesNothing(t *testing.T) {
	for seed := range uint64(4) {
		x := newIndexed(t, seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		if used, marked := x.check(t, rng, 40); used > marked {
			t.Errorf("%d readers started at a batch without an index", used-marked)
		}
		early := len(x.data)/2 + rng.IntN(len(x.data)/4)
		x.write(t, x.data[:early])
		x.build(t, storage.IndexFresh)
		x.write(t, x.data)
		must(t, x.checkIndex(t))
		if used, _ := x.check(t, rng, 40); used == 0 {
			t.Error("no reader used an index that is behind its file")
		}
		extended := x.build(t, storage.IndexExtended)
		must(t, x.checkIndex(t))
		content, err := os.ReadFile(storage.IndexName(x.path))
		must(t, err)
		if used, _ := x.check(t, rng, 60); used < 20 {
			t.Errorf("only %d of 60 readers used the index", used)
		}
		x.build(t, storage.IndexUnchanged)
		must(t, os.Remove(storage.IndexName(x.path)))
		fresh := x.build(t, storage.IndexFresh)
		if again, err := os.ReadFile(storage.IndexName(x.path)); err != nil || !bytes.Equal(content, again) {
			t.Errorf("seed %d: extending gives another index than building: %+v, %+v", seed, extended, fresh)
		}
		if want := len(x.data) / (128 << 10); fresh.Entries < want || fresh.Covered < int64(len(x.data))*9/10 || fresh.Size != int64(len(x.data)) {
			t.Errorf("%+v, want at least %d entries", fresh, want)
		}
	}
}

const idxHeader, idxEntry = 56, 48

// entries splits an index file.
func entries(b []byte) (list [][]byte) {
	for b = b[idxHeader : len(b)-4]; len(b) > 0; b = b[idxEntry:] {
		list = append(list, b[:idxEntry])
	}
	return list
}

// reseal makes the checksum right again.
func reseal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestLyingIndex: an index that is damaged, or that has a good checksum and does not tell the truth, changes nothing.
func TestLyingIndex(t *testing.T) {
	x := newIndexed(t, 11)
	rng := rand.New(rand.NewPCG(11, 2))
	x.build(t, storage.IndexFresh)
	good, err := os.ReadFile(storage.IndexName(x.path))
	must(t, err)
	count := len(entries(good))
	lie := func(name string, content []byte, wrong bool) {
		t.Helper()
		must(t, os.WriteFile(storage.IndexName(x.path), content, 0o600))
		x.check(t, rng, 12)
		if err := x.checkIndex(t); wrong != (err != nil) || wrong && !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("%s: check says %v", name, err)
		}
	}
	lie("good", good, false)
	for name, field := range map[string]int{"index": 0, "offset": 8, "epoch": 16, "session": 24, "chain": 40} {
		for _, delta := range []uint64{1, 8, 1 << 16, 1 << 40, math.MaxUint64, math.MaxUint64 - 7} {
			b := bytes.Clone(good)
			for _, e := range entries(b) { // all of them, so that it is met
				binary.LittleEndian.PutUint64(e[field:], binary.LittleEndian.Uint64(e[field:])+delta)
			}
			lie(fmt.Sprint(name, " + ", int64(delta)), reseal(b), true)
		}
	}
	shifted := bytes.Clone(good)
	list := entries(shifted)
	for i := range list[:count-1] { // offsets and indexes of the next one
		copy(list[i][:16], entries(good)[i+1][:16])
	}
	lie("shifted", reseal(shifted), true)
	for _, n := range []int{0, 1, 7, 8, 55, 56, 60, 100, len(good) / 2, len(good) - 4, len(good) - 1} {
		lie(fmt.Sprint("cut to ", n), good[:n], true)
	}
	lie("longer", append(bytes.Clone(good), 0), true)
	later := bytes.Clone(good) // too high a time only makes a reader start earlier
	for _, e := range entries(later) {
		binary.LittleEndian.PutUint64(e[32:], math.MaxInt64)
	}
	lie("times", reseal(later), true)
	for range 60 {
		b := bytes.Clone(good)
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		lie("a bit", b, true)
	}
	other := newIndexed(t, 12)
	other.build(t, storage.IndexFresh)
	foreign, err := os.ReadFile(storage.IndexName(other.path))
	must(t, err)
	lie("of another file", foreign, true)
	adopted := bytes.Clone(foreign)
	copy(adopted[8:24], good[8:24])
	lie("of another file, with this one's identity", reseal(adopted), true)
	x.build(t, storage.IndexRebuilt)
	if b, err := os.ReadFile(storage.IndexName(x.path)); err != nil || !bytes.Equal(b, good) {
		t.Error("what was rebuilt is not what was built")
	}
	must(t, os.Remove(storage.IndexName(x.path)))
	if err := x.checkIndex(t); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no index: check says %v", err)
	}
	must(t, os.Mkdir(storage.IndexName(x.path), 0o700))
	x.check(t, rng, 5)
}

// TestIndexIntoVoid: behind a batch that was torn by a power failure lies one that is whole, where its writer put it, and void.
// An index that names it leads nobody there.
func TestIndexIntoVoid(t *testing.T) {
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
	void := [...]uint64{b.next, uint64(len(b.data)), b.epoch, b.session, uint64(math.MinInt64 & math.MaxUint64), b.chain}
	add(7, 4)
	add(11, 1)
	b.end, b.next, b.chain, b.anchor = accepted, next, chain, anchor
	b.region(2, 78, storage.Holder{})
	add(5, 9)
	b.synced = int64(len(b.data))
	add(14, 1)
	x := &indexed{path: filepath.Join(t.TempDir(), "orders.fpl"), data: b.data}
	x.write(t, b.data)
	x.records, _ = salvage(t, b.data)
	if rep := verifyBytes(t, b.data); rep.Err() != nil || len(rep.Void) != 1 || len(x.records) != 15 {
		t.Fatalf("scenario: %d records, %+v", len(x.records), rep)
	}
	x.build(t, storage.IndexFresh)
	good, err := os.ReadFile(storage.IndexName(x.path))
	must(t, err)
	lying := bytes.Clone(good[:idxHeader+idxEntry+4])
	binary.LittleEndian.PutUint64(lying[48:], 1)
	for i, v := range void {
		binary.LittleEndian.PutUint64(lying[idxHeader+8*i:], v)
	}
	must(t, os.WriteFile(storage.IndexName(x.path), reseal(lying), 0o600))
	for from := range uint64(16) {
		got, start := x.read(t, storage.ReaderOptions{From: from})
		if !slices.EqualFunc(got, x.records[min(from, 15):], equal) || start == int64(void[1]) {
			t.Errorf("from %d: %d records, started at %d", from, len(got), start)
		}
	}
	if err := x.checkIndex(t); !errors.Is(err, storage.ErrIntegrity) {
		t.Errorf("check says %v", err)
	}
	x.build(t, storage.IndexRebuilt)
}

// TestIndexIntoUnreadableBytes: an index may lead a reader to bytes that the device cannot read, and that the ordinary way does
// not need. The reader takes the ordinary way then, and reports no error.
func TestIndexIntoUnreadableBytes(t *testing.T) {
	x := newIndexed(t, 31)
	var bad int64 // the byte that cannot be read
	broken, touched := false, false
	o := storage.ReaderOptions{FS: &storagetest.Tap{FS: storage.OS(), Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op != storagetest.OpRead || c.Name != x.path || bad < c.Off || bad >= c.Off+c.Len {
			return nil
		}
		touched = true
		if !broken {
			return nil
		}
		return &storagetest.Fault{Err: syscall.EIO}
	}}}
	x.build(t, storage.IndexFresh)
	led := map[uint64]int64{} // where the index leads a reader that starts here
	for from := uint64(0); from < uint64(len(x.records)); from += 5 {
		o.From = from
		_, led[from] = x.read(t, o)
	}
	content, err := os.ReadFile(storage.IndexName(x.path))
	must(t, err)
	must(t, os.Remove(storage.IndexName(x.path)))
	var starts []uint64 // of them, those from which the ordinary way does not come there
	for _, from := range slices.Sorted(maps.Keys(led)) {
		o.From, bad, touched = from, led[from], false
		if x.read(t, o); !touched {
			starts = append(starts, from)
		}
	}
	must(t, os.WriteFile(storage.IndexName(x.path), content, 0o600))
	broken = true
	for _, from := range starts {
		o.From, bad, touched = from, led[from], false
		if got, _ := x.read(t, o); !slices.EqualFunc(got, x.records[from:], equal) {
			t.Errorf("from %d: %d records, want %d", from, len(got), len(x.records[from:]))
		}
		if !touched {
			t.Errorf("from %d: the reader did not follow the index", from)
		}
	}
	if len(starts) == 0 {
		t.Error("the ordinary way comes everywhere where the index leads")
	}
}

// TestIndexOfDamagedFile: damage is told, and the index that is there stays.
func TestIndexOfDamagedFile(t *testing.T) {
	x := newIndexed(t, 21)
	bad := bytes.Clone(x.data)
	bad[len(bad)/3] ^= 1
	rep := verifyBytes(t, bad)
	if rep.Err() == nil {
		t.Skip("the byte is void")
	}
	x.write(t, bad)
	if _, err := storage.BuildIndex(t.Context(), x.path, storage.IndexOptions{}); !errors.Is(err, storage.ErrIntegrity) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(storage.IndexName(x.path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an index was written: %v", err)
	}
	x.write(t, x.data)
	x.build(t, storage.IndexFresh)
	if info, err := os.Stat(storage.IndexName(x.path)); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if names, err := os.ReadDir(filepath.Dir(x.path)); err != nil || len(names) != 2 {
		t.Errorf("left in the directory: %v, %v", names, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := storage.BuildIndex(ctx, x.path, storage.IndexOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
