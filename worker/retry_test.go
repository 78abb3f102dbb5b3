package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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
		if failed := o.note(step.ctx, &lines, step.err, "fetch"); failed != (step.err != nil) {
			t.Errorf("%v: an error %v", step.err, failed)
		}
		if said := strings.TrimPrefix(log.String(), before); !strings.Contains(said, step.says) || step.says == "" && said != "" {
			t.Errorf("%v: logged %q, want %q", step.err, said, step.says)
		}
	}
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
