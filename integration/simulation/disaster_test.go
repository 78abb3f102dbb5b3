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

// disaster is what an administrator does to the store while workers use it: a slot is removed by hand, or the store is set back to what it
// was some seconds before. Messages in it may be gone then. But that is reported, and everything else is as always.
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
		w.tell("the store is set back to what it was at %v", to)
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

// since returns the names of what was created after a moment.
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

// expected tells whether a worker may end so: the store refused its credentials, or has lost something.
func (w *world) expected(err error) bool {
	return refused(err) || w.disasters && (errors.Is(err, storage.ErrIntegrity) || errors.Is(err, storage.ErrRefused))
}

// mendFiles is what an operator does after a disaster: repairs what is reported as wrong, and accepts the loss.
func (w *world) mendFiles() {
	for _, typ := range w.types {
		var told error
		for round := range 6 {
			f, registered, err := w.queue().RegistryEntry(context.Background(), typ)
			if err != nil {
				panic(err)
			}
			if !registered { // nobody has put anything into it
				f.Generation = 1
			}
			if told = w.wrong(typ, f, registered); told == nil {
				break
			}
			w.tell("what is wrong with %s: %v", typ, told)
			if damaged := (*storage.HeaderError)(nil); errors.As(told, &damaged) || strings.Contains(told.Error(), "the first slot of the file") || // what the error says
				strings.Contains(told.Error(), "move this one away") {
				_ = w.depot.Delete(context.Background(), generationName(typ, f.Generation))
			}
			report, err := w.repair(typ, round > 0)
			w.tell("repaired: %+v, %v", report, err)
			if err != nil && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) && !errors.Is(err, lock.ErrHeld) {
				w.tell("repair of %s: %v", typ, err) // a worker may be faster
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

// passesOver tells whether a file of which Verify says err is one that a disaster has damaged, and in whose place another one is: that one
// tells what is lost, or the error does.
func (w *world) passesOver(c *contents, newest bool, err error) bool {
	gone := errors.Is(err, fs.ErrNotExist)
	if !w.disasters || newest || !gone && !errors.Is(err, storage.ErrIntegrity) && !errors.Is(err, storage.ErrRefused) {
		return false
	}
	c.unread = c.unread || !gone
	w.tell("passed over: %v", err)
	return true
}

// passOver prepares for a file that begins with index first, behind ones of which some may have been passed over.
func (c *contents) passOver(first uint64) {
	switch {
	case first > c.next: // nothing tells what was in a file that is gone
		c.unread, c.next = true, first
	case first <= c.from: // it has all of them
		c.unread = false
	}
	c.from = first
}
