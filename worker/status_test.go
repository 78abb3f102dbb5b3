package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// of returns the status of one type, which must be there.
func (s Status) of(t *testing.T, typ string) TypeStatus {
	t.Helper()
	for _, ts := range s.Types {
		if ts.Type == typ {
			return ts
		}
	}
	t.Fatalf("no status of %s: %+v", typ, s)
	return TypeStatus{}
}

func TestStatusTellsWhoHoldsAndWhoWaits(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		began := time.Now()
		first := r.start(nil)
		r.publish(typ, 10)
		time.Sleep(time.Second)
		second := r.start(func(c *Config) { c.Types = []string{typ, "quiet"} })
		time.Sleep(time.Second)
		r.publish(typ, 1) // both see it, one holds the type
		time.Sleep(time.Second)

		s := first.Status()
		if got := s.of(t, typ); got.State != Held || !got.Held || got.Token == 0 || got.Index != 11 || got.Path != testFile ||
			got.LastCommit.Before(began) || got.Appended != 11 || got.Sessions != 1 || got.LastError != "" || got.Stuck {
			t.Errorf("the holder: %+v", got)
		}
		if !s.Running || s.Stopping || s.Outage != nil || s.Instance == "" {
			t.Errorf("the holder's pool: %+v", s)
		}
		s = second.Status()
		if got := s.of(t, typ); got.State != Waiting || got.Held || got.Token != 0 || got.Appended != 0 {
			t.Errorf("the standby: %+v", got)
		}
		if s.of(t, "quiet").State != Waiting || len(s.Types) != 2 {
			t.Errorf("the standby's pool: %+v", s)
		}
		first.stop()
		if s := first.Status(); s.Running || !s.Stopping || s.of(t, typ).State != Waiting || s.of(t, typ).Held {
			t.Errorf("stopped: %+v", s)
		}
	})
}

func TestStatusOfAMessageThatFails(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var works atomic.Bool
		p := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error {
			if !works.Load() {
				return errors.New("the shop is closed")
			}
			return nil
		})))
		r.publish(typ, 1)
		time.Sleep(10 * time.Second)
		got := p.Status().of(t, typ)
		if got.State != Blocked || !got.Held || !strings.Contains(got.LastError, "the shop is closed") || got.LastErrorAt.IsZero() || got.Retries == 0 {
			t.Errorf("while it fails: %+v", got)
		}
		works.Store(true)
		time.Sleep(2 * time.Minute)
		if got := p.Status().of(t, typ); got.State == Blocked || got.Handled != 1 || got.LastCommit.IsZero() || got.LastError == "" {
			t.Errorf("after it: %+v", got)
		}
		p.stop()
	})
}

// If a pause ends with the session, no call follows.
func TestRetriesAreCalls(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var calls uint64
		p := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error {
			calls++
			return errors.New("the shop is closed")
		})))
		r.publish(typ, 1)
		time.Sleep(10 * time.Second)
		p.stop()
		if n := p.Stats().Retries; n < 2 || n != calls-1 {
			t.Errorf("%d retries in %d calls", n, calls)
		}
	})
}

// A type whose messages cannot be acknowledged, or put aside, is blocked until they can be.
func TestStatusOfAnAcknowledgementThatFails(t *testing.T) {
	refuse := inFiles(func(f *Files) { f.Filter = func(queue.Message) error { return errors.New("not wanted") } })
	for op, change := range map[queuetest.Op]func(*Config){queuetest.OpAck: func(*Config) {}, queuetest.OpMoveToDeadLetters: refuse} {
		t.Run(string(op), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.calls(queuetest.Lost, op)
				p := r.start(func(c *Config) { c.IdleTimeout = time.Hour; change(c) })
				r.publish(typ, 1)
				time.Sleep(10 * time.Second)
				got := p.Status().of(t, typ)
				if got.State != Blocked || !got.Held || !strings.Contains(got.LastError, "the answer was lost") || time.Since(got.LastErrorAt) > time.Minute {
					t.Errorf("while it fails: %+v", got)
				}
				r.calls(queuetest.None)
				time.Sleep(10 * time.Second)
				if got := p.Status().of(t, typ); got.State != Held {
					t.Errorf("after it: %+v", got)
				}
				p.stop()
			})
		})
	}
}

func TestStatusOfAFileThatCannotBeUsed(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if err := r.disk.Mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		r.disk.WriteFile(testFile, []byte("this is somebody else's file"))
		p := r.start(func(c *Config) { c.Types = []string{typ, "audit"} })
		r.publish(typ, 1)
		r.publish("audit", 1)
		time.Sleep(5 * time.Second)
		s := p.Status()
		if got := s.of(t, typ); got.State != Refused || got.LastError == "" || got.Held {
			t.Errorf("the damaged one: %+v", got)
		}
		if got := s.of(t, "audit"); got.State != Held || got.Appended != 1 {
			t.Errorf("the other one: %+v", got)
		}
		p.Stop()
		p.end()
	})
}

// A type is no longer refused once its file could be opened, however long the session takes: another type that cannot be served does
// not end the pool.
func TestATypeThatIsServedIsNotRefused(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for _, typ := range []string{typ, "audit"} {
			r.disk.WriteFile(dir+"/"+typ+".fpl", []byte("this is somebody else's file"))
		}
		p := r.start(func(c *Config) { c.Types, c.IdleTimeout = []string{typ, "audit"}, time.Hour })
		r.publish(typ, 1)
		time.Sleep(time.Minute)
		if got := p.Status().of(t, typ); got.State != Refused {
			t.Errorf("with a foreign file: %+v", got)
		}
		if err := r.disk.Remove(testFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := p.Status().of(t, typ); got.State != Held || got.Appended != 1 {
			t.Errorf("after the foreign file was removed: %+v", got)
		}
		r.publish("audit", 1)
		time.Sleep(time.Minute)
		if s := p.Status(); !s.Running || s.of(t, "audit").State != Refused || s.of(t, typ).State != Held {
			t.Errorf("another type is refused: %+v", s)
		}
		r.publish(typ, 1)
		time.Sleep(time.Minute)
		r.complete(typ)
		p.Stop()
		p.end()
	})
}

// A type that this pool could not serve is no longer blocked, or refused, when there is nothing left to serve: it was purged, or drained by
// another pool.
func TestWhatOthersHaveDrainedIsNotBlocked(t *testing.T) {
	for want, fail := range map[State]func(r *rig) (repair func()){
		Blocked: func(r *rig) func() { r.disk.SetFree(0); return func() { r.disk.SetFree(1 << 30) } },
		Refused: func(r *rig) func() {
			r.disk.WriteFile(testFile, []byte("this is somebody else's file"))
			return func() { r.disk.Remove(testFile) }
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				repair := fail(r)
				p := r.start(func(c *Config) { c.Types = []string{typ, "audit"} })
				time.Sleep(time.Second)
				r.publish(typ, 1)
				for p.Status().of(t, typ).State != want {
					time.Sleep(time.Millisecond)
				}
				if _, err := queue.Purge(t.Context(), r.queue, typ, time.Time{}, false); err != nil {
					t.Fatal(err)
				}
				repair()
				time.Sleep(5 * time.Minute)
				if got := p.Status().of(t, typ); got.State != Waiting || got.LastError == "" {
					t.Errorf("after a purge: %+v", got)
				}
				p.stop()
			})
		})
	}
}

// The errors of a pool are in the order of the types.
func TestRefusalsAreSorted(t *testing.T) {
	b, want := newBook(), ""
	for i := range 10 {
		typ := fmt.Sprintf("type-%d", i)
		b.setRefused(typ, errors.New(typ))
		want += typ + "\n"
	}
	if got := b.refusals().Error() + "\n"; got != want {
		t.Errorf("%q", got)
	}
}

func TestStatusCountsLossesByCause(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.publish(typ, 1)
		time.Sleep(time.Second)
		if err := p.locker.ForceRelease(context.Background(), typ, "a test"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		r.publish(typ, 1)
		time.Sleep(10 * time.Second)
		r.locks.Edit(typ, func(rec *lock.Record) bool { // another holder took it
			if rec.Hold != nil {
				other := *rec.Hold
				other.ID = lock.NewHoldID()
				rec.Hold, rec.Version = &other, lock.NewVersion()
			}
			return true
		})
		time.Sleep(time.Minute)
		got := p.Status().of(t, typ)
		if got.Losses[CauseForced] != 1 || got.Losses[CauseGone] != 1 || len(got.Losses) != 2 || got.Stats.Lost != 2 || got.Appended != 2 {
			t.Errorf("%+v", got)
		}
		p.stop()
		if after := p.Status().of(t, typ); len(after.Losses) != len(got.Losses) {
			t.Errorf("a stop counts as a loss: %v", after.Losses)
		}
	})
}

// A session in which no step ends for minutes is stuck; with a slow handler or an unreachable server it is not.
func TestStatusTellsWhatIsStuck(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		slow := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error {
			time.Sleep(time.Hour)
			return nil
		})))
		r.publish(typ, 1)
		time.Sleep(30 * time.Minute)
		if got := slow.Status().of(t, typ); got.State != Held || got.Stuck {
			t.Errorf("while the handler works: %+v", got)
		}
		time.Sleep(time.Hour)
		slow.stop()

		hung := make(chan struct{})
		p := r.start(inFiles(func(f *Files) { f.Filter = func(queue.Message) error { <-hung; return nil } }))
		r.publish(typ, 1)
		time.Sleep(30 * time.Minute)
		if got := p.Status().of(t, typ); !got.Stuck {
			t.Errorf("while a step hangs: %+v", got)
		}
		close(hung)
		time.Sleep(time.Second)
		if got := p.Status().of(t, typ); got.Stuck {
			t.Errorf("after that: %+v", got)
		}
		p.stop()
	})
}

// A type whose operations fail and are retried is blocked and not stuck: another process would fail, too.
func TestWhatIsRetriedIsNotStuck(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.calls(queuetest.Unreachable, queuetest.OpMoveToDeadLetters)
		p := r.start(inFiles(func(f *Files) { f.Filter = func(queue.Message) error { return errors.New("not wanted") } }))
		r.publish(typ, 1)
		time.Sleep(30 * time.Minute)
		if got := p.Status().of(t, typ); got.State != Blocked || got.Stuck {
			t.Errorf("%+v", got)
		}
		r.calls(queuetest.None)
		p.stop()
	})
}

func TestStatusInJSON(t *testing.T) {
	s := Status{Instance: "a", Running: true, Types: []TypeStatus{{Type: typ, State: Held, Stats: Stats{Appended: 3}}}}
	for _, outage := range []error{nil, errors.New("no route")} {
		s.Outage = outage
		b, err := json.Marshal(s)
		var got struct {
			Instance string
			Running  bool
			Types    []struct {
				State    State
				Appended int
			}
			Outage *string
		}
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil || got.Instance != "a" || !got.Running || len(got.Types) != 1 || got.Types[0].State != Held || got.Types[0].Appended != 3 {
			t.Errorf("%s, %v", b, err)
		}
		if (got.Outage == nil) != (outage == nil) || outage != nil && *got.Outage != outage.Error() {
			t.Errorf("outage %v: %s", outage, b)
		}
	}
}

func TestStatusTellsOfAnOutage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for _, kind := range []queuetest.Kind{queuetest.Unreachable, queuetest.Hang} {
			p := r.start(func(c *Config) { c.Types = []string{typ, "audit"} })
			time.Sleep(time.Second)
			if s := p.Status(); s.Outage != nil {
				t.Errorf("%v while the server answers", s.Outage)
			}
			r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
				if op == queuetest.OpDepth || op == queuetest.OpFetch || op == queuetest.OpPendingTypes {
					return queuetest.Fault{Kind: kind}
				}
				return queuetest.Fault{}
			})
			time.Sleep(time.Minute)
			if s := p.Status(); s.Outage == nil {
				t.Errorf("no outage while the server does not answer (fault %v)", kind)
			}
			r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
			if kind != queuetest.Hang { // a hanging operation is ended only by its context
				time.Sleep(time.Minute)
				if s := p.Status(); s.Outage != nil {
					t.Errorf("%v after the outage", s.Outage)
				}
			}
			p.cancel()
			<-p.done
		}
	})
}

func TestObservationsTellEveryStep(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		messages, times := map[Step]int{}, map[Step]int{}
		observe := func(c *Config) {
			c.Observe = func(o Observation) {
				mu.Lock()
				defer mu.Unlock()
				if o.Type != typ || o.Took < 0 || o.Err != nil {
					t.Errorf("%+v", o)
				}
				messages[o.Step] += o.Messages
				times[o.Step]++
			}
		}
		r.publish(typ, 10)
		if err := r.drain(observe); err != nil {
			t.Fatal(err)
		}
		for _, step := range []Step{StepFetch, StepAppend, StepSync, StepAck} {
			if messages[step] != 10 {
				t.Errorf("%v: %d messages, want 10", step, messages[step])
			}
		}
		if times[StepAcquire] != 1 || times[StepHandle] != 0 {
			t.Errorf("%d acquisitions, %d calls of a handler", times[StepAcquire], times[StepHandle])
		}
		r.publish(typ, 5)
		var got record
		if err := r.drain(handle(got.handler(), observe)); err != nil {
			t.Fatal(err)
		}
		if messages[StepHandle] != 5 || messages[StepAck] != 15 || messages[StepAppend] != 10 {
			t.Errorf("with a handler: %v", messages)
		}
	})
}
