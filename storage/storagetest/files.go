package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// files tests the contract of storage.FS and storage.File without faults.
func (b *Backend) files(t *testing.T) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *Backend)
	}{
		{"appends go to the end", appendsGoToTheEnd}, {"durable bytes are read by others", durableIsRead}, {"reads", reads}, {"large appends", largeAppends},
		{"a writer that was overtaken", overtaken}, {"many writers", manyWriters}, {"readers beside a writer", readersBesideAWriter},
		{"names are taken once", namesAreTakenOnce}, {"listings", listings}, {"old files", oldFiles}, {"modes", modes}, {"identity", identity},
		{"the end of a process", endOfAProcess}, {"power failure", powerFailure}, {"a local disk", localDisk},
	} {
		b.run(t, c.name, func(t *testing.T) { c.test(t, b) })
	}
}

// place makes the directory of a new place.
func (b *Backend) place(t *testing.T) Place {
	t.Helper()
	p := b.New(t)
	if err := p.fs().Mkdir(p.Dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatalf("mkdir: %v", err)
	}
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newFile makes a file with the name of a first generation and some bytes, as package storage does, and leaves it open.
func (p Place) newFile(t *testing.T, data string) (f storage.File, name string) {
	t.Helper()
	fsys := p.fs()
	temp, name := p.temp(1), filepath.Join(p.Dir, storage.FileName(oracle.Type))
	f, err := fsys.Open(temp, storage.ModeCreate)
	must(t, err)
	write(t, f, data)
	must(t, errors.Join(f.Datasync(), fsys.Link(temp, name), fsys.Remove(temp), fsys.SyncDir(p.Dir)))
	return f, name
}

// temp returns a temporary name of the first generation.
func (p Place) temp(nonce uint64) string {
	return filepath.Join(p.Dir, storage.TempName(oracle.Type, 1, nonce))
}

func open(t *testing.T, fsys storage.FS, name string, mode storage.Mode) storage.File {
	t.Helper()
	f, err := fsys.Open(name, mode)
	must(t, err)
	return f
}

// write appends p, and returns where it ends.
func write(t *testing.T, f storage.File, p string) int64 {
	t.Helper()
	n, end, err := f.Append([]byte(p))
	if n != len(p) || err != nil {
		t.Fatalf("appended %d of %d bytes: %v", n, len(p), err)
	}
	return end
}

// content returns all bytes of a file as a new process reads them.
func (p Place) content(t *testing.T, name string) string {
	t.Helper()
	f := open(t, p.fs(), name, storage.ModeRead)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	b := make([]byte, info.Size)
	if n, err := f.ReadAt(b, 0); int64(n) != info.Size || err != nil && err != io.EOF {
		t.Fatalf("read %d of %d bytes: %v", n, info.Size, err)
	}
	return string(b)
}

func appendsGoToTheEnd(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "one,")
	defer f.Close()
	for i, s := range []string{"two,", "three,", "", "four"} {
		if end, want := write(t, f, s), []int64{8, 14, 14, 18}[i]; end != want && s != "" {
			t.Errorf("%q ends at %d, want %d", s, end, want)
		}
	}
	if info, err := f.Stat(); err != nil || info.Size != 18 {
		t.Errorf("the writer's size is %d, %v", info.Size, err)
	}
	must(t, f.Datasync())
	must(t, f.Datasync()) // nothing to do
	if got := p.content(t, name); got != "one,two,three,four" {
		t.Errorf("the file has %q", got)
	}
}

// durableIsRead: synced bytes are read by an existing handle and by a new process, even if their writer ended without a close.
func durableIsRead(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "one,")
	defer f.Close()
	before := open(t, p.fs(), name, storage.ModeRead)
	defer before.Close()
	ctx, end := context.WithCancel(context.Background())
	g := open(t, p.FS(ctx), name, storage.ModeAppend)
	defer g.Close()
	write(t, g, "two")
	must(t, g.Datasync())
	end()
	if info, err := before.Stat(); err != nil || info.Size != 7 {
		t.Errorf("a follower of the file sees %d bytes, %v", info.Size, err)
	}
	buf := make([]byte, 3)
	if n, err := before.ReadAt(buf, 4); string(buf[:n]) != "two" || err != nil && err != io.EOF {
		t.Errorf("a follower of the file reads %q, %v", buf[:n], err)
	}
	if got := p.content(t, name); got != "one,two" {
		t.Errorf("a new process reads %q", got)
	}
}

// reads: any range can be read, with the semantics of io.ReaderAt.
func reads(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "0123")
	for _, s := range []string{"45", "6789"} { // each is a slot in a store
		write(t, f, s)
		must(t, f.Datasync())
	}
	must(t, f.Close())
	r := open(t, p.fs(), name, storage.ModeRead)
	defer r.Close()
	for off := range int64(13) {
		for n := range 13 {
			buf := make([]byte, n)
			got, err := r.ReadAt(buf, off)
			want := "0123456789"[min(off, 10):min(off+int64(n), 10)]
			if string(buf[:got]) != want || got < n && err != io.EOF || got == n && err != nil && (err != io.EOF || off+int64(n) < 10) {
				t.Errorf("%d bytes at %d: %q, %v; want %q", n, off, buf[:got], err, want)
			}
		}
	}
}

// largeAppends: an append of any size is complete. In a store it takes several slots.
func largeAppends(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "first")
	defer f.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	if n, end, err := f.Append(large); n != len(large) || end != int64(5+n) || err != nil {
		t.Fatalf("appended %d bytes up to %d: %v", n, end, err)
	}
	clear(large) // the file kept no reference to it
	must(t, f.Datasync())
	if got := p.content(t, name); got != "first"+string(bytes.Repeat([]byte("0123456789abcdef"), 4<<10)) {
		t.Errorf("a new process reads %d other bytes", len(got))
	}
}

// overtaken: bytes that a writer appends after it was overtaken do not become damage. Either they end at the reported offset, or the
// writer learns that none of them were written.
func overtaken(t *testing.T, b *Backend) {
	p := b.place(t)
	a, name := p.newFile(t, "start,")
	defer a.Close()
	other := open(t, p.fs(), name, storage.ModeAppend)
	defer other.Close()
	write(t, other, "other,")
	must(t, other.Datasync())

	_, end, err := a.Append([]byte("late,"))
	must(t, err)
	want := "start,other,late,"
	var moved *storage.MovedError
	switch err := a.Datasync(); {
	case errors.As(err, &moved):
		want = "start,other,"
		if moved.At != 6 || moved.End != 12 {
			t.Errorf("moved: %v", moved)
		}
		if end := write(t, a, "again,"); end != 18 {
			t.Errorf("the next append ends at %d", end)
		}
		must(t, a.Datasync())
		want += "again,"
	case err != nil:
		t.Fatal(err)
	case end != 17:
		t.Errorf("it ends at %d", end)
	}
	if got := p.content(t, name); got != want {
		t.Errorf("the file has %q, want %q", got, want)
	}
}

// manyWriters: whatever several writers do concurrently, confirmed bytes are in the file once, complete, and at the offset reported to
// their writer.
func manyWriters(t *testing.T, b *Backend) {
	const writers, rounds = 4, 8
	p := b.place(t)
	f, name := p.newFile(t, "start")
	must(t, f.Close())
	confirmed := make([]map[string]int64, writers)
	var all sync.WaitGroup
	for w := range writers {
		confirmed[w] = map[string]int64{}
		g := open(t, p.fs(), name, storage.ModeAppend)
		all.Go(func() {
			defer g.Close()
			for i := range rounds {
				block := fmt.Sprintf("<%d:%d:%s>", w, i, bytes.Repeat([]byte{'a' + byte(w)}, 100*i))
				n, end, err := g.Append([]byte(block))
				if err == nil {
					err = g.Datasync()
				}
				switch {
				case err == nil && n == len(block):
					confirmed[w][block] = end
				case !errors.As(err, new(*storage.MovedError)):
					t.Errorf("writer %d: %d of %d bytes, %v", w, n, len(block), err)
					return
				}
			}
		})
	}
	all.Wait()
	got, sum := p.content(t, name), 5
	for w := range writers {
		for block, end := range confirmed[w] {
			if from := int(end) - len(block); from < 0 || int(end) > len(got) || got[from:end] != block {
				t.Errorf("writer %d: %.10s… was confirmed up to %d and is missing", w, block, end)
			}
			sum += len(block)
		}
	}
	if sum != len(got) || sum == 5 {
		t.Errorf("the file has %d bytes, %d were confirmed", len(got), sum)
	}
}

// readersBesideAWriter: at any moment, readers see a prefix of the written bytes.
func readersBesideAWriter(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "0123456789")
	defer f.Close()
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 3 {
		r := open(t, p.fs(), name, storage.ModeRead)
		all.Go(func() {
			defer r.Close()
			for last := false; !last; {
				select {
				case <-done:
					last = true
				default:
				}
				info, err := r.Stat()
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, info.Size)
				if n, err := r.ReadAt(buf, 0); n != len(buf) || err != nil && err != io.EOF || len(bytes.TrimLeft(buf, "0123456789")) > 0 {
					t.Errorf("read %d of %d bytes: %q, %v", n, info.Size, buf[:n], err)
					return
				}
				if last && info.Size != 210 {
					t.Errorf("at the end a reader sees %d bytes", info.Size)
				}
			}
		})
	}
	for range 20 {
		write(t, f, "0123456789")
		must(t, f.Datasync())
	}
	close(done)
	all.Wait()
}

// modes: readers cannot append, and a closed file is unusable. Bytes that were not synced before the close are not confirmed, and may be lost.
func modes(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "start")
	r := open(t, p.fs(), name, storage.ModeRead)
	if _, _, err := r.Append([]byte("x")); err == nil {
		t.Error("a file that is open for reading accepts an append")
	}
	write(t, f, ", perhaps")
	must(t, errors.Join(f.Close(), r.Close()))
	_, _, err := f.Append([]byte("x"))
	if err == nil {
		err = f.Datasync()
	}
	if err == nil {
		t.Error("a closed file accepts an append, and confirms it")
	}
	if got := p.content(t, name); got != "start" && got != "start, perhaps" {
		t.Errorf("the file has %q", got)
	}
}

// endOfAProcess: calls of a process that has ended return, and confirm nothing that is not in the file.
func endOfAProcess(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "start")
	must(t, f.Close())
	ctx, end := context.WithCancel(context.Background())
	fsys := p.FS(ctx)
	g := open(t, fsys, name, storage.ModeAppend)
	end()
	_, _, err := g.Append([]byte(", late"))
	if err == nil {
		err = g.Datasync()
	}
	if got := p.content(t, name); err == nil && got != "start, late" || got != "start" && got != "start, late" {
		t.Errorf("the append was answered with %v, and the file is %q", err, got)
	}
	_ = g.Close()
	_, listed := fsys.List(p.Dir, oracle.Type)
	_, opened := fsys.Open(name, storage.ModeRead)
	if p.Requests != nil && (err == nil || listed == nil || opened == nil || errors.Is(opened, fs.ErrNotExist)) {
		t.Errorf("requests of a process that has ended: append %v, list %v, open %v", err, listed, opened)
	}
}

// powerFailure: synced bytes survive, and so do names in a synced directory.
func powerFailure(t *testing.T, b *Backend) {
	p := b.place(t)
	if p.Crash == nil {
		t.Skip("the backend cannot lose power")
	}
	must(t, p.fs().SyncDir(filepath.Dir(p.Dir)))
	f, name := p.newFile(t, "start")
	write(t, f, ", durable")
	must(t, f.Datasync())
	write(t, f, ", perhaps")
	p.Crash()
	if got := p.content(t, name); got != "start, durable" && got != "start, durable, perhaps" {
		t.Errorf("the file has %q", got)
	}
	if _, _, err := f.Append([]byte("x")); err == nil {
		t.Error("a file that was opened before accepts an append")
	}
}
