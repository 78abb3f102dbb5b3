package sqlitedb_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// asNobody runs f on a thread whose file accesses are those of an unprivileged user. Needs root.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become a user without permissions")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			t.Errorf("setfsuid: %v", err)
			return
		}
		f()
	}()
	<-done
}

func TestPermissionErrorsNameTheRemedy(t *testing.T) {
	root, err := os.MkdirTemp("", "sqlitedb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(root, "mine.db")
	touch(t, mine)
	if err := os.Chmod(mine, 0o600); err != nil {
		t.Fatal(err)
	}
	readable := filepath.Join(root, "readable.db")
	touch(t, readable)
	if err := os.Chmod(readable, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		want       []error
	}{
		{"no right to create the file", filepath.Join(root, "new.db"), []error{sqlitedb.ErrPermission}},
		{"no right to create the directory", filepath.Join(root, "sub", "new.db"), []error{sqlitedb.ErrPermission}},
		{"another user's file", mine, []error{sqlitedb.ErrPermission}},
		{"may only read the file", readable, []error{sqlitedb.ErrPermission, sqlitedb.ErrReadOnly}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asNobody(t, func() {
				db, err := sqlitedb.Open(t.Context(), tc.path, sqlitedb.Options{})
				if err == nil {
					_ = db.Close()
					t.Error("opened it")
					return
				}
				ok := false
				for _, w := range tc.want {
					ok = ok || errors.Is(err, w)
				}
				if !ok {
					t.Errorf("got %v, want one of %v", err, tc.want)
				}
				if !strings.Contains(err.Error(), "owner") && !strings.Contains(err.Error(), "owns") &&
					!strings.Contains(err.Error(), "permission for") {
					t.Errorf("%q names no remedy", err)
				}
			})
		})
	}
}

// touch makes a database at path and closes it again.
func touch(t *testing.T, path string) {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
