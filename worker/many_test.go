package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// slowQueue takes its time for questions, and counts how many are asked at the same time, and how many locks are held then.
type slowQueue struct {
	queue.Queue
	held         func() int
	looks, opens most
	locks        atomic.Int32
}

// most is a number and the highest that it was.
type most struct{ now, highest atomic.Int32 }

func (m *most) during(d time.Duration) {
	n := m.now.Add(1)
	for high := m.highest.Load(); n > high && !m.highest.CompareAndSwap(high, n); high = m.highest.Load() {
	}
	time.Sleep(d)
	m.now.Add(-1)
}

func (q *slowQueue) Depth(ctx context.Context, typ string, n int) (queue.Depth, error) {
	q.looks.during(time.Millisecond)
	return q.Queue.Depth(ctx, typ, n)
}

func (q *slowQueue) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	q.opens.during(20 * time.Millisecond)
	n := int32(q.held())
	for high := q.locks.Load(); n > high && !q.locks.CompareAndSwap(high, n); high = q.locks.Load() {
	}
	return q.Queue.RegistryEntry(ctx, typ)
}

// TestManyTypesAreOpenedAFewAtATime: a pool that finds many types does not ask the queue and the disk for all of them at the same time.
func TestManyTypesAreOpenedAFewAtATime(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(3 * maxOpening)
		q := slowQueue{Queue: r.queue, held: func() (n int) {
			for _, typ := range types {
				if record, _ := r.locks.Get(typ); record.Held() {
					n++
				}
			}
			return n
		}}
		if err := r.drain(func(c *Config) { c.Queue, c.Types = &q, types }); err != nil {
			t.Error(err)
		}
		// Nobody looks: the pool has found all of them with one question, and there is no other that could drain them.
		if looks, opens := q.looks.highest.Load(), q.opens.highest.Load(); looks != 0 || opens != maxOpening {
			t.Errorf("%d looks and %d openings at the same time, want 0 and %d", looks, opens, maxOpening)
		}
		// Those that are opened, and those before, which are drained and about to be released.
		if held := q.locks.Load(); held > 2*maxOpening {
			t.Errorf("%d locks were held at a time, of %d types", held, len(types))
		}
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// TestPoolsThatDrainTogetherEndTogether: a pool looks rarely at each of many types, and yet ends soon after the others have drained the last ones.
func TestPoolsThatDrainTogetherEndTogether(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(600)
		q := slowQueue{Queue: r.queue, held: func() int { return 0 }}
		start := func() *runningPool {
			return r.start(func(c *Config) { c.Queue, c.Types, c.UntilEmpty = &q, types, true })
		}
		one, other := start(), start()
		select {
		case <-one.done:
		case <-other.done:
		}
		first := time.Now()
		if err := errors.Join(one.end(), other.end()); err != nil {
			t.Error(err)
		}
		if behind := time.Since(first); behind > time.Second {
			t.Errorf("one pool ended %v after the other", behind)
		}
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// publishMany publishes a message of each of n types.
func (r *rig) publishMany(n int) (types []string) {
	for i := range n {
		typ := fmt.Sprintf("t%04d", i)
		r.publish(typ, 1)
		types = append(types, typ)
	}
	return types
}

// TestAPoolWaitsForWhatOthersHold: a pool does not end while types that it does not hold have messages. It takes them when they are free.
func TestAPoolWaitsForWhatOthersHold(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(300) // so many that it does not wait for locks
		locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(epoch) }})
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		other := r.start(func(c *Config) { c.Types = []string{"another"} })
		time.Sleep(time.Second)
		var held []*lock.Lease
		for _, typ := range types[:250] {
			lease, err := locker.Acquire(t.Context(), typ, lock.WithLease(time.Hour), lock.WithWhy(lockReason(other.instance)))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, lease)
		}
		p := r.start(func(c *Config) { c.Types, c.UntilEmpty = types, true })
		time.Sleep(30 * time.Second)
		select {
		case <-p.done:
			t.Fatal("the pool has ended with messages left")
		default:
		}
		for _, typ := range types[250:] {
			r.complete(typ)
		}
		for _, lease := range held {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.end(); err != nil {
			t.Error(err)
		}
		other.stop()
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// TestManyTypesOfADeadReplica: a pool that serves many types takes those of a dead replica a lease after it has noticed, also if there is no heartbeat
// that tells of them.
func TestManyTypesOfADeadReplica(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(2000)
		const lease = 5 * time.Second
		for _, typ := range types[:50] {
			r.locks.Edit(typ, func(rec *lock.Record) bool {
				rec.Token, rec.Hold = 1, &lock.Hold{ID: lock.HoldID{1}, Lease: lease, Why: lockReason("dead")}
				return true
			})
		}
		p := r.start(func(c *Config) { c.Types, c.Lease = types, lease })
		time.Sleep(lease + 4*time.Second)
		for _, typ := range types {
			if d, err := r.queue.Depth(t.Context(), typ, 1); err != nil || d.Pending > 0 {
				t.Errorf("%s has messages after a lease and four seconds: %v", typ, err)
			}
		}
		p.stop()
	})
}
