package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// world is a queue, a registry and the rule book: workers of any number take messages from the queue, append them to
// one file and acknowledge them, as package worker does; check is the oracle.
type world struct {
	dir   string
	epoch uint64

	published int
	acked     map[int]uint64 // message number → its index in the file, as the acknowledging worker knew it
	gone      map[int]uint64 // the same of messages in files that were removed

	entry      storage.Entry
	registered bool
}

func newWorld(dir string) *world { return &world{dir: dir, acked: map[int]uint64{}} }

// path is the path of the file that is registered: the newest, unless a successor was just made.
func (x *world) path() string {
	return filepath.Join(x.dir, storage.GenerationName("orders", x.entry.Generation))
}

// paths returns the paths of all files of the type that are there, oldest first.
func (x *world) paths(fsys storage.FS) ([]string, error) {
	if fsys == nil {
		fsys = storage.OS()
	}
	names, err := fsys.List(x.dir, "orders")
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if storage.IsGeneration(name, "orders") {
			paths = append(paths, filepath.Join(x.dir, name))
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// Registry implementation: the simplest correct one.

func (x *world) Lookup(context.Context, string) (storage.Entry, bool, error) {
	return x.entry, x.registered, nil
}

func (x *world) Register(_ context.Context, _ string, e storage.Entry) (storage.Entry, error) {
	if !x.registered {
		x.entry, x.registered = e, true
	}
	return x.entry, nil
}

func (x *world) Succeed(_ context.Context, _ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	if x.registered && x.entry.FileID == old {
		e.Epoch, e.DurableIndex = max(e.Epoch, x.entry.Epoch), max(e.DurableIndex, x.entry.DurableIndex)
		x.entry = e
	}
	return x.entry, x.registered, nil
}

func (x *world) Update(_ context.Context, _ string, e storage.Entry) (bool, error) {
	if !x.registered || x.entry.FileID != e.FileID {
		return false, nil
	}
	x.entry.Epoch = max(x.entry.Epoch, e.Epoch)
	x.entry.DurableIndex = max(x.entry.DurableIndex, e.DurableIndex)
	return true, nil
}

// holder is one worker's session. It keeps the file's state the way package worker does: which messages are in it.
type holder struct {
	x     *world
	w     *storage.Writer
	index map[int]uint64 // messages in the file, as far as this holder knows
	tail  []int          // appended, not known to be durable
	read  int            // next message to take from the queue
	dups  []int          // redelivered messages that the file has already
	busy  bool           // in the middle of a call, in tests where others run then
}

// open opens the file with the next epoch, as a worker that was granted the lock does.
func (x *world) open(fsys storage.FS) (*holder, error) {
	x.epoch++
	return x.openEpoch(fsys, x.epoch)
}

func (x *world) openEpoch(fsys storage.FS, epoch uint64) (*holder, error) {
	h := &holder{x: x, index: map[int]uint64{}}
	o := storage.Options{FS: fsys, Registry: x, CheckpointBatches: 3, Restore: h.restore, Replay: h.replay}
	o.Rehearse = func() (func([]byte) error, func(storage.Record) error) {
		nobody := &holder{x: x, index: map[int]uint64{}}
		return nobody.restore, nobody.replay
	}
	w, err := storage.Open(context.Background(), x.dir, "orders", epoch, o)
	h.w = w
	return h, err
}

// The state is the list of messages in the file: one line "number index" each.
func (h *holder) state() []byte {
	var b []byte
	for _, n := range sortedKeys(h.index) {
		b = fmt.Appendf(b, "%d %d\n", n, h.index[n])
	}
	return b
}

func (h *holder) restore(state []byte) error {
	for line := range strings.Lines(string(state)) {
		var n int
		var index uint64
		if _, err := fmt.Sscanf(line, "%d %d\n", &n, &index); err != nil {
			return fmt.Errorf("%w: %w", errState, err)
		}
		h.index[n] = index
	}
	return nil
}

var errState = errors.New("this is no state")

func (h *holder) replay(r storage.Record) error {
	h.index[number(r.ID)] = r.Index
	if number(r.ID) < 0 {
		return errState
	}
	return nil
}

func number(id []byte) int {
	var n int
	if _, err := fmt.Sscanf(string(id), "id-%06d", &n); err != nil {
		return -1
	}
	return n
}

// fetch takes up to k messages from the queue that are not acknowledged: those the file has are duplicates, which the
// next ack removes from the queue; the others are returned for appending.
func (h *holder) fetch(k int) []storage.Record {
	var recs []storage.Record
	for ; k > 0 && h.read < h.x.published; h.read++ {
		if _, ok := h.x.acked[h.read]; ok {
			continue
		}
		if _, ok := h.index[h.read]; ok {
			h.dups = append(h.dups, h.read)
			continue
		}
		recs = append(recs, message(h.read))
		k--
	}
	return recs
}

func message(n int) storage.Record {
	// Some are large enough to cross blocks.
	r := messages(n, 1)[0]
	if n%3 == 2 {
		r.Payload = append(r.Payload, strings.Repeat(fmt.Sprintf("%07d,", n), 100)...)
	}
	return r
}

// append fetches k messages and appends them as one batch.
func (h *holder) append(k int) error {
	recs := h.fetch(k)
	if len(recs) == 0 {
		return nil
	}
	next := h.w.NextIndex()
	if err := h.w.Append(recs); err != nil {
		h.read = 0
		return err
	}
	for i, r := range recs {
		n := number(r.ID)
		h.index[n] = next + uint64(i)
		h.tail = append(h.tail, n)
	}
	return nil
}

// ack syncs, and acknowledges what may be acknowledged: duplicates of what was in the file when it was opened at once.
func (h *holder) ack() error {
	for _, n := range h.dups {
		if !slices.Contains(h.tail, n) {
			h.x.acked[n] = h.index[n]
		}
	}
	h.dups = nil
	next, err := h.w.Sync()
	if err != nil {
		return err
	}
	for len(h.tail) > 0 && h.index[h.tail[0]] < next {
		h.x.acked[h.tail[0]] = h.index[h.tail[0]]
		h.tail = h.tail[1:]
	}
	return nil
}

func (h *holder) checkpoint() error { return h.w.Checkpoint(h.state()) }

// rotate goes on in a successor file.
func (h *holder) rotate() error {
	next, err := h.w.Rotate(context.Background(), h.state())
	if err == nil {
		h.w = next
	}
	return err
}

// compact writes the file anew.
func (h *holder) compact() error {
	next, report, err := h.w.Compact(context.Background(), h.state(), storage.CompactOptions{BatchBytes: 300})
	if err == nil {
		h.w = next
		if report.Lost != 0 || report.Records != report.NextIndex-report.FirstIndex || len(report.Damage) > 0 {
			return violated("compaction: %+v", report)
		}
	}
	return err
}

// work is a whole session: two batches one behind the other, a checkpoint, another batch, one in a successor file, one behind
// a compaction, the end.
func (h *holder) work() error {
	one := func() error { return h.append(1) }
	return steps(h.begin, h.rotate, one, h.ack, h.compact, one, h.ack, func() error { return h.w.Close() })
}

// begin is the part of work that is in one file.
func (h *holder) begin() error {
	return steps(func() error { return h.append(2) }, func() error { return h.append(1) }, h.ack,
		h.checkpoint, func() error { return h.append(3) }, h.ack)
}

func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// violation is what the oracle found.
type violation struct{ what string }

func (v *violation) Error() string { return v.what }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// check is the oracle: every acknowledged message is in the file, at the index it had, whole; nothing is in it twice;
// the messages of the one producer are in order; and Verify finds nothing wrong.
func (x *world) check(fsys storage.FS) error {
	at, err := x.contents(fsys)
	if err != nil {
		return err
	}
	for _, n := range sortedKeys(x.acked) {
		if i, ok := at[n]; !ok {
			return violated("message %d was acknowledged at index %d and is lost", n, x.acked[n])
		} else if i != x.acked[n] {
			return violated("message %d was acknowledged at index %d and is at %d", n, x.acked[n], i)
		}
	}
	return nil
}

// contents checks the files, and returns the messages in them, and in those before that were removed.
func (x *world) contents(fsys storage.FS) (map[int]uint64, error) {
	paths, err := x.paths(fsys)
	if err != nil {
		return nil, err
	}
	at := maps.Clone(x.gone)
	if at == nil {
		at = map[int]uint64{}
	}
	var seal *storage.SealedError
	for i, path := range paths {
		if seal == nil && i > 0 {
			return nil, violated("%s is not sealed, and %s is behind it", paths[i-1], path)
		}
		if seal, err = x.checkFile(fsys, path, seal, at); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// checkFile checks one of the files, whose predecessor ended with the given seal, and adds the messages in it to at.
func (x *world) checkFile(fsys storage.FS, path string, seal *storage.SealedError, at map[int]uint64) (*storage.SealedError, error) {
	r, err := storage.OpenReader(path, storage.ReaderOptions{FS: fsys})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// One between them that was replaced may be removed.
	if seal != nil && r.FileID() != seal.Successor && storage.ReadLink(fsys, path).PrevFileID != seal.Successor {
		return nil, violated("%s is not the successor that the file before it names", path)
	}
	first, last := r.FirstIndex(), -1
	if first > uint64(len(at)) {
		return nil, violated("%s begins with index %d, the file before it ends with %d", path, first, len(at))
	}
	for n, i := range at { // what is compacted is in two files
		if i < first {
			last = max(last, n)
		}
	}
	next := first
	for i := first; ; i++ {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, violated("record %d: %v", i, err)
		}
		n := number(rec.ID)
		switch {
		case rec.Index != i:
			return nil, violated("record %d has index %d", i, rec.Index)
		case n < 0 || n >= x.published:
			return nil, violated("record %d was never published: ID %q", i, rec.ID)
		case string(rec.Payload) != string(message(n).Payload) || rec.Time != message(n).Time:
			return nil, violated("record %d, message %d, has another payload or time", i, n)
		case n <= last:
			return nil, violated("message %d is behind message %d", n, last)
		}
		if before, ok := at[n]; ok && before != i {
			return nil, violated("message %d is at %d, and at %d in the file before", n, i, before)
		}
		at[n], last, next = i, n, i+1
	}
	if next < uint64(len(at)) {
		return nil, violated("%s ends at %d, the file before it with %d", path, next, len(at))
	}
	rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: fsys, Deep: true})
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		return nil, violated("verify: %v", err)
	}
	if rep.Messages != next-first {
		return nil, violated("verify counts %d messages, the reader %d", rep.Messages, next-first)
	}
	return r.Sealed(), nil
}

// finish lets a new worker complete everything that is published, and checks that it can.
func (x *world) finish(fsys storage.FS) error {
	h, err := x.open(fsys)
	for tries := 0; err != nil && errors.Is(err, syscall.EIO) && tries < 3; tries++ {
		h, err = x.open(fsys) // an I/O error that nobody was told of yet is told once
	}
	if err != nil {
		return violated("the last worker cannot open: %v", err)
	}
	for len(x.acked) < x.published {
		if err := errors.Join(h.append(2), h.ack()); err != nil {
			return violated("the last worker cannot work: %v", err)
		}
	}
	if err := h.w.Close(); err != nil {
		return violated("the last worker cannot close: %v", err)
	}
	return x.check(fsys)
}

func (x *world) clone() *world {
	c := *x
	c.acked = map[int]uint64{}
	for k, v := range x.acked {
		c.acked[k] = v
	}
	return &c
}

func sortedKeys[V any](m map[int]V) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// newMemWorld returns a world over a new memory file system, with a file that has been written to by one session.
func newMemWorld(t testing.TB, block int64, prepare ...func(*storagetest.Mem)) (*world, *storagetest.Mem) {
	t.Helper()
	mem := storagetest.NewMem(block)
	for _, f := range prepare {
		f(mem)
	}
	x := newWorld("/data/files")
	x.published = 6
	h, err := x.open(mem)
	if err == nil {
		err = errors.Join(h.begin(), h.w.Close())
	}
	if err == nil {
		err = x.check(mem)
	}
	if err != nil {
		t.Fatal(err)
	}
	x.published = 40
	return x, mem
}
