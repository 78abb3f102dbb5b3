package worker

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
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
)

// delay publishes n messages that are due after d.
func (r *rig) delay(typ string, n int, d time.Duration) {
	r.t.Helper()
	r.publish(typ, 0) // creates the publisher
	var msgs []queue.Message
	for i := range n {
		p := fmt.Sprintf("%s after %v: %d", typ, d, i)
		r.sent[typ] = append(r.sent[typ], p)
		msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(p), Due: r.pub.Now().Add(d)})
	}
	for i, res := range r.pub.PublishAll(context.Background(), msgs) {
		if res.Status != queue.Stored {
			r.t.Fatalf("message %d is %v: %v", i, res.Status, res.Err)
		}
	}
}

// The pause between two checks ends when the pool is asked to stop, a moment before the scheduler's context does.
func TestStoppingSchedulerDoesNotLookAgain(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the moment is longest if all goroutines take turns
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		time.Sleep(1500 * time.Millisecond)
		before := r.queue.Calls(queuetest.OpNextDue)
		p.stop()
		if n := r.queue.Calls(queuetest.OpNextDue) - before; n > 1 {
			t.Errorf("%d checks for delayed messages while the pool stopped, want 1 at most", n)
		}
	})
}

// TestManyPoolsLookRarelyForDelayedMessages: forty pools together check as often as ten would.
func TestManyPoolsLookRarelyForDelayedMessages(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		defer r.beat(others(39, "else")...)()
		p := r.start(nil)
		time.Sleep(time.Minute)
		before := r.queue.Calls(queuetest.OpNextDue)
		time.Sleep(time.Minute)
		if n := r.queue.Calls(queuetest.OpNextDue) - before; n < 15 || n > 30 {
			t.Errorf("%d checks for delayed messages in a minute, want 15 to 30", n)
		}
		r.delay(typ, 1, 3500*time.Millisecond)
		time.Sleep(scheduleMost + time.Second)
		if s := p.Stats(); s.Promoted != 1 {
			t.Errorf("%d messages were promoted", s.Promoted)
		}
		p.stop()
	})
}

func TestDelayedMessagesComeWhenTheyAreDue(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.delay(typ, 3, 20*time.Second)
		late := r.sent[typ]
		r.sent[typ] = nil
		r.delay(typ, 2000, 10*time.Second)
		r.delay(typ, 0, 0)
		p := r.start(func(c *Config) { c.Types, c.AllTypes = nil, true }) // the type has nothing pending: it has to be found
		time.Sleep(9900 * time.Millisecond)
		if types, _ := r.queue.Types(context.Background()); len(types) != 1 { // registered by the publisher
			t.Errorf("types: %v", types)
		}
		if slices.Contains(r.disk.Names(), testFile) {
			t.Fatal("there is a file before anything is due")
		}
		time.Sleep(2 * time.Second)
		if got := contents(t, r.disk, testFile); !slices.Equal(got, r.sent[typ]) {
			t.Fatalf("%d messages in the file 2 s after they were due, want %d", len(got), len(r.sent[typ]))
		}
		r.publish(typ, 5)
		time.Sleep(7 * time.Second)
		if got := contents(t, r.disk, testFile); len(got) != 2005 {
			t.Fatalf("%d messages in the file before the others are due", len(got))
		}
		time.Sleep(3 * time.Second)
		r.sent[typ] = append(r.sent[typ], late...)
		p.stop()
		r.complete(typ)
		if s := p.Stats(); s.Promoted != 2003 {
			t.Errorf("%d promoted", s.Promoted)
		}
	})
}

func TestUntilEmptyDrainsWhatIsDueAndWaitsForNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.delay(typ, 1500, time.Second)
		due := r.sent[typ]
		r.delay(typ, 1, time.Hour)
		time.Sleep(2 * time.Second)
		off := func(c *Config) { c.NoScheduler = true }
		if err := r.drain(off); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, r.disk, testFile); !slices.Equal(got, due) {
			t.Errorf("%d messages in the file, want %d", len(got), len(due))
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestUntilEmptyTriesAgainToPromoteWhatIsDue(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.delay(typ, 1500, time.Second)
		time.Sleep(2 * time.Second)
		began := time.Now()
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpPromote && time.Since(began) < 10*time.Second {
				return queuetest.Fault{Kind: queuetest.Unreachable}
			}
			return queuetest.Fault{}
		})
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
		// Without the permission to promote, the rest is drained nevertheless.
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpPromote {
				return queuetest.Fault{Kind: queuetest.Refused}
			}
			return queuetest.Fault{}
		})
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
	})
}

// beaten is a queue in which another promoter is faster for a while.
type beaten struct {
	queue.Queue
	times atomic.Int32
}

func (q *beaten) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	if q.times.Add(-1) >= 0 {
		now := time.Now()
		return queue.Promotion{Next: now, Now: now}, nil
	}
	return q.Queue.Promote(ctx, limit)
}

func TestUntilEmptyGoesOnBehindAFasterPromoter(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for _, times := range []int32{3, math.MaxInt32} { // in the end it drains the rest
			r.delay(typ, 100, time.Second)
			time.Sleep(2 * time.Second)
			q := &beaten{Queue: r.queue}
			q.times.Store(times)
			if err := r.drain(func(c *Config) { c.Queue = q }); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, r.disk, testFile); len(got) != 100 {
				t.Errorf("%d times: %d messages in the file, want 100", times, len(got))
			}
		}
	})
}

// fewPromotions is a queue that promotes at most seven messages at a time, so that schedulers take turns in the middle of a backlog.
type fewPromotions struct{ queue.Queue }

func (q fewPromotions) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	limit.Messages = 7
	return q.Queue.Promote(ctx, limit)
}

// TestSchedulersUnderFaults: promotions fail in every way or pause for longer than the lease, pools die, the lock is lost.
// Every message is in the file once, in the order of the due times, without a gap.
func TestSchedulersUnderFaults(t *testing.T) {
	for seed := range uint64(6) {
		onRig(t, func(t *testing.T, r *rig) {
			rng := rand.New(rand.NewPCG(seed, 5))
			own := rand.New(rand.NewPCG(seed, 6)) // of this goroutine
			var mu sync.Mutex
			r.disturb(func(op queuetest.Op, n int) queuetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				switch op {
				case queuetest.OpPromote, queuetest.OpDelay:
					if rng.IntN(3) == 0 {
						kinds := []queuetest.Kind{queuetest.LostAnswer, queuetest.Lost, queuetest.Partial, queuetest.Hang, queuetest.HangPerformed}
						return queuetest.Fault{Kind: kinds[rng.IntN(len(kinds))], Keep: rng.IntN(n + 1)}
					}
				case queuetest.OpNextDue:
					if rng.IntN(10) == 0 {
						return queuetest.Fault{Kind: queuetest.Unreachable}
					}
				}
				return queuetest.Fault{}
			})
			start := func() *runningPool { return r.start(func(c *Config) { c.Queue = fewPromotions{c.Queue} }) }
			pools := []*runningPool{start(), start(), start()}
			for i := range 20 {
				r.delay(typ, 10, time.Duration(i)*3*time.Second)
			}
			for range 30 {
				time.Sleep(time.Duration(own.IntN(5)) * time.Second)
				switch i := own.IntN(len(pools)); own.IntN(3) {
				case 0:
					pools[i].cancel()
					<-pools[i].done
					pools[i] = start()
				case 1:
					_ = pools[i].locker.ForceRelease(context.Background(), schedulerLock, "test")
				}
			}
			time.Sleep(2 * time.Minute)
			r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
			time.Sleep(time.Minute)
			for _, p := range pools {
				p.stop()
			}
			slices.SortStableFunc(r.sent[typ], func(a, b string) int { return int(afterOf(a) - afterOf(b)) })
			got := contents(t, r.disk, testFile)
			slices.SortStableFunc(got, func(a, b string) int { return int(afterOf(a) - afterOf(b)) }) // publishing took time too
			if !slices.Equal(got, r.sent[typ]) {
				t.Fatalf("%d messages in the file, want %d; they differ at %d", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
			}
			for _, p := range r.pools {
				if s := p.Stats(); s.Gaps != 0 {
					t.Errorf("%d declared gaps", s.Gaps)
				}
			}
		})
	}
}

// afterOf returns the delay that a payload names.
func afterOf(payload string) time.Duration {
	_, rest, _ := strings.Cut(payload, " after ")
	d, _, _ := strings.Cut(rest, ":")
	after, _ := time.ParseDuration(d)
	return after
}

// A producer that has been silent for long is not forgotten while a delayed message may be in transit under its number.
func TestPoolForgetsNobodyWhileDelayedMessagesAreOverdue(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1)
		p := r.start(func(c *Config) { c.Retention, c.NoScheduler = 12*time.Hour, true })
		r.delay("other", 1, 0)
		time.Sleep(16 * time.Hour)
		r.put(2, 1)
		time.Sleep(2 * time.Minute)
		if strings.Contains(r.log.String(), "forgot silent producers") {
			t.Error("a producer was forgotten")
		}
		if _, err := r.queue.Promote(context.Background(), promoteLimit); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.put(3, 1)
		time.Sleep(2 * time.Minute)
		p.stop()
		if !strings.Contains(r.log.String(), "forgot silent producers") {
			t.Error("a silent producer was never forgotten")
		}
	})
}

// Delayed messages that cannot be promoted, or cannot even be read, keep no scheduler busy and block nothing, and producers that have been
// silent for long are forgotten nevertheless.
func TestPoolIsNotDisturbedByDelayedMessagesThatCannotBePromoted(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1)
		short := func(c *Config) { c.Retention = 12 * time.Hour }
		p := r.start(short)
		time.Sleep(10 * time.Second)
		memory := r.queue.Queue.(*queuetest.Memory)
		due := time.Now().Add(-time.Second)
		memory.PlantDelayed(queue.Message{Type: typ, ID: queue.NewID(due, 5, 1), Due: due, Incomplete: true})
		memory.PlantDelayed(queue.Message{Type: typ, ID: queue.NewID(due, 5, 2), Due: due, Headers: map[string]string{"": "v"}})
		r.delay(typ, 3, time.Second)
		time.Sleep(time.Minute)
		if got := contents(t, r.disk, testFile); len(got) != 4 {
			t.Errorf("%d messages in the file, want 4", len(got))
		}
		if letters, err := r.queue.DeadLetters(context.Background(), typ, queue.ID{}, promoteLimit); err != nil || len(letters) != 1 {
			t.Errorf("%d dead letters, want 1 (%v)", len(letters), err)
		}
		if !strings.Contains(r.log.String(), "are dead letters now") {
			t.Error("the log does not say that there is a dead letter")
		}
		before := r.queue.Calls(queuetest.OpPromote)
		time.Sleep(16 * time.Hour)
		if n := r.queue.Calls(queuetest.OpPromote) - before; n > 0 {
			t.Errorf("%d promotions in 16 hours in which nothing could be promoted", n)
		}
		r.put(3, 1)
		time.Sleep(time.Minute)
		p.stop()
		if !strings.Contains(r.log.String(), "forgot silent producers") {
			t.Error("a silent producer was never forgotten")
		}
	})
}
