package storagetest_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func create(t *testing.T, fsys storage.FS, name string) storage.File {
	t.Helper()
	f, err := fsys.Open(name, storage.ModeCreate)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f storage.File, p []byte) {
	t.Helper()
	if n, _, err := f.Append(p); n != len(p) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(p), err)
	}
}

func block(c byte) []byte { return bytes.Repeat([]byte{c}, 512) }

// TestPowerFailure: synced bytes survive, and any subset of the other blocks.
func TestPowerFailure(t *testing.T) {
	mem := storagetest.NewMem(512)
	f := create(t, mem, "/f")
	write(t, f, block(1))
	if err := errors.Join(f.Datasync(), mem.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	write(t, f, append(append(block(2), block(3)...), 4))
	create(t, mem, "/unsynced")
	if got := mem.Dirty("/f"); len(got) != 3 {
		t.Errorf("dirty %v", got)
	}
	for _, c := range []struct {
		crash storagetest.Crash
		want  []byte
		names int
	}{
		{storagetest.Crash{}, block(1), 1},
		{storagetest.Crash{KeepName: func(string) bool { return true }}, block(1), 2},
		{storagetest.Crash{Keep: func(_ string, b int64) bool { return b == 2 }}, append(append(block(1), block(0)...), block(3)...), 1},
		{storagetest.Crash{KeepSize: func(string) bool { return true }}, append(append(append(block(1), block(0)...), block(0)...), 0), 1},
		{storagetest.Crash{Keep: func(string, int64) bool { return true }}, append(append(append(block(1), block(2)...), block(3)...), 4), 1},
	} {
		after := mem.Clone()
		after.Crash(c.crash)
		if got := after.ReadFile("/f"); !bytes.Equal(got, c.want) || len(after.Names()) != c.names {
			t.Errorf("%d bytes, want %d; files %v", len(got), len(c.want), after.Names())
		}
	}
	older := mem.Clone()
	if g, err := older.Open("/f", storage.ModeAppend); err != nil {
		t.Fatal(err)
	} else {
		write(t, g, []byte{5, 6})
	}
	older.Crash(storagetest.Crash{Keep: func(string, int64) bool { return true }, At: func(string, int64) int64 { return 512 + 1024 + 2 }})
	if got := older.ReadFile("/f"); !bytes.Equal(got[1536:], []byte{4, 5}) {
		t.Errorf("the last block, as it was before the last byte was written, is %v", got[1536:])
	}
	mem.Crash(storagetest.Crash{})
	if _, err := f.Stat(); !errors.Is(err, storagetest.ErrCrashed) {
		t.Errorf("an open file after the crash: %v", err)
	}
}

// TestFailedWriteback: the pages are clean, readable and not on the device; every descriptor opened before reports that
// once, one opened afterwards does not.
func TestFailedWriteback(t *testing.T) {
	mem := storagetest.NewMem(4096)
	f := create(t, mem, "/f")
	write(t, f, block(1))
	if err := errors.Join(f.Datasync(), mem.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	g, err := mem.Open("/f", storage.ModeAppend)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f, bytes.Repeat([]byte{7}, 10000))
	mem.FailWriteback("/f", nil)
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("first sync: %v", err)
	}
	if err := f.Datasync(); err != nil {
		t.Errorf("second sync: %v", err)
	}
	later, _ := mem.Open("/f", storage.ModeAppend)
	if err := later.Datasync(); err != nil {
		t.Errorf("a descriptor opened afterwards: %v", err)
	}
	if err := g.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("another descriptor opened before: %v", err)
	}
	read := func(off int64) byte {
		var p [1]byte
		if _, err := g.ReadAt(p[:], off); err != nil {
			t.Fatal(err)
		}
		return p[0]
	}
	if read(5000) != 7 {
		t.Error("the cache lost the failed block")
	}
	if g.DropCache(100, 0); read(1000) != 7 || read(5000) != 0 {
		t.Error("a range that begins within a page must drop the whole pages after that page, and not the page itself")
	}
	if g.DropCache(0, 0); read(100) != 1 || read(1000) != 0 {
		t.Error("the cache was not dropped")
	}
	write(t, f, []byte{9})
	mem.FailWriteback("/f", nil)
	last, _ := mem.Open("/f", storage.ModeAppend)
	if err := last.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("an error that no descriptor has reported yet: %v", err)
	}
}

// TestFailedStay: a block whose writeback failed once does not reach the device until it is dropped, even if syncs succeed.
func TestFailedStay(t *testing.T) {
	mem := storagetest.NewMem(512)
	mem.FailedStay = true
	f := create(t, mem, "/f")
	write(t, f, []byte{1})
	mem.FailWriteback("/f", nil)
	if err := f.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	write(t, f, []byte{2})
	if err := errors.Join(f.Datasync(), mem.SyncDir("/"), f.DropCache(0, 0)); err != nil {
		t.Fatal(err)
	}
	if got := mem.ReadFile("/f"); !bytes.Equal(got, []byte{0, 0}) {
		t.Errorf("%v", got)
	}
	write(t, f, []byte{3})
	if err := f.Datasync(); err != nil {
		t.Fatal(err)
	}
	if mem.Crash(storagetest.Crash{}); !bytes.Equal(mem.ReadFile("/f"), []byte{0, 0, 3}) {
		t.Errorf("%v", mem.ReadFile("/f"))
	}
}

// TestFullDevice: a write that does not fit is short, and the next one fails.
func TestFullDevice(t *testing.T) {
	mem := storagetest.NewMem(4096)
	f := create(t, mem, "/f")
	mem.SetFree(1000)
	if err := f.Allocate(0, 1001); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("reserve: %v", err)
	}
	if n, end, err := f.Append(make([]byte, 1500)); n != 1000 || end != 1000 || err != nil {
		t.Errorf("wrote %d up to %d, %v", n, end, err)
	}
	if _, _, err := f.Append([]byte{1}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("then: %v", err)
	}
}
