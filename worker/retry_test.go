package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/rs/zerolog"
)

// calls makes the given operations fail with kind from now on, and the others work.
func (r *rig) calls(kind queuetest.Kind, ops ...queuetest.Op) {
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		if slices.Contains(ops, op) {
			return queuetest.Fault{Kind: kind}
		}
		return queuetest.Fault{}
	})
}

// Stopping a worker during an outage does not log that the outage has ended.
func TestStopDuringAnOutageDoesNotEndIt(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1)
		p := r.start(nil)
		time.Sleep(time.Second)
		r.calls(queuetest.Unreachable, queuetest.OpFetch, queuetest.OpNotifications, queuetest.OpMembers)
		r.publish(typ, 1)
		time.Sleep(time.Minute)
		r.calls(queuetest.Hang, queuetest.OpFetch, queuetest.OpNotifications, queuetest.OpMembers)
		time.Sleep(time.Second)
		p.stop()
		if log := r.log.String(); !strings.Contains(log, "cannot fetch") || strings.Contains(log, " again") {
			t.Errorf("the log says that something works again, or not that it did not:\n%s", log)
		}
	})
}

// An operation that a lost lease, or a cancellation, cancelled did not fail.
func TestWhatIsCalledOffIsNoOutage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1)
		p := r.start(nil)
		time.Sleep(time.Second)
		r.calls(queuetest.Hang, queuetest.OpFetch)
		r.publish(typ, 1)
		time.Sleep(time.Second)
		if err := p.locker.ForceRelease(t.Context(), typ, "a test"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		p.cancel()
		<-p.done
		if log := r.log.String(); !strings.Contains(log, "lock lost") || strings.Contains(log, "retrying until it succeeds") {
			t.Errorf("a cancelled operation is retried:\n%s", log)
		}
	})
}

func TestOutageIsNotedOnce(t *testing.T) {
	var log syncLog
	lines := zerolog.New(&log)
	live := t.Context()
	ended, cancel := context.WithCancelCause(live)
	lost := errors.New("lock lost")
	cancel(lost)
	var all outages
	var o outage
	for _, step := range []struct {
		ctx  context.Context
		err  error
		says string
	}{
		{live, nil, ""},
		{ended, lost, ""},
		{live, errors.New("no route"), "cannot fetch; retrying until it succeeds"},
		{live, errors.New("no route"), ""},
		{ended, lost, ""},
		{ended, context.Canceled, ""},
		{live, context.Canceled, ""},
		{live, nil, "can fetch again"},
		{ended, context.Canceled, ""},
	} {
		before := log.String()
		if failed := all.note(step.ctx, &o, &lines, step.err, "fetch"); failed != (step.err != nil) {
			t.Errorf("%v: an error %v", step.err, failed)
		}
		if said := strings.TrimPrefix(log.String(), before); !strings.Contains(said, step.says) || step.says == "" && said != "" {
			t.Errorf("%v: logged %q, want %q", step.err, said, step.says)
		}
	}
}

// Each retry on a full disk is a session, which opens the file and fails. The log has one error, then at most one at growing intervals, and
// one line when the type works again.
func TestFullDiskIsLoggedAtGrowingIntervals(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(func(c *Config) { info := c.Logger.Level(zerolog.InfoLevel); c.Logger = &info })
		r.publish(typ, 10)
		time.Sleep(time.Minute)
		r.disk.SetFree(64 << 10) // the fence of each session fits, a batch does not
		before := r.log.String()
		r.publishWith(typ, 5000, func(i int) string { return fmt.Sprintf("%d %02000d", i, 0) })
		time.Sleep(time.Hour)
		said := strings.TrimPrefix(r.log.String(), before)
		if n := strings.Count(said, "the type continues when there is room"); n < 5 || n > 10 { // after 0, 10, 30, 70 s and so on
			t.Errorf("%d errors in an hour", n)
		}
		for line := range strings.Lines(said) {
			if strings.Contains(line, "no room") && !strings.Contains(line, "free some space on that volume") {
				t.Errorf("no remedy: %s", line)
			}
		}
		if n := strings.Count(said, "\n") - strings.Count(said, `"level":"error"`); n > 1 { // the session that was open has ended
			t.Errorf("%d other lines: %s", n, said)
		}
		before = r.log.String()
		r.disk.SetFree(1 << 30)
		time.Sleep(time.Minute)
		if said := strings.TrimPrefix(r.log.String(), before); strings.Count(said, "\n") != 1 || !strings.Contains(said, "the type works again") {
			t.Errorf("once there is room: %s", said)
		}
		p.stop()
		r.complete(typ)
	})
}

// A session on a full disk may leave durable messages that it could not acknowledge. The next session acknowledges them, and the disk is as full as
// before.
func TestTypeOnAFullDiskDoesNotWorkAgain(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var refuse atomic.Bool
		refuse.Store(true)
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			switch {
			case op == queuetest.OpFetch: // so that batches are not written together
				time.Sleep(100 * time.Millisecond)
			case op == queuetest.OpAck && refuse.Load():
				return queuetest.Fault{Kind: queuetest.Unreachable}
			}
			return queuetest.Fault{}
		})
		r.publish(typ, 10)
		r.publishWith(typ, 50, func(i int) string { return fmt.Sprintf("%d %020000d", i, 0) })
		r.disk.SetFree(64 << 10)
		p := r.start(func(c *Config) { c.Batch = 10 })
		time.Sleep(2 * time.Second)
		if n := p.Stats(); n.Appended != 10 || n.Sessions < 2 {
			t.Fatalf("%d messages are durable after %d sessions; want 10 after several", n.Appended, n.Sessions)
		}
		refuse.Store(false)
		before := r.log.String()
		time.Sleep(time.Minute)
		if said := strings.TrimPrefix(r.log.String(), before); !strings.Contains(said, "no room") || strings.Contains(said, "works again") {
			t.Errorf("while there is no room: %s", said)
		}
		if d, err := r.queue.Depth(t.Context(), typ, 1000); err != nil || d.Pending != 50 {
			t.Errorf("%d messages are pending, %v; want 50", d.Pending, err)
		}
		if s := p.Status().Types[0]; s.State != Blocked {
			t.Errorf("the type is %s, want blocked", s.State)
		}
		before = r.log.String()
		r.disk.SetFree(1 << 30)
		time.Sleep(time.Minute)
		if said := strings.TrimPrefix(r.log.String(), before); strings.Count(said, "the type works again") != 1 {
			t.Errorf("once there is room: %s", said)
		}
		p.stop()
		r.complete(typ)
	})
}

// While nothing works, the log has one warning, whatever fails, and one line when something works again. An operation that fails while others
// work has a warning of its own.
func TestOutageOfEverythingIsNotedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncLog
		lines := zerolog.New(&log)
		var all outages
		ops := map[string]*outage{"fetch": {}, "look": {}, "promote": {}}
		away := errors.New("no route")
		for i, step := range []struct {
			op   string
			err  error
			says string
		}{
			{"fetch", nil, ""},
			{"fetch", away, "cannot fetch"},
			{"look", away, ""},
			{"promote", away, ""},
			{"look", away, ""},
			{"look", nil, "can look again"},
			{"fetch", away, ""},   // sent before
			{"promote", away, ""}, // sent before
			{"fetch", nil, ""},
			{"look", nil, ""},
			{"promote", away, "cannot promote"},
			{"look", away, ""}, // perhaps the same cause: nothing has worked since
			{"fetch", nil, ""},
			{"promote", away, ""},
			{"look", away, ""},
			{"look", away, "cannot look"},
			{"look", nil, "can look again"},
			{"fetch", nil, ""},
			{"promote", nil, "can promote again"},
		} {
			time.Sleep(time.Second)
			before := log.String()
			if failed := all.note(t.Context(), ops[step.op], &lines, step.err, step.op); failed != (step.err != nil) {
				t.Errorf("step %d: failed: %v", i, failed)
			}
			if said := strings.TrimPrefix(log.String(), before); !strings.Contains(said, step.says) || step.says == "" && said != "" {
				t.Errorf("step %d, %s, %v: logged %q, want %q", i, step.op, step.err, said, step.says)
			}
		}
	})
}

func TestOutageOfTheServerIsOneWarning(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := []string{"a", "b", "c", "d"}
		r.start(func(c *Config) { c.Types = append([]string{"other-*"}, types...) })
		publish := func() {
			for _, typ := range types {
				r.publish(typ, 1)
			}
		}
		publish()
		time.Sleep(time.Second)
		before := r.log.String()
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{Kind: queuetest.Unreachable} })
		r.locks.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{Refuse: true} })
		time.Sleep(time.Minute)
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		r.locks.Inject(nil)
		time.Sleep(time.Minute)
		publish()
		time.Sleep(time.Minute)
		said := strings.TrimPrefix(r.log.String(), before)
		if n := strings.Count(said, "retrying until it succeeds"); n != 1 {
			t.Errorf("%d warnings", n)
		}
		if n := strings.Count(said, " again"); n != 1 {
			t.Errorf("%d operations work again", n)
		}
		if n := strings.Count(said, "lock lost"); n > len(types) {
			t.Errorf("%d locks were lost", n)
		}
		t.Log(said)
	})
}

// Nor does it make the server count as unreachable.
func TestCalledOffQuestionIsNoOutage(t *testing.T) {
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("lock lost"))
	b := newBook()
	b.noteAnswer(ended, typ, context.Cause(ended))
	if s := b.status(time.Hour); s.Outage != nil {
		t.Errorf("an outage: %v", s.Outage)
	}
	b.noteAnswer(t.Context(), typ, errors.New("no route"))
	b.noteAnswer(ended, typ, context.Cause(ended))
	if s := b.status(time.Hour); s.Outage == nil || s.of(t, typ).LastError != "no route" {
		t.Errorf("the outage has ended: %+v", s)
	}
}
