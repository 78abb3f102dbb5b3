package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// slowDir is a directory whose listings and syncs block until released is closed. They see the names at their start.
type slowDir struct {
	storage.FS
	mu       sync.Mutex
	names    []string
	synced   []string
	released chan struct{}
	calls    atomic.Int32
}

func (d *slowDir) look() []string {
	d.calls.Add(1)
	d.mu.Lock()
	names := slices.Clone(d.names)
	d.mu.Unlock()
	<-d.released
	return names
}

func (d *slowDir) List(string, string) ([]string, error) { return d.look(), nil }

func (d *slowDir) SyncDir(string) error {
	names := d.look()
	d.mu.Lock()
	d.synced = names
	d.mu.Unlock()
	return nil
}

func (d *slowDir) add(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names = append(d.names, name)
}

// TestSharedDirectory: calls that wait at the same time share one execution, and a caller finds every name that it created before its call
// listed and synced.
func TestSharedDirectory(t *testing.T) {
	const callers = 10
	for name, call := range map[string]func(*slowDir, storage.FS, string) bool{
		"list": func(d *slowDir, shared storage.FS, typ string) bool {
			names, err := shared.List("dir", typ)
			return err == nil && slices.Equal(names, []string{typ + ".fpl"})
		},
		"sync": func(d *slowDir, shared storage.FS, typ string) bool {
			err := shared.SyncDir("dir")
			d.mu.Lock()
			defer d.mu.Unlock()
			return err == nil && slices.Contains(d.synced, typ+".fpl")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &slowDir{released: make(chan struct{})}
				shared := storage.Shared(d)
				var all sync.WaitGroup
				for i := range callers {
					typ := string(rune('a' + i))
					d.add(typ + ".fpl")
					all.Go(func() {
						if !call(d, shared, typ) {
							t.Errorf("type %s was created before the call, but is missing", typ)
						}
					})
					synctest.Wait()
				}
				close(d.released)
				all.Wait()
				if n := d.calls.Load(); n != 2 {
					t.Errorf("%d calls of the file system for %d callers, want one for the first and one for all others", n, callers)
				}
			})
		})
	}
}

// TestSharedListing: each type gets its own names, whatever else is in the directory.
func TestSharedListing(t *testing.T) {
	d := &slowDir{released: make(chan struct{})}
	close(d.released)
	shared := storage.Shared(d)
	want := map[string][]string{}
	for _, typ := range []string{"a", "a.b", "a-b.c_d", "x.fpl", "x.tmp", "0"} {
		for _, name := range []string{storage.FileName(typ), storage.GenerationName(typ, 2), storage.GenerationName(typ, 12345),
			storage.TempName(typ, 1, 7), storage.TempName(typ, 3, 1<<63)} {
			want[typ] = append(want[typ], name)
			d.add(name)
		}
	}
	for _, name := range []string{"", ".", ".tmp", "..tmp", "fencepost.db", ".fpl", "@.fpl", "@0002.fpl", "a@.fpl", ".a.tmp", "A.fpl", "a@0002.fpl.bak"} {
		d.add(name)
	}
	for typ, names := range want {
		got, err := shared.List("dir", typ)
		for _, name := range names {
			if err != nil || !slices.Contains(got, name) {
				t.Errorf("%s: %s is missing in %q, %v", typ, name, got, err)
			}
		}
	}
	if all, err := shared.List("dir", ""); err != nil || !slices.Equal(all, d.names) {
		t.Errorf("all names: %q, %v", all, err)
	}
}

// TestSharedListingOfTheSystem: each type gets its own names from a real directory.
func TestSharedListingOfTheSystem(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("a", 64)
	types := []string{"a", "a.b", "x.fpl", "x.tmp", long, "nothing"}
	for i := range 3000 { // several reads of the directory
		types = append(types, fmt.Sprintf("t%04d", i))
	}
	want := map[string][]string{}
	for _, typ := range types {
		if typ == "nothing" {
			continue
		}
		for _, name := range []string{storage.FileName(typ), storage.TempName(typ, 3, 1<<63)} {
			want[typ] = append(want[typ], name)
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{strings.Repeat("é", 127), "\xff", ".", "fencepost.db"} {
		_ = os.WriteFile(filepath.Join(dir, name), nil, 0o600)
	}
	shared := storage.Shared(nil)
	for _, typ := range types[:20] {
		got, err := shared.List(dir, typ)
		slices.Sort(got)
		slices.Sort(want[typ])
		if err != nil || !slices.Equal(got, want[typ]) {
			t.Errorf("%s: %q, %v, want %q", typ, got, err, want[typ])
		}
	}
	if names, err := shared.List(filepath.Join(dir, "missing"), "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := shared.List(filepath.Join(dir, "a.fpl"), "a"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%q, %v", names, err)
	}
}

// countedLists counts listings.
type countedLists struct {
	storage.FS
	n int
}

func (c *countedLists) List(dir, typ string) ([]string, error) {
	c.n++
	return c.FS.List(dir, typ)
}

// deafRegistry fails to record which file succeeds another.
type deafRegistry struct{ storage.Registry }

func (deafRegistry) Succeed(context.Context, string, storage.FileID, storage.Entry) (storage.Entry, bool, error) {
	return storage.Entry{}, false, errors.New("no answer")
}

// TestManyOpensAreOneListing: opening many types lists their directory once a second. Later changes by other processes are detected.
func TestManyOpensAreOneListing(t *testing.T) {
	const dir = "/d"
	synctest.Test(t, func(t *testing.T) {
		mem, registries := storagetest.NewMem(4096), map[string]storage.Registry{"old": newWorld(dir), "new": newWorld(dir), "foreign": newWorld(dir)}
		lists := &countedLists{FS: mem}
		shared := storage.Shared(lists)
		epoch := uint64(0)
		open := func(fsys storage.FS, typ string) (*storage.Writer, error) {
			epoch++
			return storage.Open(t.Context(), dir, typ, epoch, storage.Options{FS: fsys, Registry: registries[typ]})
		}
		// expect opens the type through shared, and checks its generation and the number of listings.
		expect := func(what, typ string, generation uint64, listings int) {
			t.Helper()
			before := lists.n
			w, err := open(shared, typ)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer w.Close()
			if got := lists.n - before; w.Generation() != generation || got != listings {
				t.Errorf("%s: generation %d, want %d; %d listings, want %d", what, w.Generation(), generation, got, listings)
			}
		}
		other := func(typ string, rotations int) {
			t.Helper()
			w, err := open(mem, typ)
			for range rotations {
				must(t, err)
				w, err = w.Rotate(t.Context(), []byte("state"))
			}
			must(t, err)
			must(t, w.Close())
		}
		other("old", 2)
		expect("the first one", "old", 3, 1)
		expect("the same again", "old", 3, 0)
		expect("a new one", "new", 1, 0)
		expect("a new one again", "new", 1, 1) // it is not in the cached listing
		other("foreign", 0)
		expect("one that another process has created", "foreign", 1, 1)
		other("foreign", 1)
		expect("one that another process has rotated", "foreign", 2, 1)
		time.Sleep(time.Second)
		expect("after a second", "old", 3, 1)
		expect("the others", "foreign", 2, 0)
		epoch++
		w, err := storage.Open(t.Context(), dir, "foreign", epoch, storage.Options{FS: mem, Registry: deafRegistry{registries["foreign"]}})
		must(t, err)
		if _, err := w.Rotate(t.Context(), []byte("state")); err == nil {
			t.Fatal("it was registered")
		}
		expect("one whose rotation was interrupted before it was registered", "foreign", 3, 1)
		must(t, mem.Remove(filepath.Join(dir, storage.GenerationName("old", 3))))
		if _, err := open(shared, "old"); !errors.As(err, new(*storage.RegistryMismatch)) {
			t.Errorf("a file that was removed: %v", err)
		}
	})
}
