package queues

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/worker"
)

// idle is what a replica costs the server while nothing is to be done.
type idle struct {
	types          int
	holds, standby perSecond // the replica that holds the types, and the one beside it
}

// perSecond are commands.
type perSecond struct{ queue, lock float64 }

// replica is a pool with connections of its own, whose commands are counted.
type replica struct {
	queueSent, lockSent *server.Sent
	pool                *worker.Pool
	stop                func() error // ends the pool, and closes what it has
}

func (b *bench) startReplica(ctx context.Context, p *place, types []string, events func(worker.Event)) (*replica, error) {
	r := &replica{queueSent: new(server.Sent)}
	q, err := mongoqueue.Open(ctx, p.URI, mongoqueue.Options{Monitor: r.queueSent.Monitor()})
	if err != nil {
		return nil, err
	}
	client, sent, err := server.Dial(b.server.URI)
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	r.lockSent = sent
	closeAll := func(locker *lock.Locker) error {
		end, cancel := server.Undisturbed(ctx)
		defer cancel()
		var err error
		if locker != nil {
			err = locker.Close(end)
		}
		return errors.Join(err, q.Close(), client.Disconnect(end))
	}
	store, err := mongolock.New(ctx, client.Database(q.Database()), mongolock.Options{})
	if err != nil {
		return nil, errors.Join(err, closeAll(nil))
	}
	locker, err := lock.New(store, lock.Options{})
	if err == nil {
		r.pool, err = worker.New(worker.Config{Queue: q, Locker: locker, To: worker.Files{Dir: p.Dir}, Types: types, Events: events})
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(locker))
	}
	done := make(chan error, 1)
	go func() { done <- r.pool.Run(ctx) }()
	r.stop = func() error {
		r.pool.Stop()
		return errors.Join(<-done, closeAll(locker))
	}
	return r, nil
}

// rate counts for a while.
func rate(ctx context.Context, span time.Duration, replicas ...*replica) ([]perSecond, error) {
	before := make([]perSecond, len(replicas))
	for i, r := range replicas {
		before[i] = perSecond{float64(r.queueSent.Load()), float64(r.lockSent.Load())}
	}
	begin := time.Now()
	if err := server.Sleep(ctx, span); err != nil {
		return nil, err
	}
	took := time.Since(begin).Seconds()
	for i, r := range replicas {
		before[i] = perSecond{(float64(r.queueSent.Load()) - before[i].queue) / took, (float64(r.lockSent.Load()) - before[i].lock) / took}
	}
	return before, nil
}

func (b *bench) measureIdle(ctx context.Context) (all []idle, err error) {
	counts, settle, span := []int{1, 16, 256}, 5*time.Second, 10*time.Second
	if b.o.Quick {
		counts, settle, span = []int{1, 4}, 100*time.Millisecond, 300*time.Millisecond
	}
	for _, n := range counts {
		b.o.Logf("idle: %d types", n)
		of, err := b.idle(ctx, n, settle, span)
		if err != nil {
			return nil, fmt.Errorf("%d types: %w", n, err)
		}
		all = append(all, of)
	}
	return all, nil
}

func (b *bench) idle(ctx context.Context, n int, settle, span time.Duration) (of idle, err error) {
	of.types = n
	p, err := b.newPlace(fmt.Sprintf("idle%d", n))
	if err != nil {
		return of, err
	}
	var types []string
	for i := range n {
		types = append(types, fmt.Sprintf("t%03d", i))
	}
	if err := errors.Join(p.Clear(ctx), p.Load(ctx, 1, types...)); err != nil {
		return of, err
	}
	var replicas []*replica
	defer func() {
		for _, r := range replicas {
			err = errors.Join(err, r.stop())
		}
	}()
	for range 2 {
		r, err := b.startReplica(ctx, p, types, nil)
		if err != nil {
			return of, err
		}
		replicas = append(replicas, r)
		// The first one has drained everything and holds all types before the second one comes.
		wait, cancel := context.WithTimeout(ctx, patience)
		for replicas[0].pool.Stats().Appended < uint64(n) && err == nil {
			err = server.Sleep(wait, 20*time.Millisecond)
		}
		cancel()
		if err != nil {
			return of, fmt.Errorf("waiting for the types to be held: %w", err)
		}
	}
	if err := server.Sleep(ctx, settle); err != nil {
		return of, err
	}
	rates, err := rate(ctx, span, replicas...)
	if err != nil {
		return of, err
	}
	of.holds, of.standby = rates[0], rates[1]
	if took := replicas[1].pool.Stats().Appended; took != 0 {
		return of, errors.New("the replica that stands by has taken a message")
	}
	for _, typ := range types {
		p.Drained[typ] = 1
	}
	return of, errors.Join(p.Empty(ctx), p.Verify(ctx))
}
