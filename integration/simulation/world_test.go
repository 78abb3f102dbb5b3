package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

const dir = "/data"

// errKilled is the error of every operation of a killed process. From its kill on, nothing it does is visible outside.
var errKilled = errors.New("simulation: this process was killed")

// world is one schedule: the state that all processes share, and what is known about them. All of it is in one bubble of virtual time.
type world struct {
	weather
	seed  uint64
	began time.Time

	locks  *locktest.Memory
	disk   *storagetest.Mem
	depot  *depot // not nil: files are in a store, and not on the disk
	oracle *queuetest.Oracle
	rules  lockRules

	opening   sync.Mutex
	mu        sync.Mutex
	database  *queuetest.Memory // the result of method queue
	restored  bool              // the queue was restored
	calm      bool              // the storm is over
	told      bool              // a worker has ended with an error about a damaged file
	processes []*process
	handles   []*process // by handle of the lock store
	sent      []*message
	sinks     map[string]*sink     // by type
	visits    map[string][]*visit  // by room
	gone      map[exit]uint64      // messages that have left the queue → the file's durable index in the registry at that time
	outage    map[string]time.Time // by server: until when
	lateUntil time.Time            // when the last late request will have arrived
	digest    uint64
	steps     int
	last      []string // the latest events
	trace     func(string)
	failures  []string
	seen      census
}

// census counts events, to show that each kind does happen.
type census struct {
	Crashes, Stalls, PowerLosses, Lost, Late, DiskErrors, Restores, Jumps, Spoiled, Transactions                            int // faults
	Stores, Refused, Full, Slow, Stale, Deaf, Stragglers, Disasters                                                         int // of stores
	Grants, Takeovers, Sessions, SessionsLost, Restarts, Void, Rotations, Compactions, Visits, Shared, Damages, LostRecords int // and their consequences
	Confirmed, Unknown, Rejected, Delayed, Skipped, Dead, Reused, Handled                                                   int // messages
	Steps                                                                                                                   int
	Virtual, Recovery                                                                                                       time.Duration
}

func newWorld(seed uint64) *world {
	w := &world{weather: newWeather(seed), seed: seed, began: time.Now(), database: queuetest.NewMemory(), locks: locktest.NewMemory(),
		oracle: &queuetest.Oracle{}, outage: map[string]time.Time{}, sinks: map[string]*sink{}, visits: map[string][]*visit{}, gone: map[exit]uint64{}}
	w.disk = storagetest.NewMem(w.block)
	w.disk.ErrorOnce = seed%3 == 0
	w.disk.FailedStay = seed%5 == 0
	if w.slots {
		w.depot = newDepot(newDice(seed, number("depot")), w.large)
		w.seen.Stores++
	}
	w.database.OnStore = w.oracle.Observe
	w.rules = lockRules{w: w, names: map[string]*lockState{}}
	w.locks.Observe(w.rules.saw)
	w.locks.Inject(w.lockFault)
	w.locks.Around(func(c locktest.Call) func() {
		w.mu.Lock()
		p := w.handles[c.Handle]
		w.mu.Unlock()
		return p.around("lock "+string(c.Op), c.Name)
	})
	return w
}

// queue returns the current queue.
func (w *world) queue() *queuetest.Memory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.database
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(format, args...)
}

func (w *world) failLocked(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(w.failures) < 10 {
		w.failures = append(w.failures, text)
	}
	w.tellLocked("FAILURE: " + text)
}

// tell records an event in the history. The digest covers every step, the history only these events.
func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tellLocked(fmt.Sprintf(format, args...))
}

func (w *world) tellLocked(text string) {
	line := fmt.Sprintf("%10.4fs  %s", w.now().Seconds(), text)
	w.digest = mix(w.digest ^ number(line))
	if w.trace != nil {
		w.trace(line)
	}
	if len(w.last) == 60 {
		w.last = w.last[1:]
	}
	w.last = append(w.last, line)
}

// process is one life of a worker or a producer, from one restart to the next.
type process struct {
	w    *world
	name string
	id   uint64 // the same in every run of the schedule

	ctx    context.Context // ends when the process is killed
	cancel context.CancelFunc

	// Guarded by w.mu.
	dead   bool
	resume chan struct{} // not nil: stopped; closed by a continuation
	counts map[string]uint64
	cut    time.Time     // cut off from all servers until then
	deaf   time.Time     // … or from their answers only
	off    time.Duration // how far its clock of the queue is off
}

func (w *world) spawn(role string, slot, life int) *process {
	p := &process{w: w, name: fmt.Sprintf("%s%d.%d", role, slot, life), id: number(role)<<16 + uint64(slot)<<12 + uint64(life), counts: map[string]uint64{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes = append(w.processes, p)
	return p
}

// kill ends a process at its current step: nothing it does from then on has an effect.
func (p *process) kill(why string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.killLocked(why)
}

func (p *process) killLocked(why string) {
	if p.dead {
		return
	}
	p.dead = true
	p.w.seen.Crashes++
	p.w.tellLocked(p.name + " is killed: " + why)
	if p.resume != nil {
		close(p.resume)
		p.resume = nil
	}
	p.cancel()
}

func (p *process) isDead() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.dead
}

// stop keeps the process from passing its next step for d, as SIGSTOP does.
func (p *process) stop(d time.Duration, why string) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead || p.resume != nil || w.calm {
		return
	}
	w.seen.Stalls++
	w.tellLocked(fmt.Sprintf("%s is stopped for %v: %s", p.name, d, why))
	if w.jumps > 0 {
		p.off -= d // the machine sleeps: the clock of its locks keeps running, but its clock of the queue, which it advances itself, stops
	}
	c := make(chan struct{})
	p.resume = c
	time.AfterFunc(d, func() { p.proceed(c) })
}

func (p *process) proceed(c chan struct{}) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.proceedLocked(c)
}

func (p *process) proceedLocked(c chan struct{}) {
	if c != nil && p.resume == c {
		p.w.tellLocked(p.name + " is continued")
		close(c)
		p.resume = nil
	}
}

// wait waits while the process is stopped.
func (p *process) wait() {
	for {
		p.w.mu.Lock()
		c := p.resume
		p.w.mu.Unlock()
		if c == nil {
			return
		}
		<-c
	}
}

// idle lists the operations of idle processes. They are so frequent that at the full rate nearly all crashes would hit them.
var idle = []string{"depth", "heartbeat", "members", "allSettings", "settings", "nextDue", "types", "now", "fetch", "lock read"}

// longest is how long a process is stopped at most.
func (w *world) longest() time.Duration {
	if w.slots {
		return 3 * w.lease // nothing on its host changes the outcome of a create in flight
	}
	return 2 * w.lease
}

// step counts an operation, and may end or stop the process there.
func (p *process) step(op, about string, still bool) *dice {
	w := p.w
	w.mu.Lock()
	n := p.counts[op]
	p.counts[op]++
	w.steps++
	w.digest = mix(w.digest ^ p.id ^ number(op) ^ uint64(w.now()))
	if w.trace != nil {
		state := ""
		if p.dead {
			state = " (killed)"
		}
		w.trace(fmt.Sprintf("%10.4fs    %s %s %s%s", w.now().Seconds(), p.name, op, about, state))
	}
	calm := w.calm || p.dead
	w.mu.Unlock()
	d := newDice(w.seed, p.id, number(op), n)
	if calm {
		return d
	}
	rarely := 1
	if slices.Contains(idle, op) {
		rarely = 10
	}
	if d.chance(w.crash) && d.n(rarely) == 0 {
		p.crash(d, op)
	}
	if d.chance(w.stall) && d.n(rarely) == 0 && !still {
		p.stop(d.upTo(w.longest()), op)
	}
	return d
}

// crash kills the process, or the whole host with it.
func (p *process) crash(d *dice, op string) {
	if strings.HasPrefix(p.name, "worker") && d.chance(p.w.power) {
		p.w.powerLoss(d, "at "+op+" of "+p.name)
		return
	}
	p.kill("at " + op)
}

// around is a step at a server, with the way there and back.
func (p *process) around(op, about string) (after func()) {
	p.travel(p.step(op, about, false))
	return func() { p.travel(p.step(op+" done", about, false)) }
}

// travel sleeps for the latency of one way.
func (p *process) travel(d *dice) {
	p.wait()
	p.w.mu.Lock()
	calm := p.w.calm || p.dead
	p.w.mu.Unlock()
	t := d.upTo(p.w.latency)
	if !calm && d.chance(p.w.slow) {
		t += d.upTo(time.Second)
	}
	if t > 0 && !p.isDead() {
		time.Sleep(t)
	}
	p.wait()
}

// downLocked reports whether p cannot reach a server. w.mu is held.
func (p *process) downLocked(server string) bool {
	now := time.Now()
	return !p.w.calm && (now.Before(p.w.outage[server]) || now.Before(p.cut))
}

// queueFault decides what happens to an operation of the queue.
func (p *process) queueFault(op queuetest.Op, _ string, n int) queuetest.Fault {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.dead, p.downLocked("queue"):
		return queuetest.Fault{Kind: queuetest.Unreachable}
	case w.calm:
		return queuetest.Fault{}
	}
	if time.Now().Before(p.deaf) {
		return queuetest.Fault{Kind: queuetest.LostAnswer}
	}
	d := newDice(w.seed, p.id, number("fault"), number(string(op)), p.counts[string(op)])
	insert := op == queuetest.OpInsert || op == queuetest.OpDelay
	switch {
	case d.chance(w.lost):
		w.seen.Lost++
		f := queuetest.Fault{Kind: pick(d, queuetest.Lost, queuetest.LostAnswer, queuetest.LostAnswer, queuetest.Partial, queuetest.Unreachable), Keep: d.n(n + 1)}
		if insert && d.chance(2000) {
			f.Kind = pick(d, queuetest.Hang, queuetest.HangPerformed)
		}
		w.tellLocked(fmt.Sprintf("%s %s: fault %d", p.name, op, f.Kind))
		return f
	case insert && d.chance(w.late):
		w.seen.Late++
		f := queuetest.Fault{Kind: queuetest.Late, Delay: d.upTo(10 * time.Second), Step: d.upTo(200 * time.Millisecond)}
		if at := time.Now().Add(f.Delay + time.Duration(n)*f.Step); at.After(w.lateUntil) {
			w.lateUntil = at
		}
		w.tellLocked(fmt.Sprintf("%s %s: late by %v", p.name, op, f.Delay))
		return f
	}
	return queuetest.Fault{}
}

// lockFault decides what happens to an operation of the lock store. Read is a hint and may return a write that is rolled back.
func (w *world) lockFault(c locktest.Call) locktest.Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.handles[c.Handle]
	switch {
	case p.dead:
		return locktest.Fault{Refuse: true}
	case w.calm:
		return locktest.Fault{}
	}
	d := newDice(w.seed, p.id, number("fault"), number(string(c.Op)), p.counts["lock "+string(c.Op)])
	switch {
	case p.downLocked("locks"):
		return locktest.Fault{Refuse: d.chance(5000), LoseRequest: true}
	case time.Now().Before(p.deaf):
		return locktest.Fault{LoseReply: true}
	case d.chance(w.lost):
		w.seen.Lost++
		w.tellLocked(fmt.Sprintf("%s lock %s %s: lost", p.name, c.Op, c.Name))
		return pick(d, locktest.Fault{Refuse: true}, locktest.Fault{LoseRequest: true}, locktest.Fault{LoseReply: true}, locktest.Fault{BreakReply: true},
			locktest.Fault{Rollback: d.upTo(time.Second)})
	case d.chance(w.late):
		w.seen.Late++
		late := d.upTo(10 * time.Second)
		w.tellLocked(fmt.Sprintf("%s lock %s %s: late by %v", p.name, c.Op, c.Name, late))
		return pick(d, locktest.Fault{Late: late}, locktest.Fault{Request: late}, locktest.Fault{Reply: late})
	}
	return locktest.Fault{}
}

// lockClock returns the clock of a process. It starts at a random time, and is a little fast or slow.
func (p *process) lockClock() func() time.Duration {
	d := newDice(p.w.seed, p.id, number("clock"))
	// Rates between 1-skew/2 and 1+skew/2 differ by no more than skew, up to a difference that the margins cover.
	offset, rate := d.upTo(time.Hour), 1+p.w.skew*(float64(d.n(1000))/1000-0.5)*0.97
	return func() time.Duration { return offset + time.Duration(float64(p.w.now())*rate) }
}

func (p *process) locker() (*lock.Locker, error) {
	o := lock.Options{Lease: p.w.lease, Owner: lock.Process{Host: p.host(), PID: int(p.id & 0xffff), Instance: p.name}, Clock: p.lockClock()}
	p.w.opening.Lock() // the store numbers its handles
	defer p.w.opening.Unlock()
	p.w.mu.Lock()
	p.w.handles = append(p.w.handles, p)
	p.w.mu.Unlock()
	return lock.New(p.w.locks.Open(), o)
}

// exit is a message that was acknowledged or put aside.
type exit struct {
	typ string
	id  queue.ID
}

// exits is a queue that records the messages that leave it.
type exits struct {
	*queuetest.Memory
	w *world
}

func (q exits) note(ctx context.Context, typ string, ids ...queue.ID) {
	f, _, err := q.RegistryEntry(ctx, typ)
	if err != nil {
		return // the operation itself fails as well
	}
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	for _, id := range ids {
		e := exit{typ, id}
		if before, known := q.w.gone[e]; !known || f.DurableIndex < before {
			q.w.gone[e] = f.DurableIndex
		}
	}
}

func (q exits) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	q.note(ctx, typ, ids...)
	return q.Memory.Ack(ctx, typ, ids)
}

func (q exits) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	ok, err := q.Memory.AckFile(ctx, typ, f, ids)
	if ok {
		q.note(ctx, typ, ids...)
	}
	return ok, err
}

func (q exits) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	for _, l := range letters {
		q.note(ctx, typ, l.ID)
	}
	return q.Memory.MoveToDeadLetters(ctx, typ, letters)
}

func (p *process) open() queue.Queue {
	return jumping{&queuetest.Faulty{Queue: exits{p.w.queue(), p.w}, Next: p.queueFault, Around: func(op queuetest.Op, typ string) func() { return p.around(string(op), typ) }}, p}
}

// jumping is a queue whose clock jumps: at connect, when a publisher reads it, and in between. Some of its notifications arrive twice,
// or not at all although Notify succeeds.
type jumping struct {
	queue.Queue
	p *process
}

func (q jumping) Now(ctx context.Context) (time.Time, error) {
	t, err := q.Queue.Now(ctx)
	p, w := q.p, q.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	n := p.counts["clock"]
	p.counts["clock"]++
	d := newDice(w.seed, p.id, number("clock of the queue"), n)
	if w.calm {
		p.off = 0
	}
	if err == nil && !w.calm && d.chance(w.jumps) && slices.ContainsFunc(w.jumpers, func(role string) bool { return strings.HasPrefix(p.name, role) }) {
		p.off = pick(d, w.jumpTo...)
		w.seen.Jumps++
		w.tellLocked(fmt.Sprintf("%s: the clock of the queue is off by %v", p.name, p.off))
	}
	return t.Add(p.off), err
}

func (q jumping) Notify(ctx context.Context, types []string) error {
	p, w := q.p, q.p.w
	w.mu.Lock()
	d := newDice(w.seed, p.id, number("notification"), p.counts["notification"])
	p.counts["notification"]++
	times := 1
	if !w.calm {
		times = pick(d, 0, 1, 1, 2)
	}
	w.mu.Unlock()
	var err error
	for range times {
		err = q.Queue.Notify(ctx, types)
	}
	return err
}
