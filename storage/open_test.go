package storage_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// rehash writes the correct checksum into a changed header page.
func rehash(b []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[4092:], crc32.Update(crc32.Checksum(b[16:32], table), table, b[:4092]))
	return b
}

// TestRefusedFiles: the file at the path is not the requested one. Nothing is changed, and the error names a remedy.
func TestRefusedFiles(t *testing.T) {
	good := func() []byte {
		return storage.NewHeaderBytes("orders", storage.FileID{1, 2, 3}, [16]byte{4, 5, 6})
	}
	change := func(f func(b []byte)) []byte {
		b := good()
		f(b)
		return b
	}
	for _, c := range []struct {
		name     string
		content  []byte
		want     any // pointer to the error type
		category error
		says     string
		readable bool
	}{
		{"empty", nil, new(*storage.ForeignFileError), storage.ErrRefused, "not a Fencepost file: it is empty; if it was one, something cut it: restore it from a copy", false},
		{"text", []byte("hello, world\n"), new(*storage.ForeignFileError), storage.ErrRefused, "68656c6c6f2c2077", false},
		{"zeros", make([]byte, 8192), new(*storage.ForeignFileError), storage.ErrRefused, "move it away", false},
		{"another PNG-like file", append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, 5000)...), new(*storage.ForeignFileError), storage.ErrRefused, "", false},
		{"cut in the header", good()[:100], new(*storage.HeaderError), storage.ErrIntegrity, "only 100 bytes", false},
		{"text transfer", bytes.ReplaceAll(good(), []byte("\r\n"), []byte("\n")), new(*storage.HeaderError), storage.ErrIntegrity, "text", false},
		{"a bit of the magic", change(func(b []byte) { b[1] ^= 1 }), new(*storage.HeaderError), storage.ErrIntegrity, "first 8 bytes", false},
		{"a bit of the header", change(func(b []byte) { b[60] ^= 1 }), new(*storage.HeaderError), storage.ErrIntegrity, "checksum", false},
		{"a bit of the padding", change(func(b []byte) { b[3000] ^= 1 }), new(*storage.HeaderError), storage.ErrIntegrity, "checksum", false},
		{"major version 2", change(func(b []byte) { b[8] = 2; b[500] = 9 }), new(*storage.VersionError), storage.ErrRefused, "format 2.0", false},
		{"unknown incompat bit", rehash(change(func(b []byte) { b[88] = 4 })), new(*storage.VersionError), storage.ErrRefused, "0x4", false},
		{"unknown ro_compat bit", rehash(change(func(b []byte) { b[92] = 1 })), new(*storage.VersionError), storage.ErrRefused, "0x1", true},
		{"unknown compat bit", rehash(change(func(b []byte) { b[96] = 1 })), nil, nil, "", true},
		{"minor version 7", rehash(change(func(b []byte) { b[10] = 7 })), nil, nil, "", true},
		{"major version 0", rehash(change(func(b []byte) { b[8] = 0 })), new(*storage.HeaderError), storage.ErrIntegrity, "range", false},
		{"long type", rehash(change(func(b []byte) { b[100] = 65 })), new(*storage.HeaderError), storage.ErrIntegrity, "range", false},
		{"invalid type", rehash(change(func(b []byte) { b[104] = '/' })), new(*storage.HeaderError), storage.ErrIntegrity, "type", false},
		{"another type", storage.NewHeaderBytes("audit", storage.FileID{1}, [16]byte{2}), new(*storage.WrongTypeError), storage.ErrRefused, "audit.fpl", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := storagetest.NewMem(4096)
			must(t, mem.Mkdir("/data"))
			mem.WriteFile("/data/orders.fpl", c.content)
			w, err := storage.Open(context.Background(), "/data", "orders", 1, storage.Options{FS: mem})
			if c.want == nil {
				must(t, err)
				must(t, w.Close())
			} else {
				checkError(t, err, c.want, c.category, c.says, "/data/orders.fpl")
				if got := mem.ReadFile("/data/orders.fpl"); !bytes.Equal(got, c.content) {
					t.Error("the file was changed")
				}
			}
			r, err := storage.OpenReader("/data/orders.fpl", storage.ReaderOptions{FS: mem})
			if c.readable != (err == nil) {
				t.Errorf("reader: %v", err)
			}
			if err == nil {
				if _, err := r.Next(); err != io.EOF {
					t.Errorf("reader: %v", err)
				}
				r.Close()
			} else if !errors.Is(err, c.category) {
				t.Errorf("reader: %v", err)
			}
		})
	}
}

func checkError(t *testing.T, err error, want any, category error, says ...string) {
	t.Helper()
	if err == nil || !errors.As(err, want) || !errors.Is(err, category) {
		t.Fatalf("got %v (%T), want %T of category %v", err, err, want, category)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	for _, other := range []error{storage.ErrIntegrity, storage.ErrFenced, storage.ErrNoSpace, storage.ErrRefused, storage.ErrLimit} {
		if other != category && errors.Is(err, other) {
			t.Errorf("%v is also of category %v", err, other)
		}
	}
}

func TestRefusedFileSystems(t *testing.T) {
	for magic, name := range map[int64]string{0xEF53: "", 0x58465342: "", 0x9123683E: "", 0x01021994: "", 0x794C7630: "overlayfs",
		0x6969: "NFS", 0xFE534D42: "SMB", 0x65735546: "FUSE", 0x01021997: "9p", 0x00C36400: "Ceph", 0x123456: "unknown"} {
		mem := storagetest.NewMem(4096)
		mem.FSType = storage.FSType{Magic: magic}
		_, err := storage.Open(context.Background(), "/data/deep/er", "orders", 1, storage.Options{FS: mem})
		if name == "" {
			must(t, err)
			continue
		}
		checkError(t, err, new(*storage.FileSystemError), storage.ErrRefused, name, "ext4")
		if len(mem.Names()) != 0 {
			t.Errorf("%s: created %v", name, mem.Names())
		}
		if err := mem.Mkdir("/data"); err != nil {
			t.Errorf("%s: a directory was created", name)
		}
		_, err = storage.Open(context.Background(), "/data", "orders", 1, storage.Options{FS: mem, AllowOverlay: true})
		if (err == nil) != (name == "overlayfs") {
			t.Errorf("%s with AllowOverlay: %v", name, err)
		}
	}
}

func TestRefusedPaths(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "orders.fpl")
	for name, make := range map[string]func() error{
		"a symbolic link": func() error {
			must(t, mustOpen(t, filepath.Join(dir, "elsewhere"), 1, storage.Options{}).Close())
			return os.Symlink(filepath.Join(dir, "elsewhere", "orders.fpl"), path)
		},
		"a directory": func() error { return os.Mkdir(path, 0o755) },
		"a FIFO":      func() error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			must(t, make())
			if _, err := storage.Open(context.Background(), dir, "orders", 5, storage.Options{}); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
			if _, err := storage.OpenReader(path, storage.ReaderOptions{}); err == nil {
				t.Error("a reader opened it")
			}
			must(t, os.Remove(path))
		})
	}
	for _, typ := range []string{"", "Orders", "../orders", ".orders", "a/b", strings.Repeat("x", 65), "a b", "ä"} {
		if _, err := storage.Open(context.Background(), dir, typ, 5, storage.Options{}); !errors.Is(err, storage.ErrRefused) {
			t.Errorf("type %q: %v", typ, err)
		}
	}
	if _, err := storage.Open(context.Background(), dir, "orders", 0, storage.Options{}); !errors.Is(err, storage.ErrFenced) {
		t.Errorf("epoch 0: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestRegistry: the registry exposes a wrong volume and an old copy. CheckRegistered finds the same, and changes nothing.
func TestRegistry(t *testing.T) {
	refused := func(t *testing.T, x *world, fsys storage.FS, texts ...string) {
		t.Helper()
		checkError(t, storage.CheckRegistered(fsys, x.Dir, "orders", x.Entry), new(*storage.RegistryMismatch), storage.ErrIntegrity, texts...)
		_, err := x.Open(fsys)
		checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, texts...)
	}
	t.Run("the registered file", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		must(t, x.Finish(mem))
		before := mem.ReadFile(x.Path())
		must(t, storage.CheckRegistered(mem, x.Dir, "orders", x.Entry))
		if !bytes.Equal(before, mem.ReadFile(x.Path())) {
			t.Error("the check changed the file")
		}
	})
	t.Run("a successor that is not registered yet", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		old := x.Entry
		h, err := x.Open(mem)
		must(t, err)
		next, err := h.Writer.Rotate(context.Background(), h.State())
		must(t, err)
		must(t, next.Close())
		must(t, storage.CheckRegistered(mem, x.Dir, "orders", old))
	})
	t.Run("the registered file is missing", func(t *testing.T) {
		x, _ := newMemWorld(t, 4096)
		empty := storagetest.NewMem(4096)
		refused(t, x, empty, "does not exist", "mount")
		if len(empty.Names()) > 0 || empty.Mkdir("/data") != nil {
			t.Errorf("something was created on the wrong volume")
		}
	})
	t.Run("another file", func(t *testing.T) {
		x, _ := newMemWorld(t, 4096)
		_, other := newMemWorld(t, 4096)
		before := other.ReadFile(x.Path())
		refused(t, x, other, "different volumes")
		if !bytes.Equal(before, other.ReadFile(x.Path())) {
			t.Error("the other file was changed")
		}
	})
	t.Run("an old copy", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		copied := mem.Clone()
		must(t, x.Finish(mem))
		refused(t, x, copied, "ends at index 6", "below index 40", "old copy")
	})
	t.Run("an old copy with as many records", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		x.Published = 6
		copied := mem.Clone()
		must(t, x.Finish(mem))
		refused(t, x, copied, "seen epoch 1", "epoch 2 wrote", "old copy")
	})
	t.Run("the end is missing, in the epoch that is registered", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		x.Entry.DurableIndex = 7
		_, err := x.Open(mem)
		checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "ends at index 6", "below index 7", "old copy")
	})
	t.Run("a newer epoch is registered: not even a fence is written", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		before := mem.ReadFile(x.Path())
		_, err := x.OpenEpoch(mem, 1)
		checkError(t, err, new(*storage.EpochError), storage.ErrFenced, "above 1")
		if !bytes.Equal(before, mem.ReadFile(x.Path())) {
			t.Error("the file was changed")
		}
	})
	t.Run("two volumes create the file at once", func(t *testing.T) {
		x := newWorld("/data")
		one, two := storagetest.NewMem(4096), storagetest.NewMem(4096)
		tap := &storagetest.Tap{FS: one, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpLink {
				_, err := x.Open(two)
				must(t, err)
			}
			return nil
		}}
		_, err := x.Open(tap)
		checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "different volumes")
	})
	t.Run("errors of the registry", func(t *testing.T) {
		for _, broken := range []string{"lookup", "register", "update"} {
			x := newWorld("/data")
			down := errors.New("the server is down")
			w, err := storage.Open(context.Background(), x.Dir, "orders", 1, storage.Options{FS: storagetest.NewMem(4096), Registry: brokenRegistry{x, broken, down}})
			if w != nil || !errors.Is(err, down) {
				t.Errorf("%s: %v, and a writer: %v", broken, err, w != nil)
			}
		}
	})
	t.Run("the entry was replaced while open", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		h, err := x.Open(mem)
		must(t, err)
		x.Entry.FileID[0] ^= 1
		checkError(t, h.Writer.UpdateRegistry(context.Background()), new(*storage.RegistryMismatch), storage.ErrIntegrity)
		must(t, h.Append(1)) // the file itself is unchanged
		checkError(t, h.Writer.Close(), new(*storage.RegistryMismatch), storage.ErrIntegrity)
	})
}

type brokenRegistry struct {
	storage.Registry
	what string
	err  error
}

func (b brokenRegistry) Lookup(ctx context.Context, typ string) (storage.Entry, bool, error) {
	if b.what == "lookup" {
		return storage.Entry{}, false, b.err
	}
	return b.Registry.Lookup(ctx, typ)
}

func (b brokenRegistry) Register(ctx context.Context, typ string, e storage.Entry) (storage.Entry, error) {
	if b.what == "register" {
		return storage.Entry{}, b.err
	}
	return b.Registry.Register(ctx, typ, e)
}

func (b brokenRegistry) Succeed(ctx context.Context, typ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	if b.what == "succeed" {
		return storage.Entry{}, false, b.err
	}
	return b.Registry.Succeed(ctx, typ, old, e)
}

func (b brokenRegistry) Update(ctx context.Context, typ string, e storage.Entry) (bool, error) {
	if b.what == "update" {
		return false, b.err
	}
	return b.Registry.Update(ctx, typ, e)
}

// TestLimits: a batch that exceeds a limit is refused as a whole, and the writer continues; one exactly at the limits is accepted.
func TestLimits(t *testing.T) {
	race.Skip(t)
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	long := strings.Repeat("x", storage.MaxHeaders)
	big := make([]byte, storage.MaxPayload)
	for name, recs := range map[string][]storage.Record{
		"no ID":            {{Payload: []byte("x")}},
		"long ID":          {{ID: make([]byte, 256)}},
		"large payload":    {{ID: []byte("x"), Payload: make([]byte, storage.MaxPayload+1)}},
		"unknown kind":     {{ID: []byte("x"), Kind: 3}},
		"large headers":    {{ID: []byte("x"), Headers: []storage.Header{{Key: long, Value: "y"}}}},
		"many headers":     {{ID: []byte("x"), Headers: make([]storage.Header, storage.MaxHeaders+2)}},
		"large batch":      {{ID: []byte("1"), Payload: big}, {ID: []byte("2"), Payload: big}, {ID: []byte("3"), Payload: big}, {ID: []byte("4"), Payload: big}},
		"too many records": make([]storage.Record, storage.MaxBatchRecords+1),
	} {
		err := w.Append(recs)
		var limit *storage.LimitError
		if !errors.As(err, &limit) || !errors.Is(err, storage.ErrLimit) || limit.Got <= limit.Max && limit.Got != 0 || strings.Contains(err.Error(), "at least 1") != (name == "no ID") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.Checkpoint(make([]byte, storage.MaxState+1)); !errors.Is(err, storage.ErrLimit) {
		t.Errorf("state: %v", err)
	}
	fits := []storage.Record{
		{ID: bytes.Repeat([]byte("i"), 255), Payload: big, Headers: []storage.Header{{Key: long}, {}}, Time: -1 << 63},
		{ID: []byte("2"), Payload: big, Time: 1<<63 - 1},
		{ID: []byte("3"), Payload: big, Kind: storage.KindAfterGap},
		{ID: []byte("4"), Headers: []storage.Header{{Key: "k", Value: "v"}, {Key: "k", Value: ""}}},
	}
	mustAppend(t, w, fits)
	tiny := make([]storage.Record, storage.MaxBatchRecords)
	for i := range tiny {
		tiny[i].ID = []byte("x")
	}
	mustAppend(t, w, tiny)
	must(t, w.Checkpoint(make([]byte, storage.MaxState)))
	must(t, w.Append(nil))
	must(t, w.Close())
	r, err := storage.OpenReader("/d/orders.fpl", storage.ReaderOptions{FS: mem})
	must(t, err)
	for i := range fits {
		rec, err := r.Next()
		fits[i].Index, fits[i].Epoch = uint64(i), 1
		if err != nil || !equal(rec, fits[i]) {
			t.Errorf("record %d: %v", i, err)
		}
	}
	got := 0
	for recs, err := r.NextBatch(); err != io.EOF; recs, err = r.NextBatch() { // in pieces
		must(t, err)
		got += len(recs)
	}
	if got != len(tiny) {
		t.Errorf("%d records", got)
	}
	restored := 0
	w = mustOpen(t, "/d", 2, storage.Options{FS: mem, Restore: func(s []byte) error { restored = len(s); return nil }})
	if restored != storage.MaxState || w.NextIndex() != uint64(len(fits)+len(tiny)) {
		t.Errorf("restored %d bytes, next index %d", restored, w.NextIndex())
	}
}

// TestRecordSizeIsAnUpperBound, and a tight one.
func TestRecordSizeIsAnUpperBound(t *testing.T) {
	for _, r := range []storage.Record{
		{ID: []byte("x")},
		{ID: make([]byte, 255), Payload: make([]byte, 70000), Time: 1 << 62},
		{ID: []byte("x"), Headers: []storage.Header{{Key: "k", Value: strings.Repeat("v", 300)}}},
	} {
		first := storage.Record{ID: []byte("y")}
		got := len(storage.BatchBody([]storage.Record{first, r})) - len(storage.BatchBody([]storage.Record{first}))
		if bound := storage.RecordSize(&r); got > bound || bound-got > 24 {
			t.Errorf("%d bytes, bound %d", got, bound)
		}
	}
}

// TestCheckpointBoundsWhatAnOpenReads: however long the file, a new writer reads one interval, and gets the same state as a
// reader of the whole file.
func TestCheckpointBoundsWhatAnOpenReads(t *testing.T) {
	mem := storagetest.NewMem(4096)
	const interval = 256 << 10
	o := storage.Options{FS: mem, CheckpointBytes: interval}
	n, epoch, due := 0, uint64(0), 0
	var w *storage.Writer
	for n < 3000 {
		if n%500 == 0 { // a new writer from time to time, some without a checkpoint of their own
			epoch++
			w = mustOpen(t, "/d", epoch, o)
		}
		recs := messages(n, 10)
		for i := range recs {
			recs[i].Payload = append(recs[i].Payload, make([]byte, 1000)...)
		}
		mustAppend(t, w, recs)
		n += 10
		if w.CheckpointDue() {
			due++
			must(t, w.Checkpoint(fmt.Appendf(nil, "%d", n)))
		}
		mustSync(t, w)
	}
	if size := int(w.Size()); due < size/interval-1 || due > size/interval+1 {
		t.Errorf("%d checkpoints in %d bytes", due, size)
	}
	read := int64(0)
	tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpRead {
			read += c.Len
		}
		return nil
	}}
	state, replayed := "", 0
	next := mustOpen(t, "/d", epoch+1, storage.Options{FS: tap,
		Restore: func(s []byte) error { state = string(s); return nil },
		Replay: func(r storage.Record) error {
			replayed++
			return nil
		}})
	var base int
	fmt.Sscan(state, &base)
	if next.NextIndex() != uint64(n) || base+replayed != n {
		t.Errorf("next %d, state at %d, %d replayed, want %d", next.NextIndex(), base, replayed, n)
	}
	if limit := int64(3 * (interval + 20<<10 + 256<<10)); read > limit {
		t.Errorf("read %d bytes of %d, want at most %d", read, w.Size(), limit)
	}

	// A reader that starts at an index reads no more than that either, and begins exactly there.
	for _, from := range []uint64{0, 1, 9, 10, 500, 1234, 2990, 2999} {
		r, err := storage.OpenReader("/d/orders.fpl", storage.ReaderOptions{FS: mem, From: from})
		must(t, err)
		for i := from; i < uint64(n); i++ {
			rec, err := r.Next()
			if err != nil || rec.Index != i || number(rec.ID) != int(i) {
				t.Fatalf("from %d: record %d is %d, %v", from, i, rec.Index, err)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("from %d: %v", from, err)
		}
		r.Close()
	}
}

// TestCheckpointAfterBatches: many small batches also make a checkpoint due; batches of earlier writers count.
func TestCheckpointAfterBatches(t *testing.T) {
	mem := storagetest.NewMem(4096)
	for epoch := uint64(1); epoch <= 3; epoch++ {
		w := mustOpen(t, "/d", epoch, storage.Options{FS: mem, CheckpointBatches: 5})
		if w.CheckpointDue() != (epoch == 3) {
			t.Errorf("epoch %d: due %v", epoch, w.CheckpointDue())
		}
		for i := range 3 {
			mustAppend(t, w, messages(int(epoch)*10+i, 1))
		}
		must(t, w.Close())
	}
	w := mustOpen(t, "/d", 4, storage.Options{FS: mem, CheckpointBatches: 5})
	must(t, w.Checkpoint(nil))
	if w.CheckpointDue() {
		t.Error("due after a checkpoint")
	}
}

// TestCheckpointComesAfterASync: a checkpoint is written only after everything before it is durable.
func TestCheckpointComesAfterASync(t *testing.T) {
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	mustAppend(t, w, messages(0, 3))
	must(t, w.Checkpoint([]byte("three")))
	if w.DurableIndex() != 3 {
		t.Errorf("durable index %d", w.DurableIndex())
	}
	mem.Crash(storagetest.Crash{})
	if got := readAll(t, mem, "/d/orders.fpl"); len(got) != 3 {
		t.Errorf("%d records", len(got))
	}
}

// TestSealedFile: a sealed file names its successor, and no writer appends to it. A seal without a checkpoint before it was not
// written by a Writer: there is no state to create the successor with.
func TestSealedFile(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.batch(messages(0, 2), 0)
	successor := storage.FileID{7, 7, 7}
	b.add("FPS1", storage.SealBody(successor, 2, "size limit"), 0, 0, 0)
	mem := storagetest.NewMem(4096)
	must(t, mem.Mkdir("/d"))
	mem.WriteFile("/d/orders.fpl", b.data)
	_, err := storage.Open(context.Background(), "/d", "orders", 9, storage.Options{FS: mem})
	checkError(t, err, new(*storage.CorruptError), storage.ErrIntegrity, "checkpoint", "seal")
	r, err := storage.OpenReader("/d/orders.fpl", storage.ReaderOptions{FS: mem})
	must(t, err)
	defer r.Close()
	for range 2 {
		_, err := r.Next()
		must(t, err)
	}
	if _, err := r.Next(); err != io.EOF || r.Sealed() == nil || r.Sealed().Successor != successor || r.Sealed().Generation != 2 {
		t.Errorf("%v, %+v", err, r.Sealed())
	}
	if rep := mustVerify(t, mem, "/d/orders.fpl"); rep.Err() != nil || rep.Sealed == nil || rep.Sealed.Successor != successor {
		t.Errorf("%+v", rep)
	}
}

// TestUnknownCodec: a batch with a future codec is valid, but this version cannot read it. That is not damage.
func TestUnknownCodec(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.batch(messages(0, 2), 0)
	b.add("FPB1", []byte("compressed"), 5, 2, 0)
	r, err := storage.OpenReader("f", storage.ReaderOptions{FS: storage.BytesFS(b.data)})
	must(t, err)
	defer r.Close()
	for range 2 {
		_, err := r.Next()
		must(t, err)
	}
	_, err = r.Next()
	checkError(t, err, new(*storage.VersionError), storage.ErrRefused, "newer")
	if _, err := storage.VerifyBytes(b.data, storage.VerifyOptions{}); !errors.Is(err, storage.ErrRefused) {
		t.Errorf("verify: %v", err)
	}
}

// builder assembles a file record by record, like a writer that syncs its fence and nothing more.
type builder struct {
	data           []byte
	epoch, session uint64
	next           uint64
	chain          uint64
	end            int64 // accepted end
	synced         int64 // end of the last fence
	anchor         int64
}

func newBuilder() *builder {
	return &builder{data: storage.NewHeaderBytes("orders", storage.FileID{1, 2, 3}, [16]byte{0xfe, 9, 8, 7}), end: 4096}
}

// region appends a fence and its open record.
func (b *builder) region(epoch, session uint64, h storage.Holder) {
	b.epoch, b.session = epoch, session
	fence := int64(len(b.data))
	rec, _ := storage.BuildRecord(b.data[:4096], storage.RecordSpec{Magic: "FPF1", Offset: fence, Epoch: epoch, Session: b.session,
		DurableEnd: 4096, Body: storage.FenceBody(h)})
	b.data = append(b.data, rec...)
	b.synced = int64(len(b.data))
	b.add("FPO1", storage.OpenBody(b.end, fence, 0), 0, 0, 0)
}

func (b *builder) batch(recs []storage.Record, flags uint16) {
	b.add("FPB1", storage.BatchBody(recs), uint32(len(recs)), flags, recs[0].Time)
}

// packedBatch appends a compressed batch.
func (b *builder) packedBatch(recs []storage.Record) {
	body := storage.BatchBody(recs)
	b.addRaw("FPB1", storage.Compress(body), uint32(len(recs)), 1, recs[0].Time, uint32(len(body)))
}

// add appends a record that continues the file.
func (b *builder) add(magic string, body []byte, count uint32, flags uint16, baseTime int64) {
	b.addRaw(magic, body, count, flags, baseTime, 0)
}

func (b *builder) addRaw(magic string, body []byte, count uint32, flags uint16, baseTime int64, raw uint32) {
	at := int64(len(b.data))
	rec, link := storage.BuildRecord(b.data[:4096], storage.RecordSpec{Magic: magic, Offset: at, Epoch: b.epoch, Session: b.session,
		Base: b.next, Count: count, Flags: flags, DurableEnd: b.synced, Anchor: b.anchor, Chain: b.chain, BaseTime: baseTime, Body: body, RawLen: raw})
	b.data = append(b.data, rec...)
	b.chain, b.next, b.end = link, b.next+uint64(count), int64(len(b.data))
	if magic == "FPO1" || magic == "FPC1" {
		b.anchor = at
	}
}

// TestSyncCoversWhatWasAppendedBefore: a batch that lands during a sync may not be durable when the sync returns.
func TestSyncCoversWhatWasAppendedBefore(t *testing.T) {
	var w *storage.Writer
	during := func() {}
	tap := &storagetest.Tap{FS: storagetest.NewMem(4096), Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync {
			during()
		}
		return nil
	}}
	w = mustOpen(t, "/d", 1, storage.Options{FS: tap})
	mustAppend(t, w, messages(0, 3))
	during = func() {
		during = func() {}
		mustAppend(t, w, messages(3, 2))
	}
	next, err := w.Sync()
	if err != nil || next != 3 || w.DurableIndex() != 3 {
		t.Errorf("Sync says %d, %v, and the durable index is %d, want 3", next, err, w.DurableIndex())
	}
	if next, err = w.Sync(); err != nil || next != 5 {
		t.Errorf("the next one says %d, %v, want 5", next, err)
	}
}

// TestWhoCreatesLateFindsTheFirst: while a writer creates the file, another writer creates it first and writes to it.
func TestWhoCreatesLateFindsTheFirst(t *testing.T) {
	mem := storagetest.NewMem(4096)
	first := true
	w := mustOpen(t, "/d", 2, storage.Options{FS: &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if first && (c.Op == storagetest.OpLink || c.Op == storagetest.OpRemove) { // about to give the file its name
			first = false
			other := mustOpen(t, "/d", 1, storage.Options{FS: mem})
			mustAppend(t, other, messages(0, 3))
			must(t, other.Close())
		}
		return nil
	}}})
	if first || w.NextIndex() != 3 {
		t.Errorf("found %d records, want 3", w.NextIndex())
	}
}

// TestEqualEpochIsRefused: two writers with the same epoch cannot both write, even without a registry.
func TestEqualEpochIsRefused(t *testing.T) {
	mem := storagetest.NewMem(4096)
	must(t, mustOpen(t, "/d", 5, storage.Options{FS: mem}).Close())
	_, err := storage.Open(context.Background(), "/d", "orders", 5, storage.Options{FS: mem})
	checkError(t, err, new(*storage.EpochError), storage.ErrFenced, "above 5")
}

// The directory of the files may be a symbolic link, to a directory that exists.
func TestOpenInADanglingLink(t *testing.T) {
	at := t.TempDir()
	for dir, target := range map[string]string{filepath.Join(at, "dangling"): filepath.Join(at, "gone"), filepath.Join(at, "good"): t.TempDir()} {
		if err := os.Symlink(target, dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"dangling", filepath.Join("dangling", "below")} {
		dir = filepath.Join(at, dir)
		_, err := storage.Open(t.Context(), dir, "orders", 1, storage.Options{})
		if !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), filepath.Join(at, "dangling")+" is a symbolic link to a directory that does not exist; mount or create that one") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	w, err := storage.Open(t.Context(), filepath.Join(at, "good"), "orders", 1, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
