package storage_test

import (
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

	"github.com/fencepost/fencepost/storage"
)

// slowDir is a directory whose listing and sync take until released says so. What was there when they began counts.
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

// TestSharedDirectory: calls that wait at the same time share one, and whoever has made a name before it called finds it listed, and synced.
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
							t.Errorf("type %s was made before the call, and is missing", typ)
						}
					})
					synctest.Wait()
				}
				close(d.released)
				all.Wait()
				if n := d.calls.Load(); n != 2 {
					t.Errorf("%d calls of the file system for %d callers, want that of the first and one of all others", n, callers)
				}
			})
		})
	}
}

// TestSharedListing: each type gets the names that are its own, whatever is in the directory.
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

// TestSharedListingOfTheSystem: the names of a real directory are those that a listing of all has.
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
