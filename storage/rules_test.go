package storage_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// TestScenarios has a scenario for each safety rule in which the rule matters. Without the rule (see docs/mutants.md) the oracle finds a
// lost, repeated or wrong record.
func TestScenarios(t *testing.T) {
	for name, scenario := range map[string]func(t *testing.T) error{
		"a landing is checked":                              shortWriteFilledUpByAFence,
		"fdatasync before ack":                              powerFailsAfterTheAck,
		"no second fdatasync":                               syncFailsOnce,
		"the fence is synced":                               successorAcksWhatItFinds,
		"the device is read":                                predecessorsSyncFailed,
		"the size is checked after fdatasync":               successorsSyncTookMyError,
		"the fence is read back":                            fenceWasNotWritten,
		"fence before scan":                                 holderAppendsDuringTakeover,
		"epochs increase":                                   lockGivesOutALowerToken,
		"bodies have checksums":                             blocksOfABatchAreLost,
		"headers have checksums":                            aBitRotsInAHeader,
		"records carry their offset":                        payloadEmbedsALog,
		"a seal is durable before the successor has a name": powerFailsAfterRotation,
		"a successor is registered before it is used":       archivedWhileAsleep,
		"a successor begins with a checkpoint":              firstCheckpointRots,
		"temporary names are never used twice":              halfASuccessorGetsTheName,
	} {
		t.Run(name, func(t *testing.T) {
			if err := scenario(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// must fails the test: the scenario itself does not work.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("scenario: %v", err)
	}
}

// fenced accepts a step that succeeds, or that fails as a rule makes it fail: the holder is then fenced, and the scenario continues.
func fenced(t *testing.T, err error) {
	t.Helper()
	var p *storage.PoisonedError
	if err != nil && !errors.As(err, &p) {
		t.Fatalf("scenario: %v", err)
	}
}

// A's write is cut short by exactly the length of a fence, and a successor's fence extends the file to where A
// expects its end.
func shortWriteFilledUpByAFence(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	fence := fenceLength(t, mem, x)
	tap := &storagetest.Tap{FS: mem}
	a, err := x.Open(tap)
	must(t, err)
	cut := false
	tap.Before = func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpAppend && !cut {
			cut = true
			return &storagetest.Fault{Short: int(c.Len - fence)}
		}
		return nil
	}
	fenced(t, a.Append(3)) // with the rule A stops here

	succ := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync { // the successor has fenced
			fenced(t, a.Ack())
		}
		return nil
	}}
	_, err = x.Open(succ)
	must(t, err)
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// fenceLength returns the length of the fence that x's next writer will append.
func fenceLength(t *testing.T, mem *storagetest.Mem, x *world) int64 {
	t.Helper()
	var n int64
	probe := &storagetest.Tap{FS: mem.Clone(), Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpAppend && n == 0 {
			n = c.Len
		}
		return nil
	}}
	_, err := x.Clone().Open(probe)
	must(t, err)
	if n%8 != 0 || n == 0 {
		t.Fatalf("the fence has %d bytes", n)
	}
	return n
}

// The power fails right after an acknowledgement.
func powerFailsAfterTheAck(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3))
	must(t, a.Ack())
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// The device refuses A's blocks once; the page cache marks them clean.
func syncFailsOnce(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3))
	mem.FailWriteback(x.Path(), nil)
	fenced(t, a.Ack())
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// A dies before it syncs; B finds A's batch, acknowledges its messages as duplicates; the power fails.
func successorAcksWhatItFinds(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3)) // and A's process is killed
	tap := &storagetest.Tap{FS: mem}
	b, err := x.Open(tap)
	must(t, err)
	tap.Before = func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync {
			mem.Crash(storagetest.Crash{}) // B acknowledged the duplicates without a sync of its own
		}
		return nil
	}
	b.Fetch(2)
	_ = b.Ack()
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// A's sync fails and A stops. Its batch is still in the page cache when B takes over.
func predecessorsSyncFailed(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Ack())
	for range 6 {
		must(t, a.Append(3)) // more than a page; otherwise the fence would be written together with it
	}
	mem.FailWriteback(x.Path(), nil)
	if err := a.Ack(); err == nil {
		t.Fatal("scenario: A's sync did not fail")
	}
	b, err := x.Open(mem)
	must(t, err)
	b.Fetch(2)
	must(t, b.Ack())
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// B's fence is not written, and A's sync consumes the error; B's sync finds nothing to do and succeeds.
func fenceWasNotWritten(t *testing.T) error {
	x, mem := newMemWorld(t, 512, func(m *storagetest.Mem) { m.ErrorOnce = true })
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(1))
	failed := false
	b, err := x.Open(&storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync && !failed {
			failed = true
			mem.FailWriteback(x.Path(), nil)
			if err := a.Ack(); !errors.Is(err, syscall.EIO) {
				t.Fatalf("scenario: A should get the error, got %v", err)
			}
		}
		return nil
	}})
	if err == nil {
		must(t, errors.Join(b.Append(2), b.Ack()))
	} else if !errors.Is(err, syscall.EIO) {
		t.Fatalf("scenario: %v", err)
	}
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// B's sync of its fence fails and loses A's blocks too, and the error is reported to B only, as after a journal abort
// on ext4; A's sync then finds nothing to do and succeeds.
func successorsSyncTookMyError(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	mem.ErrorOnce = true
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3))
	tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync {
			mem.FailWriteback(x.Path(), nil)
		}
		return nil
	}}
	if _, err := x.Open(tap); err == nil {
		t.Fatal("scenario: B's sync did not fail")
	}
	fenced(t, a.Ack())
	mem.Crash(storagetest.Crash{})
	return x.Finish(mem)
}

// A appends, syncs and acknowledges while B takes over.
func holderAppendsDuringTakeover(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	a, err := x.Open(mem)
	must(t, err)
	tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpAppend && len(c.Data) > 0 {
			fenced(t, a.Append(2)) // lands: B's fence is not in the file yet
			fenced(t, a.Ack())
		}
		return nil
	}}
	b, err := x.Open(tap)
	if err == nil {
		must(t, b.Append(2))
		must(t, b.Ack())
	}
	return x.Check(mem)
}

// The lock loses its token: a new writer opens with an epoch below the holder's, and then another one, with an epoch above that of the
// first one's fence.
func lockGivesOutALowerToken(t *testing.T) error {
	x, mem := newMemWorld(t, 4096)
	x.Epoch = 9
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3))
	must(t, a.Ack())
	var accepted error
	for _, epoch := range []uint64{5, 7} {
		x.Registered = false // the registry was rolled back as well
		b, err := x.OpenEpoch(mem, epoch)
		var low *storage.EpochError
		switch {
		case err == nil:
			accepted = violated("epoch %d continues after epoch 10", epoch)
			must(t, b.Append(3))
			must(t, b.Ack())
		case !errors.As(err, &low) || low.InFile != 10:
			t.Fatalf("scenario: %v", err)
		}
	}
	if err := x.Finish(mem); err != nil {
		return err
	}
	return accepted
}

// The power fails while a batch is being written: its first block reaches the device, the others do not.
func blocksOfABatchAreLost(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Ack())
	must(t, a.Append(6))
	first := mem.Dirty(x.Path())[0]
	mem.Crash(storagetest.Crash{
		Keep:     func(_ string, b int64) bool { return b <= first+1 },
		KeepSize: func(string) bool { return true },
	})
	return x.Check(mem)
}

// A bit of a batch header flips, in its base time.
func aBitRotsInAHeader(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	data := mem.ReadFile(x.Path())
	off := strings.Index(string(data), "FPB1")
	data[off+80] ^= 4
	mem.WriteFile(x.Path(), data)
	err := x.Check(mem)
	if err != nil && strings.Contains(err.Error(), "corruption in bytes") {
		return nil // reported, as it should be
	}
	return err
}

// A message's payload is a copy of a longer log with the same identity (from a clone of the volume). The batch that carries it
// is torn, so that a reader looks for the next fence inside the payload.
func payloadEmbedsALog(t *testing.T) error {
	x, mem := newMemWorld(t, 512)
	twin, twinFS := x.Clone(), mem.Clone()
	twin.Epoch = 100
	h, err := twin.Open(twinFS)
	must(t, err)
	must(t, h.Writer.Append([]storage.Record{{ID: []byte("from the twin"), Payload: []byte("x")}}))
	must(t, h.Writer.Close())
	twinLog := twinFS.ReadFile(x.Path())

	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Ack())
	rec := message(x.Published)
	for shift := range 8 { // one of them puts the copy's records on aligned positions
		r := rec
		r.Payload = append(make([]byte, 8+shift), twinLog...)
		must(t, a.Writer.Append([]storage.Record{r}))
	}
	first := mem.Dirty(x.Path())[0]
	mem.Crash(storagetest.Crash{
		Keep:     func(_ string, b int64) bool { return b > first+1 },
		KeepSize: func(string) bool { return true },
	})
	return x.Finish(mem)
}

// TestFaultsPoison: any fault in a write or a sync ends the writer, every later call returns the same error, nothing is
// retried, and the next writer continues.
func TestFaultsPoison(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    storagetest.Op
		fault storagetest.Fault
		is    error
	}{
		{"EIO on write", storagetest.OpAppend, storagetest.Fault{Err: syscall.EIO}, syscall.EIO},
		{"EIO in the middle of a write", storagetest.OpAppend, storagetest.Fault{Err: syscall.EIO, Short: 50}, syscall.EIO},
		{"short write", storagetest.OpAppend, storagetest.Fault{Short: 50}, nil},
		{"short write of nothing", storagetest.OpAppend, storagetest.Fault{}, nil},
		{"ENOSPC on write", storagetest.OpAppend, storagetest.Fault{Err: syscall.ENOSPC}, storage.ErrNoSpace},
		{"EIO on fdatasync", storagetest.OpDatasync, storagetest.Fault{Err: syscall.EIO}, syscall.EIO},
		{"EROFS on fdatasync", storagetest.OpDatasync, storagetest.Fault{Err: syscall.EROFS}, syscall.EROFS},
		{"EIO on fallocate", storagetest.OpAllocate, storagetest.Fault{Err: syscall.EIO}, syscall.EIO},
		{"EIO on fstat", storagetest.OpFileStat, storagetest.Fault{Err: syscall.EIO}, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, mem := newMemWorld(t, 4096)
			calls := map[storagetest.Op]int{}
			tap := &storagetest.Tap{FS: mem}
			a, err := x.Open(tap)
			must(t, err)
			tap.Before = func(call storagetest.Call) *storagetest.Fault {
				if calls[call.Op]++; call.Op == c.op {
					return &c.fault
				}
				return nil
			}
			if c.op == storagetest.OpAllocate {
				for range 5 { // use up the reserved space
					if err = a.Writer.Append([]storage.Record{{ID: []byte("big"), Payload: make([]byte, 1<<20)}}); err != nil {
						break
					}
				}
			} else {
				err = errors.Join(a.Append(3))
				if err == nil {
					err = a.Ack()
				}
			}
			var dead *storage.PoisonedError
			if !errors.As(err, &dead) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("got %v", err)
			}
			made := calls[c.op]
			_, syncErr := a.Writer.Sync()
			for i, later := range []error{a.Writer.Append(messages(0, 1)), syncErr, a.Writer.Checkpoint(nil), a.Writer.Close(), a.Writer.Append(messages(0, 1))} {
				if later != error(dead) {
					t.Errorf("later call %d: %v", i, later)
				}
			}
			if calls[c.op] != made {
				t.Errorf("%s was retried", c.op)
			}
			if c.op != storagetest.OpAllocate { // the oracle does not know its big records
				if err := x.Finish(mem); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDeadWritersNameOneRemedy: if the cause has a remedy, the error names only that one; opening again does not help if the file was cut.
func TestDeadWritersNameOneRemedy(t *testing.T) {
	const path, again = "/data/a.fpl", "new epoch"
	for _, tc := range []struct {
		cause  error
		remedy string
		n      int // how many times opening again is recommended
	}{
		{&storage.FencedError{Path: path, Op: "append", Expected: 10, Found: 20}, again, 1},
		{&storage.CutError{Path: path, Op: "sync", Durable: 10, Found: 5}, "restore the newest copy", 0},
		{&storage.ReplacedError{Path: path}, "restore the file", 0},
		{&storage.ShortWriteError{Offset: 10, Want: 10, Wrote: 5}, again, 1},
		{syscall.EIO, again, 1},
		{&slots.RefusedError{Store: "a store", Reason: "access is denied", Remedy: "give this user access"}, "give this user access", 0},
		{&storage.NoSpaceError{Path: path, InStore: true, Err: slots.ErrFull}, "free some space", 0},
	} {
		text := (&storage.PoisonedError{Path: path, Op: "append", Cause: tc.cause}).Error()
		if !strings.Contains(text, tc.remedy) || strings.Count(text, again) != tc.n {
			t.Errorf("%T: %s", tc.cause, text)
		}
	}
}

// TestNoSpaceBeforeAnyByte: on a full disk a batch is refused as a whole, the writer stays alive, and work continues once
// there is space.
func TestNoSpaceBeforeAnyByte(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		t.Run(errno.Error(), func(t *testing.T) {
			x, mem := newMemWorld(t, 4096)
			tap := &storagetest.Tap{FS: mem}
			a, err := x.Open(tap)
			must(t, err)
			must(t, a.Ack())
			size := a.Writer.Size()
			full := true
			tap.Before = func(c storagetest.Call) *storagetest.Fault {
				if c.Op == storagetest.OpAllocate && full {
					return &storagetest.Fault{Err: errno}
				}
				return nil
			}
			big := []storage.Record{{ID: []byte("id-000099"), Payload: make([]byte, 3<<20)}}
			err = a.Writer.Append(big)
			var ns *storage.NoSpaceError
			var dead *storage.PoisonedError
			if !errors.As(err, &ns) || errors.As(err, &dead) || !errors.Is(err, storage.ErrNoSpace) || ns.Need < 3<<20 || !strings.Contains(err.Error(), x.Path()) {
				t.Fatalf("got %v", err)
			}
			if got := len(mem.ReadFile(x.Path())); int64(got) != size {
				t.Errorf("%d bytes were written", int64(got)-size)
			}
			full = false
			must(t, a.Append(3))
			must(t, a.Ack())
			must(t, a.Writer.Close())
			if err := x.Finish(mem); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoFallocate: a file system without fallocate works. A full disk then causes a short write, which leaves a torn tail
// and ends the writer, but loses nothing.
func TestNoFallocate(t *testing.T) {
	x, mem := newMemWorld(t, 4096, func(m *storagetest.Mem) { m.NoAllocate = true })
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Append(3))
	must(t, a.Ack())
	mem.SetFree(100)
	err = a.Append(30)
	var short *storage.ShortWriteError
	if !errors.As(err, &short) {
		t.Fatalf("got %v", err)
	}
	if _, err := x.Open(mem); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("opening on a full disk: %v", err)
	}
	mem.SetFree(1 << 30)
	if err := x.Finish(mem); err != nil {
		t.Error(err)
	}
}

// TestReplacedFile: bytes appended to a file that was removed or replaced land where they are expected, and must not be
// acknowledged.
func TestReplacedFile(t *testing.T) {
	for _, c := range replacements {
		t.Run(c.how, func(t *testing.T) {
			x, mem := newMemWorld(t, 4096)
			a, err := x.Open(mem)
			must(t, err)
			must(t, a.Append(3))
			must(t, c.do(mem, x.Path()))
			acked := len(x.Acked)
			err = a.Ack()
			checkError(t, err, new(*storage.ReplacedError), storage.ErrIntegrity, c.says)
			if len(x.Acked) != acked {
				t.Errorf("%d were acknowledged", len(x.Acked)-acked)
			}
			if err := a.Append(1); !errors.As(err, new(*storage.PoisonedError)) {
				t.Errorf("the writer continues: %v", err)
			}
		})
	}
	t.Run("moved away while opening", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpDatasync {
				must(t, mem.Rename(x.Path(), x.Dir+"/elsewhere"))
			}
			return nil
		}}
		var replaced *storage.ReplacedError
		if _, err := x.Open(tap); !errors.As(err, &replaced) {
			t.Errorf("got %v", err)
		}
	})
}

// replacements are operations on the file of a running worker after which its path no longer names it.
var replacements = []struct {
	how, says string
	do        func(mem *storagetest.Mem, path string) error
}{
	{"removed", "was removed", func(mem *storagetest.Mem, path string) error { return mem.Remove(path) }},
	{"moved", "was moved", func(mem *storagetest.Mem, path string) error { return mem.Rename(path, "/elsewhere") }},
	{"removed, with a second name", "was moved", func(mem *storagetest.Mem, path string) error {
		return errors.Join(mem.Link(path, "/elsewhere"), mem.Remove(path))
	}},
	{"replaced", "replaced by another", func(mem *storagetest.Mem, path string) error {
		mem.WriteFile("/other", []byte("another file"))
		return mem.Rename("/other", path)
	}},
	{"replaced by a copy, with a second name", "replaced by another", func(mem *storagetest.Mem, path string) error {
		mem.WriteFile("/copy", mem.ReadFile(path))
		return errors.Join(mem.Link(path, "/elsewhere"), mem.Rename("/copy", path))
	}},
}

// TestReplacedFileIsNotSealed: a file that is moved away while its successor is built is not sealed. Moved back, it continues.
func TestReplacedFileIsNotSealed(t *testing.T) {
	for _, c := range replacements {
		t.Run(c.how, func(t *testing.T) {
			x, mem := newMemWorld(t, 4096)
			tap := &storagetest.Tap{FS: mem}
			a, err := x.Open(tap)
			must(t, err)
			must(t, errors.Join(a.Append(3), a.Ack()))
			path := x.Path()
			var content []byte
			tap.Before = func(call storagetest.Call) *storagetest.Fault {
				if content == nil && call.Op == storagetest.OpOpen && strings.HasSuffix(call.Name, ".tmp") {
					content = mem.ReadFile(path)
					must(t, mem.Link(path, "/kept"))
					must(t, c.do(mem, path))
				}
				return nil
			}
			checkError(t, a.Rotate(), new(*storage.ReplacedError), storage.ErrIntegrity)
			if content == nil {
				t.Fatal("no successor was begun")
			}
			if !bytes.Equal(mem.ReadFile("/kept"), content) {
				t.Error("something was appended to the file that was moved away")
			}
			a.Writer.Close()
			must(t, ignoreNotExist(mem.Remove(path)))
			must(t, mem.Rename("/kept", path))
			must(t, x.Finish(mem))
		})
	}
}

// TestRenamedDirectory is like TestReplacedFile, for a directory of the real file system.
func TestRenamedDirectory(t *testing.T) {
	x := newWorld(filepath.Join(t.TempDir(), "files"))
	x.Published = 5
	a, err := x.Open(storage.OS())
	must(t, err)
	must(t, errors.Join(a.Append(3), a.Ack()))
	must(t, os.Rename(x.Dir, x.Dir+".old"))
	must(t, os.Mkdir(x.Dir, 0o750))
	checkError(t, a.Rotate(), new(*storage.ReplacedError), storage.ErrIntegrity, "directory was renamed")
	must(t, errors.Join(os.Remove(x.Dir), os.Rename(x.Dir+".old", x.Dir)))
	must(t, x.Finish(storage.OS()))
}

// TestCutFile: a file cut below its durable end is not mistaken for a lost race with another writer, after which the indexes of the lost
// messages would be reused: the error names the lost messages. Messages that were not durable yet are lost silently, and appended again.
func TestCutFile(t *testing.T) {
	lost := func(e *storage.CutError) [2]uint64 { return [2]uint64{e.LostFirst, e.LostNext} }
	for _, c := range []struct {
		name  string
		cut   func(durable []byte) int // returns the number of bytes left
		first uint64                   // first lost index
	}{
		{"the last 8 bytes", func(b []byte) int { return len(b) - 8 }, 10},
		{"two batches", func(b []byte) int { return bytes.LastIndex(b, []byte("FPB1")) - 1 }, 8},
		{"everything", func([]byte) int { return 0 }, 0},
		{"all records", func([]byte) int { return 4096 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, noticed := range []string{"append", "sync"} {
				x, mem := newMemWorld(t, 4096) // it has 6 messages
				a, err := x.Open(mem)
				must(t, err)
				must(t, steps(func() error { return a.Append(2) }, a.Ack, func() error { return a.Append(2) }, a.Ack, func() error { return a.Append(1) }, a.Ack))
				if noticed == "sync" {
					must(t, a.Append(2))
				}
				all := mem.ReadFile(x.Path())
				durable := all[:a.Writer.DurableEnd()]
				mem.WriteFile(x.Path(), all[:c.cut(durable)])
				acked := len(x.Acked)
				if noticed == "append" {
					err = a.Append(2)
				} else {
					err = a.Ack()
				}
				var cut *storage.CutError
				checkError(t, err, &cut, storage.ErrIntegrity, noticed, "restore the newest copy", "give up what is missing")
				if errors.As(err, &cut) && (lost(cut) != [2]uint64{c.first, 11} || cut.Unknown) || len(x.Acked) != acked {
					t.Errorf("noticed in %s: lost %v, want %d to 10; %d acknowledged", noticed, lost(cut), c.first, len(x.Acked)-acked)
				}
				a.Writer.Close()
				mem.WriteFile(x.Path(), all) // the newest copy
				must(t, x.Finish(mem))
			}
		})
	}
	t.Run("what was not durable", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		a, err := x.Open(mem)
		must(t, err)
		must(t, steps(func() error { return a.Append(2) }, a.Ack, func() error { return a.Append(2) }))
		mem.WriteFile(x.Path(), mem.ReadFile(x.Path())[:a.Writer.DurableEnd()])
		checkError(t, a.Ack(), new(*storage.FencedError), storage.ErrFenced, "something other than a writer cut off its end")
		must(t, x.Finish(mem))
	})
}

// TestFenceIsTriedAgain: a fence that does not land where expected is void, and the writer appends another.
func TestFenceIsTriedAgain(t *testing.T) {
	for _, fault := range []string{"foreign bytes come between", "short write"} {
		t.Run(fault, func(t *testing.T) {
			x, mem := newMemWorld(t, 4096)
			old, err := x.Open(mem)
			must(t, err)
			n := 0
			tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
				if c.Op == storagetest.OpAppend {
					if n++; n == 1 && fault == "short write" {
						return &storagetest.Fault{Short: 13}
					} else if n == 1 {
						must(t, old.Append(1))
					}
				}
				return nil
			}}
			b, err := x.Open(tap)
			must(t, err)
			if n != 3 { // two fences, one open record
				t.Errorf("%d appends", n)
			}
			must(t, b.Append(1))
			must(t, b.Ack())
			if err := x.Finish(mem); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("but not forever", func(t *testing.T) {
		x, mem := newMemWorld(t, 4096)
		tap := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpAppend {
				return &storagetest.Fault{Short: 13}
			}
			return nil
		}}
		if _, err := x.Open(tap); !errors.Is(err, storage.ErrFenced) {
			t.Errorf("got %v", err)
		}
		if err := x.Finish(mem); err != nil {
			t.Error(err)
		}
	})
}

// TestFenceInsideATornBatch: the header of a torn batch announces more bytes than exist, and the records of successors land
// within the announced range.
func TestFenceInsideATornBatch(t *testing.T) {
	x, mem := newMemWorld(t, 4096)
	tap := &storagetest.Tap{FS: mem}
	a, err := x.Open(tap)
	must(t, err)
	must(t, a.Append(1))
	must(t, a.Ack())
	r, err := storage.OpenReader(x.Path(), storage.ReaderOptions{FS: mem})
	must(t, err)
	defer r.Close()
	count := func() (n int) {
		for {
			if _, err := r.Next(); err == io.EOF {
				return n
			} else if err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	before := count()
	tap.Before = func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpAppend {
			return &storagetest.Fault{Short: 1000}
		}
		return nil
	}
	if err := a.Writer.Append([]storage.Record{{ID: []byte("big"), Payload: make([]byte, 1<<20)}}); err == nil {
		t.Fatal("scenario: the write was not short")
	}
	if n := count(); n != 0 {
		t.Errorf("a reader got %d records of a torn batch", n)
	}
	b, err := x.Open(mem)
	must(t, err)
	must(t, b.Append(2))
	must(t, b.Ack())
	if n := count(); n != 2 {
		t.Errorf("the reader that waited for the torn batch got %d records of the successor, want 2", n)
	}
	if all := readAll(t, mem, x.Path()); len(all) != before+2 {
		t.Errorf("a new reader got %d records, want %d", len(all), before+2)
	}
	if err := x.Finish(mem); err != nil {
		t.Error(err)
	}
}
