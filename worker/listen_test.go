package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
)

// hints is a queue whose notifications and lists of pending types a test controls.
type hints struct {
	queue.Queue

	mu      sync.Mutex
	notify  func(ctx context.Context, types []string) error // nil: as the queue does
	pending func([]string) []string                         // nil: as the queue says
	stuck   []string                                        // checks of these types end with their context; set before the pool begins
	looks   atomic.Int32                                    // checks of them
	slow    atomic.Int64                                    // ns that a read of notifications takes
	reads   atomic.Int32                                    // of notifications
}

func (q *hints) Notifications(ctx context.Context, after queue.NotificationMark) (queue.Notifications, error) {
	q.reads.Add(1)
	time.Sleep(time.Duration(q.slow.Load()))
	return q.Queue.Notifications(ctx, after)
}

func (q *hints) Depth(ctx context.Context, typ string, n int) (queue.Depth, error) {
	if slices.Contains(q.stuck, typ) {
		q.looks.Add(1)
		defer q.looks.Add(-1)
		<-ctx.Done()
		return queue.Depth{}, ctx.Err()
	}
	return q.Queue.Depth(ctx, typ, n)
}

// say changes how the queue handles notifications, and what it lists.
func (q *hints) say(notify func(ctx context.Context, types []string) error, pending func([]string) []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.notify, q.pending = notify, pending
}

func (q *hints) said() (notify func(ctx context.Context, types []string) error, pending func([]string) []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.notify, q.pending
}

func (q *hints) Notify(ctx context.Context, types []string) error {
	if notify, _ := q.said(); notify != nil {
		return notify(ctx, types)
	}
	return q.Queue.Notify(ctx, types)
}

func (q *hints) PendingTypes(ctx context.Context) ([]string, error) {
	types, err := q.Queue.PendingTypes(ctx)
	if _, pending := q.said(); pending != nil {
		types = pending(types)
	}
	return types, err
}

// lost is a notification that no pool receives.
func lost(context.Context, []string) error { return nil }

// blind is a sweep that finds nothing.
func blind([]string) []string { return nil }

// onHints runs a test on a rig whose queue is a hints.
func onHints(t *testing.T, test func(t *testing.T, r *rig, h *hints)) {
	onRig(t, func(t *testing.T, r *rig) {
		h := &hints{Queue: r.queue.Queue}
		r.queue.Queue = h
		test(t, r, h)
	})
}

// register makes n types known, and returns their names.
func (r *rig) register(n int) (types []string) {
	r.t.Helper()
	for i := range n {
		types = append(types, fmt.Sprintf("type-%04d", i))
		if err := r.queue.RegisterType(context.Background(), types[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	return types
}

// appended returns how many messages of a type are in its file.
func (p *runningPool) appended(typ string) uint64 {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	if r := p.book.types[typ]; r != nil {
		return r.Appended
	}
	return 0
}

// wantAppended expects n messages of a type in its file within a time.
func (p *runningPool) wantAppended(typ string, n uint64, within time.Duration) {
	p.t.Helper()
	for began := time.Now(); p.appended(typ) < n; time.Sleep(time.Millisecond) {
		if time.Since(began) > within {
			p.t.Fatalf("after %v %d messages of %s are appended, want %d", within, p.appended(typ), typ, n)
		}
	}
}

func all(c *Config) { c.Types, c.AllTypes = nil, true }

// soon is how long it takes to append a message after the pool is notified of its type.
const soon = listenEvery + 50*time.Millisecond

// Whether sweeps find them or not, notified types are served at once: one that was idle, one whose session is idle, and one that is
// new.
func TestANotifiedTypeIsServedAtOnce(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		h.say(nil, blind)
		types := r.register(300)
		p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		time.Sleep(time.Minute)
		for n := range uint64(3) {
			r.publish(types[7], 1)
			p.wantAppended(types[7], n+1, soon)
			time.Sleep(10 * time.Minute) // longer than a session polls
			if !slices.Contains(held(p), types[7]) {
				t.Fatal("the session has ended: the test is about an idle one")
			}
		}
		r.publish("unknown", 1)
		p.wantAppended("unknown", 1, soon)
		p.stop()
		r.complete(types[7])
		r.complete("unknown")
	})
}

// A resting session has only the goroutine of its type; the others start again when there are messages.
func TestASessionThatRestsIsOneGoroutine(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(100)
		p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		time.Sleep(time.Minute + listenEvery/2)
		for n := range uint64(2) {
			for _, typ := range types {
				r.publish(typ, 1)
			}
			for _, typ := range types {
				p.wantAppended(typ, n+1, 2*soon)
			}
			if n := sessionGoroutines(); n < 4*len(types) {
				t.Errorf("%d goroutines of %d sessions after messages: the stages do not run", n, len(types))
			}
			time.Sleep(2 * restAfter)
			if n := len(held(p)); n != len(types) {
				t.Fatalf("%d sessions, want %d", n, len(types))
			}
			if n := sessionGoroutines(); n != len(types) {
				t.Errorf("%d goroutines of %d sessions at rest", n, len(types))
			}
		}
		p.stop()
		for _, typ := range types {
			r.complete(typ)
			rep, err := storage.Verify(t.Context(), dir+"/"+storage.FileName(typ), storage.VerifyOptions{FS: r.disk})
			if err != nil || rep.Checkpoints != 1 {
				t.Fatalf("%d checkpoints (%v): only the end of a session writes one", rep.Checkpoints, err)
			}
		}
	})
}

// A type that a sweep finds is taken although checks of other types hang: it is not checked before, and does not queue up after them
// when its lock is held.
func TestWhatASweepFindsIsNotLookedAt(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(2 * maxLooks)
		h.say(nil, blind)
		h.stuck = types[1:]
		p := r.start(all)
		time.Sleep(time.Minute)
		for _, typ := range types[1:] {
			r.publish(typ, 1) // and the pool is notified, checks, and gets no answer
		}
		time.Sleep(time.Second)
		if n := h.looks.Load(); n != maxLooks {
			t.Errorf("%d concurrent checks, want %d", n, maxLooks)
		}
		h.say(lost, func([]string) []string { return types[:1] })
		r.publish(types[0], 1)
		p.wantAppended(types[0], 1, sweepMost+time.Second)
		p.stop()
		r.complete(types[0])
	})
}

// If many types get messages at once, a sweep finds them with few commands. Types that the pool holds are served at once.
func TestManyNotificationsAreLeftToASweep(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(maxNotified + 1)
		publish := func(types []string) {
			for _, typ := range types {
				r.publish(typ, 1)
			}
		}
		h.say(nil, blind)
		p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		time.Sleep(time.Minute)
		publish(types)
		time.Sleep(2 * soon)
		if n := p.Stats().Appended; n != 0 {
			t.Fatalf("%d messages are appended, which no sweep has found", n)
		}
		h.say(nil, nil)
		for _, typ := range types {
			p.wantAppended(typ, 1, 2*sweepLeast)
		}
		h.say(nil, blind)
		time.Sleep(time.Minute)
		publish(types)
		for _, typ := range types {
			p.wantAppended(typ, 2, 2*soon)
		}
		publish(types[1:2]) // few types are served at once, whether held or not
		publish([]string{"unknown"})
		p.wantAppended("unknown", 1, soon)
		p.stop()
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// A session that finds nothing rests at once while many others poll. Messages that arrive then are served at once.
func TestManySessionsDoNotPoll(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, _ *hints) {
		types := r.register(3 * maxPolling)
		p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		time.Sleep(time.Minute)
		for _, typ := range types {
			r.publish(typ, 1)
		}
		for _, typ := range types {
			p.wantAppended(typ, 1, soon+sweepLeast)
		}
		time.Sleep(restAfter / 2)
		if n := len(p.polling); n != maxPolling {
			t.Errorf("%d sessions poll, want %d", n, maxPolling)
		}
		if n := sessionGoroutines(); n > len(types)+5*maxPolling {
			t.Errorf("%d goroutines of %d sessions: those without a place do not rest", n, len(types))
		}
		for _, typ := range types {
			r.publish(typ, 1)
			p.wantAppended(typ, 2, 2*soon)
		}
		time.Sleep(2 * restAfter)
		if n := len(p.polling); n != 0 {
			t.Errorf("%d sessions poll, although no message has arrived for a long time", n)
		}
		p.stop()
		for _, typ := range types {
			r.complete(typ)
		}
	})
}

// A slow server is queried for notifications less often.
func TestABusyServerIsAskedLessOften(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		p := r.start(all)
		for _, step := range []struct{ takes, pause time.Duration }{
			{0, listenEvery}, {listenEvery / listenShare, listenEvery}, {100 * time.Millisecond, time.Second}, {time.Second, listenMost}, {time.Millisecond, listenEvery},
		} {
			h.slow.Store(int64(step.takes))
			time.Sleep(2 * listenMost)
			before := h.reads.Load()
			time.Sleep(time.Minute)
			got, want := h.reads.Load()-before, int32(time.Minute/(step.takes+step.pause))
			if got < want-2 || got > want+2 {
				t.Errorf("%d reads in a minute if one takes %v, want about %d", got, step.takes, want)
			}
		}
		p.stop()
	})
}

// slowLists is a queue without notifications, whose lists of all types take a while.
type slowLists struct {
	queue.Queue
	takes time.Duration
	lists atomic.Int32
}

func (q *slowLists) Notifications(context.Context, queue.NotificationMark) (queue.Notifications, error) {
	return queue.Notifications{}, errors.New("no notifications")
}

func (q *slowLists) Types(ctx context.Context) ([]string, error) {
	q.lists.Add(1)
	time.Sleep(q.takes)
	return q.Queue.Types(ctx)
}

// Without notifications all types are listed every discoverEvery, or less often if that takes long.
func TestABusyServerListsAllTypesLessOften(t *testing.T) {
	for takes, every := range map[time.Duration]time.Duration{0: discoverEvery, time.Second: time.Second + sweepShare*time.Second, time.Minute: time.Minute + sweepMost} {
		onRig(t, func(t *testing.T, r *rig) {
			q := &slowLists{Queue: r.queue, takes: takes}
			p := r.start(func(c *Config) { all(c); c.Queue = q })
			const during = 10 * time.Minute
			time.Sleep(during)
			if got, want := int(q.lists.Load()), int(during/every); got < want || got > want+1 {
				t.Errorf("%d lists in %v if each takes %v, want about %d", got, during, takes, want)
			}
			p.stop()
		})
	}
}

// sessionGoroutines counts the goroutines that run sessions.
func sessionGoroutines() (n int) {
	all := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.Contains(stack, "worker.(*session)") {
			n++
		}
	}
	return n
}

// The log says which operation of the listener works again, and not what it did meanwhile.
func TestListenerThatWorksAgain(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.calls(queuetest.Unreachable, queuetest.OpNotifications)
		p := r.start(nil)
		time.Sleep(10 * time.Second)
		r.calls(queuetest.None)
		time.Sleep(10 * time.Second)
		if log := r.log.String(); !strings.Contains(log, `"can read which types have new messages again"`) {
			t.Errorf("the log does not say that notifications can be read:\n%s", log)
		}
		p.stop()
	})
}

// Without any notification a message is appended within sweepMost, even when so much is pending that sweeps are rare: of an idle type,
// of an idle session, of a new type.
func TestMessagesAreFoundWithoutNotifications(t *testing.T) {
	race.Skip(t)
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(300)
		h.say(lost, func(found []string) []string { return append(found, types[100:]...) }) // and are drained when they are checked
		p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		time.Sleep(time.Minute)
		for n := range uint64(3) {
			r.publish(types[7], 1)
			p.wantAppended(types[7], n+1, sweepMost+time.Second)
			time.Sleep(10 * time.Minute)
		}
		r.publish("unknown", 1)
		p.wantAppended("unknown", 1, sweepMost+time.Second)
		// With little pending sweeps are frequent.
		h.say(lost, nil)
		time.Sleep(sweepMost)
		r.publish(types[8], 1)
		p.wantAppended(types[8], 1, time.Second)
		p.stop()
		r.complete(types[7])
	})
}

// News of a type that discovery starts serving concurrently, without the news, is passed on.
func TestNewsOfATypeThatHasJustBeenFound(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, _ *hints) {
		p, err := New(Config{Queue: r.queue, Locker: r.start(nil).locker, To: Files{Dir: "/other", Storage: storage.Options{FS: r.disk}}, AllTypes: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, served := range [][]string{nil, {"unknown"}} {
			var told []string
			l := &listener{pool: p, serve: func(bool, ...string) (fresh, before []string) { return nil, served }}
			l.news([]string{"unknown"}, func(types []string) { told = append(told, types...) })
			if !slices.Equal(told, served) {
				t.Errorf("news was reported of %v, want %v, which were served already", told, served)
			}
		}
	})
}

// A pool that has missed notifications sweeps at once, however rare sweeps are.
func TestMissedNotificationsCauseASweep(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(300)
		p := r.start(all)
		time.Sleep(time.Minute)
		for range 3 {
			h.say(lost, func(found []string) []string { return append(found, types[100:]...) })
			time.Sleep(2 * sweepLeast) // the next sweep is half a minute away
			r.publish("orders", 1)
			time.Sleep(2 * time.Second)
			if n := p.appended("orders"); n == uint64(len(r.sent["orders"])) {
				t.Fatal("sweeps are frequent: the test proves nothing")
			}
			if err := h.Queue.Notify(t.Context(), slices.Repeat([]string{types[1]}, 1000)); err != nil {
				t.Fatal(err)
			}
			p.wantAppended("orders", uint64(len(r.sent["orders"])), soon+sweepLeast)
			h.say(nil, nil)
			time.Sleep(5 * time.Minute)
		}
		p.stop()
		r.complete("orders")
	})
}

// Notifications may be wrong in any way. They cost a check, and nothing else.
func TestNotificationsThatAreWrong(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		types := r.register(3)
		p := r.start(func(c *Config) { c.Types = []string{"type-*"} })
		time.Sleep(time.Minute)
		tell := func(types ...string) {
			t.Helper()
			if err := h.Queue.Notify(t.Context(), types); err != nil {
				t.Fatal(err)
			}
		}
		tell("orders", "type-9999")        // not this pool's type, and a type that does not exist
		tell(types[0], types[0], types[0]) // nothing is there
		time.Sleep(time.Minute)
		if s := p.Stats(); s.Sessions != 0 || s.Types != 4 {
			t.Errorf("%+v; nothing is pending", s)
		}
		// Doubled, and late.
		h.say(func(_ context.Context, types []string) error {
			go func() {
				for range 3 {
					time.Sleep(5 * time.Second)
					if err := h.Queue.Notify(context.Background(), types); err != nil {
						t.Error(err)
					}
				}
			}()
			return nil
		}, nil)
		r.publish(types[1], 10)
		p.wantAppended(types[1], 10, 2*time.Second)
		time.Sleep(time.Minute)
		p.stop()
		r.complete(types[1])
		if s := p.Stats(); s.Duplicates != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// counted counts the operations of the queue.
func (r *rig) counted() (counts func() map[queuetest.Op]int) {
	var mu sync.Mutex
	all := map[queuetest.Op]int{}
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		all[op]++
		return queuetest.Fault{}
	})
	return func() map[queuetest.Op]int {
		mu.Lock()
		defer mu.Unlock()
		now := all
		all = map[queuetest.Op]int{}
		return now
	}
}

// commands is how many commands operations take on MongoDB when nothing is pending, at most.
func commands(counts map[queuetest.Op]int) (n int) {
	for op, calls := range counts {
		cost := 1
		switch op {
		case queuetest.OpTypes:
			cost = 4
		case queuetest.OpHeartbeat:
			cost = 2
		case queuetest.OpNow:
			cost = 0
		}
		n += cost * calls
	}
	return n
}

// The cost of a minute in which nothing happens does not depend on the number of types, neither free nor held.
func TestIdleTypesCostNothing(t *testing.T) {
	race.Skip(t)
	for name, n := range map[string]int{"free": 0, "held": 200} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				types := r.register(1000)
				counts := r.counted()
				p := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
				time.Sleep(time.Second)
				if looks := counts()[queuetest.OpDepth]; looks != 0 {
					t.Errorf("%d types were checked individually when the pool started", looks)
				}
				for _, typ := range types[:n] {
					r.publish(typ, 1)
				}
				time.Sleep(time.Minute)
				counts()
				time.Sleep(10 * time.Minute)
				asked := counts()
				if got := len(held(p)); got != n {
					t.Fatalf("%d types are held, want %d", got, n)
				}
				if perSecond := float64(commands(asked)) / 600; perSecond > 13 || asked[queuetest.OpDepth]+asked[queuetest.OpFetch] != 0 {
					t.Errorf("%.1f commands per second: %v", perSecond, asked)
				}
				p.stop()
			})
		})
	}
}

// A standby does not check the types that another replica holds at each of their notifications: it checks busy types every two seconds,
// and idle ones not at all.
func TestStandingByCostsLittle(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.register(300)
		a := r.start(func(c *Config) { all(c); c.IdleTimeout = time.Hour })
		for _, typ := range types {
			r.publish(typ, 1)
		}
		time.Sleep(10 * time.Second)
		if n := len(held(a)); n != 300 {
			t.Fatalf("%d types are held", n)
		}
		b := r.start(func(c *Config) { all(c); c.MaxTypes = 1 })
		time.Sleep(time.Minute)
		counts := r.counted()
		for range 60 {
			r.publish(types[0], 1)
			r.publish(types[1], 1)
			time.Sleep(time.Second)
		}
		if n := counts(); n[queuetest.OpDepth] > 90 { // of the two busy types, every two seconds; with each notification it would be 120
			t.Errorf("%d checks in a minute of types that another replica serves", n[queuetest.OpDepth])
		}
		a.stop()
		b.stop()
	})
}

// While notifications cannot be read, or types cannot be listed, each type is checked individually as if there were no listener. This
// is logged once.
func TestWithoutAListenerTypesArePolled(t *testing.T) {
	for _, op := range []queuetest.Op{queuetest.OpNotifications, queuetest.OpPendingTypes} {
		for _, kind := range []queuetest.Kind{queuetest.Refused, queuetest.Lost, queuetest.Hang} {
			t.Run(fmt.Sprint(op, " ", kind), func(t *testing.T) {
				onHints(t, func(t *testing.T, r *rig, h *hints) {
					h.say(nil, blind)
					p := r.start(func(c *Config) { c.Types, c.IdleTimeout = []string{"idle", "held"}, time.Hour })
					r.publish("held", 1)
					p.wantAppended("held", 1, soon)
					time.Sleep(time.Minute)
					r.disturb(func(o queuetest.Op, _ int) queuetest.Fault {
						if o == op {
							return queuetest.Fault{Kind: kind}
						}
						return queuetest.Fault{}
					})
					h.say(lost, blind)
					time.Sleep(sweepMost + listenTimeout) // by then all have noticed
					r.publish("idle", 1)
					r.publish("held", 1)
					p.wantAppended("idle", 1, time.Second)
					p.wantAppended("held", 2, time.Second)
					r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
					h.say(nil, blind)
					time.Sleep(time.Minute)
					for text, want := range map[string]int{"cannot read which types have new messages": 1, "can read which types have new messages": 1} {
						if n := strings.Count(r.log.String(), text); n != want {
							t.Errorf("%q is logged %d times, want %d", text, n, want)
						}
					}
					counts := r.counted()
					time.Sleep(time.Minute)
					if n := counts(); n[queuetest.OpFetch]+n[queuetest.OpDepth] != 0 {
						t.Errorf("after that: %v", n)
					}
					p.stop()
				})
			})
		}
	}
}

// The bound of sweepMost holds when the listener fails: a message that arrived before that is found.
func TestAFailingListenerHidesNoMessage(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		h.say(lost, blind)
		types := r.register(20)
		p := r.start(all)
		time.Sleep(time.Minute)
		for _, typ := range types {
			r.publish(typ, 1)
		}
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpNotifications {
				return queuetest.Fault{Kind: queuetest.Refused}
			}
			return queuetest.Fault{}
		})
		for _, typ := range types {
			p.wantAppended(typ, 1, sweepMost+listenTimeout)
		}
		p.stop()
	})
}

// A type that waits for a slot gets that of an idle type at once.
func TestAnIdleSessionGivesItsSlotBack(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(func(c *Config) { all(c); c.MaxTypes, c.IdleTimeout = 1, time.Hour })
		r.publish("idle", 1)
		p.wantAppended("idle", 1, 2*time.Second)
		time.Sleep(time.Minute)
		r.publish("other", 1)
		p.wantAppended("other", 1, time.Second)
		p.stop()
	})
}

// Delayed messages that are promoted are notified as well.
func TestPromotedMessagesAreNotified(t *testing.T) {
	onHints(t, func(t *testing.T, r *rig, h *hints) {
		h.say(nil, blind)
		r.register(100)
		p, b := r.start(all), r.start(all)
		time.Sleep(time.Minute)
		r.delay("type-0007", 1, 10*time.Minute)
		time.Sleep(10 * time.Minute)
		for began := time.Now(); p.appended("type-0007")+b.appended("type-0007") == 0; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 5*time.Second {
				t.Fatal("not appended")
			}
		}
		p.stop()
		b.stop()
	})
}
