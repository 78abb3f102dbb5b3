package simulation

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// disaster plays an administrator's mistake while workers use the store: a slot is removed by hand, or the store is set back by some
// seconds. Messages in it may then be gone. The loss is reported, and everything else holds as always.
func (w *world) disaster(storm context.Context) {
	d := newDice(w.seed, number("disaster"))
	select {
	case <-time.After(d.span(w.storm/4, w.storm)):
	case <-storm.Done():
		return
	}
	var names []string
	if d.chance(5000) {
		to := w.now() - d.upTo(w.storm/2)
		w.tell("the store is set back to its state at %v", to)
		names = w.depot.since(w, to)
	} else {
		typ := pick(d, w.types...)
		f, ok, err := w.queue().RegistryEntry(storm, typ)
		if err != nil || !ok {
			return
		}
		if names = w.depot.folder(typ, f.Generation); len(names) == 0 {
			return
		}
		i := d.n(len(names))
		names = names[i : i+1]
	}
	for _, name := range names {
		w.tell("%s is removed", name)
		_ = w.depot.Delete(context.Background(), name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Disasters++
}

// since returns the names of the values created after when.
func (m *depot) since(w *world, when time.Duration) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range m.Names() {
		if m.born[name] > when {
			names = append(names, name)
		}
	}
	return names
}

// expected reports whether a worker may end with err: the store refused its credentials, or has lost data.
func (w *world) expected(err error) bool {
	return refused(err) || w.disasters && (errors.Is(err, storage.ErrIntegrity) || errors.Is(err, storage.ErrRefused))
}

// mendFiles plays the operator after a disaster: it repairs the reported damage, and accepts the loss.
func (w *world) mendFiles() {
	for _, typ := range w.types {
		var told error
		for round := range 6 {
			f, registered, err := w.queue().RegistryEntry(context.Background(), typ)
			if err != nil {
				panic(err)
			}
			if !registered { // nothing has been written to it
				f.Generation = 1
			}
			if told = w.wrong(typ, f, registered); told == nil {
				break
			}
			w.tell("what is wrong with %s: %v", typ, told)
			if damaged := (*storage.HeaderError)(nil); errors.As(told, &damaged) || strings.Contains(told.Error(), "the first slot of the file") || // the error advises this
				strings.Contains(told.Error(), "move this one away") {
				_ = w.depot.Delete(context.Background(), generationName(typ, f.Generation))
			}
			report, err := w.repair(typ, round > 0)
			w.tell("repaired: %+v, %v", report, err)
			if err != nil && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) && !errors.Is(err, lock.ErrHeld) {
				w.tell("repair of %s: %v", typ, err) // a worker may have been faster
			}
		}
		if told != nil {
			w.failf("%s cannot be repaired: %v", typ, told)
		}
	}
}

// repair repairs the newest file of a type.
func (w *world) repair(typ string, acceptLoss bool) (*storage.CompactReport, error) {
	w.mu.Lock()
	life := len(w.processes)
	w.mu.Unlock()
	p := w.spawn("worker", 6, life)
	defer p.cancel()
	locker, err := p.locker()
	if err != nil {
		panic(err)
	}
	defer locker.Close(context.Background())
	return worker.Rewrite(context.Background(), p.config(locker), typ, worker.RewriteOptions{Repair: true, AcceptLoss: acceptLoss, Wait: time.Minute})
}

// passesOver reports whether a file for which Verify returned err was damaged by a disaster and has been replaced by another one. The other
// file, or the error, reports the loss.
func (w *world) passesOver(c *contents, newest bool, err error) bool {
	gone := errors.Is(err, fs.ErrNotExist)
	if !w.disasters || newest || !gone && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) {
		return false
	}
	c.unread = c.unread || !gone
	w.tell("passed over: %v", err)
	return true
}

// passOver prepares for a file that begins with index first, after files some of which may have been passed over.
func (c *contents) passOver(first uint64) {
	switch {
	case first > c.next: // the content of a file that is gone is unknown
		c.unread, c.next = true, first
	case first <= c.from: // it has all of them
		c.unread = false
	}
	c.from = first
}
