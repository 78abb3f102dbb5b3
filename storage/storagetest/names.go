package storagetest

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// namesAreTakenOnce: of several processes that make a file, one gets the name, and its file stays unchanged.
func namesAreTakenOnce(t *testing.T, b *Backend) {
	p := b.place(t)
	fsys, name := p.fs(), filepath.Join(p.Dir, storage.FileName(oracle.Type))
	if _, err := fsys.Open(name, storage.ModeRead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a missing file: %v", err)
	}
	if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat a missing file: %v", err)
	}
	const makers = 6
	var mu sync.Mutex
	var won []string
	var all sync.WaitGroup
	for i := range makers {
		mine, temp := p.fs(), p.temp(uint64(i+1))
		f := open(t, mine, temp, storage.ModeCreate)
		write(t, f, temp)
		must(t, errors.Join(f.Datasync(), f.Close()))
		all.Go(func() {
			err := mine.Link(temp, name)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, temp)
			} else if !errors.Is(err, fs.ErrExist) {
				t.Errorf("link: %v", err)
			}
		})
	}
	all.Wait()
	for i := range makers {
		must(t, fsys.Remove(p.temp(uint64(i+1)))) // its own temporary name, or an unused file
	}
	if got := p.content(t, name); len(won) != 1 || got != won[0] {
		t.Errorf("Link of %q succeeded, the file is %q", won, got)
	}
	names, err := fsys.List(p.Dir, oracle.Type)
	names = slices.DeleteFunc(names, func(name string) bool { _, _, ok := storage.ParseName(name); return !ok }) // the list may have other names
	if must(t, err); !slices.Equal(names, []string{storage.FileName(oracle.Type)}) {
		t.Errorf("there are %q", names)
	}
}

// listings: every process lists the generations of a type as soon as they have their names. The list may include other types.
func listings(t *testing.T, b *Backend) {
	p := b.place(t)
	fsys := p.fs()
	if names, err := fsys.List(p.Dir, oracle.Type); err != nil || len(names) > 0 {
		t.Errorf("an empty place has %q, %v", names, err)
	}
	var want []string
	for _, typ := range []string{oracle.Type, "audit"} {
		for g := uint64(1); g <= 3; g++ {
			temp, name := storage.TempName(typ, g, 7), storage.GenerationName(typ, g)
			f := open(t, fsys, filepath.Join(p.Dir, temp), storage.ModeCreate)
			write(t, f, name)
			must(t, errors.Join(f.Datasync(), f.Close(), fsys.Link(filepath.Join(p.Dir, temp), filepath.Join(p.Dir, name)), fsys.Remove(filepath.Join(p.Dir, temp)), fsys.SyncDir(p.Dir)))
			if want = append(want, name); typ == oracle.Type {
				names, err := p.fs().List(p.Dir, typ)
				if slices.Sort(names); err != nil || !slices.Equal(names, want) {
					t.Errorf("listed: %q, %v; want %q", names, err, want)
				}
			}
		}
	}
	for typ, want := range map[string][]string{oracle.Type: want[:3], "audit": want[3:], "": want} {
		names, err := p.fs().List(p.Dir, typ)
		for _, name := range want {
			if err != nil || !slices.Contains(names, name) {
				t.Errorf("of type %q: %q, %v; without %s", typ, names, err, name)
			}
		}
	}
}

// oldFiles: a removed file is no longer listed or opened, and no writer can continue in it; later files stay.
func oldFiles(t *testing.T, b *Backend) {
	x, p := b.world(t)
	old, err := x.Open(p.fs())
	must(t, err)
	first := x.Path()
	h, err := x.Open(p.fs())
	must(t, err)
	must(t, oracle.Steps(oracle.Appends(h, 1), h.Rotate, oracle.Appends(h, 1), h.Ack, h.Writer.Close, func() error { return x.Keep(p.fs(), p.fs()) }))
	if _, err := p.fs().Open(first, storage.ModeRead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old file: %v", err)
	}
	names, err := p.fs().List(p.Dir, oracle.Type)
	if must(t, err); !slices.Equal(names, []string{filepath.Base(x.Path())}) || filepath.Base(x.Path()) == filepath.Base(first) {
		t.Errorf("left: %q", names)
	}
	if err := oracle.Steps(oracle.Appends(old, 1), old.Ack); !errors.Is(err, storage.ErrFenced) && !errors.Is(err, storage.ErrIntegrity) {
		t.Errorf("the writer of the old file got: %v", err)
	}
	old.Close()
	if half, ok := p.fs().(storage.HalfRemover); ok {
		if names, err := half.HalfRemoved(oracle.Type); err != nil || len(names) > 0 {
			t.Errorf("half removed: %q, %v", names, err)
		}
	}
	must(t, x.Finish(p.fs()))
}

// identity: a file has the same identity for every process, and no other file has it.
func identity(t *testing.T, b *Backend) {
	p := b.place(t)
	f, name := p.newFile(t, "start")
	defer f.Close()
	other := open(t, p.fs(), p.temp(2), storage.ModeCreate)
	defer other.Close()
	same := open(t, p.fs(), name, storage.ModeRead)
	defer same.Close()
	mine, err := f.Stat()
	must(t, err)
	theirs, err := same.Stat()
	must(t, err)
	named, err := p.fs().Stat(name)
	must(t, err)
	if theirs.Dev != mine.Dev || theirs.Ino != mine.Ino || named.Dev != mine.Dev || named.Ino != mine.Ino {
		t.Errorf("one file is %+v, %+v and %+v", mine, theirs, named)
	}
	if info, err := other.Stat(); err != nil || info.Dev == mine.Dev && info.Ino == mine.Ino {
		t.Errorf("another file is %+v, as %+v: %v", info, mine, err)
	}
}

// localDisk: the additional guarantees of a file system with directories and a page cache.
func localDisk(t *testing.T, b *Backend) {
	place := b.place(t)
	fsys := place.fs()
	if typ, err := fsys.Type(place.Dir); err == nil && typ.Slots {
		t.Skip("it is a store")
	}
	dir := filepath.Join(place.Dir, "d")
	first, second := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := fsys.Type(dir)
	check("type of a missing directory", err, syscall.ENOENT)
	_, err = fsys.Open(first, storage.ModeCreate)
	check("create in a missing directory", err, syscall.ENOENT)
	check("mkdir in a missing directory", fsys.Mkdir(filepath.Join(dir, "x", "y")), syscall.ENOENT)
	check("mkdir", fsys.Mkdir(dir), nil)
	check("mkdir again", fsys.Mkdir(dir), syscall.EEXIST)
	_, err = fsys.Open(first, storage.ModeAppend)
	check("open a missing file", err, syscall.ENOENT)
	f := open(t, fsys, first, storage.ModeCreate)
	_, err = fsys.Open(first, storage.ModeCreate)
	check("create again", err, syscall.EEXIST)
	check("link", fsys.Link(first, second), nil)
	check("link again", fsys.Link(first, second), syscall.EEXIST)
	check("remove", fsys.Remove(first), nil)
	check("remove again", fsys.Remove(first), syscall.ENOENT)

	write(t, f, "hello")
	g, err := fsys.Open(second, storage.ModeAppend)
	check("open", err, nil)
	write(t, g, ", ")
	n, end, err := f.Append([]byte("world"))
	if n != 5 || end != 12 || err != nil {
		t.Errorf("append: %d bytes up to %d, %v", n, end, err)
	}
	p := make([]byte, 20)
	if n, err := g.ReadAt(p, 0); string(p[:n]) != "hello, world" || err != io.EOF {
		t.Errorf("read %q, %v", p[:n], err)
	}
	if n, err := g.ReadAt(p[:5], 7); n != 5 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	check("reserve", g.Allocate(12, 5000), nil)
	check("sync", errors.Join(g.Datasync(), g.DropCache(0, 0), fsys.SyncDir(dir)), nil)
	info, err := g.Stat()
	named, nerr := fsys.Stat(second)
	if info.Size != 12 || info.Nlink != 1 || named != info || err != nil || nerr != nil {
		t.Errorf("%+v, %+v, %v, %v", info, named, err, nerr)
	}
	r, err := fsys.Open(second, storage.ModeRead)
	check("open for reading", err, nil)
	_, _, err = r.Append([]byte("x"))
	check("append while reading", err, syscall.EBADF)
	check("remove", fsys.Remove(second), nil)
	if info, err := f.Stat(); info.Nlink != 0 || info.Size != 12 || err != nil {
		t.Errorf("removed: %+v, %v", info, err)
	}
	check("close", errors.Join(f.Close(), g.Close(), r.Close()), nil)
}
