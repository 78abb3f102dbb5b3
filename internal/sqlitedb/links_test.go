package sqlitedb_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/sqlitedb"
)

// TestCompanionsThroughLinks: a link in place of the log or the shared memory does not cause them to be created elsewhere.
func TestCompanionsThroughLinks(t *testing.T) {
	for _, suffix := range []string{"-wal", "-shm"} {
		path, elsewhere := filepath.Join(t.TempDir(), "q.db"), filepath.Join(t.TempDir(), "elsewhere")
		must(t, os.Symlink(elsewhere, path+suffix))
		if db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{}); err == nil {
			t.Errorf("%s: opened %v", suffix, db.Close())
		} else if !strings.Contains(err.Error(), path+suffix+" is not a regular file") {
			t.Errorf("%s: %v", suffix, err)
		}
		if _, err := os.Lstat(elsewhere); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: made through the link: %v", suffix, err)
		}
	}
}
