package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// everyCommand lists all operations that a contended lock costs.
var everyCommand = []locktest.Op{locktest.Read, locktest.Create, locktest.Acquire, locktest.TakeOver, locktest.Renew, locktest.Confirm,
	locktest.Release, locktest.HandOver, locktest.Enqueue, locktest.Place, locktest.Dequeue, locktest.Expire, locktest.RenewMany, locktest.Requests}

// relay is a group of processes that pass a lock around: each waits for it again as soon as the next one has it.
type relay struct {
	w    *world
	hold time.Duration // on average: from half as long to one and a half times
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu       sync.Mutex
	rng      *rand.Rand
	by       []int // the processes that were granted the lock, in order
	next     chan struct{}
	released time.Duration
	free     time.Duration // how long the lock was free, in total
	worst    time.Duration
}

// startRelay starts processes over a network on which each command takes a millisecond.
func startRelay(w *world, processes int, hold time.Duration) *relay {
	w.mem.Inject(quick)
	ctx, stop := context.WithCancel(w.Context())
	r := &relay{w: w, hold: hold, stop: stop, rng: rand.New(rand.NewPCG(1, uint64(processes))), next: make(chan struct{})}
	for i := range processes {
		l := w.locker(lock.Options{Owner: lock.Process{Host: "h", PID: i + 1}})
		r.wg.Go(func() { r.run(ctx, i, l) })
	}
	return r
}

func quick(locktest.Call) locktest.Fault {
	return locktest.Fault{Request: 500 * time.Microsecond, Reply: 500 * time.Microsecond}
}

func (r *relay) run(ctx context.Context, i int, l *lock.Locker) {
	for ctx.Err() == nil {
		le, err := l.Acquire(ctx, "n")
		if err != nil {
			return
		}
		hold, passed := r.granted(i)
		time.Sleep(hold)
		r.mu.Lock()
		r.released = r.w.now()
		r.mu.Unlock()
		if err := le.Release(r.w.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) { // it may have been cut off
			r.w.Errorf("release: %v", err)
		}
		select {
		case <-passed:
		case <-ctx.Done():
		}
	}
}

func (r *relay) granted(i int) (hold time.Duration, passed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by = append(r.by, i)
	r.free += r.w.now() - r.released
	r.worst = max(r.worst, r.w.now()-r.released)
	close(r.next)
	r.next = make(chan struct{})
	return r.hold/2 + time.Duration(r.rng.Int64N(int64(r.hold))), r.next
}

// pass waits for n grants. It returns how long the lock was free before each of them, on average and at most.
func (r *relay) pass(n int) (free, worst time.Duration) {
	r.mu.Lock()
	begin := len(r.by)
	r.free, r.worst = 0, 0
	r.mu.Unlock()
	for {
		r.mu.Lock()
		passed, next := len(r.by)-begin, r.next
		free, worst = r.free/time.Duration(max(1, passed)), r.worst
		r.mu.Unlock()
		if passed >= n {
			return free, worst
		}
		<-next
	}
}

func (r *relay) end() {
	r.stop()
	r.wg.Wait()
}

// The cost of a grant hardly depends on the number of waiters, and the lock is not free for longer than if all of them polled continuously.
func TestContention(t *testing.T) {
	race.Skip(t)
	for _, tc := range []struct {
		waiters  int
		hold     time.Duration
		commands float64       // per grant, at most. Before waiters took places: 6, 15, 18, 60, 86, 333
		free     time.Duration // before a grant, on average, at most. Before: 14, 100, 3.5, 2.5, 15, 5 ms. 100 ms between reads of each: 50, 50, 11, 3, 11, 3
	}{
		{1, 20 * time.Millisecond, 8, 20 * time.Millisecond},
		{1, 600 * time.Millisecond, 20, 34 * time.Millisecond}, // 38 ms with pauses of decorrelated jitter
		{8, 20 * time.Millisecond, 11.5, 4 * time.Millisecond},
		{32, 20 * time.Millisecond, 11.5, 4 * time.Millisecond},
		{8, 600 * time.Millisecond, 85, 9 * time.Millisecond},
		{32, 600 * time.Millisecond, 200, 5 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%d waiters, held %v", tc.waiters, tc.hold), func(t *testing.T) {
			virtually(t, func(w *world) {
				r := startRelay(w, tc.waiters+1, tc.hold)
				defer r.end()
				r.pass(3 * (tc.waiters + 1)) // warm-up: the waiters adapt to the turns
				sent := commands(w, everyCommand...)
				sent()
				const grants = 200
				free, worst := r.pass(grants)
				perGrant := float64(sent()) / grants
				t.Logf("%.1f commands per grant, free for %v on average, %v at most", perGrant, free, worst)
				if perGrant > tc.commands || free > tc.free {
					t.Errorf("want at most %v commands, and %v", tc.commands, tc.free)
				}
			})
		})
	}
}

// Late waiters find the lock free, and make turns longer than the time it is held. They then estimate turns from how long it was held.
func TestTurnsThatAreLongAsWaitersAreLate(t *testing.T) {
	const turn, held = 200 * time.Millisecond, 20 * time.Millisecond
	if d := lock.EstimateTurn(20, turn, turn); d < turn/2 || d > turn {
		t.Errorf("a lock that is held for %v is expected to be free after %v", turn, d)
	}
	if d := lock.EstimateTurn(20, turn, held); d < held || d > held*3/2 {
		t.Errorf("a lock that is held for %v is expected to be free after %v", held, d)
	}
	if d := lock.EstimateTurn(20, turn, -time.Hour); d < turn/2 {
		t.Errorf("dates of two servers: expected to be free after %v", d)
	}
	if d := lock.EstimateTurn(20, turn, time.Microsecond); d < turn/32 {
		t.Errorf("held for almost no time: expected to be free after %v", d)
	}
}

// Waiters that arrive during a long turn do not expect the next turns to be as long.
func TestContentionAfterALongTurn(t *testing.T) {
	for _, waiters := range []int{8, 32} {
		t.Run(fmt.Sprintf("%d waiters", waiters), func(t *testing.T) {
			virtually(t, func(w *world) {
				le := w.acquire(w.locker(lock.Options{Owner: lock.Process{Host: "another"}}))
				r := startRelay(w, waiters, 20*time.Millisecond)
				defer r.end()
				time.Sleep(time.Second)
				r.released = w.now()
				w.must(le.Release(w.Context()))
				free, worst := r.pass(waiters)
				t.Logf("free for %v on average, %v at most", free, worst)
				if free > 40*time.Millisecond { // was 45 ms with 8 waiters, and 65 to 90 with 32
					t.Error("want at most 40 ms")
				}
			})
		})
	}
}

// With a Watcher, a release wakes the first waiter in the queue, not all of them.
func TestContentionWithHints(t *testing.T) {
	virtually(t, func(w *world) {
		var mu sync.Mutex
		var watchers []chan string
		w.mem.Observe(func(op locktest.Op, after lock.Record) {
			if op != locktest.Release {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, c := range watchers {
				select {
				case c <- after.Name:
				default:
				}
			}
		})
		w.wrap = func(s lock.Store) lock.Store {
			c := make(chan string, 100)
			mu.Lock()
			defer mu.Unlock()
			watchers = append(watchers, c)
			return watcher{s, c}
		}
		r := startRelay(w, 33, 20*time.Millisecond)
		defer r.end()
		r.pass(400)
		sent := commands(w, everyCommand...)
		sent()
		free, worst := r.pass(200)
		perGrant := float64(sent()) / 200
		t.Logf("%.1f commands per grant, free for %v on average, %v at most", perGrant, free, worst)
		if perGrant > 14 || free > 4*time.Millisecond { // 11.4 to 12.3 commands
			t.Error("want at most 14 commands, and 4 ms")
		}
	})
}

// watcher is a store whose hints come from a channel.
type watcher struct {
	lock.Store
	hints <-chan string
}

func (s watcher) Watch(ctx context.Context) (<-chan string, error) {
	names := make(chan string)
	go func() {
		defer close(names)
		for {
			select {
			case name := <-s.hints:
				send(ctx, names, name)
			case <-ctx.Done():
				return
			}
		}
	}()
	return names, nil
}

// Processes that wait in the queue get the lock in turn.
func TestContendersTakeTurns(t *testing.T) {
	virtually(t, func(w *world) {
		const processes = 12
		r := startRelay(w, processes, 20*time.Millisecond)
		defer r.end()
		r.pass(5 * processes)
		begin := len(r.by)
		r.pass(10 * processes)
		times := make([]time.Duration, processes)
		for _, i := range r.by[begin : begin+10*processes] {
			times[i]++
		}
		for _, n := range times {
			w.between("grants of one process", n, 9, 11)
		}
	})
}

// Waiters that die, and places that are lost, delay the other waiters by at most the lease of a place.
func TestContendersThatDieAndPlacesThatAreLost(t *testing.T) {
	virtually(t, func(w *world) {
		r := startRelay(w, 12, 20*time.Millisecond)
		defer r.end()
		r.pass(50)
		w.mem.Edit("n", func(r *lock.Record) bool { r.Queue = nil; return true })
		_, worst := r.pass(50)
		w.between("free after all places were lost", worst, 0, time.Second)
		w.mem.Inject(func(c locktest.Call) locktest.Fault {
			f := quick(c)
			f.LoseRequest = c.Handle < 3
			return f
		})
		_, worst = r.pass(200)
		dead := lock.Standstill(lease) // one of them may have had the lock
		w.between("free after three processes were cut off", worst, 0, dead+lock.Standstill(lock.PlaceLease)+time.Second)
	})
}

// A waiter that did not ask for a place, exclusive or shared, gets the lock even if the queue is never empty.
func TestNobodyWaitsForEverBehindPlaces(t *testing.T) {
	for name, opts := range map[string][]lock.Option{"alone": nil, "shared": {lock.WithShared()}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(w *world) {
				w.mem.Inject(quick)
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				for range 4 {
					l := w.locker(lock.Options{Owner: lock.Process{Host: "the same"}})
					wg.Go(func() {
						for ctx.Err() == nil {
							if le, err := l.Acquire(ctx, "n", lock.WithFair()); err == nil {
								time.Sleep(300 * time.Millisecond)
								_ = le.Release(w.Context())
							}
						}
					})
				}
				time.Sleep(10 * time.Second)
				le, err := w.locker(lock.Options{}).Acquire(ctx, "n", append(opts, lock.WithWait(10*time.Second))...)
				if err != nil {
					t.Fatalf("not granted: %v", err)
				}
				w.must(le.Release(w.Context()))
			})
		})
	}
}
