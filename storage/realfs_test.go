//go:build linux

package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
)

// Tests on real ext4 and xfs volumes in loop devices. They need root, loop devices, and mkfs for the file system. Without these
// they are skipped, unless the variable is 1.
const envRequireRealFS = "FENCEPOST_TEST_REQUIRE_REALFS"

// volume is a file system in an image file.
type volume struct {
	kind  string
	image string
	dir   string // where it is mounted
}

var volumes = []struct {
	kind string
	size int64
	mkfs []string
}{
	// Without the lazy initialization all of the file system's own blocks exist in the image from the start.
	{"ext4", 64 << 20, []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_journal_init=0,lazy_itable_init=0"}},
	{"xfs", 300 << 20, []string{"mkfs.xfs", "-q"}}, // the minimum size
}

// onVolumes runs a test on a new volume of each kind, whose image is in backing, or in a temporary directory if backing is nil.
func onVolumes(t *testing.T, backing func(t *testing.T) string, test func(t *testing.T, v *volume)) {
	for _, c := range volumes {
		t.Run(c.kind, func(t *testing.T) {
			dir := t.TempDir()
			if backing != nil {
				dir = backing(t)
			}
			v := &volume{kind: c.kind, image: filepath.Join(dir, "image"), dir: t.TempDir()}
			must(t, os.WriteFile(v.image, nil, 0o600))
			must(t, os.Truncate(v.image, c.size))
			if err := command(t, c.mkfs[0], append(c.mkfs[1:], v.image)...); err != nil {
				unavailable(t, err)
			}
			if err := v.mount(t); err != nil {
				unavailable(t, err)
			}
			test(t, v)
		})
	}
}

// unavailable skips a test because the machine lacks something it needs.
func unavailable(t *testing.T, err error) {
	t.Helper()
	if os.Getenv(envRequireRealFS) == "1" {
		t.Fatalf("%s=1: %v", envRequireRealFS, err)
	}
	t.Skipf("no real file system to test on (root, loop devices and mkfs make one; %s=1 makes this a failure): %v", envRequireRealFS, err)
}

func command(t *testing.T, name string, args ...string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}

// mount mounts the volume until the test ends. The loop device is removed with it.
func (v *volume) mount(t *testing.T) error {
	t.Helper()
	// A long commit interval, so that only syncs write to the device.
	options := "loop,commit=300"
	if v.kind == "xfs" {
		options = "loop,nouuid"
	}
	if err := command(t, "mount", "-t", v.kind, "-o", options, v.image, v.dir); err != nil {
		return err
	}
	t.Cleanup(func() { unix.Unmount(v.dir, unix.MNT_DETACH) })
	return nil
}

func (v *volume) unmount(t *testing.T) {
	t.Helper()
	must(t, unix.Unmount(v.dir, 0))
}

// afterPowerFailure returns a mounted copy of the volume with the current content of its device; mounting replays the journal.
func (v *volume) afterPowerFailure(t *testing.T) *volume {
	t.Helper()
	c := &volume{kind: v.kind, image: v.image + ".copy", dir: t.TempDir()}
	// The file system writes on its own, even during the copy. If the image then equals the copy, no block changed between its copy and
	// its comparison, so the copy is the content of the device at the moment in between.
	for range 20 {
		must(t, command(t, "cp", "--sparse=always", v.image, c.image))
		if command(t, "cmp", "--silent", v.image, c.image) == nil {
			must(t, c.mount(t))
			return c
		}
	}
	t.Fatal("the device keeps changing")
	return nil
}

// TestRealTakeover: two writers, one of which continues after its successor's fence.
func TestRealTakeover(t *testing.T) {
	onVolumes(t, nil, func(t *testing.T, v *volume) {
		x := newWorld(filepath.Join(v.dir, "files"))
		x.Published = 20
		a, err := x.Open(storage.OS())
		must(t, err)
		defer a.Close()
		must(t, steps(a.Begin, appends(a, 2)))
		b, err := x.Open(storage.OS())
		must(t, err)
		defer b.Close()
		if n := b.Writer.NextIndex(); n != 8 {
			t.Errorf("the successor found %d records, not 8", n)
		}
		if err := a.Append(1); !errors.Is(err, storage.ErrFenced) {
			t.Errorf("the old holder: %v", err)
		}
		if err := b.Append(1); !errors.Is(err, storage.ErrFenced) { // the zombie's record is where b's should land
			t.Errorf("the successor, after a zombie's record: %v", err)
		}
		if err := x.Finish(storage.OS()); err != nil {
			t.Error(err)
		}
		rep := mustVerify(t, nil, x.Path())
		if rep.Messages != 20 || len(rep.Void) != 1 || rep.Torn.End != 0 {
			t.Errorf("%+v", rep)
		}
		x.Published += 10
		c, err := x.Open(storage.OS())
		must(t, err)
		must(t, c.Work()) // with a rotation and a compaction
		if err := x.Finish(storage.OS()); err != nil {
			t.Error(err)
		}
	})
}

// TestRealFullDisk fills the volume.
func TestRealFullDisk(t *testing.T) {
	onVolumes(t, nil, func(t *testing.T, v *volume) { testFullDisk(t, v.dir) })
}

// TestRealPowerFailure repeatedly copies the device of a mounted volume in the middle of a worker's session, and checks the
// copies: all acknowledged messages are there, and the next worker continues.
func TestRealPowerFailure(t *testing.T) {
	race.Skip(t)
	onVolumes(t, nil, func(t *testing.T, v *volume) {
		began := time.Now()
		x := newWorld(filepath.Join(v.dir, "files"))
		x.Published = 20
		var a, b *holder
		forgot := 0 // copies without records that readers saw before
		open := func(h **holder) func() error {
			return func() (err error) { *h, err = x.Open(storage.OS()); return err }
		}
		for i, step := range []func() error{
			open(&a),
			func() error { return a.Append(2) },
			func() error { return a.Ack() },
			func() error { return a.Append(3) },
			func() error { return a.Checkpoint() },
			func() error { return steps(appends(a, 1), a.Ack) },
			func() error { return a.Append(2) },
			open(&b),
			func() error { return may(a.Append(1)) },
			func() error { b.Close(); a.Close(); return open(&b)() },
			func() error { return steps(appends(b, 2), b.Ack) },
			func() error { return b.Rotate() },
			func() error { return steps(appends(b, 1), b.Ack) },
		} {
			must(t, step())
			y := x.Clone()
			c := v.afterPowerFailure(t)
			y.Dir = filepath.Join(c.dir, "files")
			if count(y.Path()) < count(x.Path()) {
				forgot++
			}
			if err := y.Check(storage.OS()); err != nil {
				t.Errorf("power failure after step %d: %v", i, err)
			}
			if err := y.Finish(storage.OS()); err != nil {
				t.Errorf("power failure after step %d: %v", i, err)
			}
			c.unmount(t)
		}
		b.Close()
		// The kernel writes on its own every few seconds: on a slow machine a failure may therefore lose nothing.
		if len(x.Acked) < 8 || forgot < 3 && time.Since(began) < 4*time.Second {
			t.Errorf("too easy: %d messages were acknowledged, %d failures lost unacknowledged records", len(x.Acked), forgot)
		}
	})
}

// asked is a context that calls then in every call of Err: between two steps of an operation.
type asked struct {
	context.Context
	then func()
}

func (a asked) Err() error {
	a.then()
	return a.Context.Err()
}

// TestRealSharedDirectory: a value that was created, or whose existence made a create fail, is whole after a power failure.
func TestRealSharedDirectory(t *testing.T) {
	onVolumes(t, nil, func(t *testing.T, v *volume) {
		s, err := dirslots.Open(v.dir)
		must(t, err)
		value := []byte(strings.Repeat("value", 100<<10))
		must(t, s.Create(t.Context(), "orders/1", value))
		c := v.afterPowerFailure(t)
		reads := func(name string) {
			t.Helper()
			s, err := dirslots.Open(c.dir)
			must(t, err)
			if b, err := s.Read(t.Context(), name); err != nil || !bytes.Equal(b, value) {
				t.Errorf("%s has %d of %d bytes after a power failure: %v", name, len(b), len(value), err)
			}
		}
		reads("orders/1")
		c.unmount(t)

		// Another machine takes the name at the last moment, and dies before it has synced the folder.
		other := filepath.Join(v.dir, ".slots", "other")
		must(t, os.WriteFile(other, value, 0o600))
		must(t, command(t, "sync", other))
		ctx := asked{t.Context(), func() {
			if temps, _ := filepath.Glob(filepath.Join(v.dir, ".slots", "*")); len(temps) > 1 {
				must(t, os.Link(other, filepath.Join(v.dir, "orders", "2")))
			}
		}}
		if err := s.Create(ctx, "orders/2", []byte("another's")); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("a name that is taken: %v", err)
		}
		c = v.afterPowerFailure(t)
		reads("orders/2")
	})
}

// TestRealIOError makes the device refuse writes: the image is on a full tmpfs. The file system in the image reports failed writes
// when it is synced, but its page cache still shows the data.
func TestRealIOError(t *testing.T) {
	var tmpfs string
	small := func(t *testing.T) string {
		tmpfs = t.TempDir()
		if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, "size=90m"); err != nil {
			unavailable(t, fmt.Errorf("mount a tmpfs: %w", err))
		}
		t.Cleanup(func() { unix.Unmount(tmpfs, unix.MNT_DETACH) })
		return tmpfs
	}
	onVolumes(t, small, func(t *testing.T, v *volume) {
		x := newWorld(filepath.Join(v.dir, "files"))
		x.Published = 6
		a, err := x.Open(storage.OS())
		must(t, err)
		defer a.Close()
		must(t, a.Begin())
		must(t, command(t, "sync", "-f", v.dir))
		acked, size := a.Writer.NextIndex(), a.Writer.Size()

		ballast := fill(t, tmpfs)
		var lost []storage.Record
		for n := range 20 {
			lost = append(lost, storage.Record{ID: fmt.Appendf(nil, "lost-%d", n), Payload: []byte(strings.Repeat("x", 100<<10))})
		}
		must(t, a.Writer.Append(lost)) // to the page cache
		_, err = a.Writer.Sync()
		var dead *storage.PoisonedError
		if !errors.As(err, &dead) || !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the device refused the bytes, but Sync returned %v", err)
		}
		t.Logf("Sync: %v", dead.Cause)
		_, again := a.Writer.Sync()
		for i, err := range []error{a.Writer.Append(messages(0, 1)), again, a.Writer.Close()} {
			if err != error(dead) {
				t.Errorf("later call %d: %v", i, err)
			}
		}
		must(t, os.Remove(ballast))

		// Every reader of the page cache sees the batch, but it is not, or not completely, on the device.
		info, err := os.Stat(x.Path())
		must(t, err)
		cached := count(x.Path())
		t.Logf("%d records acknowledged, %d in the page cache, in %d bytes of which %d were synced", acked, cached, info.Size(), size)

		if cached != acked+20 {
			t.Errorf("the page cache does not lie, so this shows nothing: it has %d records", cached)
		}
		x.Published = 20
		b, err := x.Open(storage.OS())
		if errors.Is(err, syscall.EIO) { // ext4: the fence landed in a block that the device had refused
			t.Logf("first takeover: %v", err)
			b, err = x.Open(storage.OS())
		}
		must(t, err)
		if n := b.Writer.NextIndex(); n != acked {
			t.Errorf("the successor found %d records, but %d are durable", n, acked)
		}
		must(t, steps(appends(b, 2), b.Ack, b.Writer.Close))
		v.unmount(t)
		must(t, v.mount(t))
		if err := x.Check(storage.OS()); err != nil {
			t.Errorf("after a remount: %v", err)
		}
		if err := x.Finish(storage.OS()); err != nil {
			t.Errorf("after a remount: %v", err)
		}
	})
}

// count returns how many records a reader gets.
func count(path string) (n uint64) {
	r, err := storage.OpenReader(path, storage.ReaderOptions{})
	if err != nil {
		return 0
	}
	defer r.Close()
	for {
		if _, err := r.Next(); err != nil {
			return n
		}
		n++
	}
}

// fill writes a file until the disk is full, and returns its path.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	must(t, err)
	defer f.Close()
	if _, err := io.CopyN(f, zeros{}, 1<<30); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the directory cannot be filled: %v", err)
	}
	return f.Name()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
