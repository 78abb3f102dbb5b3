//go:build unix

package dirslots_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// asked is a context that calls a function whenever its Err is called: between two steps of an operation.
type asked struct {
	context.Context
	then func()
}

func (a asked) Err() error {
	a.then()
	return a.Context.Err()
}

// linking returns a context for a Create that calls do once, with the path of the temporary file, before the file gets its name.
func linking(t *testing.T, dir string, do func(temp string) error) context.Context {
	done := false
	return asked{t.Context(), func() {
		temps, err := filepath.Glob(filepath.Join(dir, ".slots", "*"))
		if len(temps) == 0 || done {
			return
		}
		done = true
		if err = errors.Join(err, do(temps[0])); err != nil {
			t.Error(err)
		}
	}}
}

// An NFS client retries a link(2) whose answer was lost, and gets EEXIST because of its own success.
func TestOwnNameIsInTheWay(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	path := filepath.Join(dir, "orders", "1")
	if err := os.Mkdir(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(linking(t, dir, func(temp string) error { return os.Link(temp, path) }), "orders/1", []byte("ours")); err != nil {
		t.Errorf("its own success is in the way: %v", err)
	}
	if b, err := s.Read(t.Context(), "orders/1"); err != nil || string(b) != "ours" {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.Create(t.Context(), "orders/1", []byte("others")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another's value is in the way: %v", err)
	}
	// Without the temporary file it is unknown which Create owns the name.
	err := s.Create(linking(t, dir, os.Remove), "orders/2", []byte("x"))
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, storage.ErrRefused) || !strings.Contains(err.Error(), "not known whether orders/2 was created") {
		t.Errorf("it is not known whether it was created: %v", err)
	}
}

// A value that appears after its folders were opened is found: an NFS client then drops its cache of their names.
func TestLooksAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	looks := 0
	ctx := asked{t.Context(), func() {
		if looks++; looks == 2 {
			if err := s.Create(t.Context(), "orders/1", []byte("x")); err != nil {
				t.Error(err)
			}
		}
	}}
	if b, err := s.Read(ctx, "orders/1"); err != nil || string(b) != "x" || looks != 2 {
		t.Errorf("%q, %v, after %d lookups", b, err, looks)
	}
}
