package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// fleet is several pools and the traffic of their types.
type fleet struct {
	*rig
	types []string

	mu        sync.Mutex
	commits   map[string][]commit // by type
	handovers int                 // sessions begun
}

// commit says when messages became durable, and through which pool.
type commit struct {
	pool *runningPool
	at   time.Time
}

// newFleet names n types.
func newFleet(r *rig, n int) *fleet {
	f := &fleet{rig: r, commits: map[string][]commit{}}
	for i := range n {
		f.types = append(f.types, fmt.Sprintf("type-%03d", i))
	}
	return f
}

// member starts a pool that serves everything.
func (f *fleet) member(change func(*Config)) *runningPool {
	f.t.Helper()
	var p *runningPool
	started := make(chan struct{})
	p = f.start(func(c *Config) {
		c.Types, c.AllTypes = nil, true
		c.Events = func(e Event) {
			<-started
			f.mu.Lock()
			defer f.mu.Unlock()
			switch e.Kind {
			case Acquired:
				f.handovers++
			case Committed:
				f.commits[e.Type] = append(f.commits[e.Type], commit{p, time.Now()})
			}
		}
		if change != nil {
			change(c)
		}
	})
	close(started)
	return p
}

// traffic publishes a message of every type, every second, for d.
func (f *fleet) traffic(d time.Duration) {
	f.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		for _, typ := range f.types {
			f.publish(typ, 1)
		}
	}
}

func (f *fleet) begun() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handovers
}

// held lists the types that a pool holds.
func held(p *runningPool) (types []string) {
	for _, t := range p.Status().Types {
		if t.Held {
			types = append(types, t.Type)
		}
	}
	return types
}

func counts(pools ...*runningPool) (n []int, sum int) {
	for _, p := range pools {
		n = append(n, len(held(p)))
		sum += n[len(n)-1]
	}
	return n, sum
}

// balance expects all types to be held within a time of traffic, by pools whose numbers differ by one at most.
func (f *fleet) balance(within time.Duration, pools ...*runningPool) {
	f.t.Helper()
	for end := time.Now().Add(within); ; f.traffic(time.Second) {
		n, sum := counts(pools...)
		if sum == len(f.types) && slices.Max(n)-slices.Min(n) <= 1 {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("after %v the pools hold %v of %d types", within, n, len(f.types))
		}
	}
}

// held expects all types to be held within a time of traffic.
func (f *fleet) held(within time.Duration, pools ...*runningPool) {
	f.t.Helper()
	for end := time.Now().Add(within); ; f.traffic(time.Second) {
		n, sum := counts(pools...)
		if sum == len(f.types) {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("after %v the pools hold %v of %d types", within, n, len(f.types))
		}
	}
}

// drained stops all pools and checks that every message is in its file once.
func (f *fleet) drained(pools ...*runningPool) {
	f.t.Helper()
	for _, p := range pools {
		p.stop()
	}
	if err := f.drain(func(c *Config) { c.Types = f.types }); err != nil {
		f.t.Fatal(err)
	}
	for _, typ := range f.types {
		f.complete(typ)
	}
}

func TestTypesAreSharedEvenlyAndStay(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 100)
		f.traffic(time.Second)
		a, b, c := f.member(nil), f.member(nil), f.member(nil)
		f.balance(time.Minute, a, b, c)
		f.traffic(10 * time.Second)
		before := f.begun()
		f.traffic(3 * time.Minute)
		if n := f.begun() - before; n > 0 {
			t.Errorf("%d types changed hands in three minutes of balance", n)
		}
		f.balance(0, a, b, c)
		f.drained(a, b, c)
	})
}

// Shares that cannot be equal are not rebalanced indefinitely.
func TestTypesDoNotMoveForADifferenceOfOne(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 7) // 3, 2 and 2
		f.traffic(time.Second)
		a, b, c := f.member(nil), f.member(nil), f.member(nil)
		f.traffic(time.Minute)
		before := f.begun()
		f.traffic(3 * time.Minute)
		if n := f.begun() - before; n > 0 {
			t.Errorf("%d types changed hands", n)
		}
		f.drained(a, b, c)
	})
}

func TestAReplicaThatJoinsGetsItsShare(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 50)
		a := f.member(nil)
		f.balance(10*time.Second, a)
		b := f.member(nil)
		f.balance(3*time.Minute, a, b)
		c := f.member(nil)
		f.balance(3*time.Minute, a, b, c)
		if n, most := f.begun(), 50+25+17; n > most+5 {
			t.Errorf("%d sessions; %d would have done", n, most)
		}
		f.drained(a, b, c)
	})
}

func TestAReplicaThatLeavesIsReplacedAtOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 30)
		f.traffic(time.Second)
		a, b, c := f.member(nil), f.member(nil), f.member(nil)
		f.balance(time.Minute, a, b, c)
		began := time.Now()
		a.stop()
		if took := time.Since(began); took > DefaultHandOver+time.Second {
			t.Errorf("the stop took %v", took)
		}
		f.held(5*time.Second, b, c)
		f.balance(time.Minute, b, c) // both take free types, each by its knowledge of the other
		f.drained(b, c)
	})
}

// dying creates a pool whose machine can be cut off: its queue and its locks stop answering.
func (f *fleet) dying(change func(*Config)) (p *runningPool, die func()) {
	f.t.Helper()
	gone := make(chan struct{})
	handle := len(f.pools)
	f.locks.Inject(func(c locktest.Call) locktest.Fault {
		select {
		case <-gone:
			if c.Handle == handle {
				return locktest.Fault{LoseRequest: true}
			}
		default:
		}
		return locktest.Fault{}
	})
	p = f.member(func(c *Config) {
		c.Queue = cutOff{c.Queue, gone}
		if change != nil {
			change(c)
		}
	})
	return p, func() { close(gone); p.cancel() }
}

// cutOff is a queue that can be cut off.
type cutOff struct {
	queue.Queue
	gone chan struct{}
}

func (q cutOff) Heartbeat(ctx context.Context, m queue.Member) error {
	select {
	case <-q.gone:
		<-ctx.Done()
		return ctx.Err()
	default:
		return q.Queue.Heartbeat(ctx, m)
	}
}

func (q cutOff) Leave(ctx context.Context, id string) error {
	select {
	case <-q.gone:
		<-ctx.Done()
		return ctx.Err()
	default:
		return q.Queue.Leave(ctx, id)
	}
}

func TestTheTypesOfADeadReplicaAreTakenWithinALease(t *testing.T) {
	const noticed = 3 * share.HeartbeatEvery // the others notice that its heartbeats have stopped
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 30)
		f.traffic(time.Second)
		a, die := f.dying(nil)
		b, c := f.member(nil), f.member(nil)
		f.balance(time.Minute, a, b, c)
		f.traffic(10 * time.Second)
		his := held(a)
		die()
		died := time.Now()
		f.traffic(15 * time.Second)
		f.mu.Lock()
		for _, typ := range his {
			i := slices.IndexFunc(f.commits[typ], func(c commit) bool { return c.at.After(died) && c.pool != a })
			if i < 0 {
				t.Errorf("%s has not been served since its holder died", typ)
			} else if gap := f.commits[typ][i].at.Sub(died); gap > noticed+a.cfg.Lease*17/16+time.Second {
				t.Errorf("%s was served %v after its holder died, the lease is %v", typ, gap, a.cfg.Lease)
			}
		}
		f.mu.Unlock()
		f.balance(time.Minute, b, c)
		f.drained(b, c)
	})
}

// slowestWake returns the longest time that a new type waits for its first commit.
func (f *fleet) slowestWake(n int) (slowest time.Duration) {
	f.t.Helper()
	began := time.Now()
	var fresh []string
	for i := range n {
		fresh = append(fresh, fmt.Sprintf("fresh-%03d", i))
	}
	f.types = append(f.types, fresh...)
	f.traffic(20 * time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, typ := range fresh {
		if len(f.commits[typ]) == 0 {
			return time.Hour
		}
		slowest = max(slowest, f.commits[typ][0].at.Sub(began))
	}
	return slowest
}

// New types are found within seconds, even right after one of two replicas has died and is still in the list of workers.
func TestNewTypesDoNotWaitForTheDead(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 10)
		f.traffic(time.Second)
		a, die := f.dying(nil)
		b := f.member(nil)
		f.balance(time.Minute, a, b)
		die()
		f.traffic(30 * time.Second)
		if took := f.slowestWake(30); took > discoverEvery+500*time.Millisecond {
			t.Errorf("a new type waited for %v", took)
		}
		f.drained(b)
	})
}

// A member is alive, claims to serve everything, and takes nothing.
func TestNoTypeWaitsForAMemberThatDoesNotCome(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for beat := int64(1); ctx.Err() == nil; beat++ {
				_ = r.queue.Queue.Heartbeat(ctx, queue.Member{Instance: "loafer", Types: []string{"*"}, Beat: beat})
				_ = wait.For(ctx, time.Second)
			}
		}()
		f := newFleet(r, 4)
		p := f.member(nil)
		f.traffic(10 * time.Second)
		if took := f.slowestWake(10); took > discoverEvery+share.StarveAfter+time.Second {
			t.Errorf("a type waited for %v", took)
		}
		p.stop()
		cancel()
		<-done
	})
}

// oldLooks is a queue whose list of members shows two more: "busy", which holds all the types in as many reads as old says, and a
// second one that holds half of the types from then on.
type oldLooks struct {
	queue.Queue
	types []string
	old   int64
	looks atomic.Int64
}

func (q *oldLooks) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	members, err := q.Queue.Members(ctx, after, most)
	n := q.looks.Add(1)
	busy, second := queue.Member{Instance: "busy", Types: q.types, Beat: n, Held: q.types}, queue.Member{Instance: "second", Types: q.types, Beat: n}
	if n > q.old {
		half := len(q.types) / 2
		busy.Held, second.Held = q.types[:half], q.types[half:]
	}
	return append(members, busy, second), err
}

// A replica that starts while types change hands sees their previous holders. It asks for a type only when two reads in a row say that
// it should have it.
func TestOneLookIsNoGroundToAsk(t *testing.T) {
	for old, want := range map[int64]bool{2: false, 1000: true} { // the types are known from the second read on
		onRig(t, func(t *testing.T, r *rig) {
			f := newFleet(r, 2)
			began := time.Now()
			busy, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
			if err != nil {
				t.Fatal(err)
			}
			defer busy.Close(context.Background())
			for _, typ := range f.types {
				if _, err := busy.Acquire(t.Context(), typ, lock.WithWhy(lockReason("busy"))); err != nil {
					t.Fatal(err)
				}
			}
			f.traffic(time.Second)
			q := &oldLooks{Queue: r.queue, types: f.types, old: old}
			p := f.member(func(c *Config) { c.Queue = q })
			time.Sleep(5 * share.HeartbeatEvery)
			asked := false
			for _, typ := range f.types {
				rec, _ := r.locks.Get(typ)
				asked = asked || rec.Hold != nil && rec.Hold.Asked != ""
			}
			if asked != want || q.looks.Load() < 4 {
				t.Errorf("asked = %v after %d reads of which %d are old, want %v", asked, q.looks.Load(), old, want)
			}
			p.stop()
		})
	}
}

// A replica that cannot see the others serves as many types as it can.
func TestAPoolThatCannotReadTheMembersServesEverything(t *testing.T) {
	for _, kind := range []queuetest.Kind{queuetest.Unreachable, queuetest.Hang} {
		onRig(t, func(t *testing.T, r *rig) {
			f := newFleet(r, 10)
			f.traffic(time.Second)
			r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
				switch op {
				case queuetest.OpHeartbeat, queuetest.OpMembers, queuetest.OpAllSettings, queuetest.OpLeave:
					return queuetest.Fault{Kind: kind}
				}
				return queuetest.Fault{}
			})
			a := f.member(nil)
			time.Sleep(share.FirstLook + time.Second)
			f.balance(0, a)
			b := f.member(nil)
			f.traffic(20 * time.Second)
			if took := f.slowestWake(10); took > discoverEvery+2*time.Second {
				t.Errorf("a new type waited for %v", took)
			}
			f.drained(a, b)
		})
	}
}

// Types go only to pools that serve them, and to none more than it has room for.
func TestTypesAreSharedAmongUnequalMembers(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 40)
		f.traffic(time.Second)
		all := f.member(nil)
		few := f.member(func(c *Config) { c.MaxTypes = 5 })
		low := f.member(func(c *Config) { c.AllTypes, c.Types = false, []string{"type-00?"} }) // ten types
		for end := time.Now().Add(2 * time.Minute); ; f.traffic(time.Second) {
			n, _ := counts(all, few, low)
			if slices.Equal(n, []int{25, 5, 10}) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("they hold %v, want [25 5 10]", n)
			}
		}
		for _, typ := range held(low) {
			if !slices.Contains(f.types[:10], typ) {
				t.Errorf("a pool serves %s, which is none of its types", typ)
			}
		}
		f.drained(all, few, low)
	})
}

// Pools with UntilEmpty drain everything and end, whichever other pools are at work.
func TestUntilEmptyBesideOthers(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 30)
		f.traffic(time.Second)
		a := f.member(nil)
		f.traffic(5 * time.Second)
		untilEmpty := func(c *Config) { c.UntilEmpty = true }
		b, c := f.member(untilEmpty), f.member(untilEmpty)
		f.traffic(5 * time.Second)
		for _, p := range []*runningPool{b, c} {
			if err := p.end(); err != nil {
				t.Error(err)
			}
		}
		f.drained(a)
	})
}

func TestAPausedTypeIsLeftAlone(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		f := newFleet(r, 3)
		f.traffic(time.Second)
		a, b := f.member(nil), f.member(nil)
		f.traffic(10 * time.Second)
		typ := f.types[1]
		pause := func(on bool) {
			t.Helper()
			if _, err := r.queue.PatchSettings(context.Background(), typ, queue.SettingsPatch{DrainPaused: &on, Why: "migration"}); err != nil {
				t.Fatal(err)
			}
		}
		pending := func() int {
			d, err := r.queue.Queue.Depth(context.Background(), typ, 1000)
			if err != nil {
				t.Fatal(err)
			}
			return d.Pending
		}
		pause(true)
		f.traffic(5 * time.Second)
		before := pending()
		// Unreadable settings change nothing.
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpAllSettings {
				return queuetest.Fault{Kind: queuetest.Unreachable}
			}
			return queuetest.Fault{}
		})
		f.traffic(time.Minute)
		if n := pending() - before; n != 60 {
			t.Errorf("%d of 60 messages are pending", n)
		}
		if rec, ok := r.locks.Get(typ); ok && rec.Held() {
			t.Error("its lock is held")
		}
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })

		// With UntilEmpty the others are drained, and the error says what to do.
		err := r.drain(func(c *Config) { c.Types = f.types })
		if !errors.Is(err, ErrPaused) {
			t.Errorf("the pool ended with %v", err)
		}

		pause(false)
		f.traffic(10 * time.Second)
		time.Sleep(time.Second)
		if n := pending(); n > 0 {
			t.Errorf("%d messages are pending after it was resumed", n)
		}
		f.drained(a, b)
	})
}

// slow is a queue whose operations take some milliseconds.
type slow struct {
	queue.Queue
	by time.Duration
}

func (q slow) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	time.Sleep(q.by)
	return q.Queue.Fetch(ctx, typ, after, limit)
}

func (q slow) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	time.Sleep(2 * q.by)
	return q.Queue.AckFile(ctx, typ, f, ids)
}

func (q slow) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	time.Sleep(q.by)
	return q.Queue.Depth(ctx, typ, most)
}

func (q slow) Heartbeat(ctx context.Context, m queue.Member) error {
	time.Sleep(q.by)
	return q.Queue.Heartbeat(ctx, m)
}

func (q slow) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	time.Sleep(q.by)
	return q.Queue.Members(ctx, after, most)
}

func (q slow) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	time.Sleep(q.by)
	return q.Queue.RegistryEntry(ctx, typ)
}

func (q slow) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	time.Sleep(q.by)
	return q.Queue.UpdateFile(ctx, typ, f)
}

// A handoff interrupts the service of a type for less than 100 ms, with a server that takes 4 ms for each operation: when another
// replica takes its share, when an operator asks for the type, and when its holder stops.
func TestAHandOverTakesLessThan100ms(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.locks.Inject(func(locktest.Call) locktest.Fault {
			return locktest.Fault{Request: 2 * time.Millisecond, Reply: 2 * time.Millisecond}
		})
		f := newFleet(r, 4)
		server := func(c *Config) { c.Queue = slow{c.Queue, 4 * time.Millisecond}; c.Lease = lock.DefaultLease }
		publish := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				for _, typ := range f.types {
					f.publish(typ, 1)
				}
			}
		}
		a := f.member(server)
		publish(3 * time.Second)
		b := f.member(server)
		publish(30 * time.Second)
		if n, _ := counts(a, b); !slices.Equal(n, []int{2, 2}) {
			t.Fatalf("the pools hold %v", n)
		}
		asked := held(a)[0]
		if err := b.locker.RequestRelease(t.Context(), asked, "a test"); err != nil {
			t.Fatal(err)
		}
		publish(8 * time.Second)
		if !slices.Contains(held(b), asked) {
			t.Errorf("%s was asked for, and the other pool holds %q", asked, held(b))
		}
		publish(20 * time.Second)
		a.Stop()
		publish(8 * time.Second)
		if err := a.end(); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		handed := 0
		for _, typ := range f.types {
			for i, c := range f.commits[typ][1:] {
				if before := f.commits[typ][i]; before.pool != c.pool {
					handed++
					gap := c.at.Sub(before.at)
					t.Logf("%s: %v", typ, gap)
					if gap > 100*time.Millisecond {
						t.Errorf("%s was not served for %v when it changed hands", typ, gap)
					}
				}
			}
		}
		f.mu.Unlock()
		if handed < 5 {
			t.Errorf("%d handoffs, want 5", handed)
		}
		f.drained(b)
	})
}

// A holder that lingers counts as having traffic, too, though it fetches rarely.
func TestAHandOverOfAPoolThatLingers(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var fetched, released, acquired atomic.Pointer[time.Time]
		now := func() *time.Time { t := time.Now(); return &t }
		lingers := func(c *Config) { c.Linger, c.HandOver = 4*time.Second, 10*time.Second }
		a := r.start(func(c *Config) {
			lingers(c)
			c.Observe = func(o Observation) {
				if o.Step == StepFetch && o.Messages > 0 {
					fetched.Store(now())
				}
			}
			c.Events = func(e Event) {
				if e.Kind == Released {
					released.Store(now())
				}
			}
		})
		publish := func(until func() bool) {
			for ; !until(); time.Sleep(50 * time.Millisecond) {
				r.publish(typ, 1)
			}
		}
		after := func(d time.Duration) func() bool {
			end := time.Now().Add(d)
			return func() bool { return time.Now().After(end) }
		}
		publish(after(3 * time.Second))
		b := r.start(func(c *Config) {
			lingers(c)
			c.Events = func(e Event) {
				if e.Kind == Acquired {
					acquired.Store(now())
				}
			}
		})
		publish(after(10 * time.Second))
		publish(func() bool { d := time.Since(*fetched.Load()); return d > 2*time.Second && d < 3*time.Second })
		a.Stop()
		publish(after(20 * time.Second))
		if err := a.end(); err != nil || released.Load() == nil || acquired.Load() == nil {
			t.Fatalf("the type was not handed over (%v)", err)
		}
		if gap := acquired.Load().Sub(*released.Load()); gap > 10*time.Millisecond {
			t.Errorf("no pool served the type for %v", gap)
		}
		b.stop()
		r.mustDrain(nil)
		r.complete(typ)
	})
}

// The same holds if the other replica starts just before the stop, or at the same time: whichever reads the list last sees the other one.
func TestAStandbyThatHasJustComeGoesOn(t *testing.T) {
	race.Skip(t)
	moments := []time.Duration{100 * time.Millisecond, time.Second, 1900 * time.Millisecond}
	for early := -20 * time.Millisecond; early <= 20*time.Millisecond; early += 500 * time.Microsecond {
		moments = append(moments, early)
	}
	for _, early := range moments {
		t.Run(early.String(), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.locks.Inject(func(locktest.Call) locktest.Fault {
					return locktest.Fault{Request: 2 * time.Millisecond, Reply: 2 * time.Millisecond}
				})
				f := newFleet(r, 1)
				server := func(c *Config) { c.Queue = slow{c.Queue, 4 * time.Millisecond}; c.Lease = lock.DefaultLease }
				stop := make(chan struct{})
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(10 * time.Millisecond):
							f.publish(f.types[0], 1)
						}
					}
				}()
				a := f.member(server)
				time.Sleep(5*time.Second + 300*time.Millisecond)
				var b *runningPool
				if early < 0 {
					a.Stop()
					time.Sleep(-early)
					b = f.member(server)
				} else {
					b = f.member(server)
					time.Sleep(early)
					a.Stop()
				}
				time.Sleep(6 * time.Second)
				close(stop)
				if err := a.end(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				f.mu.Lock()
				commits := slices.Clone(f.commits[f.types[0]])
				f.mu.Unlock()
				i := slices.IndexFunc(commits, func(c commit) bool { return c.pool == b })
				if i < 1 {
					t.Fatal("the other replica did not continue")
				}
				gap := commits[i].at.Sub(commits[i-1].at)
				if gap > 100*time.Millisecond {
					t.Errorf("not served for %v", gap)
				}
				f.drained(b)
			})
		})
	}
}

// The end of a session does not register again what the last acknowledgement has registered.
func TestTheEndOfASessionIsRegisteredOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		counted := countedRegistry{Queue: r.queue}
		for session := range 3 {
			if session < 2 { // the last one has nothing to do
				r.publish(typ, 10)
			}
			p := r.start(func(c *Config) { c.Queue = &counted })
			time.Sleep(time.Second)
			p.stop()
			if session == 0 {
				counted.updates.Store(0) // a new file is registered in another way
			}
		}
		r.complete(typ)
		if n := counted.updates.Load(); n != 1 {
			t.Errorf("%d updates, want that of the second session's beginning", n)
		}
		if f, ok, err := r.queue.RegistryEntry(t.Context(), typ); err != nil || !ok || f.DurableIndex != 20 {
			t.Errorf("the registry has %+v, %v", f, err)
		}
	})
}

// countedRegistry is a queue that counts updates of its registry of files.
type countedRegistry struct {
	queue.Queue
	updates atomic.Int32
}

func (q *countedRegistry) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	q.updates.Add(1)
	return q.Queue.UpdateFile(ctx, typ, f)
}

// A replica's heartbeats report the error that keeps it from draining a type, until it is resolved.
func TestHeartbeatsTellWhatIsWrong(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.disk.WriteFile(testFile, []byte("not one of ours"))
		r.publish(typ, 10)
		r.publish("audit", 10)
		p := r.start(func(c *Config) { c.Types = []string{typ, "audit"} })
		time.Sleep(time.Minute)
		members, err := r.queue.Members(t.Context(), "", 0)
		if err != nil || len(members) != 1 {
			t.Fatalf("%+v, %v", members, err)
		}
		if errs := members[0].Errors; len(errs) != 1 || !strings.Contains(errs[typ], testFile) {
			t.Errorf("the heartbeat says %q", errs)
		}
		if err := r.disk.Remove(testFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if members, err = r.queue.Members(t.Context(), "", 0); err != nil || len(members[0].Errors) != 0 {
			t.Errorf("%+v, %v; the failure is resolved", members, err)
		}
		p.stop()
	})
}
