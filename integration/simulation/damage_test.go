package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

const header = 4096 // bytes of a file

// kept is a record before the damage.
type kept struct {
	kind storage.Kind
	id   queue.ID
	body string
}

// damage runs at the end: it flips bits of one byte of a type's newest file, or removes slots of it, and repairs it. Whatever happened to the file
// before, the records before the damage, and those that later writers appended after it, keep their indexes; unreadable records are reported and
// marked as lost; and a worker continues the file.
func (w *world) damage() {
	d := newDice(w.seed, number("damage"))
	if len(w.failures) > 0 || w.handlers || !d.chance(3000) {
		return
	}
	typ := w.types[d.n(len(w.types))]
	f, registered, err := w.queue().RegistryEntry(context.Background(), typ)
	if err != nil {
		panic(err)
	}
	if !registered {
		return
	}
	path := w.dir() + "/" + storage.GenerationName(typ, f.Generation)
	data, err := w.content(typ, f.Generation)
	if err != nil {
		panic(err) // check has already read it
	}
	if len(data) == header {
		return
	}
	before, whole := w.records(w.files(), path)
	if whole == nil || whole.Sealed != nil { // its sealer was killed: the next worker continues in a new file, and this one does not change
		return
	}
	if w.restored && f.DurableIndex < whole.NextIndex { // no worker has opened the file since: its end looks as if it had never been written
		return
	}
	at := int64(header + d.n(len(data)-header))
	end := at + 1
	hurt := func() {
		data = bytes.Clone(data)
		data[at] ^= byte(1 + d.n(255))
		w.disk.WriteFile(path, data)
	}
	if w.slots {
		at, end, hurt = w.depot.wound(d, typ, f.Generation, at)
	}
	// A reader of the part before the damage shows which records it contains.
	const part = "/part.fpl"
	w.disk.WriteFile(part, data[:at])
	first, _ := w.records(w.disk, part)
	hurt()
	w.tell("%s is damaged from byte %d to %d", path, at, end)
	w.seen.Damages++

	told := w.wrong(typ, f, true)
	report, err := w.repair(typ, false)
	if errors.Is(err, storage.ErrIntegrity) { // the end is damaged, and looks as if it had never been written
		report, err = w.repair(typ, true)
	}
	if err != nil {
		w.failf("%s, byte %d: repair: %v", path, at, err)
		return
	}
	after, repaired := w.records(w.files(), report.Path)
	if repaired == nil {
		return
	}
	if repaired.NextIndex < whole.NextIndex {
		w.failf("%s, byte %d: the file ends at index %d after the repair, and did at %d", path, at, repaired.NextIndex, whole.NextIndex)
	}
	if report.Lost != repaired.Lost {
		w.failf("%s, byte %d: %d records are lost, and the repair tells %d", path, at, repaired.Lost, report.Lost)
	}
	mustKeep := func(index uint64) bool {
		if _, ok := first[index]; ok {
			return true
		}
		for _, r := range whole.Regions {
			if r.First <= index && index < r.Next {
				return r.Offset >= end || r.End <= at
			}
		}
		return false
	}
	for index, was := range before {
		is, ok := after[index]
		switch {
		case ok && is == was:
		case ok && is.kind == storage.KindLost && !mustKeep(index):
			w.seen.LostRecords++
			if told == nil {
				w.failf("%s, byte %d: index %d is lost, and no error reported that before the repair", path, at, index)
			}
		default:
			w.failf("%s, byte %d: index %d was %v and is %v (in the file: %t)", path, at, index, was, is, ok)
		}
	}
	r := w.start(6, len(w.processes), true)
	<-r.done
	if r.err != nil {
		w.failf("%s, byte %d: a worker after the repair: %v", path, at, r.err)
	}
}

// records reads a file. Any problem that Verify finds is a failure, but an early end is not.
func (w *world) records(fsys storage.FS, path string) (map[uint64]kept, *storage.Report) {
	all := map[uint64]kept{}
	r, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: fsys, Visit: func(r storage.Record) error {
		k := kept{kind: r.Kind, body: fmt.Sprintf("%q %q", r.Payload, r.Headers)}
		copy(k.id[:], r.ID)
		all[r.Index] = k
		return nil
	}})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		w.failf("%s: %v", path, err)
		return nil, nil
	}
	return all, r
}

// content returns the bytes of a generation.
func (w *world) content(typ string, generation uint64) ([]byte, error) {
	if w.slots {
		return w.depot.file(w, typ, generation)
	}
	return w.disk.ReadFile(dir + "/" + storage.GenerationName(typ, generation)), nil
}

// wrong returns the error that the programs report for the newest file of a type, or nil.
func (w *world) wrong(typ string, f queue.RegistryEntry, registered bool) error {
	path := w.dir() + "/" + storage.GenerationName(typ, f.Generation)
	r, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: w.files(), Type: typ, Deep: true})
	if err == nil {
		err = r.Err()
	}
	if !registered {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	entry := storage.Entry{FileID: storage.FileID(f.FileID), Generation: f.Generation, Epoch: f.Epoch, DurableIndex: f.DurableIndex}
	return errors.Join(err, storage.CheckRegistered(w.files(), w.dir(), typ, entry))
}

// wound prepares an administrator's damage to the slots of a generation: to change the byte at an offset, or to remove its slot, or all slots from
// there on, as when the store is set back. It returns the range of damaged bytes.
func (m *depot) wound(d *dice, typ string, generation uint64, at int64) (from, to int64, hurt func()) {
	names := m.folder(typ, generation)
	var off, end, size int64 // of the slot, and of the file
	which := -1
	for i, name := range names {
		n, err := m.Size(context.Background(), name)
		if err != nil {
			panic(err)
		}
		first, err := strconv.ParseInt(name[strings.LastIndexByte(name, '/')+1:], 10, 64)
		if err != nil {
			panic(err)
		}
		size = first + n
		if which < 0 && at < size {
			which, off, end = i, first, size
			at = max(at, off) // a disaster left a hole before it
		}
	}
	remove := func(names []string) {
		for _, name := range names {
			_ = m.Delete(context.Background(), name)
		}
	}
	kind := d.n(3)
	if off < header { // a repair wrote the whole file as one slot: without its header it is not a file
		kind = 0
	}
	switch kind {
	case 0:
		return at, at + 1, func() {
			b, _ := m.Read(context.Background(), names[which])
			b[at-off] ^= byte(1 + d.n(255))
			m.Set(names[which], b)
		}
	case 1:
		return off, end, func() { remove(names[which : which+1]) }
	}
	return off, size, func() { remove(names[which:]) }
}
