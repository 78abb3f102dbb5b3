package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/rs/zerolog"
)

// processes runs one worker process after the other until one has drained the type, most at most. If kill says so, a process dies while it
// handles that message: it writes nothing more. processes returns how many died, and the handled messages.
func processes(r *rig, most int, kill func(m queue.Message) bool, change func(*Config)) (kills int, handled []string) {
	var rec record
	for range most {
		var dead atomic.Bool
		died := make(chan struct{})
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if dead.Load() {
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		h := HandlerFunc(func(ctx context.Context, _ Lease, msgs []queue.Message) error {
			for _, m := range msgs {
				if kill(m) {
					dead.Store(true)
					close(died)
					<-ctx.Done()
					return ctx.Err()
				}
			}
			rec.add(msgs...)
			return nil
		})
		p := r.start(handle(h, func(c *Config) { c.UntilEmpty, c.Batch = true, 10 }, change))
		select {
		case <-died:
			kills++
			p.cancel()
			<-p.done
		case <-p.done:
			p.cancel()
			if p.err != nil {
				r.t.Fatal(p.err)
			}
			return kills, rec.all()
		case <-time.After(time.Hour):
			p.stop()
			return kills, rec.all()
		}
	}
	return kills, rec.all()
}

func isPoison(m queue.Message) bool { return string(m.Payload) == "orders 55" }

// Crash row: a message kills the process. It is found, tried by itself, and put aside; no other message is.
func TestMessageThatKillsTheProcessIsPutAside(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		began := time.Now()
		kills, handled := processes(r, 10, isPoison, deadLetters)
		if d := time.Since(began); d >= DefaultGapTimeout { // each death costs a lease
			t.Errorf("took %v: messages that other sessions settled must not be waited for", d)
		}
		r.settledInOrder(firsts(handled))
		l := r.letters()
		if len(l) != 1 || string(l[0].Payload) != "orders 55" || !strings.Contains(l[0].Reason, "process ended") {
			t.Errorf("letters %+v", l)
		}
		if kills > 3+aloneDeaths { // three times in a batch: an acknowledgement may be lost with the process
			t.Errorf("the process was killed %d times", kills)
		}
	})
}

// With OnError Block it stays where it is, and the messages before it are handled.
func TestMessageThatKillsTheProcessBlocks(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		_, handled := processes(r, 10, isPoison, func(*Config) {})
		if got := firsts(handled); !slices.Equal(got, r.sent[typ][:55]) || len(r.letters()) > 0 {
			t.Errorf("%d messages were handled, want 55; %d letters", len(got), len(r.letters()))
		}
	})
}

// If a process is killed again and again for other reasons, no message is blamed.
func TestKillsForOtherReasonsAccuseNoMessage(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		calls := 0
		kills, handled := processes(r, 200, func(queue.Message) bool { calls++; return calls%7 == 0 }, deadLetters)
		r.settledInOrder(firsts(handled))
		if kills < 10 || len(r.letters()) > 0 {
			t.Errorf("%d kills, %d letters", kills, len(r.letters()))
		}
	})
}

// The healthy path costs one read and one write of the note per session.
func TestHolderNoteCostsOneWritePerSession(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for i := range 3 {
			r.publish(typ, 1000)
			var rec record
			if err := r.drain(handle(rec.handler(), func(c *Config) { c.Batch = 10 })); err != nil {
				t.Fatal(err)
			}
			if reads, writes := r.queue.Calls(queuetest.OpHolderNote), r.queue.Calls(queuetest.OpSetHolderNote); reads != i+1 || writes != i+1 {
				t.Errorf("after %d sessions: %d reads, %d writes", i+1, reads, writes)
			}
		}
	})
}

// Sessions that begin without messages, as after a handoff, raise no suspicion, however many there are in a row.
func TestSessionsWithoutMessagesAreNotSuspicious(t *testing.T) {
	log := zerolog.Nop()
	q := queuetest.NewMemory()
	for range 3 {
		p := poison{queue: q, typ: typ, log: &log, batch: 10}
		if err := p.begin(t.Context()); err != nil || p.oneByOne > 0 {
			t.Errorf("%d messages are handled one at a time (%v)", p.oneByOne, err)
		}
	}
}

// careful begins a session that hands over one message at a time, because two sessions have begun with the first pending message.
func careful(t *testing.T, q notes, instance string) *poison {
	t.Helper()
	log := zerolog.Nop()
	for range 2 {
		p := &poison{queue: q, typ: typ, log: &log, batch: 10, instance: instance}
		if err := p.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p.oneByOne > 0 {
			return p
		}
	}
	t.Fatal("no session is careful")
	return nil
}

// onlyMessage returns a queue with one message, and its ID.
func onlyMessage(t *testing.T) (*queuetest.Memory, queue.ID) {
	t.Helper()
	m := *message(1, 1)
	m.Type = typ
	q := queuetest.NewMemory()
	if err := q.Insert(t.Context(), typ, []queue.Message{m}); err != nil {
		t.Fatal(err)
	}
	return q, m.ID
}

// trying has a session hand over a message.
func trying(t *testing.T, p *poison, id queue.ID) *poison {
	t.Helper()
	if err := p.trying(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return p
}

// A pool whose session lost its lock while it handled a message by itself knows that its process is alive. Another pool does not.
func TestALostLockIsNoDeathForItsPool(t *testing.T) {
	for successor, deaths := range map[string]int{"a": 0, "b": 1} {
		q, id := onlyMessage(t)
		trying(t, careful(t, q, "a"), id).end(lock.ErrLost)
		if n, _ := careful(t, q, successor).killer(id); n != deaths {
			t.Errorf("%q counts %d deaths of %q", successor, n, "a")
		}
	}
}

// A message whose handler returned an error did not kill the process, even if something else does in the pause before the next attempt.
func TestAMessageThatFailsIsNotBlamedForADeath(t *testing.T) {
	q, id := onlyMessage(t)
	trying(t, careful(t, q, "a"), id).returned(t.Context(), 0)
	if n, _ := careful(t, q, "b").killer(id); n != 0 {
		t.Errorf("%d deaths were noted", n)
	}
}

// A session that was fenced has a successor, whose note it does not touch.
func TestFencedSessionLeavesTheNoteOfItsSuccessor(t *testing.T) {
	q, id := onlyMessage(t)
	fenced, successor := careful(t, q, "a"), careful(t, q, "b")
	trying(t, successor, id)
	fenced.end(fmt.Errorf("the handler: %w", ErrFenced))
	if n, _ := careful(t, q, "c").killer(id); n != 1 {
		t.Errorf("%d deaths of the successor were noted", n)
	}
}
