package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
)

// record has the messages that a handler received.
type record struct {
	mu  sync.Mutex
	got []string
}

func (r *record) add(msgs ...queue.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range msgs {
		r.got = append(r.got, string(m.Payload))
	}
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *record) handler() Handler {
	return HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error { r.add(msgs...); return nil })
}

// handle configures a replica with a handler.
func handle(h Handler, more ...func(*Config)) func(*Config) {
	return func(c *Config) {
		c.To = Handling{Handler: h}
		for _, f := range more {
			f(c)
		}
	}
}

func deadLetters(c *Config) { c.OnError, c.MaxAttempts = DeadLetter, 3 }

func (r *rig) pending() int {
	d, err := r.queue.Queue.Depth(context.Background(), typ, 1_000_000)
	if err != nil {
		r.t.Fatal(err)
	}
	return d.Pending
}

func (r *rig) letters() (letters []queue.DeadLetter) {
	letters, err := r.queue.Queue.DeadLetters(context.Background(), typ, queue.ID{}, queue.Limit{Messages: 1_000_000})
	if err != nil {
		r.t.Fatal(err)
	}
	return letters
}

func TestHandlerGetsEveryMessageOnceInOrder(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var rec record
		r.publish(typ, 5000)
		for range 2 { // the second session begins in the middle of a producer's sequence
			p := r.start(handle(rec.handler(), func(c *Config) { c.UntilEmpty = true }))
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
			r.publish(typ, 500)
		}
		began := time.Now()
		if err := r.drain(handle(rec.handler())); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("a session that begins in the middle of a producer took %v", d)
		}
		if got := rec.all(); !slices.Equal(got, r.sent[typ]) {
			t.Errorf("%d messages were handled, %d published; they differ from %d on", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
		}
		if n := r.pending(); n > 0 {
			t.Errorf("%d messages are pending", n)
		}
	})
}

// The process dies between handling and acknowledgement: unacknowledged messages are handled again, acknowledged ones are not.
func TestHandledAndNotAcknowledgedIsHandledAgain(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		var rec record
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpAck {
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		})
		p := r.start(handle(rec.handler()))
		time.Sleep(time.Second)
		p.cancel()
		<-p.done
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		if err := r.drain(handle(rec.handler())); err != nil {
			t.Fatal(err)
		}
		if got := rec.all(); !slices.Equal(got, slices.Concat(r.sent[typ], r.sent[typ])) {
			t.Errorf("%d messages were handled, want all 100 twice", len(got))
		}
	})
}

// A process that dies in the handler has acknowledged none of the handler's messages.
func TestCrashInTheHandlerLosesNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 50)
		died := make(chan struct{})
		p := r.start(handle(HandlerFunc(func(ctx context.Context, _ Lease, _ []queue.Message) error {
			close(died)
			<-ctx.Done()
			return ctx.Err()
		})))
		<-died
		p.cancel()
		<-p.done
		var rec record
		if err := r.drain(handle(rec.handler())); err != nil {
			t.Fatal(err)
		}
		if n := len(r.sent[typ]) - len(rec.all()); n != 0 {
			t.Errorf("%d messages are lost", n)
		}
	})
}

// passedBy is a queue whose first Fetch passed the place of a producer's first messages before they were stored.
type passedBy struct {
	queue.Queue
	hide int
	used bool
}

func (q *passedBy) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	msgs, err := q.Queue.Fetch(ctx, typ, after, limit)
	if !q.used && len(msgs) > q.hide {
		q.used = true
		msgs = msgs[q.hide:]
	}
	return msgs, err
}

func TestFirstMessageOfAProducerWaitsForASecondLook(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		var first, rec record
		if err := r.drain(handle(first.handler())); err != nil { // so that the producer is in its middle
			t.Fatal(err)
		}
		r.publish(typ, 10)
		if err := r.drain(handle(rec.handler(), func(c *Config) { c.Queue = &passedBy{Queue: c.Queue, hide: 3} })); err != nil {
			t.Fatal(err)
		}
		if got := rec.all(); !slices.Equal(got, r.sent[typ][10:]) {
			t.Errorf("handled in the order %q", got)
		}
	})
}

// jumpedOver is a queue that passes the place of a producer's first messages, as passedBy does, and then is unreachable for a while.
type jumpedOver struct {
	passedBy
	away time.Duration
	back time.Time
}

func (q *jumpedOver) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	if time.Now().Before(q.back) {
		return nil, errors.New("the server is away")
	}
	before := q.used
	msgs, err := q.passedBy.Fetch(ctx, typ, after, limit)
	if q.used && !before {
		q.back = time.Now().Add(q.away)
	}
	return msgs, err
}

// A sweep from the start that fails is resumed where it failed: a walk that continues near the end would not see the rest.
func TestSecondLookThatFailsIsNoLook(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		var first, rec record
		if err := r.drain(handle(first.handler())); err != nil { // so that the producer is in its middle
			t.Fatal(err)
		}
		r.publish(typ, 3)
		time.Sleep(2 * longRewind)
		r.publish(typ, 7)
		err := r.drain(handle(rec.handler(), func(c *Config) {
			c.Queue = &jumpedOver{passedBy: passedBy{Queue: c.Queue, hide: 3}, away: 20 * time.Second}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.all(); !slices.Equal(got, r.sent[typ][10:]) {
			t.Errorf("handled in the order %q", got)
		}
	})
}

// A session leaves holes in the sequence of a producer (other keys, lost acknowledgements). The next one does not wait for settled
// messages, and keeps the order.
func TestHolesThatAnEarlierSessionLeft(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 200)
		key := func(m queue.Message) string { return string(m.Payload[len(m.Payload)-1:]) }
		var rec record
		h := Keyed(key, 4, Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if k := key(m); k == "3" || k == "7" {
				return errors.New("not now")
			}
			rec.add(m)
			return nil
		}))
		p := r.start(handle(h))
		time.Sleep(time.Minute)
		p.stop()
		if n := r.pending(); n != 40 {
			t.Fatalf("%d messages are pending, want those of two keys", n)
		}
		r.publish(typ, 10)
		began := time.Now()
		var rest record
		if err := r.drain(handle(rest.handler())); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the next session took %v", d)
		}
		want := slices.DeleteFunc(slices.Clone(r.sent[typ][:200]), func(p string) bool { return !strings.HasSuffix(p, "3") && !strings.HasSuffix(p, "7") })
		if got := rest.all(); !slices.Equal(got, append(want, r.sent[typ][200:]...)) {
			t.Errorf("handled %q", got)
		}
	})
}

// shapes are the ways to write the same handler: f is called for one message after the other.
func shapes(f func(m queue.Message) error) map[string]Handler {
	each := Each(func(_ context.Context, _ Lease, m queue.Message) error { return f(m) })
	batch := HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error {
		for _, m := range msgs {
			if err := f(m); err != nil {
				return fmt.Errorf("somewhere in a batch of %d: %w", len(msgs), err)
			}
		}
		return nil
	})
	same := func(queue.Message) string { return "" }
	return map[string]Handler{"each": each, "batch": batch, "keyed each": Keyed(same, 4, each), "keyed batch": Keyed(same, 4, batch)}
}

// firsts returns the handled messages, each only at its first time.
func firsts(got []string) (order []string) {
	seen := map[string]bool{}
	for _, p := range got {
		if !seen[p] {
			order = append(order, p)
		}
		seen[p] = true
	}
	return order
}

// A message that fails a few times holds back the messages after it; then they are handled in order.
func TestFailingMessageIsTriedAgainInPlace(t *testing.T) {
	for name := range shapes(nil) {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 300)
				var rec record
				failures := 8 // more than MaxAttempts: OnError is Block
				h := shapes(func(m queue.Message) error {
					if string(m.Payload) == "orders 123" && failures > 0 {
						failures--
						return errors.New("not now")
					}
					rec.add(m)
					return nil
				})[name]
				if err := r.drain(handle(h)); err != nil {
					t.Fatal(err)
				}
				if got := firsts(rec.all()); !slices.Equal(got, r.sent[typ]) {
					t.Errorf("handled %d messages, they differ from %d on", len(got), differ(got, r.sent[typ]))
				}
				if n := len(r.letters()); n != 0 || r.pending() != 0 {
					t.Errorf("%d dead letters, %d pending", n, r.pending())
				}
			})
		})
	}
}

// Messages that fail permanently are found in their batches and put aside; the others are handled, in order.
func TestHopelessMessagesBecomeDeadLetters(t *testing.T) {
	for name := range shapes(nil) {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 300)
				var rec record
				tries := map[string]int{}
				h := shapes(func(m queue.Message) error {
					switch p := string(m.Payload); p {
					case "orders 0", "orders 100":
						tries[p]++
						return errors.New("never")
					case "orders 101":
						return Permanent(errors.New("malformed"))
					case "orders 299":
						panic("boom")
					}
					rec.add(m)
					return nil
				})[name]
				var events []string
				p := r.start(handle(h, deadLetters, func(c *Config) {
					c.UntilEmpty = true
					c.Events = func(e Event) {
						if e.Kind == Dead {
							events = append(events, string(e.Letter.Payload))
						}
					}
				}))
				if err := p.end(); err != nil {
					t.Fatal(err)
				}
				want := slices.DeleteFunc(slices.Clone(r.sent[typ]), func(p string) bool {
					return slices.Contains([]string{"orders 0", "orders 100", "orders 101", "orders 299"}, p)
				})
				if got := firsts(rec.all()); !slices.Equal(got, want) {
					t.Errorf("handled %d messages, want %d; they differ from %d on", len(got), len(want), differ(got, want))
				}
				var dead []string
				for _, l := range r.letters() {
					dead = append(dead, fmt.Sprintf("%s/%d/%s", l.Payload, l.Attempts, l.Reason))
				}
				if len(dead) != 4 || !strings.HasPrefix(dead[0], "orders 0/3/") || !strings.Contains(dead[1], "never") ||
					!strings.HasPrefix(dead[2], "orders 101/1/") || !strings.Contains(dead[3], "panic: boom") {
					t.Errorf("dead letters: %q", dead)
				}
				if !slices.Equal(events, []string{"orders 0", "orders 100", "orders 101", "orders 299"}) {
					t.Errorf("events: %q", events)
				}
				if s := p.Stats(); s.Dead != 4 || s.Handled != 296 || s.Retries == 0 || r.pending() != 0 {
					t.Errorf("stats %+v, %d pending", s, r.pending())
				}
				if log := r.log.String(); !strings.Contains(log, "handler_test.go") {
					t.Error("the log does not show where the handler panicked")
				}
			})
		})
	}
}

// Whatever is lost on the way to the queue, every message is handled or put aside, in order.
func TestHandlerUnderQueueFaultsLosesNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(1, 2))
		n := 0
		r.disturb(func(op queuetest.Op, k int) queuetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if n++; op == queuetest.OpInsert || op == queuetest.OpRegisterType || op == queuetest.OpNow || n > 4000 || rng.IntN(4) > 0 {
				return queuetest.Fault{}
			}
			return queuetest.Fault{Kind: []queuetest.Kind{queuetest.LostAnswer, queuetest.Lost, queuetest.Partial}[rng.IntN(3)], Keep: k / 2}
		})
		var rec record
		h := Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if strings.HasSuffix(string(m.Payload), "7") {
				return Permanent(errors.New("ends in 7"))
			}
			rec.add(m)
			return nil
		})
		a, b := r.start(handle(h, deadLetters)), r.start(handle(h, deadLetters))
		for range 30 {
			r.publish(typ, 100)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		a.stop()
		b.stop()
		r.settledInOrder(firsts(rec.all()))
	})
}

// settledInOrder checks that every published message was handled, in order, or is a dead letter, and that nothing is pending.
func (r *rig) settledInOrder(handled []string) {
	r.t.Helper()
	dead := map[string]bool{}
	for _, l := range r.letters() {
		dead[string(l.Payload)] = true
	}
	want := slices.DeleteFunc(slices.Clone(r.sent[typ]), func(p string) bool { return dead[p] })
	if !slices.Equal(handled, want) {
		r.t.Errorf("%d messages were handled and %d are dead, %d were published; they differ from %d on", len(handled), len(dead), len(r.sent[typ]), differ(handled, want))
	}
	if n := r.pending(); n > 0 {
		r.t.Errorf("%d messages are pending", n)
	}
}

// Replicas stop, gracefully or not, and lose their locks at any moment: every message is handled nevertheless.
func TestStoppingAtAnyMomentLosesNothing(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				rng := rand.New(rand.NewPCG(seed, 1))
				var rec record
				tries := 0
				h := Each(func(ctx context.Context, _ Lease, m queue.Message) error {
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
						return ctx.Err()
					}
					if strings.HasSuffix(string(m.Payload), "99") {
						if tries++; tries%4 > 0 {
							return errors.New("not now")
						}
					}
					rec.add(m)
					return nil
				})
				for range 10 {
					r.publish(typ, 200)
					p := r.start(handle(h, func(c *Config) { c.Batch = 50 }))
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
					switch rng.IntN(3) {
					case 0:
						p.stop()
					case 1:
						p.cancel()
						<-p.done
					case 2:
						r.locks.Edit(typ, func(*lock.Record) bool { return false })
						time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
						p.stop()
					}
				}
				if err := r.drain(handle(h)); err != nil {
					t.Fatal(err)
				}
				r.settledInOrder(firsts(rec.all()))
			})
		})
	}
}

// A message that blocks its type does not delay a stop, and is left for the next worker.
func TestStopDoesNotWaitForABlockedMessage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		var rec record
		h := Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if string(m.Payload) == "orders 5" {
				return errors.New("never")
			}
			rec.add(m)
			return nil
		})
		p := r.start(handle(h, func(c *Config) { c.RetryMin, c.RetryMax = time.Hour, time.Hour }))
		time.Sleep(time.Minute)
		began := time.Now()
		p.stop()
		if d := time.Since(began); d > time.Second {
			t.Errorf("the stop took %v", d)
		}
		if n := r.pending(); n != 5 || len(rec.all()) != 5 {
			t.Errorf("%d messages are pending, %d handled, want 5 and 5: what is handled is acknowledged", n, len(rec.all()))
		}
		if log := r.log.String(); strings.Count(log, "a message failed; its type waits until it succeeds") != 1 {
			t.Error("no single line of the log says that the type waits")
		}
	})
}

// A stop waits for the batch that is being handled. If it fails, it is not retried, not even in parts.
func TestStopDividesNoBatch(t *testing.T) {
	for name, wrap := range map[string]func(Handler) Handler{
		"batch": func(h Handler) Handler { return h },
		"keyed": func(h Handler) Handler { return Keyed(func(queue.Message) string { return "" }, 2, h) },
	} {
		for _, works := range []bool{false, true} { // the part that is being handled when the pool is stopped
			t.Run(fmt.Sprint(name, " ", works), func(t *testing.T) {
				onRig(t, func(t *testing.T, r *rig) {
					var sizes []int
					stop := make(chan struct{}, 100)
					r.publish(typ, 100)
					p := r.start(handle(wrap(HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error {
						if sizes = append(sizes, len(msgs)); len(sizes) == 1 && works {
							return errors.New("too many")
						}
						stop <- struct{}{}
						time.Sleep(10 * time.Second)
						if works {
							return nil
						}
						return errors.New("never")
					})), deadLetters))
					<-stop
					p.stop()
					want, left := []int{100}, 100
					if works {
						want, left = []int{100, 50}, 50
					}
					if !slices.Equal(sizes, want) || r.pending() != left || len(r.letters()) > 0 {
						t.Errorf("batches of %v messages were handed over, want %v; %d are pending, want %d; %d dead letters", sizes, want, r.pending(), left, len(r.letters()))
					}
				})
			})
		}
	}
}

// An error that a handler returns because its session has ended is no failure of a message: nothing is logged, counted, or put aside.
func TestStoppedHandlerAccusesNoMessage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 5)
		inHandler := make(chan struct{}, 5)
		p := r.start(handle(Each(func(ctx context.Context, _ Lease, _ queue.Message) error {
			inHandler <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}), func(c *Config) { c.OnError, c.MaxAttempts = DeadLetter, 1 }))
		<-inHandler
		p.cancel()
		<-p.done
		if n, log := len(r.letters()), r.log.String(); n > 0 || strings.Contains(log, "a message failed") {
			t.Errorf("%d dead letters; a message is blamed for the stop", n)
		}
		if s := p.Status().of(t, typ); s.LastError != "" {
			t.Errorf("the status says %q", s.LastError)
		}
		if n := r.pending(); n != 5 {
			t.Errorf("%d messages are pending, want 5", n)
		}
	})
}

// deaf is a queue whose fetches continue when their context ends: a stop cancels a fetch, and the answer may still arrive.
type deaf struct{ queue.Queue }

func (d deaf) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	return d.Queue.Fetch(context.WithoutCancel(ctx), typ, after, limit)
}

// A worker whose handler blocks is stopped while the fetch stage is about to reread everything.
func TestWhatWasGivenUpAtAStopIsNotTakenForACopy(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpFetch {
				time.Sleep(2 * shortEvery)
			}
			return queuetest.Fault{}
		})
		p := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error { return errors.New("never") }),
			func(c *Config) { c.Queue = deaf{r.queue} }))
		time.Sleep(time.Minute)
		p.stop()
		if n := 10 - r.pending(); n != 0 {
			t.Errorf("%d messages are lost", n)
		}
	})
}

func TestHandlerLearnsOfALostLock(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1)
		cause := make(chan error, 1)
		tokens := []int64{}
		p := r.start(handle(HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
			tokens = append(tokens, lease.Token())
			if lease.Name() != typ || lease.Check(time.Second) != nil && len(tokens) == 1 {
				t.Error("the lease is not the type's")
			}
			if len(tokens) > 1 {
				return nil
			}
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		})))
		time.Sleep(time.Second)
		r.locks.Edit(typ, func(rec *lock.Record) bool { rec.Hold = nil; rec.Version = lock.NewVersion(); return true })
		if err := <-cause; !errors.Is(err, lock.ErrLost) {
			t.Errorf("the context ended with %v", err)
		}
		time.Sleep(time.Minute)
		p.stop()
		if len(tokens) != 2 || tokens[1] <= tokens[0] || r.pending() != 0 {
			t.Errorf("tokens %v, %d pending", tokens, r.pending())
		}
		if s := p.Stats(); s.Lost != 1 || s.Handled != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestTimeoutOfAHandler(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		slow := map[string]time.Duration{"orders 30": time.Hour}
		for name, wrap := range map[string]func(Handler) Handler{
			"each":  func(h Handler) Handler { return h },
			"keyed": func(h Handler) Handler { return Keyed(func(queue.Message) string { return "" }, 2, h) },
		} {
			var rec record
			h := wrap(Each(func(ctx context.Context, _ Lease, m queue.Message) error {
				select {
				case <-time.After(max(slow[string(m.Payload)], 100*time.Millisecond)): // 100 of them take longer than the timeout
				case <-ctx.Done():
					return ctx.Err()
				}
				rec.add(m)
				return nil
			}))
			if err := r.drain(handle(h, deadLetters, func(c *Config) { c.To = Handling{Handler: h, Timeout: 3 * time.Second} })); err != nil {
				t.Fatal(err)
			}
			if l := r.letters(); len(l) != 1 || !strings.Contains(l[0].Reason, "Timeout of 3s") {
				t.Errorf("%s: dead letters %v", name, l)
			}
			r.settledInOrder(firsts(rec.all()))
			if err := r.queue.RemoveDeadLetters(context.Background(), typ, []queue.ID{r.letters()[0].ID}); err != nil {
				t.Fatal(err)
			}
			r.sent[typ] = nil
			r.publishWith(typ, 100, func(i int) string { return fmt.Sprintf("orders %d", i) })
		}
	})
}

func TestMiddlewareAndEvents(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		var calls []string
		named := func(name string) Middleware {
			return func(h Handler) Handler {
				return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
					calls = append(calls, name)
					return h.Handle(ctx, lease, msgs)
				})
			}
		}
		var rec record
		var events []string
		if err := r.drain(handle(rec.handler(), func(c *Config) {
			c.To = Handling{Handler: rec.handler(), Use: []Middleware{named("outer"), named("inner")}}
			c.Events = func(e Event) {
				if e.Type != typ || e.Token == 0 {
					t.Errorf("event %+v", e)
				}
				events = append(events, fmt.Sprintf("%v %d", e.Kind, e.Messages))
			}
		})); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(calls, []string{"outer", "inner"}) || !slices.Equal(events, []string{"acquired 0", "committed 10", "released 0"}) {
			t.Errorf("calls %q, events %q", calls, events)
		}
		events = nil
		r.publish("files", 10)
		if err := r.drain(func(c *Config) {
			c.Types = []string{"files"}
			c.Events = func(e Event) { events = append(events, fmt.Sprintf("%v %d %d", e.Kind, e.Messages, e.Index)) }
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(events, []string{"acquired 0 0", "committed 10 10", "released 0 0"}) {
			t.Errorf("events %q", events)
		}
	})
}

// A middleware that rolls back wraps the error: then no message of the batch counts as handled.
func TestWrappedBatchErrorPromisesNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		var committed, tx record
		transaction := func(h Handler) Handler {
			return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
				tx.got = nil
				if err := h.Handle(ctx, lease, msgs); err != nil {
					return fmt.Errorf("rolled back: %w", err)
				}
				committed.got = append(committed.got, tx.got...)
				return nil
			})
		}
		h := Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if strings.HasSuffix(string(m.Payload), "42") {
				return Permanent(errors.New("never"))
			}
			tx.add(m)
			return nil
		})
		if err := r.drain(handle(h, deadLetters, func(c *Config) { c.To = Handling{Handler: h, Use: []Middleware{transaction}} })); err != nil {
			t.Fatal(err)
		}
		r.settledInOrder(committed.all())
		if l := r.letters(); len(l) != 1 || l[0].Attempts != 1 || l[0].Reason != "rolled back: 1 of 1 messages failed, the first: never" {
			t.Errorf("letters %+v", l)
		}
	})
}

// Keyed keeps the order of each key, handles keys concurrently up to its bound, and a failing key holds back no other.
func TestKeyed(t *testing.T) {
	const keys, each, atOnce = 7, 40, 3
	key := func(m queue.Message) string { k, _, _ := strings.Cut(string(m.Payload), "/"); return k }
	for _, name := range []string{"each", "batch"} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publishWith(typ, keys*each, func(i int) string { return fmt.Sprintf("%d/%d", i%keys, i/keys) })
				var mu sync.Mutex
				handled, busy, running, most := map[string][]string{}, map[string]bool{}, 0, 0
				tries := 0
				one := func(m queue.Message) error {
					k := key(m)
					mu.Lock()
					if busy[k] {
						t.Errorf("two messages of key %s were handled concurrently", k)
					}
					busy[k] = true
					running++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					busy[k] = false
					running--
					if string(m.Payload) == "3/10" {
						if tries++; tries < 10 { // one call of the batch handler is divided six times
							panic("not now")
						}
						for other, got := range handled {
							if other != "3" && len(got) < each {
								t.Errorf("key %s was held back by another one", other)
							}
						}
					}
					handled[k] = append(handled[k], string(m.Payload))
					return nil
				}
				if err := r.drain(handle(Keyed(key, atOnce, shapes(one)[name]))); err != nil {
					t.Fatal(err)
				}
				if most != atOnce || len(handled) != keys {
					t.Errorf("%d messages handled concurrently, %d keys; want %d and %d", most, len(handled), atOnce, keys)
				}
				for k, got := range handled {
					for i, p := range firsts(got) {
						if want := fmt.Sprintf("%s/%d", k, i); p != want {
							t.Fatalf("key %s: %s in the place of %s", k, p, want)
						}
					}
					if n := len(firsts(got)); n != each {
						t.Errorf("key %s: %d messages", k, n)
					}
				}
			})
		})
	}
}

// narrow blames exactly the first message that fails, and hands over none after it.
func TestNarrowFindsTheMessage(t *testing.T) {
	for n := 1; n <= 33; n++ {
		for bad := range n + 1 {
			msgs := make([]queue.Message, n)
			for i := range msgs {
				msgs[i].Payload = []byte{byte(i)}
			}
			done := map[int]bool{}
			errs := narrow(context.Background(), HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error {
				for _, m := range msgs {
					if int(m.Payload[0]) == bad {
						return errors.New("bad")
					}
				}
				for _, m := range msgs {
					done[int(m.Payload[0])] = true
				}
				return nil
			}), nil, msgs)
			for i, err := range errs {
				switch {
				case i < bad && err != nil, i == bad && (err == nil || errors.Is(err, ErrNotTried)), i > bad && !errors.Is(err, ErrNotTried):
					t.Fatalf("%d messages, %d is bad: error of %d is %v", n, bad, i, err)
				}
			}
			if len(errs) != n || len(done) != bad {
				t.Fatalf("%d messages, %d is bad: %d errors, handled %v", n, bad, len(errs), slices.Collect(maps.Keys(done)))
			}
		}
	}
}

// A handler whose destination has a later holder ends the session. It is called once, and no message counts as failed.
func TestFencedHandlerBlamesNoMessage(t *testing.T) {
	for name, fenced := range map[string]func(n int) error{
		"batch":                    func(int) error { return fmt.Errorf("refused by the store: %w", ErrFenced) },
		"by a token that is lower": func(int) error { return FencedAbove(1) },
		"one of many": func(n int) error {
			errs := make([]error, n)
			errs[0], errs[n-1] = errors.New("cannot be shipped"), storage.ErrFenced
			return &BatchError{errs}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 10)
				var rec record
				first, calls := int64(0), 0
				p := r.start(handle(HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
					if first == 0 || first == lease.Token() {
						first = lease.Token()
						calls++
						return fenced(len(msgs))
					}
					return rec.handler().Handle(ctx, lease, msgs)
				}), func(c *Config) { c.UntilEmpty, c.OnError, c.MaxAttempts = true, DeadLetter, 1 }))
				if err := p.end(); err != nil {
					t.Fatal(err)
				}
				if got := rec.all(); !slices.Equal(got, r.sent[typ]) || len(r.letters()) != 0 {
					t.Errorf("handled %q, %d dead letters", got, len(r.letters()))
				}
				if s := p.Stats(); s.Lost != 1 || s.Sessions != 2 || calls != 1 {
					t.Errorf("%d calls, stats %+v", calls, s)
				}
			})
		})
	}
}

// A destination that has seen a higher token than the restored lock grants gets a token above it, in the same session.
func TestTokenIsRaisedAboveTheDestinations(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		var rec record
		seen := int64(0)
		p := r.start(handle(HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
			if seen == 0 {
				seen = lease.Token() + 1000
			}
			if lease.Token() <= seen {
				return fmt.Errorf("refused by the store: %w", FencedAbove(seen))
			}
			if got := r.pools[0].Status().of(t, typ).Token; got != lease.Token() {
				t.Errorf("the status has token %d, the lease %d", got, lease.Token())
			}
			return rec.handler().Handle(ctx, lease, msgs)
		}), func(c *Config) { c.UntilEmpty, c.OnError, c.MaxAttempts = true, DeadLetter, 1 }))
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if got := rec.all(); !slices.Equal(got, r.sent[typ]) || len(r.letters()) != 0 {
			t.Errorf("handled %q, %d dead letters", got, len(r.letters()))
		}
		if s := p.Stats(); s.Lost != 0 || s.Sessions != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// The pause before a message is retried is random between zero and a bound that doubles, up to RetryMax.
func TestPausesGrowAndAreJittered(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		const attempts, lowest, highest = 60, time.Second, 10 * time.Second
		r.publish(typ, 1)
		var tried []time.Time
		h := Each(func(context.Context, Lease, queue.Message) error {
			if tried = append(tried, time.Now()); len(tried) < attempts {
				return errors.New("not now")
			}
			return nil
		})
		if err := r.drain(handle(h, func(c *Config) { c.RetryMin, c.RetryMax = lowest, highest })); err != nil {
			t.Fatal(err)
		}
		bound, short, long := lowest, 0, 0
		for i := 1; i < len(tried); i++ {
			pause := tried[i].Sub(tried[i-1])
			if pause > bound {
				t.Errorf("pause %d is %v, at most %v is allowed", i, pause, bound)
			}
			if bound == highest && pause < highest/2 {
				short++
			}
			if pause > highest/2 {
				long++
			}
			bound = min(2*bound, highest)
		}
		// The chance that all of 55 pauses up to 10 s are in the same half is 2^-54.
		if len(tried) != attempts || short == 0 || long == 0 {
			t.Errorf("%d attempts; of the pauses up to %v, %d are in the lower half and %d in the upper one", len(tried), highest, short, long)
		}
	})
}

// Messages handled before a failing one are acknowledged while the failing one waits.
func TestHandledMessagesDoNotWaitForTheAcknowledgementOfOthers(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		p := r.start(handle(Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if string(m.Payload) == "orders 4" {
				return errors.New("never")
			}
			return nil
		})))
		time.Sleep(time.Minute)
		if n := r.pending(); n != 6 {
			t.Errorf("%d messages are pending, want the failing one and the 5 after it", n)
		}
		p.stop()
	})
}

// A handler that ends its goroutine, as t.FailNow does, fails like one that panics: nothing is acknowledged, the other messages are handled, and the pool ends.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	for name := range shapes(nil) {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 20)
				var rec record
				p := r.start(handle(shapes(func(m queue.Message) error {
					if string(m.Payload) == "orders 7" {
						runtime.Goexit()
					}
					rec.add(m)
					return nil
				})[name], deadLetters))
				time.Sleep(time.Minute)
				p.stop()
				if l := r.letters(); len(l) != 1 || string(l[0].Payload) != "orders 7" || l[0].Attempts != 3 || !strings.Contains(l[0].Reason, "runtime.Goexit") {
					t.Errorf("dead letters: %v", l)
				}
				if s := p.Stats(); s.Handled != 19 || r.pending() != 0 || len(firsts(rec.all())) != 19 {
					t.Errorf("stats %+v, %d pending, handled %q", s, r.pending(), rec.all())
				}
			})
		})
	}
	t.Run("block", func(t *testing.T) {
		onRig(t, func(t *testing.T, r *rig) {
			r.publish(typ, 1)
			var succeeded atomic.Int32
			p := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error { runtime.Goexit(); return nil }), func(c *Config) {
				c.Observe = func(o Observation) {
					if o.Step == StepHandle && o.Err == nil {
						succeeded.Add(1)
					}
				}
			}))
			time.Sleep(time.Minute)
			p.stop()
			if n := succeeded.Load(); n > 0 {
				t.Errorf("%d calls were observed as successful", n)
			}
			if !strings.Contains(r.log.String(), "handler_test.go") {
				t.Error("the log does not show where the handler ended its goroutine")
			}
			if s := p.Stats(); s.Handled != 0 || s.Retries < 3 || r.pending() != 1 {
				t.Errorf("stats %+v, %d pending", s, r.pending())
			}
		})
	})
}

// A nil *BatchError as an error is not nil. It says nothing about the messages, so none of them is acknowledged.
func TestNilBatchError(t *testing.T) {
	no := func() error { var none *BatchError; return none }
	for name, h := range map[string]Handler{
		"batch":   HandlerFunc(func(context.Context, Lease, []queue.Message) error { return no() }),
		"each":    Each(func(context.Context, Lease, queue.Message) error { return no() }),
		"wrapped": Each(func(context.Context, Lease, queue.Message) error { return fmt.Errorf("ship: %w", no()) }),
		"keyed":   Keyed(func(m queue.Message) string { return string(m.Payload) }, 2, HandlerFunc(func(context.Context, Lease, []queue.Message) error { return no() })),
		"timeout": HandlerFunc(func(ctx context.Context, _ Lease, _ []queue.Message) error { <-ctx.Done(); return no() }),
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 3)
				if err := r.drain(handle(h, deadLetters, func(c *Config) { c.To = Handling{Handler: h, Timeout: time.Second} })); err != nil {
					t.Fatal(err)
				}
				l := r.letters()
				if len(l) != 3 || !strings.Contains(l[0].Reason, "nil *BatchError") {
					t.Errorf("dead letters: %v", l)
				}
			})
		})
	}
}

// A BatchError with too few or too many entries does not say which messages are handled.
func TestBatchErrorOfTheWrongLength(t *testing.T) {
	for _, test := range []struct {
		errs []error
		want string
	}{
		{nil, "a BatchError with 0 entries for 1 message; it needs one per message: none of 0 messages failed"},
		{[]error{nil, nil, errors.New("no stock"), nil}, "a BatchError with 4 entries for 1 message; it needs one per message: 1 of 4 messages failed, the first: no stock"},
	} {
		onRig(t, func(t *testing.T, r *rig) {
			r.publish(typ, 3)
			h := HandlerFunc(func(context.Context, Lease, []queue.Message) error { return &BatchError{test.errs} })
			if err := r.drain(handle(h, deadLetters)); err != nil {
				t.Fatal(err)
			}
			if l := r.letters(); len(l) != 3 || !strings.Contains(l[0].Reason, test.want) {
				t.Errorf("dead letters: %v, want 3 with %s", l, test.want)
			}
		})
	}
}

// A handler without a function would fail for every message.
func TestHandlersWithoutAFunctionPanicAtOnce(t *testing.T) {
	key := func(queue.Message) string { return "" }
	for name, f := range map[string]func(){
		"Each":                 func() { Each(nil) },
		"Keyed, no key":        func() { Keyed(nil, 1, new(record).handler()) },
		"Keyed, no handler":    func() { Keyed(key, 1, nil) },
		"Keyed, empty handler": func() { Keyed(key, 1, HandlerFunc(nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if v := recover(); !strings.HasPrefix(fmt.Sprint(v), "worker: ") {
					t.Errorf("panic: %v", v)
				}
			}()
			f()
		})
	}
}
