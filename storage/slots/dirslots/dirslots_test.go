//go:build unix

package dirslots_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func open(t *testing.T, dir string) *dirslots.Store {
	t.Helper()
	s, err := dirslots.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	slotstest.Run(t, func(t *testing.T) slots.Store { return open(t, dir) })
	if left, err := os.ReadDir(filepath.Join(dir, ".slots")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestConforms: files in a directory. Each value is synced, which is slow, so only a few operations of each session are disturbed.
func TestConforms(t *testing.T) {
	b := slotstest.Backend(func(t *testing.T) slots.Store { return open(t, t.TempDir()) })
	b.Most = 2
	storagetest.Run(t, b)
}

// TestSharedDirectories runs the tests of TestStore in directories named by the environment, which are several mounts of the same
// directory: FENCEPOST_TEST_SHARED_DIRS=/mnt/a:/mnt/b.
func TestSharedDirectories(t *testing.T) {
	dirs := filepath.SplitList(os.Getenv("FENCEPOST_TEST_SHARED_DIRS"))
	if len(dirs) == 0 {
		t.Skip("FENCEPOST_TEST_SHARED_DIRS names none")
	}
	sub, err := os.MkdirTemp(dirs[0], "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sub) })
	n := 0
	slotstest.Run(t, func(t *testing.T) slots.Store {
		n++
		return open(t, filepath.Join(dirs[n%len(dirs)], filepath.Base(sub)))
	})
}

func TestLeftoversAreRemovedWhenTheyAreOld(t *testing.T) {
	dir := t.TempDir()
	create := func(name string) {
		t.Helper()
		if err := open(t, dir).Create(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	create("first")
	path := func(name string) string { return filepath.Join(dir, ".slots", name) }
	for name, age := range map[string]time.Duration{"old": 25 * time.Hour, "young": 23 * time.Hour} {
		if err := os.WriteFile(path(name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(path(name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	create("second")
	left, err := os.ReadDir(filepath.Join(dir, ".slots"))
	if err != nil || len(left) != 1 || left[0].Name() != "young" {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestReadersCreateNothing: a reader may not write to the directory, and whatever one created as another user would hinder workers.
func TestReadersCreateNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Read(t.Context(), "orders/1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read: %v", err)
	}
	if found, err := s.List(t.Context(), "orders"); err != nil || len(found) != 0 {
		t.Errorf("listed: %v, %v", found, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("created: %v, %v", left, err)
	}
}

func TestUnusableDirectories(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{filepath.Join(dir, "none"): "mount the volume", file: "not a directory", "": "name the directory"} {
		_, err := dirslots.Open(path)
		var refused *slots.RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want a refusal that says %q", path, err, says)
		}
	}
}
