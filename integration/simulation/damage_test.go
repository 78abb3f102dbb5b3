package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// kept is a record as it was before the damage.
type kept struct {
	kind storage.Kind
	id   queue.ID
	body string
}

// damage flips bits of one byte of a type's newest file when all is over, and repairs it. Whatever had happened to the file: what is before the
// damage, and what later writers wrote behind it, is kept at its index; what cannot be read is marked as lost, and a worker goes on behind it.
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
	path := dir + "/" + storage.GenerationName(typ, f.Generation)
	data := w.disk.ReadFile(path)
	const header = 4096
	if len(data) == header {
		return
	}
	before, whole := w.records(path)
	if whole == nil || whole.Sealed != nil { // who sealed it was killed: the next worker goes on in another file, and this one stays as it is
		return
	}
	if w.restored && f.DurableIndex < whole.NextIndex { // nobody has opened the file since: the end of it looks as if it had never been written
		return
	}
	at := int64(header + d.n(len(data)-header))
	// A reader of what is before the damage tells which records those are.
	const part = "/part.fpl"
	w.disk.WriteFile(part, data[:at])
	first, _ := w.records(part)
	data = bytes.Clone(data)
	data[at] ^= byte(1 + d.n(255))
	w.disk.WriteFile(path, data)
	w.tell("byte %d of %s is damaged", at, path)
	w.seen.Damages++

	repair := func(acceptLoss bool) (*storage.CompactReport, error) {
		p := w.spawn("worker", 6, len(w.processes))
		defer p.cancel()
		locker, err := p.locker()
		if err != nil {
			panic(err)
		}
		defer locker.Close(context.Background())
		return worker.Rewrite(context.Background(), p.config(locker), typ, worker.RewriteOptions{Repair: true, AcceptLoss: acceptLoss, Wait: time.Minute})
	}
	report, err := repair(false)
	if errors.Is(err, storage.ErrIntegrity) { // the end is damaged, and looks as if it had never been written
		report, err = repair(true)
	}
	if err != nil {
		w.failf("%s, byte %d: repair: %v", path, at, err)
		return
	}
	after, repaired := w.records(report.Path)
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
				return r.Offset > at || r.End <= at
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

// records reads a file: what Verify finds wrong with it is a failure, but not that it ends early.
func (w *world) records(path string) (map[uint64]kept, *storage.Report) {
	all := map[uint64]kept{}
	r, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: w.disk, Visit: func(r storage.Record) error {
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
