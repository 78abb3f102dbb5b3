// Package oracle checks what becomes of messages in files, for the tests of package storage and for storagetest. Simulated workers
// append messages and acknowledge them, without a real queue, lock or database; afterwards the oracle looks for each acknowledged message.
package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fencepost/fencepost/storage"
)

// Type is the type of all messages.
const Type = "orders"

// World is a queue, a registry and the oracle: any number of workers take messages from the queue, append them to
// one file and acknowledge them, as package worker does. Check is the oracle.
type World struct {
	Dir   string
	Epoch uint64 // granted last

	Published int            // number of messages in the queue, numbered from 0
	Acked     map[int]uint64 // message number → its index in the file, as known to the acknowledging worker
	Gone      map[int]uint64 // the same for messages in removed files; may contain others

	Entry      storage.Entry
	Registered bool
}

// New returns a world whose files are in dir.
func New(dir string) *World { return &World{Dir: dir, Acked: map[int]uint64{}} }

// Path returns the path of the registered file: the newest, unless a successor was just made.
func (x *World) Path() string {
	return filepath.Join(x.Dir, storage.GenerationName(Type, x.Entry.Generation))
}

// Paths returns the paths of all existing files of the type, oldest first.
func (x *World) Paths(fsys storage.FS) ([]string, error) {
	if fsys == nil {
		fsys = storage.OS()
	}
	names, err := fsys.List(x.Dir, Type)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, name := range names {
		if isGeneration(name) {
			paths = append(paths, filepath.Join(x.Dir, name))
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// Lookup implements storage.Registry. World is the simplest correct Registry.
func (x *World) Lookup(context.Context, string) (storage.Entry, bool, error) {
	return x.Entry, x.Registered, nil
}

// Register implements storage.Registry.
func (x *World) Register(_ context.Context, _ string, e storage.Entry) (storage.Entry, error) {
	if !x.Registered {
		x.Entry, x.Registered = e, true
	}
	return x.Entry, nil
}

// Succeed implements storage.Registry.
func (x *World) Succeed(_ context.Context, _ string, old storage.FileID, e storage.Entry) (storage.Entry, bool, error) {
	if x.Registered && x.Entry.FileID == old {
		e.Epoch, e.DurableIndex = max(e.Epoch, x.Entry.Epoch), max(e.DurableIndex, x.Entry.DurableIndex)
		x.Entry = e
	}
	return x.Entry, x.Registered, nil
}

// Update implements storage.Registry.
func (x *World) Update(_ context.Context, _ string, e storage.Entry) (bool, error) {
	if !x.Registered || x.Entry.FileID != e.FileID {
		return false, nil
	}
	x.Entry.Epoch = max(x.Entry.Epoch, e.Epoch)
	x.Entry.DurableIndex = max(x.Entry.DurableIndex, e.DurableIndex)
	return true, nil
}

// Holder is one worker's session. Like package worker, it keeps the state of the file: which messages are in it.
type Holder struct {
	World  *World
	Writer *storage.Writer
	Index  map[int]uint64 // messages in the file, as far as this session knows
	Tail   []int          // appended, not known to be durable
	Read   int            // next message to take from the queue
	Dups   []int          // redelivered messages that the file has already
	Busy   bool           // in the middle of a call, in tests where other sessions run meanwhile
	after  uint64         // minimum index of the next record to replay
}

// Open opens the file with the next epoch, as a worker does after it was granted the lock.
func (x *World) Open(fsys storage.FS) (*Holder, error) {
	x.Epoch++
	return x.OpenEpoch(fsys, x.Epoch)
}

// OpenEpoch is Open with an epoch of the caller's choice.
func (x *World) OpenEpoch(fsys storage.FS, epoch uint64) (*Holder, error) {
	h := &Holder{World: x, Index: map[int]uint64{}}
	o := storage.Options{FS: fsys, Registry: x, CheckpointBatches: 3, Restore: h.Restore, Replay: h.Replay}
	o.Rehearse = func() (func([]byte) error, func(storage.Record) error) {
		nobody := &Holder{World: x, Index: map[int]uint64{}}
		return nobody.Restore, nobody.Replay
	}
	w, err := storage.Open(context.Background(), x.Dir, Type, epoch, o)
	h.Writer = w
	return h, err
}

// State returns the state for a checkpoint: one line "number index" for each message in the file.
func (h *Holder) State() []byte {
	var b []byte
	for _, n := range sortedKeys(h.Index) {
		b = fmt.Appendf(b, "%d %d\n", n, h.Index[n])
	}
	return b
}

// Restore is the inverse of State.
func (h *Holder) Restore(state []byte) error {
	h.after = 0
	for line := range strings.Lines(string(state)) {
		var n int
		var index uint64
		if _, err := fmt.Sscanf(line, "%d %d\n", &n, &index); err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		h.Index[n] = index
		h.after = max(h.after, index+1)
	}
	return nil
}

// ErrState is the error of Restore for state that no Holder wrote, and of Replay for records that no Holder wrote or that are out of order.
var ErrState = errors.New("this is no state")

// Replay adds a message after the checkpoint.
func (h *Holder) Replay(r storage.Record) error {
	n := Number(r.ID)
	h.Index[n] = r.Index
	if n < 0 || r.Index < h.after {
		return fmt.Errorf("%w: message %d with index %d, expected from %d on", ErrState, n, r.Index, h.after)
	}
	h.after = r.Index + 1
	return nil
}

// Number returns the number of the message with an ID; -1 for a foreign ID.
func Number(id []byte) int {
	var n int
	if _, err := fmt.Sscanf(string(id), "id-%06d", &n); err != nil {
		return -1
	}
	return n
}

// Fetch takes unacknowledged messages from the queue. It returns up to k messages to append. Messages that the file has already are
// duplicates: the next Ack acknowledges them.
func (h *Holder) Fetch(k int) []storage.Record {
	var recs []storage.Record
	for ; k > 0 && h.Read < h.World.Published; h.Read++ {
		if _, ok := h.World.Acked[h.Read]; ok {
			continue
		}
		if _, ok := h.Index[h.Read]; ok {
			h.Dups = append(h.Dups, h.Read)
			continue
		}
		recs = append(recs, Message(h.Read))
		k--
	}
	return recs
}

// Messages returns n records, numbered from first on, whose IDs and payloads contain their numbers.
func Messages(first, n int) []storage.Record {
	recs := make([]storage.Record, n)
	for i := range recs {
		recs[i] = storage.Record{ID: fmt.Appendf(nil, "id-%06d", first+i), Time: int64(1e18) + int64(first+i)*1000,
			Payload: fmt.Appendf(nil, "payload of message %d", first+i)}
	}
	return recs
}

// Message returns message number n. Some are large enough to cross blocks.
func Message(n int) storage.Record {
	r := Messages(n, 1)[0]
	if n%3 == 2 {
		r.Payload = append(r.Payload, strings.Repeat(fmt.Sprintf("%07d,", n), 100)...)
	}
	return r
}

// Append fetches k messages and appends them as one batch.
func (h *Holder) Append(k int) error {
	recs := h.Fetch(k)
	if len(recs) == 0 {
		return nil
	}
	next := h.Writer.NextIndex()
	if err := h.Writer.Append(recs); err != nil {
		h.Read = 0
		return err
	}
	for i, r := range recs {
		n := Number(r.ID)
		h.Index[n] = next + uint64(i)
		h.Tail = append(h.Tail, n)
	}
	return nil
}

// Ack syncs, and acknowledges the messages that are durable. It acknowledges duplicates before the sync, except those of messages in
// Tail.
func (h *Holder) Ack() error {
	for _, n := range h.Dups {
		if !slices.Contains(h.Tail, n) {
			h.World.Acked[n] = h.Index[n]
		}
	}
	h.Dups = nil
	next, err := h.Writer.Sync()
	if err != nil {
		return err
	}
	for len(h.Tail) > 0 && h.Index[h.Tail[0]] < next {
		h.World.Acked[h.Tail[0]] = h.Index[h.Tail[0]]
		h.Tail = h.Tail[1:]
	}
	return nil
}

// Checkpoint appends a checkpoint.
func (h *Holder) Checkpoint() error { return h.Writer.Checkpoint(h.State()) }

// Rotate continues in a successor file.
func (h *Holder) Rotate() error {
	next, err := h.Writer.Rotate(context.Background(), h.State())
	if err == nil {
		h.Writer = next
	}
	return err
}

// Compact rewrites the file.
func (h *Holder) Compact() error { return h.compact(0) }

// Merge rewrites the file together with all those before it.
func (h *Holder) Merge() error { return h.compact(1) }

func (h *Holder) compact(from uint64) error {
	next, report, err := h.Writer.Compact(context.Background(), h.State(), storage.CompactOptions{From: from, BatchBytes: 300})
	if err == nil {
		h.Writer = next
		if report.Lost != 0 || report.Records != report.NextIndex-report.FirstIndex || len(report.Damage) > 0 {
			return Violated("compaction: %+v", report)
		}
	}
	return err
}

// Work is a whole session: Begin, then one batch in a successor file, one after a compaction of both files, and the
// end.
func (h *Holder) Work() error {
	one := func() error { return h.Append(1) }
	return Steps(h.Begin, h.Rotate, one, h.Ack, h.Merge, one, h.Ack, func() error { return h.Writer.Close() })
}

// Begin is the part of Work in the first file: two batches, a checkpoint, and another batch.
func (h *Holder) Begin() error {
	return Steps(func() error { return h.Append(2) }, func() error { return h.Append(1) }, h.Ack,
		h.Checkpoint, func() error { return h.Append(3) }, h.Ack)
}

// Steps runs steps in order, up to the first that fails.
func Steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// violation is an error found by the oracle.
type violation struct{ what string }

func (v *violation) Error() string { return v.what }

// Violated returns an error of the oracle.
func Violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// Check is the oracle: every acknowledged message is in the files, complete and at the index it had; no message is in them twice;
// the messages of the only producer are in order; and Verify finds no problem.
func (x *World) Check(fsys storage.FS) error {
	at, err := x.Contents(fsys)
	if err != nil {
		return err
	}
	for _, n := range sortedKeys(x.Acked) {
		if i, ok := at[n]; !ok {
			return Violated("message %d was acknowledged at index %d and is lost", n, x.Acked[n])
		} else if i != x.Acked[n] {
			return Violated("message %d was acknowledged at index %d and is at %d", n, x.Acked[n], i)
		}
	}
	return nil
}

// Contents checks the files, and returns the messages in them and in removed files before them.
func (x *World) Contents(fsys storage.FS) (map[int]uint64, error) {
	paths, err := x.Paths(fsys)
	if err != nil {
		return nil, err
	}
	at, err := x.before(fsys, paths)
	if err != nil {
		return nil, err
	}
	var seal *storage.SealedError
	for i, path := range paths {
		if seal == nil && i > 0 {
			return nil, Violated("%s is not sealed, and %s follows it", paths[i-1], path)
		}
		if seal, err = x.checkFile(fsys, path, seal, at); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// before returns the messages in removed files that precede the remaining ones.
func (x *World) before(fsys storage.FS, paths []string) (map[int]uint64, error) {
	at := map[int]uint64{}
	if len(paths) == 0 || len(x.Gone) == 0 {
		return at, nil
	}
	r, err := storage.OpenReader(paths[0], storage.ReaderOptions{FS: fsys})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for n, i := range x.Gone {
		if i < r.FirstIndex() {
			at[n] = i
		}
	}
	return at, nil
}

// checkFile checks one of the files, whose predecessor ended with the given seal, and adds the messages in it to at.
func (x *World) checkFile(fsys storage.FS, path string, seal *storage.SealedError, at map[int]uint64) (*storage.SealedError, error) {
	r, err := storage.OpenReader(path, storage.ReaderOptions{FS: fsys})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// A replaced file between them may have been removed.
	if seal != nil && r.FileID() != seal.Successor && storage.ReadLink(fsys, path).PrevFileID != seal.Successor {
		return nil, Violated("%s is not the successor that the file before it names", path)
	}
	first, last := r.FirstIndex(), -1
	if first > uint64(len(at)) {
		return nil, Violated("%s begins with index %d, the file before it ends with %d", path, first, len(at))
	}
	for n, i := range at { // compacted messages are in two files
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
			return nil, Violated("record %d: %v", i, err)
		}
		n := Number(rec.ID)
		switch {
		case rec.Index != i:
			return nil, Violated("record %d has index %d", i, rec.Index)
		case n < 0 || n >= x.Published:
			return nil, Violated("record %d was never published: ID %q", i, rec.ID)
		case string(rec.Payload) != string(Message(n).Payload) || rec.Time != Message(n).Time:
			return nil, Violated("record %d, message %d, has another payload or time", i, n)
		case n <= last:
			return nil, Violated("message %d comes after message %d", n, last)
		}
		if before, ok := at[n]; ok && before != i {
			return nil, Violated("message %d is at %d, and at %d in the file before", n, i, before)
		}
		at[n], last, next = i, n, i+1
	}
	if next < uint64(len(at)) {
		return nil, Violated("%s ends at %d, the file before it with %d", path, next, len(at))
	}
	rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: fsys, Deep: true})
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		return nil, Violated("verify: %v", err)
	}
	if rep.Messages != next-first {
		return nil, Violated("verify counts %d messages, the reader %d", rep.Messages, next-first)
	}
	return r.Sealed(), nil
}

// Finish lets a new worker append and acknowledge all published messages, and checks the files.
func (x *World) Finish(fsys storage.FS) error {
	h, err := x.Open(fsys)
	for tries := 0; err != nil && errors.Is(err, syscall.EIO) && tries < 3; tries++ {
		h, err = x.Open(fsys) // an I/O error that was not reported yet is reported once
	}
	if err != nil {
		return Violated("the last worker cannot open: %v", err)
	}
	for len(x.Acked) < x.Published {
		if err := errors.Join(h.Append(2), h.Ack()); err != nil {
			return Violated("the last worker cannot work: %v", err)
		}
	}
	if err := h.Writer.Close(); err != nil {
		return Violated("the last worker cannot close: %v", err)
	}
	return x.Check(fsys)
}

// Clone returns a copy, so that several futures can be tried.
func (x *World) Clone() *World {
	c := *x
	c.Acked = map[int]uint64{}
	maps.Copy(c.Acked, x.Acked)
	return &c
}

func sortedKeys[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }

func isGeneration(name string) bool {
	typ, _, ok := storage.ParseName(name)
	return ok && typ == Type
}

// Keep removes all files but the newest through fsys. It first reads their messages through clean, which is not disturbed.
func (x *World) Keep(fsys, clean storage.FS) error {
	at, err := x.Contents(clean)
	if err != nil {
		return err
	}
	x.Gone = at // Contents uses the messages that are before the first remaining file
	_, err = storage.Keep(context.Background(), x.Dir, Type, storage.KeepOptions{FS: fsys, Registered: x.Entry, Size: 1, Replaced: true})
	return err
}

// TakeOver lets another session take over and append and acknowledge messages.
func (x *World) TakeOver(fsys storage.FS) (*Holder, error) {
	h, err := x.Open(fsys)
	if err == nil {
		err = errors.Join(h.Append(2), h.Ack())
	}
	return h, err
}

// Overtake lets another session continue in successor files, and removes all files but its last one.
func (x *World) Overtake(fsys storage.FS) (*Holder, error) {
	h, err := x.Open(fsys)
	if err != nil {
		return h, err
	}
	return h, Steps(Appends(h, 2), h.Ack, h.Rotate, Appends(h, 1), h.Ack, h.Rotate, Appends(h, 1), h.Ack, func() error { return x.Keep(fsys, fsys) })
}

// Close closes the writer, if there is one.
func (h *Holder) Close() {
	if h != nil && h.Writer != nil {
		h.Writer.Close()
	}
}

// Appends returns a step that appends k messages.
func Appends(h *Holder, k int) func() error { return func() error { return h.Append(k) } }
