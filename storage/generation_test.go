package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
	"pgregory.net/rapid"
)

// TestRotate: a rotated file is sealed and names its successor, which continues the indexes and has the state.
func TestRotate(t *testing.T) {
	x := newWorld(t.TempDir())
	w := mustOpen(t, x.Dir, 1, storage.Options{Registry: x, Schema: "text"})
	mustAppend(t, w, messages(0, 10))
	second, err := w.Rotate(context.Background(), []byte("state at 10"))
	must(t, err)
	if err := w.Append(messages(10, 1)); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("append to the sealed file: %v", err)
	}
	must(t, w.Close())
	if second.NextIndex() != 10 || second.DurableIndex() != 10 || second.Generation() != 2 || filepath.Base(second.Path()) != "orders@0002.fpl" {
		t.Errorf("the successor %s of generation %d begins at %d, durable %d", second.Path(), second.Generation(), second.NextIndex(), second.DurableIndex())
	}
	if x.Entry.FileID != second.FileID() || x.Entry.Generation != 2 {
		t.Errorf("registered is %+v", x.Entry)
	}
	mustAppend(t, second, messages(10, 5))
	must(t, second.Close())

	names, err := storage.OS().List(x.Dir, "orders")
	must(t, err)
	slices.Sort(names)
	if !slices.Equal(names, []string{"orders.fpl", "orders@0002.fpl"}) {
		t.Errorf("the directory has %v", names)
	}
	r, err := storage.OpenReader(w.Path(), storage.ReaderOptions{})
	must(t, err)
	defer r.Close()
	for range 10 {
		_, err := r.Next()
		must(t, err)
	}
	if _, err := r.Next(); err != io.EOF || r.Sealed() == nil || r.Sealed().Successor != second.FileID() {
		t.Errorf("the first file ends with %v, %v", err, r.Sealed())
	}

	var state string
	var replayed []uint64
	third := mustOpen(t, x.Dir, 2, storage.Options{Registry: x, Restore: func(s []byte) error { state = string(s); return nil },
		Replay: func(r storage.Record) error { replayed = append(replayed, r.Index); return nil }})
	defer third.Close()
	if state != "state at 10" || len(replayed) != 5 || replayed[0] != 10 || third.Generation() != 2 {
		t.Errorf("restored %q, replayed %v, from generation %d", state, replayed, third.Generation())
	}
	rep := mustVerify(t, nil, second.Path())
	if rep.Err() != nil || rep.FirstIndex != 10 || rep.Messages != 5 || rep.Generation != 2 || rep.Schema != "text" {
		t.Errorf("%+v", rep)
	}
}

// TestWrongGeneration: the newest file must be the registered one, and its name must match its header.
func TestWrongGeneration(t *testing.T) {
	x := newWorld("/d")
	mem := storagetest.NewMem(512)
	o := storage.Options{FS: mem, Registry: x}
	w := mustOpen(t, "/d", 1, o)
	mustAppend(t, w, messages(0, 3))
	second, err := w.Rotate(context.Background(), nil)
	must(t, err)
	must(t, second.Close())
	open := func() error {
		w, err := storage.Open(context.Background(), "/d", "orders", 9, o)
		if err == nil {
			w.Close()
		}
		return err
	}
	must(t, mem.Rename("/d/orders@0002.fpl", "/d/away"))
	checkError(t, open(), new(*storage.RegistryMismatch), storage.ErrIntegrity, "generation 1", "generation 2", "orders@0002.fpl")
	must(t, mem.Rename("/d/away", "/d/orders@0005.fpl"))
	checkError(t, open(), new(*storage.WrongTypeError), storage.ErrRefused, "generation 2", "orders@0002.fpl")
	must(t, mem.Rename("/d/orders@0005.fpl", "/d/orders@0002.fpl"))
	must(t, mem.Rename("/d/orders.fpl", "/archive")) // old files may go
	must(t, open())
}

// TestLateRotationFindsTheSuccessor: A is paused before it gives its successor a name. B, which listed the directory before A
// created that file, completes the rotation and works. A resumes: the name is taken, and B's acknowledged messages stay.
func TestLateRotationFindsTheSuccessor(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	slept := false
	a, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpLink && !slept {
			slept = true
			temp := temporary(mem)
			must(t, mem.Rename(temp, "/unseen"))
			b, err := x.Open(mem)
			must(t, err)
			must(t, mem.Rename("/unseen", temp))
			must(t, steps(func() error { return b.Append(2) }, b.Ack, func() error { return b.Writer.Close() }))
		}
		return nil
	}})
	must(t, err)
	must(t, a.Begin())
	checkError(t, a.Rotate(), new(*storage.SupersededError), storage.ErrFenced, "orders@0002.fpl")
	if !slept {
		t.Fatal("A never tried to give its successor a name")
	}
	must(t, x.Check(mem))
	must(t, x.Finish(mem))
}

// TestCompact: whatever the history of a file, its compaction has the same records at the same indexes, in fewer batches.
func TestCompact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := storagetest.NewMem(512)
		var want []storage.Record
		epoch := uint64(0)
		o := storage.Options{FS: mem, Compress: rapid.Bool().Draw(t, "compress")}
		for range rapid.IntRange(1, 4).Draw(t, "writers") {
			epoch++
			w, err := storage.Open(context.Background(), "/d", "orders", epoch, o)
			if err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(0, 5).Draw(t, "batches") {
				recs := messages(len(want), rapid.IntRange(1, 5).Draw(t, "records"))
				recs[0].Kind = storage.Kind(rapid.IntRange(0, 2).Draw(t, "kind"))
				if rapid.Bool().Draw(t, "headers") {
					recs[0].Headers = []storage.Header{{Key: "a", Value: "b"}}
				}
				if err := w.Append(recs); err != nil {
					t.Fatal(err)
				}
				for i := range recs {
					recs[i].Index = uint64(len(want))
					want = append(want, recs[i])
				}
			}
			if rapid.Bool().Draw(t, "torn") {
				before := mem.ReadFile(w.Path())
				if err := w.Append(messages(len(want), 3)); err != nil {
					t.Fatal(err)
				}
				all := mem.ReadFile(w.Path())
				// A record that lacks only its padding is whole again once the next fence is aligned.
				mem.WriteFile(w.Path(), all[:rapid.IntRange(len(before), len(all)-9).Draw(t, "cut")])
			}
			if rapid.Bool().Draw(t, "rotate") && len(want) > 0 && rapid.Bool().Draw(t, "really") {
				w.Close()
				epoch++
				if w, err = storage.Open(context.Background(), "/d", "orders", epoch, o); err != nil {
					t.Fatal(err)
				}
				if w, err = w.Rotate(context.Background(), fmt.Appendf(nil, "state at %d", len(want))); err != nil {
					t.Fatal(err)
				}
			}
			if rapid.Bool().Draw(t, "compact") && rapid.Bool().Draw(t, "really compact") {
				w.Close()
				epoch++
				if w, err = storage.Open(context.Background(), "/d", "orders", epoch, o); err != nil {
					t.Fatal(err)
				}
				if w, _, err = w.Compact(context.Background(), fmt.Appendf(nil, "state at %d", len(want)), storage.CompactOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
		}
		epoch++
		w, err := storage.Open(context.Background(), "/d", "orders", epoch, o)
		if err != nil {
			t.Fatal(err)
		}
		from, first := rapid.Uint64Range(0, w.Generation()+1).Draw(t, "from"), uint64(math.MaxUint64)
		chain, err := storage.ReadChain(mem, "/d", "orders")
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range chain {
			if i == len(chain)-1 || from > 0 && l.Generation >= from {
				first = min(first, l.First)
			}
		}
		n, report, err := w.Compact(context.Background(), []byte("state at the end"), storage.CompactOptions{From: from, BatchBytes: rapid.IntRange(1, 2000).Draw(t, "batch")})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if n.NextIndex() != uint64(len(want)) || report.Records != uint64(len(want))-first || report.Lost != 0 || report.NextIndex != n.NextIndex() || report.FirstIndex != first {
			t.Fatalf("%d records from %d on became %+v", len(want), first, report)
		}
		r, err := storage.OpenReader(n.Path(), storage.ReaderOptions{FS: mem})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := first; i < uint64(len(want)); i++ {
			rec, err := r.Next()
			want[i].Epoch = rec.Epoch
			if err != nil || !equal(rec, want[i]) {
				t.Fatalf("record %d: %+v, %v; want %+v", i, rec, err, want[i])
			}
		}
		if rec, err := r.Next(); err != io.EOF {
			t.Fatalf("after the end: %+v, %v", rec, err)
		}
		rep, err := storage.Verify(context.Background(), n.Path(), storage.VerifyOptions{FS: mem, Deep: true})
		if err != nil || rep.Err() != nil || len(rep.Void) > 0 || len(rep.Regions) != 1 {
			t.Fatalf("verify: %v, %+v", err, rep)
		}
		if chain, err = storage.ReadChain(mem, "/d", "orders"); err != nil || len(chain.Check()) > 0 {
			t.Fatalf("the files of the type: %v, %v", err, chain.Check())
		}
		for i, l := range chain[:len(chain)-1] {
			if replaced := chain.Starts()[l.Path] <= l.First; !replaced && l.First >= first {
				t.Fatalf("file %d of %d is still needed, although the new one has its records", i+1, len(chain))
			}
		}
	})
}

// TestCompactSeveralFiles: one file replaces several if all of them are present and whole; otherwise nothing changes.
func TestCompactSeveralFiles(t *testing.T) {
	ctx := context.Background()
	remove := func(g uint64) func(*testing.T, *storagetest.Mem) {
		return func(t *testing.T, m *storagetest.Mem) { must(t, m.Remove(generation(g))) }
	}
	for name, c := range map[string]struct {
		from   uint64
		change func(t *testing.T, m *storagetest.Mem)
		says   string // "" = it succeeds …
		files  int    // … with this many files …
		first  uint64 // … and begins at this index
	}{
		"none":              {from: 0, files: 1, first: 30},
		"itself":            {from: 4, files: 1, first: 30},
		"beyond itself":     {from: 9, files: 1, first: 30},
		"the last two":      {from: 2, files: 3, first: 10},
		"all":               {from: 1, files: 4, first: 0},
		"an archived file":  {from: 1, change: remove(1), files: 3, first: 10},
		"a file is missing": {from: 1, change: remove(2), says: "generation 2 (/d/orders@0002.fpl) is missing"},
		"a file is cut":     {from: 1, change: func(t *testing.T, m *storagetest.Mem) { cutAfter(t, m, generation(2), 2) }, says: "is cut"},
		"a file is damaged": {from: 1, change: func(t *testing.T, m *storagetest.Mem) {
			data := m.ReadFile(generation(2))
			data[bytes.Index(data, []byte("payload of message 12"))] ^= 1
			m.WriteFile(generation(2), data)
		}, says: "not readable"},
		"one before is missing": {from: 3, change: remove(2), files: 2, first: 20},
	} {
		t.Run(name, func(t *testing.T) {
			mem := chainMem(t, 4)
			if c.change != nil {
				c.change(t, mem)
			}
			before := mem.Names()
			w := mustOpen(t, "/d", 100, storage.Options{FS: mem})
			next := w.NextIndex()
			n, report, err := w.Compact(ctx, []byte("state at the end"), storage.CompactOptions{From: c.from})
			if c.says != "" {
				if !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v", err)
				}
				mustAppend(t, w, messages(900, 1)) // a compaction that was refused changes nothing
				must(t, w.Close())
				if after := mem.Names(); !slices.Equal(before, after) {
					t.Errorf("%v became %v", before, after)
				}
				return
			}
			must(t, err)
			must(t, n.Close())
			if report.Files != c.files || report.FirstIndex != c.first || report.NextIndex != next {
				t.Errorf("%+v", report)
			}
			for i, r := range readAll(t, mem, n.Path()) {
				if want := messages(int(c.first)+i, 1)[0]; r.Index != c.first+uint64(i) || string(r.Payload) != string(want.Payload) {
					t.Fatalf("record %d is %q at %d", i, r.Payload, r.Index)
				}
			}
			if rep := mustVerify(t, mem, n.Path()); rep.Err() != nil || rep.NextIndex != next {
				t.Errorf("%+v", rep)
			}
			chain, err := storage.ReadChain(mem, "/d", "orders")
			must(t, err)
			if replaced := len(chain.Replaced()); replaced != c.files {
				t.Errorf("%d files are replaced", replaced)
			}
		})
	}
}

// TestCompactAgain: a second compaction takes the records that the first one copied from the first one's file, not also from those that it replaced.
func TestCompactAgain(t *testing.T) {
	ctx, mem := context.Background(), chainMem(t, 3)
	w := mustOpen(t, "/d", 100, storage.Options{FS: mem})
	w, _, err := w.Compact(ctx, []byte("state at the end"), storage.CompactOptions{From: 1})
	must(t, err)
	w, err = w.Rotate(ctx, []byte("state at the end"))
	must(t, err)
	next := w.NextIndex()
	w, report, err := w.Compact(ctx, []byte("state at the end"), storage.CompactOptions{From: 1})
	must(t, err)
	must(t, w.Close())
	if report.Files != 2 || report.FirstIndex != 0 || report.Records != next {
		t.Errorf("%+v, want %d records of two files", report, next)
	}
	for i, r := range readAll(t, mem, w.Path()) {
		if r.Index != uint64(i) || string(r.Payload) != string(messages(i, 1)[0].Payload) {
			t.Fatalf("record %d is %q at %d", i, r.Payload, r.Index)
		}
	}
}

// TestRepair damages a file anywhere after its header. The repaired file has exactly the records that a reader can still read,
// at the same indexes, and records of KindLost in place of the others. The damaged file is unchanged except for appended
// bytes, and work continues.
func TestRepair(t *testing.T) {
	s := newSample(t)
	rng := rand.New(rand.NewPCG(7, 7))
	lost, refused := 0, 0
	for range 300 {
		data := bytes.Clone(s.data)
		for range 1 + rng.IntN(3) {
			at := 4096 + rng.IntN(len(data)-4096)
			if rng.IntN(2) == 0 {
				data[at] ^= 1 << rng.IntN(8)
			} else {
				clear(data[at:min(len(data), at+512)])
			}
		}
		mem := storagetest.NewMem(512)
		must(t, mem.Mkdir("/d"))
		mem.WriteFile("/d/orders.fpl", data)
		readable, _ := salvage(t, data)
		// The registry has the file's durable index.
		x := newWorld("/d")
		x.Entry, x.Registered = storage.Entry{FileID: s.report.FileID, Generation: 1, Epoch: 4, DurableIndex: s.report.NextIndex}, true

		var replayed []uint64
		o := storage.Options{FS: mem, Registry: x, Salvage: true, AcceptLoss: true,
			Replay: func(r storage.Record) error { replayed = append(replayed, r.Index); return nil }}
		w, err := storage.Open(context.Background(), "/d", "orders", 100, o)
		must(t, err)
		if err := w.Append(messages(0, 1)); !errors.Is(err, storage.ErrRefused) {
			t.Fatalf("append to a file that is being salvaged: %v", err)
		}
		n, report, err := w.Compact(context.Background(), []byte("state"), storage.CompactOptions{})
		if err != nil {
			t.Fatalf("compact: %v", err)
		}
		if !bytes.HasPrefix(mem.ReadFile("/d/orders.fpl"), data) {
			t.Fatal("the damaged file was changed")
		}
		if n.NextIndex() < s.report.NextIndex {
			t.Fatalf("repaired up to %d, but indexes below %d were durable", n.NextIndex(), s.report.NextIndex)
		}
		got := readAll(t, mem, n.Path())
		want := map[uint64]storage.Record{}
		for _, r := range readable {
			want[r.Index] = r
		}
		for i, r := range got {
			w, ok := want[r.Index]
			switch {
			case r.Index != uint64(i):
				t.Fatalf("record %d has index %d", i, r.Index)
			case r.Kind == storage.KindLost && ok:
				t.Fatalf("record %d was given up, but is readable", i)
			case r.Kind == storage.KindLost:
				lost++
				continue
			}
			if w.Epoch = r.Epoch; !ok || !equal(r, w) {
				t.Fatalf("record %d is %+v, was %+v", i, r, w)
			}
		}
		if uint64(len(got)) != n.NextIndex() || len(replayed) != len(readable) {
			t.Fatalf("%d records, %d replayed, %d were readable, %+v", len(got), len(replayed), len(readable), report)
		}
		if len(report.Damage) == 0 && len(readable) < len(s.records) {
			refused++
			t.Errorf("%d of %d records are readable, but the report lists no damage", len(readable), len(s.records))
		}
		mustAppend(t, n, messages(1000, 2))
		must(t, n.Close())
		w = mustOpen(t, "/d", 101, storage.Options{FS: mem, Registry: x})
		must(t, w.Close())
		if rep := mustVerify(t, mem, w.Path()); rep.Err() != nil || rep.Lost != report.Lost {
			t.Fatalf("the repaired file: %v, %d lost, want %d", rep.Err(), rep.Lost, report.Lost)
		}
	}
	if lost == 0 {
		t.Error("no damage lost a record")
	}
}

// TestRepairIsAskedFor: without an explicit request damage is not repaired, and records missing at the end are not given up.
func TestRepairIsAskedFor(t *testing.T) {
	s := newSample(t)
	mem := storagetest.NewMem(512)
	must(t, mem.Mkdir("/d"))
	mem.WriteFile("/d/orders.fpl", s.data[:s.durable])
	x := newWorld("/d")
	x.Entry, x.Registered = storage.Entry{FileID: s.report.FileID, Generation: 1, DurableIndex: 40}, true
	_, err := storage.Open(context.Background(), "/d", "orders", 100, storage.Options{FS: mem, Registry: x, Salvage: true})
	checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "old copy")

	data := bytes.Clone(s.data)
	i := bytes.Index(data, []byte("payload of message 1"))
	data[i] ^= 1
	mem.WriteFile("/d/orders.fpl", data)
	x.Registered = false
	w := mustOpen(t, "/d", 101, storage.Options{FS: mem, Registry: x}) // the damage is before the last checkpoint
	_, _, err = w.Compact(context.Background(), nil, storage.CompactOptions{})
	checkError(t, err, new(*storage.CorruptError), storage.ErrIntegrity, "not readable")
	mustAppend(t, w, messages(900, 1)) // a compaction that was refused changes nothing
	must(t, w.Close())
	for _, name := range mem.Names() {
		if strings.HasSuffix(name, ".tmp") {
			t.Errorf("%s was left behind", name)
		}
	}
}

// The scenarios below are for TestScenarios.

// A rotates, and the power fails: if the successor survives, the seal must, too.
func powerFailsAfterRotation(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	h, err := x.Open(mem)
	must(t, err)
	must(t, steps(h.Begin, h.Rotate, func() error { return h.Append(1) }, h.Ack))
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// A is paused before it gives its successor a name. Meanwhile B creates the successor, works, and continues in a third file,
// and the second file is moved to an archive. A resumes, and finds the name free.
func archivedWhileAsleep(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	slept := false
	h, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpLink && !slept {
			slept = true
			temp := temporary(mem)
			must(t, mem.Rename(temp, "/unseen")) // B listed the directory before A created it, and so does not remove it
			defer func() { must(t, mem.Rename("/unseen", temp)) }()
			b, err := x.Open(mem)
			must(t, err)
			must(t, steps(func() error { return b.Append(2) }, b.Ack, b.Rotate, func() error { return b.Append(1) }, b.Ack, func() error { return b.Writer.Close() }))
			must(t, mem.Rename("/data/files/orders@0002.fpl", "/archive"))
		}
		return nil
	}})
	must(t, err)
	must(t, h.Begin())
	if err := h.Rotate(); err == nil {
		must(t, steps(func() error { return h.Append(3) }, h.Ack)) // as far as A knows, these messages are new
	} else {
		checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity)
	}
	must(t, ignoreNotExist(mem.Remove("/data/files/orders@0002.fpl")))
	must(t, mem.Rename("/archive", "/data/files/orders@0002.fpl"))
	return x.Finish(mem)
}

// The checkpoint at the start of a successor rots before anything is appended after it.
func firstCheckpointRots(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	h, err := x.Open(mem)
	must(t, err)
	must(t, steps(h.Begin, h.Rotate, func() error { return h.Writer.Close() }))
	data := mem.ReadFile(h.Writer.Path())
	data[len(data)-20] ^= 1
	mem.WriteFile(h.Writer.Path(), data)
	x.Acked = map[int]uint64{} // the acknowledgements were lost in transit: everything is delivered again
	x.Entry.DurableIndex = 0
	h, err = x.Open(mem)
	if err != nil {
		checkError(t, err, new(*storage.CorruptError), storage.ErrIntegrity, "start of every successor")
		return nil
	}
	must(t, steps(func() error { return h.Append(2) }, h.Ack, func() error { return h.Writer.Close() }))
	return x.Check(mem)
}

// A has written its successor and is paused before it gives it a name. B takes over, removes A's file, begins to write its own,
// and dies. A resumes.
func halfASuccessorGetsTheName(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	slept := false
	h, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpLink && !slept {
			slept = true
			died := false
			_, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
				if died = died || c.Op == storagetest.OpAppend && strings.HasSuffix(c.Name, ".tmp"); died {
					return &storagetest.Fault{Err: io.ErrUnexpectedEOF}
				}
				return nil
			}})
			if err == nil {
				t.Fatal("scenario: B did not die")
			}
		}
		return nil
	}})
	must(t, err)
	must(t, h.Begin())
	if err := h.Rotate(); err != nil && !errors.Is(err, storage.ErrFenced) {
		t.Fatalf("scenario: %v", err)
	}
	return x.Finish(mem)
}

// temporary returns the path of the temporary file.
func temporary(mem *storagetest.Mem) string {
	for _, name := range mem.Names() {
		if strings.HasSuffix(name, ".tmp") {
			return name
		}
	}
	return ""
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// TestCompactKeepsCompression: a compaction without Compress does not make a compressed file larger.
func TestCompactKeepsCompression(t *testing.T) {
	dir := t.TempDir()
	w := mustOpen(t, dir, 1, storage.Options{Compress: true})
	for n := range 20 {
		mustAppend(t, w, messages(n*100, 100))
	}
	must(t, w.Close())
	w = mustOpen(t, dir, 2, storage.Options{})
	before := w.Size()
	n, report, err := w.Compact(context.Background(), nil, storage.CompactOptions{})
	must(t, err)
	if report.NewSize >= before || report.Records != 2000 {
		t.Errorf("%d bytes became %d, %d records", before, report.NewSize, report.Records)
	}
	size := n.Size()
	mustAppend(t, n, messages(2000, 100))
	if grown := n.Size() - size; grown < int64(len(storage.BatchBody(messages(2000, 100)))) {
		t.Errorf("the writer still compresses: %d bytes", grown)
	}
	must(t, n.Close())
}

// TestRegistrySetBack: a registry that was rolled back by any number of generations gets the newest file again if the files lead from it
// back to the registered one. Nothing is lost, and no index is used twice. Otherwise the file is refused, and adopted only on request.
func TestRegistrySetBack(t *testing.T) {
	// series creates generations that end in different ways, and returns the registry entry at the end of each one except the last.
	series := func(t *testing.T) (x *world, mem *storagetest.Mem, entries []storage.Entry) {
		x, mem = newMemWorld(t, 512)
		h, err := x.Open(mem)
		must(t, err)
		one := func() error { return h.Append(1) }
		for _, end := range []func() error{h.Rotate, h.Rotate, h.Compact, h.Compact} {
			must(t, steps(one, h.Ack))
			entries = append(entries, x.Entry)
			must(t, end())
		}
		must(t, steps(one, h.Ack, func() error { return h.Writer.Close() }))
		return x, mem, entries
	}
	_, _, entries := series(t)
	for i := range entries {
		t.Run(fmt.Sprintf("to generation %d", i+1), func(t *testing.T) {
			x, mem, entries := series(t)
			newest := x.Entry
			x.Entry = entries[i]
			must(t, storage.CheckRegistered(mem, x.Dir, "orders", x.Entry))
			h, err := x.Open(mem)
			must(t, err)
			if h.Writer.Generation() != 5 || x.Entry.FileID != newest.FileID || x.Entry.Generation != 5 || h.Writer.NextIndex() < newest.DurableIndex {
				t.Errorf("generation %d from index %d; registered is %+v, before the rollback %+v", h.Writer.Generation(), h.Writer.NextIndex(), x.Entry, newest)
			}
			must(t, h.Writer.Close())
			must(t, x.Finish(mem))
		})
		t.Run(fmt.Sprintf("to generation %d, while the file is open", i+1), func(t *testing.T) {
			x, mem, entries := series(t)
			h, err := x.Open(mem)
			must(t, err)
			newest := x.Entry
			x.Entry = entries[i]
			must(t, h.Writer.UpdateRegistry(context.Background()))
			if x.Entry != newest {
				t.Errorf("registered is %+v, want %+v", x.Entry, newest)
			}
			must(t, h.Writer.Close())
		})
		t.Run(fmt.Sprintf("to generation %d, whose successor is not here", i+1), func(t *testing.T) {
			if i == len(entries)-1 {
				t.Skip("it is the newest file")
			}
			x, mem, entries := series(t)
			x.Entry = entries[i]
			must(t, mem.Rename(generationIn(x, uint64(i+2)), "/archive"))
			_, err := x.Open(mem)
			for _, err := range []error{err, storage.CheckRegistered(mem, x.Dir, "orders", x.Entry)} {
				checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "older than the files", "register this one", "move and remove nothing")
				if strings.Contains(err.Error(), "move this one away") {
					t.Errorf("%v", err)
				}
			}
			if x.Entry != entries[i] {
				t.Errorf("registered is %+v", x.Entry)
			}
		})
	}
}

func generationIn(x *world, g uint64) string {
	return filepath.Join(x.Dir, storage.GenerationName("orders", g))
}

// TestAdopt: a file that does not continue the registered one is registered only on request, and never if it lacks durable records.
func TestAdopt(t *testing.T) {
	ctx := context.Background()
	x, mem := newMemWorld(t, 512)
	h, err := x.Open(mem)
	must(t, err)
	must(t, steps(h.Rotate, func() error { return h.Append(1) }, h.Ack, h.Rotate, func() error { return h.Writer.Close() }))
	newest := x.Entry
	o := storage.Options{FS: mem, Registry: x, Adopt: true}
	adopt := func() error {
		x.Epoch++
		w, err := storage.Open(ctx, x.Dir, "orders", x.Epoch, o)
		if err == nil {
			err = w.Close()
		}
		return err
	}
	for _, other := range []storage.Entry{
		{FileID: storage.FileID{1}, Generation: 1, Epoch: 2, DurableIndex: 3},
		{FileID: storage.FileID{1}, Generation: 3, Epoch: 50, DurableIndex: 7},
	} {
		x.Entry, x.Epoch = other, max(x.Epoch, other.Epoch)
		_, err := x.Open(mem)
		checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity)
		must(t, adopt())
		if x.Entry.FileID != newest.FileID || x.Entry.Generation != 3 {
			t.Errorf("registered is %+v", x.Entry)
		}
		must(t, x.Finish(mem))
	}
	other := storage.Entry{FileID: storage.FileID{1}, Generation: 3, Epoch: x.Epoch, DurableIndex: 41}
	x.Entry = other
	checkError(t, adopt(), new(*storage.RegistryMismatch), storage.ErrIntegrity, "below index 41")
	if x.Entry != other {
		t.Errorf("registered is %+v", x.Entry)
	}
	other.Generation, other.DurableIndex = 4, 1
	x.Entry = other
	checkError(t, adopt(), new(*storage.RegistryMismatch), storage.ErrIntegrity, "generation 4")
	if x.Entry != other {
		t.Errorf("registered is %+v", x.Entry)
	}
}

// TestSuccessorIsNotMadeTwice: A and B find a sealed file without a successor. A creates and fills it, and it is moved away while B is
// paused. B's file would have the same identity, and reuse the indexes of the records in A's.
func TestSuccessorIsNotMadeTwice(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	died := false
	h, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if died = died || c.Op == storagetest.OpLink; died {
			return &storagetest.Fault{Err: io.ErrUnexpectedEOF} // after the seal
		}
		return nil
	}})
	must(t, err)
	must(t, h.Begin())
	if err := h.Rotate(); err == nil {
		t.Fatal("scenario: the writer did not die")
	}
	slept := false
	_, err = x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpLink && !slept {
			slept = true
			temp := temporary(mem)
			must(t, mem.Rename(temp, "/unseen"))
			defer func() { must(t, mem.Rename("/unseen", temp)) }()
			a, err := x.Open(mem)
			must(t, err)
			must(t, steps(func() error { return a.Append(2) }, a.Ack, func() error { return a.Writer.Close() }))
			must(t, mem.Rename(generationIn(x, 2), "/moved"))
		}
		return nil
	}})
	checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, "restore the newest copy")
	must(t, ignoreNotExist(mem.Remove(generationIn(x, 2))))
	must(t, mem.Rename("/moved", generationIn(x, 2)))
	must(t, x.Finish(mem))
}

// TestEntryIsGone: a registry that lost its entry while a file is in use is not mistaken for one that names another file.
func TestEntryIsGone(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	h, err := x.Open(mem)
	must(t, err)
	x.Registered, x.Entry = false, storage.Entry{}
	checkError(t, h.Writer.UpdateRegistry(context.Background()), new(*storage.RegistryMismatch), storage.ErrIntegrity, "no longer has an entry", "start the workers again")
	checkError(t, h.Rotate(), new(*storage.RegistryMismatch), storage.ErrIntegrity, "no longer has an entry", "start the workers again")
	must(t, x.Finish(mem))
}

// TestGiveUp: if the registered file is lost, whatever is left of earlier files, no writer continues until an operator requests it. Then a
// new file takes its place and continues at the lost file's durable index, the lost records are marked, and the series is sound.
func TestGiveUp(t *testing.T) {
	for _, c := range []struct {
		name        string
		generations int // number of generations before the loss
		lose        func(x *world, mem *storagetest.Mem)
		says        string
		first       uint64 // the first lost index
		last        uint64 // the index after the last lost one
		kept        uint64 // the first index that is left
		before      uint64 // number of records directly before first that were lost earlier
		begins      uint64 // first index of the new file
	}{
		{"the newest of three", 3, func(x *world, mem *storagetest.Mem) { mem.Remove(generationIn(x, 3)) }, "generation 3", 10, 12, 0, 0, 10},
		{"the two newest of three", 3, func(x *world, mem *storagetest.Mem) {
			mem.Remove(generationIn(x, 2))
			mem.Remove(generationIn(x, 3))
		}, "generation 3", 8, 12, 0, 0, 8},
		{"all but a copy of the first that is older than its seal", 3, func(x *world, mem *storagetest.Mem) {
			mem.WriteFile(generationIn(x, 1), mem.ReadFile("/copy"))
			mem.Remove(generationIn(x, 2))
			mem.Remove(generationIn(x, 3))
		}, "generation 3", 6, 12, 0, 0, 0},
		{"all of two but the first, which is a copy that is older than its seal", 2, func(x *world, mem *storagetest.Mem) {
			mem.WriteFile(generationIn(x, 1), mem.ReadFile("/copy"))
			mem.Remove(generationIn(x, 2))
		}, "generation 2", 6, 10, 0, 0, 0},
		{"what took the place of a file that was cut", 1, func(x *world, mem *storagetest.Mem) {
			mem.WriteFile(generationIn(x, 1), mem.ReadFile("/copy"))
			x.Epoch++
			w, err := storage.Open(context.Background(), x.Dir, "orders", x.Epoch, storage.Options{FS: mem, Registry: x, Salvage: true, AcceptLoss: true})
			must(t, err)
			n, _, err := w.Compact(context.Background(), []byte("state of what is left"), storage.CompactOptions{})
			must(t, err)
			mustAppend(t, n, messages(30, 2))
			_, err = n.Sync()
			must(t, err)
			must(t, n.UpdateRegistry(context.Background()))
			must(t, n.Close())
			mem.Remove(generationIn(x, 2))
		}, "generation 2", 8, 10, 0, 2, 0},
		{"all of three", 3, func(x *world, mem *storagetest.Mem) {
			for g := range 3 {
				mem.Remove(generationIn(x, uint64(g+1)))
			}
		}, "does not exist", 12, 12, 12, 0, 12},
		{"the only one", 1, func(x *world, mem *storagetest.Mem) { mem.Remove(generationIn(x, 1)) }, "does not exist", 0, 8, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			x, mem := newMemWorld(t, 512) // with 6 messages
			mem.WriteFile("/copy", mem.ReadFile(generationIn(x, 1)))
			h, err := x.Open(mem)
			must(t, err)
			for g := range c.generations {
				if g > 0 {
					must(t, h.Rotate())
				}
				must(t, steps(func() error { return h.Append(2) }, h.Ack))
			}
			must(t, h.Writer.Close())
			c.lose(x, mem)
			was := x.Entry
			_, err = x.Open(mem)
			checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity, c.says, "give up what")
			names := mem.Names()
			x.Epoch++
			o := storage.Options{FS: mem, Registry: x, Salvage: true, Empty: []byte("empty")}
			_, err = storage.Open(ctx, x.Dir, "orders", x.Epoch, o)
			checkError(t, err, new(*storage.RegistryMismatch), storage.ErrIntegrity)
			if got := mem.Names(); !slices.Equal(got, names) {
				t.Fatalf("without AcceptLoss the files changed: %v instead of %v", got, names)
			}

			o.AcceptLoss = true
			x.Epoch++
			w, err := storage.Open(ctx, x.Dir, "orders", x.Epoch, o)
			must(t, err)
			given, ok := w.GivenUp()
			if !ok {
				n, report, err := w.Compact(ctx, []byte("state of what is left"), storage.CompactOptions{})
				must(t, err)
				w, given = n, storage.GivenUp{First: report.NextIndex - report.Lost, Next: report.NextIndex}
			}
			if given.First != c.first || given.Next != c.last || given.All != (c.kept > 0) {
				t.Errorf("given up is %+v", given)
			}
			if w.Generation() != was.Generation+1 || w.NextIndex() != c.last || x.Entry.FileID != w.FileID() || x.Entry.Generation != was.Generation+1 ||
				x.Entry.DurableIndex != c.last {
				t.Errorf("generation %d continues at %d, registered is %+v", w.Generation(), w.NextIndex(), x.Entry)
			}
			mustAppend(t, w, messages(20, 3))
			must(t, w.Close())

			chain, err := storage.ReadChain(mem, x.Dir, "orders")
			must(t, err)
			if wrong := chain.Check(); len(wrong) > 0 {
				t.Errorf("the series: %v", wrong)
			}
			if got := chain[len(chain)-1].First; got != c.begins {
				t.Errorf("the new file begins at index %d, want %d", got, c.begins)
			}
			must(t, chain.CheckEnd(ctx, mem))
			must(t, storage.CheckRegistered(mem, x.Dir, "orders", x.Entry))
			starts, next := chain.Starts(), c.kept
			for _, l := range chain {
				if starts[l.Path] <= l.First {
					continue // replaced
				}
				rep := mustVerify(t, mem, l.Path)
				must(t, rep.Err())
				for _, r := range readAll(t, mem, l.Path) {
					lost := r.Index >= c.first-c.before && r.Index < c.last
					if r.Index != next || lost != (r.Kind == storage.KindLost) {
						t.Errorf("record %d has index %d and kind %d", next, r.Index, r.Kind)
					}
					next++
				}
			}
			if next != c.last+3 {
				t.Errorf("the files end at %d", next)
			}
			var state string
			w = mustOpen(t, x.Dir, x.Epoch+1, storage.Options{FS: mem, Registry: x, Restore: func(s []byte) error { state = string(s); return nil }})
			must(t, w.Close())
			if (state == "empty") != (c.kept > 0 || c.generations == 1 && c.before == 0) || state == "" {
				t.Errorf("the state is %q", state)
			}
		})
	}
}
