package simulation

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// Rooms are locks that visitors take, in addition to those of the workers. The comments say how many visitors may be inside concurrently.
const (
	hall  = "hall" // one, or any number that share it
	desk  = "desk" // two
	desks = 2
)

// visit is one holder's time in a room.
type visit struct {
	*process
	lease  *lock.Lease
	shared bool
}

// visitor takes locks in all ways until the storm ends: exclusively, shared, with permits, fair, by TryAcquire.
func (w *world) visitor(slot int, storm context.Context) {
	for life := 0; storm.Err() == nil; life++ {
		p := w.spawn("visitor", slot, life)
		locker, err := p.locker()
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(storm)
		undo := context.AfterFunc(p.ctx, cancel)
		for i := uint64(0); ctx.Err() == nil; i++ {
			p.visit(ctx, locker, newDice(w.seed, p.id, i))
		}
		undo()
		cancel()
		if !p.isDead() {
			closing, done := context.WithTimeout(p.ctx, 5*time.Second)
			_ = locker.Close(closing)
			done()
			p.cancel()
		}
	}
}

func (p *process) visit(ctx context.Context, locker *lock.Locker, d *dice) {
	w := p.w
	room, shared := hall, d.chance(6000)
	options := []lock.Option{lock.WithLease(w.lease)}
	switch {
	case d.chance(3000):
		room, shared = desk, true
		options = append(options, lock.WithPermits(desks))
	case shared:
		options = append(options, lock.WithShared())
	}
	if d.chance(3000) {
		options = append(options, lock.WithFair())
	}
	var le *lock.Lease
	var err error
	if d.chance(2000) {
		le, err = locker.TryAcquire(ctx, room, options...)
	} else {
		le, err = locker.Acquire(ctx, room, append(options, lock.WithWait(d.span(time.Second, 20*time.Second)))...)
	}
	stay := d.upTo(pick(d, 100*time.Millisecond, 3*time.Second))
	if err != nil {
		if errors.Is(err, lock.ErrHeld) {
			stay /= 2
		}
	} else {
		w.enter(&visit{p, le, shared}, room)
	}
	select {
	case <-time.After(stay + time.Millisecond):
	case <-ctx.Done():
	}
	if le == nil {
		return
	}
	leaving, done := context.WithTimeout(p.ctx, 2*time.Second)
	defer done()
	_ = le.Release(leaving) // if there is no answer, it expires
}

// enter checks that no visitor in the room excludes the visit. Only visitors count that are alive and whose lease is still valid.
func (w *world) enter(v *visit, room string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.dead || v.lease.Check(0) != nil {
		return
	}
	w.seen.Visits++
	inside := 1
	for _, o := range w.visits[room] {
		if o.lease.Token() == v.lease.Token() {
			w.failLocked("%s has token %d of %s, and %s had it before", v.name, v.lease.Token(), room, o.name)
		}
		if o.dead || o.lease.Check(0) != nil {
			continue
		}
		inside++
		if room == hall && !(o.shared && v.shared) {
			w.failLocked("%s is in the hall (shared: %t) while %s is (shared: %t)", v.name, v.shared, o.name, o.shared)
		}
	}
	if room == desk && inside > desks {
		w.failLocked("%d are at the desk", inside)
	}
	if inside > 1 {
		w.seen.Shared++
	}
	w.visits[room] = append(w.visits[room], v)
}
