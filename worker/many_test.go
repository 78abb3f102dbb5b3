package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// slowQueue delays the answers to queries, and counts how many queries are concurrent, and how many locks are held then.
type slowQueue struct {
	queue.Queue
	held         func() int
	opening      time.Duration // how long an opening takes; with 0 it is 20 ms
	looks, opens most
	asked        atomic.Int32 // the number of checks
	locks        atomic.Int32
}

// most is a number and its highest value so far.
type most struct{ now, highest atomic.Int32 }

func (m *most) during(d time.Duration) {
	n := m.now.Add(1)
	for high := m.highest.Load(); n > high && !m.highest.CompareAndSwap(high, n); high = m.highest.Load() {
	}
	time.Sleep(d)
	m.now.Add(-1)
}

func (q *slowQueue) Depth(ctx context.Context, typ string, n int) (queue.Depth, error) {
	q.asked.Add(1)
	q.looks.during(time.Millisecond)
	return q.Queue.Depth(ctx, typ, n)
}

func (q *slowQueue) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	q.opens.during(cmp.Or(q.opening, 20*time.Millisecond))
	n := int32(q.held())
	for high := q.locks.Load(); n > high && !q.locks.CompareAndSwap(high, n); high = q.locks.Load() {
	}
	return q.Queue.RegistryEntry(ctx, typ)
}

// TestManyTypesAreOpenedAFewAtATime: a pool that finds many types does not query the queue and the disk for all of them concurrently.
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
		// No per-type checks: one query found them all, and no other pool could drain them.
		if looks, opens := q.looks.highest.Load(), q.opens.highest.Load(); looks != 0 || opens != maxOpening {
			t.Errorf("%d concurrent checks and %d concurrent openings, want 0 and %d", looks, opens, maxOpening)
		}
		// The types being opened, and the ones before, which are drained and about to be released.
		if held := q.locks.Load(); held > 2*maxOpening {
			t.Errorf("%d locks were held at a time, of %d types", held, len(types))
		}
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// TestManyPoolsOpenFewerTypesEach: forty pools open as many types concurrently as ten would.
func TestManyPoolsOpenFewerTypesEach(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		defer r.beat(others(39, "else")...)()
		q := slowQueue{Queue: r.queue, held: func() int { return 0 }}
		p := r.start(func(c *Config) { all(c); c.Queue = &q })
		time.Sleep(2*share.HeartbeatEvery + listenEvery/2) // the pool learns of the others, and no sweep runs during the publishing
		types := r.publishMany(3 * maxOpening)
		time.Sleep(sweepMost)
		if opens, want := q.opens.highest.Load(), int32(maxOpening/((1+39)/10)); opens != want {
			t.Errorf("%d types were opened concurrently, want %d", opens, want)
		}
		for _, typ := range types {
			r.complete(typ)
		}
		p.stop()
	})
}

// TestPoolsThatDrainTogetherEndTogether: a pool rarely checks each of many types, and yet ends soon after the others have drained the last ones.
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

// TestPoolsThatDrainForLong: pools with a large backlog leave types that fall to other pools to those, however long that takes. They check them
// type by type only if they cannot query all types together.
func TestPoolsThatDrainForLong(t *testing.T) {
	race.Skip(t)
	n := 3000
	if testing.Short() {
		n /= 2
	}
	for name, fails := range map[string]bool{"asks about all": false, "cannot ask about all": true} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				types := r.publishMany(n)
				q := slowQueue{Queue: r.queue, held: func() int { return 0 }, opening: 2 * time.Second}
				start := func() *runningPool {
					return r.start(func(c *Config) { c.Queue, c.Types, c.UntilEmpty = &q, types, true })
				}
				one, other := start(), start()
				time.Sleep(time.Second)
				if fails {
					r.disturb(func(op queuetest.Op, _ int) (f queuetest.Fault) {
						if op == queuetest.OpPending {
							f.Kind = queuetest.Refused
						}
						return f
					})
				}
				began := time.Now()
				if err := errors.Join(one.end(), other.end()); err != nil {
					t.Error(err)
				}
				// Of 3000 the last is drained after a minute and a half. Pools that cannot query all types notice within a minute, others at once.
				asked, took := q.asked.Load(), time.Since(began)
				if !fails && (asked > 600 || took > 100*time.Second) || fails && (asked < int32(n)*2/3 || took > 3*time.Minute) {
					t.Errorf("%d checks of %d types, and the last pool ended after %v", asked, len(types), took)
				}
				for _, typ := range types {
					r.complete(typ)
				}
			})
		})
	}
}

// TestAPoolHelpsOneThatIsStuck: a pool soon drains all types that fall to another pool that does not take them, even if the other pool holds as many
// of them as the pool queries at a time, without opening them.
func TestAPoolHelpsOneThatIsStuck(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(1200)
		slow := slowQueue{Queue: r.queue, held: func() int { return 0 }, opening: 5 * time.Minute}
		other := r.start(func(c *Config) { c.Queue, c.Types, c.UntilEmpty = &slow, types, true })
		time.Sleep(time.Second)
		p := r.start(func(c *Config) { c.Types, c.UntilEmpty = types, true })
		time.Sleep(12 * time.Second)
		left, err := r.queue.Pending(t.Context(), types, len(types))
		if err != nil || len(left) != maxOpening {
			t.Errorf("%d types have messages, want the %d that the other pool holds: %v", len(left), maxOpening, err)
		}
		if err := errors.Join(p.end(), other.end()); err != nil {
			t.Error(err)
		}
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// TestAPoolHelpsOneThatDoesNotCome: types that fall to a pool that is alive but does not take them are soon drained by another, however many they are.
func TestAPoolHelpsOneThatDoesNotCome(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		h.say(lost, nil) // so a sweep finds the types
		defer r.beat(queue.Member{Instance: "other", Types: []string{"*"}})()
		types := r.register(500)
		p := r.start(all)
		time.Sleep(sweepMost + listenEvery/2) // between two rounds: a sweep during the publishing would leave the rest to the next one
		for _, typ := range types {
			r.publish(typ, 1)
		}
		began := time.Now()
		for _, typ := range types {
			p.wantAppended(typ, 1, sweepMost)
		}
		if took := time.Since(began); took > sweepMost-time.Second { // 4 to 20 s; more than sweepMost if only sweeps wake it
			t.Errorf("the last type waited for %v", took)
		}
		p.stop()
	})
}

// TestOneOfManyPoolsLooksAtNews: of thirty pools, this one checks a notified type at once only if the type falls to it. It takes the other types
// later, as their pools do not take them.
func TestOneOfManyPoolsLooksAtNews(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		defer r.beat(others(29, "*")...)()
		types := r.register(300)
		q := slowQueue{Queue: r.queue, held: func() int { return 0 }}
		p := r.start(func(c *Config) { all(c); c.Queue = &q })
		time.Sleep(sweepMost + listenEvery/2)
		if n := q.asked.Load(); n > 0 {
			t.Errorf("%d checks of idle types", n)
		}
		for _, typ := range types[:90] {
			r.publish(typ, 1)
		}
		time.Sleep(share.StarveAfter - time.Second)
		// Of ninety, about three fall to this pool.
		if n := q.asked.Load(); n > 20 {
			t.Errorf("%d checks at once, want about 3", n)
		}
		for _, typ := range types[:90] {
			p.wantAppended(typ, 1, 2*sweepMost)
		}
		p.stop()
	})
}

// TestTypesThatOthersHoldAreLeftAlone: of thirty pools, this one does not check types that a living pool holds, though they have messages.
func TestTypesThatOthersHoldAreLeftAlone(t *testing.T) {
	race.Skip(t)
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(300)
		holder := queue.Member{Instance: "holder", Types: []string{"*"}, Held: types}
		defer r.beat(append(others(28, "*"), holder)...)()
		r.hold("holder", time.Hour, types...)
		for _, typ := range types {
			r.publish(typ, 1)
		}
		q := slowQueue{Queue: r.queue, held: func() int { return 0 }}
		p := r.start(func(c *Config) { all(c); c.Queue = &q })
		time.Sleep(sweepMost)
		before := q.asked.Load()
		time.Sleep(5 * time.Minute)
		if n := q.asked.Load() - before; n > 0 {
			t.Errorf("%d checks in five minutes", n)
		}
		p.stop()
	})
}

// TestTypesThatOthersHoldAreNotBlocked: of thirty pools, this one failed to serve a type that a living pool has held since.
func TestTypesThatOthersHoldAreNotBlocked(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		typ := r.register(100)[0]
		stop := r.beat(others(29, "*")...)
		r.disk.SetFree(0)
		p := r.start(all)
		time.Sleep(time.Second)
		r.publish(typ, 1)
		for p.Status().of(t, typ).State != Blocked {
			time.Sleep(time.Millisecond)
		}
		h.say(lost, blind) // the other pool is so fast that no sweep finds messages
		time.Sleep(10 * time.Second)
		stop()
		r.hold("holder", time.Hour, typ)
		defer r.beat(append(others(28, "*"), queue.Member{Instance: "holder", Types: []string{"*"}, Held: []string{typ}})...)()
		time.Sleep(time.Minute)
		if got := p.Status().of(t, typ); got.State != Waiting {
			t.Errorf("while another pool holds it: %+v", got)
		}
		p.stop()
	})
}

// TestAPoolWithManyTypesDoesNotLookWhileTheQueueIsSlow: if notifications cannot be read for a while, the pool does not check each of its
// many types instead. It does so only after a long time.
func TestAPoolWithManyTypesDoesNotLookWhileTheQueueIsSlow(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(1000)
		q := slowQueue{Queue: r.queue, held: func() int { return 0 }}
		p := r.start(func(c *Config) { all(c); c.Queue = &q })
		time.Sleep(time.Minute)
		r.disturb(func(o queuetest.Op, _ int) queuetest.Fault {
			if o == queuetest.OpNotifications || o == queuetest.OpPendingTypes {
				return queuetest.Fault{Kind: queuetest.Refused}
			}
			return queuetest.Fault{}
		})
		time.Sleep(blindAfter - time.Second)
		if n := q.asked.Load(); n > 0 {
			t.Errorf("%d checks", n)
		}
		time.Sleep(2*time.Second + sweepMost)
		if n := q.asked.Load(); n < int32(len(types)) {
			t.Errorf("%d checks after a long time, want one of each of %d types", n, len(types))
		}
		p.stop()
	})
}

// TestTypesOfADeadReplicaInACrowd: of thirty pools, the first in a type's order that does not hold the type takes it over from a dead holder as
// soon as the lease has expired. Here only this pool takes types, so the test is about those for which it is among the first.
func TestTypesOfADeadReplicaInACrowd(t *testing.T) {
	race.Skip(t)
	for _, lease := range []time.Duration{4 * time.Second, 10 * time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			onHints(t, func(t *testing.T, r *rig, h *hints) {
				defer r.beat(others(28, "*")...)()
				types := r.register(3000)[:1500]
				dead := queue.Member{Instance: "dead", Types: []string{"*"}, Held: types}
				stop := r.beat(dead)
				r.hold("dead", lease, types...)
				for _, typ := range types {
					r.publish(typ, 1)
				}
				p := r.start(func(c *Config) { all(c); c.Lease = lease })
				time.Sleep(sweepMost + time.Second) // late enough that no sweep can mask a missing check
				r.hold("dead", lease, types...)
				stop()
				time.Sleep(4*time.Second + lease*7/6 + 3*time.Second) // silence, observation, takeover
				n := 0
				for _, typ := range types {
					n += int(p.appended(typ))
				}
				// Three of thirty pools check each type, so about 145 are this pool's, besides 50 that it has taken after a sweep.
				if n < 140 {
					t.Errorf("%d types of the dead replica are taken over within the lease, want about 195", n)
				}
				p.stop()
			})
		})
	}
}

// hold makes another replica the holder of locks, or renews them.
func (r *rig) hold(instance string, lease time.Duration, types ...string) {
	for _, typ := range types {
		r.locks.Edit(typ, func(rec *lock.Record) bool {
			rec.Token, rec.Hold, rec.Version = 1, &lock.Hold{ID: lock.HoldID{1}, Lease: lease, Why: lockReason(instance)}, lock.NewVersion()
			return true
		})
	}
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

// TestAPoolWaitsForWhatOthersHold: a pool does not end while types that it does not hold have messages. It takes them once they are free.
func TestAPoolWaitsForWhatOthersHold(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(300) // so many that the pool does not wait for locks
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

// TestWhatOthersHaveDrainedIsNotOpened: a pool that considers itself alone, as no other was listed yet, and waits for a lock that another pool holds,
// does not open the type if that pool has drained it, however recently this pool checked the type.
func TestWhatOthersHaveDrainedIsNotOpened(t *testing.T) {
	for _, after := range []time.Duration{freshLook / 2, acquireSlice / 2} { // before its next check
		onRig(t, func(t *testing.T, r *rig) {
			r.publish("orders", 1)
			locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(epoch) }})
			if err != nil {
				t.Fatal(err)
			}
			defer locker.Close(context.Background())
			held, err := locker.Acquire(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			p := r.start(func(c *Config) { c.Types, c.UntilEmpty = []string{"orders"}, true })
			time.Sleep(after)
			msgs, err := r.queue.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1})
			if err != nil || len(msgs) != 1 {
				t.Fatalf("%d messages: %v", len(msgs), err)
			}
			if err := errors.Join(r.queue.Ack(t.Context(), "orders", []queue.ID{msgs[0].ID}), held.Release(t.Context())); err != nil {
				t.Fatal(err)
			}
			if err := p.end(); err != nil {
				t.Error(err)
			}
			if n := p.Stats().Sessions; n != 0 {
				t.Errorf("the type was opened %d times", n)
			}
		})
	}
}

// TestManyTypesOfADeadReplica: a pool that serves many types takes those of a dead replica one lease after it has noticed the death, even if no
// heartbeat lists them.
func TestManyTypesOfADeadReplica(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(2000)
		const lease = 5 * time.Second
		r.hold("dead", lease, types[:50]...)
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
