package storagetest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func TestMemConforms(t *testing.T) {
	storagetest.Run(t, storagetest.Backend{Virtual: true, New: func(*testing.T) storagetest.Place {
		mem := storagetest.NewMem(512)
		return storagetest.Place{Dir: "/files", FS: func(context.Context) storage.FS { return mem }, Crash: func() { mem.Crash(storagetest.Crash{}) }}
	}})
}

// TestLocalFilesConform runs on the disk of the temporary directory, where syncs are slow, and on a tmpfs if there is one.
func TestLocalFilesConform(t *testing.T) {
	local := func(dir func(*testing.T) string) func(*testing.T) storagetest.Place {
		return func(t *testing.T) storagetest.Place {
			return storagetest.Place{Dir: filepath.Join(dir(t), "files"), FS: func(context.Context) storage.FS { return storage.OS() }}
		}
	}
	t.Run("temporary directory", func(t *testing.T) {
		storagetest.Run(t, storagetest.Backend{Most: 10, New: local((*testing.T).TempDir)})
	})
	t.Run("tmpfs", func(t *testing.T) {
		const shm = "/dev/shm"
		if _, err := os.Stat(shm); err != nil {
			t.Skip(err)
		}
		storagetest.Run(t, storagetest.Backend{Most: 20, New: local(func(t *testing.T) string {
			dir, err := os.MkdirTemp(shm, "fencepost")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		})})
	})
}
