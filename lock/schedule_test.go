package lock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

// schedule is one random history: a few processes with clocks of their own and two goroutines each acquire (exclusively or
// shared, with or without WithFair), use, raise, hand off, release and forget locks, and request each other's release, for
// some virtual minutes, over a store that is slow, fails and is cut off from them at random.
type schedule struct {
	seed uint64
	// operator adds a goroutine that deletes records and releases holds by force, with and without a Locker. Then two leases may consider
	// themselves valid for a moment; tokens must still grow.
	operator bool
	// skew is the bound on how far the clock rates of two processes differ; the protocol allows for 1/16.
	skew float64
	wrap func(*world, lock.Store) lock.Store
}

var schedules = flag.Uint64("schedules", 30, "number of random schedules per kind")

const simulated = 3 * time.Minute

func TestRandomSchedules(t *testing.T) {
	enough := *schedules // with -short, fewer are enough once everything has happened
	if testing.Short() {
		enough = min(enough, 10)
	}
	for _, tc := range []struct {
		name string
		schedule
	}{
		{"honest", schedule{skew: 1.0 / 16}},
		{"with an operator", schedule{operator: true, skew: 1.0 / 16}},
		{"clocks at random speed", schedule{operator: true, skew: 0.9}}, // overlap is possible; tokens must still grow
	} {
		t.Run(tc.name, func(t *testing.T) {
			var total history
			seed := uint64(0)
			for ; seed < enough || seed < *schedules && !total.everything(); seed++ {
				s := tc.schedule
				s.seed = seed
				h := s.run(t)
				if h.failure != "" {
					t.Fatalf("seed %d: %s", seed, h.failure)
				}
				total.add(h)
			}
			t.Logf("%d histories of %v: %v", seed, simulated, &total)
			if !total.everything() {
				t.Errorf("the schedules do not exercise the protocol: %v", &total)
			}
		})
	}
}

// The oracle detects that a store lacks a rule, in some of the same schedules. For the rules of the engine see tools/mutants.
func TestRandomSchedulesCatchMissingRules(t *testing.T) {
	race.Skip(t)
	for name, s := range map[string]schedule{
		"release by name":   {wrap: func(_ *world, s lock.Store) lock.Store { return releaseByName{s} }},
		"takeover by name":  {wrap: func(w *world, s lock.Store) lock.Store { return takeOverByName{s, w.mem} }},
		"token forgotten":   {wrap: func(w *world, s lock.Store) lock.Store { return deleteOnRelease{s, w.mem} }},
		"hand-over by name": {wrap: func(_ *world, s lock.Store) lock.Store { return handOverByName{s} }},
		"expiry by id":      {wrap: func(_ *world, s lock.Store) lock.Store { return expireByID{s} }},
		"record's token":    {wrap: func(w *world, s lock.Store) lock.Store { return confirmByRecord{s, w.mem} }},
		"read-only renew":   {wrap: func(_ *world, s lock.Store) lock.Store { return readOnlyRenewal{s} }},
	} {
		t.Run(name, func(t *testing.T) {
			s.skew = 1.0 / 16
			const seeds = 300
			for s.seed = range uint64(seeds) {
				if h := s.run(t); h.failure != "" {
					t.Logf("seed %d: %s", s.seed, h.failure)
					return
				}
			}
			t.Errorf("%d histories without this rule look right", seeds)
		})
	}
}

// history is the outcome of a schedule.
type history struct {
	failure                                                      string
	grants, lost, takenOver, unclear, abandoned, raised, refused int64
	handedOver, shared, batches                                  int64
}

func (h *history) add(o *history) {
	h.grants += o.grants
	h.lost += o.lost
	h.takenOver += o.takenOver
	h.unclear += o.unclear
	h.abandoned += o.abandoned
	h.raised += o.raised
	h.refused += o.refused
	h.handedOver += o.handedOver
	h.shared += o.shared
	h.batches += o.batches
}

// everything reports whether each event that the schedules should exercise has occurred.
func (h *history) everything() bool {
	return h.grants > 0 && h.lost > 0 && h.takenOver > 0 && h.unclear > 0 && h.abandoned > 0 && h.raised > 0 && h.handedOver > 0 && h.shared > 0 && h.batches > 0
}

func (h *history) String() string {
	return fmt.Sprintf("%d grants, %d leases lost, %d takeovers, %d unclear answers, %d attempts abandoned, %d tokens raised, "+
		"%d refused, %d handed over, %d shared, %d batches of renewals", h.grants, h.lost, h.takenOver, h.unclear, h.abandoned, h.raised, h.refused,
		h.handedOver, h.shared, h.batches)
}

// run plays the schedule and returns its outcome.
func (s schedule) run(t *testing.T) *history {
	h := &history{}
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{TB: t}
		w := newWorld(rec)
		if s.wrap != nil {
			w.wrap = func(st lock.Store) lock.Store { return s.wrap(w, st) }
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.play(w, h)
		}()
		<-done
		h.failure = rec.end()
	})
	return h
}

func (s schedule) play(w *world, h *history) {
	rng := rand.New(rand.NewPCG(s.seed, 1))
	o := &oracle{w: w, overlap: !s.operator && s.skew <= 1.0/16, names: make(map[string]*history1),
		written: make(map[written]int)}
	w.mem.Observe(o.saw)
	ctx, stop := context.WithTimeout(w.Context(), simulated)
	defer stop()

	processes := 3 + rng.IntN(3)
	net := newNetwork(rng.Uint64(), processes)
	w.mem.Inject(net.fault)
	var lockers []*lock.Locker
	var wg sync.WaitGroup
	for i := range processes {
		// Rates between 1-skew/2 and 1+skew/2 differ by no more than skew, closely enough for the margins.
		rate := 1 + s.skew*(rng.Float64()-0.5)*0.97
		offset := time.Duration(rng.Int64N(int64(time.Hour)))
		lease := []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 20 * time.Second}[rng.IntN(4)]
		l := w.locker(lock.Options{
			Lease: lease,
			Owner: lock.Process{Host: "h", PID: i + 1},
			Clock: func() time.Duration { return offset + time.Duration(float64(w.now())*rate) },
		})
		lockers = append(lockers, l)
		p := &process{w: w, o: o, l: l, rng: rand.New(rand.NewPCG(s.seed, uint64(i)+2)), number: i}
		wg.Go(func() { p.live(ctx) })
		twin := *p
		twin.rng = rand.New(rand.NewPCG(s.seed, uint64(i)+50))
		wg.Go(func() { twin.live(ctx) })
	}
	wg.Go(func() { o.watch(ctx) })
	if s.operator {
		admin := w.locker(lock.Options{Clock: w.now})
		wg.Go(func() { meddle(ctx, w, admin, rand.New(rand.NewPCG(s.seed, 99))) })
	}
	wg.Wait()

	// After all faults have ended, every lock can be acquired.
	w.mem.Inject(nil)
	last := w.locker(lock.Options{})
	for name := range o.names {
		end, cancel := context.WithTimeout(w.Context(), 3*lock.Standstill(20*time.Second))
		le, err := last.Acquire(end, name)
		cancel()
		if err != nil {
			w.Errorf("after all faults have ended, lock %q cannot be acquired: %v", name, err)
			continue
		}
		o.granted(name, le)
		w.must(le.Release(w.Context()))
	}
	for _, l := range lockers {
		st := l.Stats()
		h.grants += st.Acquired
		h.lost += st.LostExpired + st.LostGone + st.LostMaxHold
		h.handedOver += st.HandedOff
		h.takenOver += st.TakenOver
		h.unclear += st.Unclear
		h.abandoned += st.Abandoned
	}
	h.raised, h.refused, h.shared = o.raised, o.refused, o.shared
	h.batches = int64(w.mem.Calls(locktest.RenewMany))
}

// process uses the package as its users do, in random order.
type process struct {
	w      *world
	o      *oracle
	l      *lock.Locker
	rng    *rand.Rand
	number int
}

func (p *process) upTo(d time.Duration) time.Duration { return time.Duration(p.rng.Int64N(int64(d))) }

func (p *process) live(ctx context.Context) {
	for ctx.Err() == nil {
		name := []string{"n", "n", "m", "s"}[p.rng.IntN(4)]
		var le *lock.Lease
		var err error
		var opts []lock.Option
		if name == "s" && p.rng.IntN(3) > 0 {
			opts = append(opts, lock.WithPermits(2))
		}
		if p.rng.IntN(3) == 0 {
			opts = append(opts, lock.WithFair())
		}
		if p.rng.IntN(8) == 0 {
			opts = append(opts, lock.WithMaxHold(1+p.upTo(20*time.Second)))
		}
		if p.rng.IntN(10) == 0 {
			opts = append(opts, lock.WithTakeoverDelay(p.upTo(5*time.Second)))
		}
		if p.rng.IntN(3) == 0 {
			le, err = p.l.TryAcquire(ctx, name, opts...)
		} else {
			wait, cancel := context.WithTimeout(ctx, p.upTo(time.Minute))
			le, err = p.l.Acquire(wait, name, opts...)
			cancel()
		}
		if err != nil {
			p.o.refusal(err)
			if p.rng.IntN(5) == 0 {
				ask, cancel := context.WithTimeout(ctx, time.Second)
				_ = p.l.RequestRelease(ask, name, "please")
				cancel()
			}
			pauseFor(ctx, p.upTo(3*time.Second))
			continue
		}
		p.o.granted(name, le)
		p.work(ctx, name, le)
		// Sometimes the release continues without its caller.
		rel, cancel := context.WithTimeout(p.w.Context(), p.upTo(2*time.Second))
		_ = le.Release(rel)
		cancel()
	}
}

// work uses the lock for a while.
func (p *process) work(ctx context.Context, name string, le *lock.Lease) {
	end := p.w.now() + p.upTo(15*time.Second)
	if p.rng.IntN(5) == 0 {
		end += time.Minute
	}
	for p.w.now() < end && le.Context().Err() == nil {
		p.o.effect(name, le)
		if p.rng.IntN(20) == 0 {
			floor := le.Token() + p.rng.Int64N(4) - 1
			token, err := le.RaiseToken(ctx, floor)
			if err == nil {
				p.o.raise(name, le, token, floor)
			}
		}
		pauseFor(le.Context(), p.upTo(time.Second))
	}
	if p.rng.IntN(4) == 0 {
		<-le.Context().Done() // uses it until it is lost
		return
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// oracle checks what must be true of all leases together.
type oracle struct {
	w       *world
	overlap bool // leases must not overlap
	mu      sync.Mutex
	names   map[string]*history1
	raised  int64
	refused int64
	shared  int64

	log     sync.Mutex
	written map[written]int // when the store first held this, counted in writes
	trace   []string
}

// written is a token and the acquisition that has it.
type written struct {
	id    lock.HoldID
	token int64
}

// history1 is the history of one name.
type history1 struct {
	token  int64 // greatest granted
	alone  int64 // greatest granted to an exclusive holder
	fence  int64 // greatest seen by a resource that refuses lower ones
	leases []*lock.Lease
	grants []grant // in the order of the store
}

// grant is a token and when the store granted it.
type grant struct {
	at    int
	token int64
}

func (o *oracle) name(n string) *history1 {
	if o.names[n] == nil {
		o.names[n] = &history1{}
	}
	return o.names[n]
}

// saw records a write of the store.
func (o *oracle) saw(op locktest.Op, r lock.Record) {
	o.log.Lock()
	defer o.log.Unlock()
	var id lock.HoldID
	if r.Hold != nil {
		id = r.Hold.ID
	}
	for _, e := range r.Shares {
		if e.Version == r.Version { // the write changed this entry
			id = e.ID
		}
	}
	o.trace = append(o.trace, fmt.Sprintf("%12v %-9s %s token %d hold %.6v", o.w.now(), op, r.Name, r.Token, id))
	if _, ok := o.written[written{id, r.Token}]; !ok {
		o.written[written{id, r.Token}] = len(o.trace)
	}
}

// history is the history of a name, as text.
func (o *oracle) history(name string) string {
	o.log.Lock()
	defer o.log.Unlock()
	var b strings.Builder
	for _, line := range o.trace {
		if strings.Contains(line, " "+name+" token") && !strings.Contains(line, "renew") && !strings.Contains(line, "queue ") {
			b.WriteString("\n" + line)
		}
	}
	return b.String()
}

// granted: tokens grow in the order of the store's writes, and no earlier lease is valid.
func (o *oracle) granted(name string, le *lock.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.name(name)
	o.token(n, le.Name(), lock.HoldOf(le), le.Token())
	before := n.token
	if lock.PermitsOf(le) > 0 {
		before = n.alone
		o.shared++
	} else {
		n.alone = max(n.alone, le.Token())
	}
	if o.overlap && le.Token() <= before { // then callers get them in that order as well
		o.w.Errorf("at %v: token %d of %q was granted after %d%s", o.w.now(), le.Token(), name, before, o.history(name))
	}
	n.token = max(n.token, le.Token())
	n.leases = append(n.leases, le)
	o.exclusive(name)
}

// token inserts a granted token at its place in the store's order. o.mu is held.
func (o *oracle) token(n *history1, name string, id lock.HoldID, token int64) {
	o.log.Lock()
	at, ok := o.written[written{id, token}]
	o.log.Unlock()
	if !ok {
		o.w.Errorf("at %v: token %d of %q was granted, but the store never had it", o.w.now(), token, name)
		return
	}
	i, _ := slices.BinarySearchFunc(n.grants, at, func(g grant, at int) int { return cmp.Compare(g.at, at) })
	n.grants = slices.Insert(n.grants, i, grant{at, token})
	if i > 0 && n.grants[i-1].token >= token || i+1 < len(n.grants) && n.grants[i+1].token <= token {
		o.w.Errorf("at %v: token %d of %q is out of order: %v%s", o.w.now(), token, name,
			n.grants[max(0, i-1):min(len(n.grants), i+2)], o.history(name))
	}
}

// exclusive drops ended leases and checks that the remaining ones are compatible. o.mu is held.
func (o *oracle) exclusive(name string) {
	n := o.name(name)
	valid := n.leases[:0]
	permits := 1
	for _, le := range n.leases {
		if le.Remaining() > 0 {
			valid = append(valid, le)
			permits = lock.PermitsOf(le)
		}
	}
	n.leases = valid
	for _, le := range valid {
		permits = min(permits, lock.PermitsOf(le))
	}
	if permits = max(permits, 1); o.overlap && len(valid) > permits {
		o.w.Errorf("at %v: %d valid leases of %q where there may be %d: tokens %d and %d, for %v and %v%s", o.w.now(), len(valid), name,
			permits, valid[0].Token(), valid[1].Token(), valid[0].Remaining(), valid[1].Remaining(), o.history(name))
	}
}

// effect: the holder writes to a resource that refuses tokens below those it has seen.
func (o *oracle) effect(name string, le *lock.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.name(name)
	token, err := le.Token(), le.Check(0)
	if lock.PermitsOf(le) > 0 {
		return // tokens do not fence concurrent holders
	}
	if token < n.fence {
		if err == nil && o.overlap {
			o.w.Errorf("at %v: the valid holder of %q writes with token %d, the resource has seen %d", o.w.now(), name, token, n.fence)
		}
		return // fenced
	}
	if err == nil {
		n.fence = token
	}
}

func (o *oracle) raise(name string, le *lock.Lease, token, floor int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.raised++
	if token <= floor {
		o.w.Errorf("at %v: raised to %d, asked for more than %d", o.w.now(), token, floor)
	}
	n := o.name(name)
	if token > n.token {
		o.token(n, name, lock.HoldOf(le), token)
		n.token = token
	}
}

func (o *oracle) refusal(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused++
	if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		o.w.Errorf("at %v: unexpected error: %v", o.w.now(), err)
	}
}

// watch checks all leases continuously.
func (o *oracle) watch(ctx context.Context) {
	for ctx.Err() == nil {
		o.mu.Lock()
		for name := range o.names {
			o.exclusive(name)
		}
		o.mu.Unlock()
		pauseFor(ctx, 50*time.Millisecond)
	}
}

// meddle acts as an operator with a database shell, who sometimes uses ForceRelease instead.
func meddle(ctx context.Context, w *world, admin *lock.Locker, rng *rand.Rand) {
	for ctx.Err() == nil {
		pauseFor(ctx, time.Duration(rng.Int64N(int64(20*time.Second))))
		name := []string{"n", "m", "s"}[rng.IntN(3)]
		if rng.IntN(2) == 0 {
			end, cancel := context.WithTimeout(ctx, 5*time.Second)
			_ = admin.ForceRelease(end, name, "it looks stuck")
			cancel()
			continue
		}
		w.mem.Edit(name, func(r *lock.Record) bool {
			switch {
			case r.Token == 0: // no record, or one without a token
				return false
			case rng.IntN(2) == 0:
				return false
			}
			r.Hold, r.Shares, r.Version = nil, nil, lock.NewVersion()
			return true
		})
	}
}

// network decides the fate of every operation. Its state is guarded by the Memory that calls it.
type network struct {
	rng  *rand.Rand
	cuts []time.Time // until when a process is cut off
}

func newNetwork(seed uint64, processes int) *network {
	return &network{rng: rand.New(rand.NewPCG(seed, 7)), cuts: make([]time.Time, processes)}
}

func (n *network) upTo(d time.Duration) time.Duration {
	return 1 + time.Duration(n.rng.Int64N(int64(d)))
}

func (n *network) fault(c locktest.Call) locktest.Fault {
	now := time.Now()
	if c.Handle < len(n.cuts) {
		if now.Before(n.cuts[c.Handle]) {
			return locktest.Fault{LoseRequest: true}
		}
		if n.rng.IntN(300) == 0 {
			n.cuts[c.Handle] = now.Add(n.upTo(40 * time.Second))
		}
	}
	f := locktest.Fault{Request: n.upTo(8 * time.Millisecond), Reply: n.upTo(8 * time.Millisecond)}
	write := c.Op != locktest.Read && c.Op != locktest.Requests
	switch k := n.rng.IntN(100); {
	case k < 3:
		f.Refuse = true
	case k < 6:
		f.BreakReply = true
	case k < 8:
		f.LoseReply = true
	case k < 10:
		f.LoseRequest = true
	case k < 13:
		f.Reply = n.upTo(4 * time.Second)
	case k < 15:
		f.Request = n.upTo(4 * time.Second)
	case k < 17 && write:
		f = locktest.Fault{Late: n.upTo(30 * time.Second)}
	case k < 19 && write:
		f = locktest.Fault{Rollback: n.upTo(10 * time.Second)}
	case k < 25:
		f.Half = true // of a batch
	}
	return f
}
