package format_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/internal/s3test"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
)

// TestPythonReaderReadsSlots: the slots of each generation, concatenated in the order of their names, are a file that
// read_fpl.py accepts, with the messages that a reader of the store finds.
func TestPythonReaderReadsSlots(t *testing.T) {
	python := findPython(t)
	t.Run("directory", func(t *testing.T) {
		store, err := dirslots.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		readsSlots(t, python, store)
	})
	t.Run("bucket", func(t *testing.T) {
		s3test.Environment(t)
		store, err := s3slots.Open(t.Context(), s3test.Bucket(t, nil)+"&region=us-east-1")
		if err != nil {
			t.Fatal(err)
		}
		readsSlots(t, python, store)
	})
}

func readsSlots(t *testing.T, python string, store slots.Store) {
	fsys := slots.New(t.Context(), store)
	w := newWorld(t)
	writer, err := storage.Open(context.Background(), fsys.Dir(), "orders", 1, storage.Options{FS: fsys})
	w.must(err)
	for _, epoch := range []uint64{2, 3, 4} {
		for range 5 {
			w.must(writer.Append(w.messages(7)))
			_, err := writer.Sync()
			w.must(err)
		}
		if epoch == 3 {
			writer, err = writer.Rotate(context.Background(), []byte("state"))
			w.must(err)
		}
		before := writer
		writer, err = storage.Open(context.Background(), fsys.Dir(), "orders", epoch, storage.Options{FS: fsys}) // takes over
		w.must(err)
		_ = before.Append(w.messages(1)) // too late
		before.Close()
	}
	w.must(writer.Close())

	dir := t.TempDir()
	chain, err := storage.ReadChain(fsys, fsys.Dir(), "orders")
	w.must(err)
	if wrong := chain.Check(); len(chain) != 2 || len(wrong) > 0 {
		t.Fatalf("%d files, %v", len(chain), wrong)
	}
	for _, l := range chain {
		name := filepath.Base(l.Path)
		w.must(os.WriteFile(filepath.Join(dir, name), export(t, store, l.Generation), 0o600))
		report, err := storage.Verify(t.Context(), l.Path, storage.VerifyOptions{FS: fsys})
		w.must(err)
		exported, err := storage.Verify(t.Context(), filepath.Join(dir, name), storage.VerifyOptions{})
		w.must(err)
		if report.Err() != nil || exported.Err() != nil || report.Messages == 0 || report.Messages != exported.Messages || report.FileID != exported.FileID || report.Size != exported.Size {
			t.Errorf("%s: in the store %+v, exported %+v", name, report, exported)
		}
	}
	args := []string{"read_fpl.py", "verify"}
	for _, l := range chain {
		args = append(args, filepath.Join(dir, filepath.Base(l.Path)))
	}
	if o, err := run(python, args...); err != nil || o.Exit != 0 {
		t.Errorf("read_fpl.py: exit code %d, %s%s, %v", o.Exit, o.Stdout, o.Stderr, err)
	}
}

// export returns the concatenated slots of a generation, using only the store's contents and FORMAT.md.
func export(t *testing.T, store slots.Store, generation uint64) []byte {
	t.Helper()
	number := []string{"", "00000001", "00000002"}[generation]
	nonce, err := store.Read(t.Context(), "orders/generations/"+number)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := store.List(t.Context(), "orders/"+number+"/"+string(nonce))
	if err != nil || len(entries) < 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	slices.SortFunc(entries, func(a, b slots.Entry) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	var all []byte
	for _, e := range entries {
		b, err := store.Read(t.Context(), e.Name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}
