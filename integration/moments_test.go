package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
)

// The tests of this file restore a store with the database, or without it: docs/operations.md, "Restore a store".

// part is a database or a store that can be restored to an earlier moment. No program may run meanwhile.
type part interface {
	BackUp() (restore func() error, err error)
	Empty() error
}

// folder is a store in a directory.
type folder struct{ dir string }

func (f folder) BackUp() (restore func() error, err error) {
	copied, err := os.MkdirTemp(filepath.Dir(f.dir), "backup")
	if err == nil {
		err = os.CopyFS(copied, os.DirFS(f.dir))
	}
	return func() error { return errors.Join(f.Empty(), os.CopyFS(f.dir, os.DirFS(copied))) }, err
}

func (f folder) Empty() error {
	return errors.Join(os.RemoveAll(f.dir), os.Mkdir(f.dir, 0o700))
}

// estate is a queue and a store, and everything published to them.
type estate struct {
	backend
	store string
	files part // nil: they are in the database
}

func onEachStore(t *testing.T, f func(t *testing.T, e estate)) {
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "store")
		must(t, os.Mkdir(dir, 0o700))
		f(t, estate{embedded(t), "shared:" + dir, folder{dir}})
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		files, filesDB := mongotest.Fresh(t)
		f(t, estate{backend{url: uri, db: kit.Server{Database: db}}, files, kit.Server{Database: filesDB}})
	})
}

func (e estate) publish(t *testing.T, from, to int) {
	t.Helper()
	var lines strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&lines, i)
	}
	mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", e.url, "--type", "orders")
}

func (e estate) work() []string {
	return []string{"--url", e.url, "--store", e.store, "--type", "orders", "--lease", "5s", "--connect-timeout", "2m"} // long enough for a busy server
}

func (e estate) drain(t *testing.T) result {
	t.Helper()
	return run(t, nil, "worker", append(e.work(), "--until-empty")...)
}

func (e estate) tool(t *testing.T, command string, args ...string) result {
	t.Helper()
	return run(t, nil, "fencepost", slices.Concat([]string{command, "--url", e.url, "--store", e.store}, args)...)
}

// holds checks that the file contains exactly these messages, each once and in order.
func (e estate) holds(t *testing.T, first, last int) {
	t.Helper()
	var want []string
	for i := first; i <= last; i++ {
		want = append(want, fmt.Sprint(i))
	}
	if got := strings.Fields(e.tool(t, "cat", "orders").stdout); !slices.Equal(got, want) {
		t.Errorf("the file has %d messages, want %d to %d: %v", len(got), first, last, got)
	}
	if r := e.tool(t, "verify", "--deep"); r.code != 0 {
		t.Errorf("verify: %v", r)
	}
}

func backUp(t *testing.T, p part) (restore func()) {
	t.Helper()
	back, err := p.BackUp()
	must(t, err)
	return func() { t.Helper(); must(t, back()) }
}

// TestPointInTimeRestore: the files are in the database of the queue, or are restored to the same moment, in the middle of a drain.
// Messages confirmed before that moment are in the file once; later ones are gone together with their file.
func TestPointInTimeRestore(t *testing.T) {
	t.Parallel()
	moment := func(t *testing.T, e estate) {
		w := start(t, "worker", "worker", e.work()...)
		e.publish(t, 1, 300)
		eventually(t, runTimeout, "the worker appends", func() bool { return pending(t, e.backend)["orders"] == 0 })
		e.publish(t, 301, 1000)
		w.signal(t, syscall.SIGKILL)
		w.wait(t, runTimeout)
		restore := []func(){backUp(t, e.db)}
		if e.files != nil {
			restore = append(restore, backUp(t, e.files))
		}

		if r := e.drain(t); r.code != 0 {
			t.Fatal(r)
		}
		e.publish(t, 1001, 1500)
		if r := e.drain(t); r.code != 0 {
			t.Fatal(r)
		}
		e.holds(t, 1, 1500)

		for _, f := range restore {
			f()
		}
		if r := e.drain(t); r.code != 0 {
			t.Fatal(r)
		}
		e.holds(t, 1, 1000)
		e.publish(t, 1001, 1100)
		if r := e.drain(t); r.code != 0 || !strings.Contains(r.stderr, `"appended":100,`) {
			t.Errorf("after the restore: %v", r)
		}
		e.holds(t, 1, 1100)
		if r := e.tool(t, "doctor"); r.code != 0 {
			t.Errorf("doctor: %v", r)
		}
	}
	onEachStore(t, moment)
	t.Run("one database", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		moment(t, estate{backend{url: uri, db: kit.Server{Database: db}}, "mongodb:", nil})
	})
}

// TestStoreAndQueueOfDifferentMoments: only one of them is restored. The worker, doctor and repair report the missing messages, and no
// message is doubled.
func TestStoreAndQueueOfDifferentMoments(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, e estate) {
		drained := func() {
			t.Helper()
			if r := e.drain(t); r.code != 0 {
				t.Fatal(r)
			}
		}
		e.publish(t, 1, 10)
		drained()
		older := backUp(t, e.files)
		e.publish(t, 11, 20)
		drained()
		newest := backUp(t, e.files)
		e.publish(t, 21, 21)

		t.Log("the store is empty")
		must(t, e.files.Empty())
		refused(t, e.drain(t), integrity, "orders.fpl", "does not exist, but file", "is registered", "--accept-loss")
		says(t, e.tool(t, "doctor"), integrity, "does not exist, but file")

		t.Log("the store is older than the database")
		older()
		refused(t, e.drain(t), integrity, "ends at index 10, but records below index 20 were durable", "--accept-loss")
		says(t, e.tool(t, "doctor"), integrity, "records below index 20 were durable")
		if n := pending(t, e.backend)["orders"]; n != 1 {
			t.Errorf("%d messages wait in the queue, want 1", n)
		}
		newest()
		drained()
		e.holds(t, 1, 21)

		t.Log("the database is older than the store")
		e.publish(t, 22, 25) // these are in the restored database and in the file
		before := backUp(t, e.db)
		drained()
		e.publish(t, 26, 30) // and these only in the file
		drained()
		before()
		if r := e.drain(t); r.code != 0 || !strings.Contains(r.stderr, `"appended":0,`) || !strings.Contains(r.stderr, `"duplicates":4,`) {
			t.Errorf("the queue has 4 messages of the file: %v", r)
		}
		e.publish(t, 31, 35)
		drained()
		e.holds(t, 1, 35)
		if r := e.tool(t, "doctor"); r.code != 0 {
			t.Errorf("doctor: %v", r)
		}

		t.Log("the store is older, and what is missing is given up")
		older()
		e.publish(t, 36, 36)
		refused(t, e.drain(t), integrity, "records below index 35 were durable")
		if r := e.tool(t, "repair", "--accept-loss", "orders"); r.code != partial || !strings.Contains(r.stdout+r.stderr, "25") {
			t.Errorf("the repair does not tell of 25 lost messages: %v", r)
		}
		drained()
		if r := e.tool(t, "verify"); r.code != 0 || !strings.Contains(r.stdout, "lost 25") {
			t.Errorf("verify does not tell of 25 lost messages: %v", r)
		}
		if got := strings.Fields(e.tool(t, "cat", "orders").stdout); len(got) != 11 || got[10] != "36" {
			t.Errorf("the file has %q", got)
		}
	})
}

// TestASlotIsRemoved: verify reports a file with a missing slot, and putting the slot back is enough.
func TestASlotIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := estate{embedded(t), "shared:" + dir, folder{dir}}
	for i := range 3 {
		e.publish(t, 10*i+1, 10*i+10)
		if r := e.drain(t); r.code != 0 {
			t.Fatal(r)
		}
	}
	slots, err := filepath.Glob(filepath.Join(dir, "orders", "0*", "*", "*"))
	must(t, err)
	for i, slot := range slots {
		must(t, os.Rename(slot, filepath.Join(dir, "away")))
		r := e.tool(t, "verify")
		if r.code != integrity && i < len(slots)-1 || strings.Count(r.stderr, "error: ") > 1 {
			t.Errorf("without slot %d of %d: %v", i+1, len(slots), r)
		}
		must(t, os.Rename(filepath.Join(dir, "away"), slot))
	}
	e.holds(t, 1, 30)

	// Other objects, in the folders of the slots and beside them, do no harm.
	for _, name := range []string{"README", "orders/notes.txt", filepath.Join("orders", filepath.Base(filepath.Dir(filepath.Dir(slots[0]))), filepath.Base(filepath.Dir(slots[0])), "notes.txt"), "Other Things/file"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("not a slot"), 0o600))
	}
	e.publish(t, 31, 40)
	if r := e.drain(t); r.code != 0 {
		t.Fatal(r)
	}
	e.holds(t, 1, 40)

	// Other bytes in a slot are damage.
	must(t, os.WriteFile(slots[len(slots)-1], []byte("not the bytes of this slot"), 0o600))
	says(t, e.tool(t, "verify"), integrity, "corruption in bytes", "orders.fpl in "+e.store)
	if r := e.tool(t, "repair", "orders"); r.code != partial && r.code != 0 {
		t.Errorf("repair: %v", r)
	}
	e.publish(t, 41, 41)
	if r := e.drain(t); r.code != 0 {
		t.Errorf("after the repair: %v", r)
	}
	if r := e.tool(t, "verify"); r.code != 0 {
		t.Errorf("after the repair: %v", r)
	}
}
