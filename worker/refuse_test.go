package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
)

// no7 refuses payloads that end in 7.
func no7(m queue.Message) error {
	if strings.HasSuffix(string(m.Payload), "7") {
		return errors.New("ends in 7")
	}
	return nil
}

// inFile returns the payloads of the messages in the type's file, and how many entries are skipped.
func (r *rig) inFile() (got []string, skipped int) {
	r.t.Helper()
	contents(r.t, r.disk, testFile) // in order, without gaps
	_, err := storage.Verify(context.Background(), testFile, storage.VerifyOptions{FS: r.disk, Deep: true, Visit: func(rec storage.Record) error {
		if rec.Kind == storage.KindSkipped {
			skipped++
		} else {
			got = append(got, string(rec.Payload))
		}
		return nil
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	return got, skipped
}

func TestFilteredMessagesAreSkippedAndBuried(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		filter := func(c *Config) { c.Filter = no7 }
		p := r.start(func(c *Config) { c.UntilEmpty = true; filter(c) })
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		got, skipped := r.inFile()
		r.settledInOrder(got)
		if s := p.Stats(); skipped != 10 || len(r.letters()) != 10 || s.Appended != 90 || s.Dead != 10 {
			t.Errorf("%d entries are skipped, %d letters, stats %+v", skipped, len(r.letters()), s)
		}
		if l := r.letters()[0]; l.Reason != "ends in 7" || l.Worker == "" {
			t.Errorf("letter %+v", l)
		}
		// Nothing is buried twice, and the type goes on.
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.inFile(); len(got) != 100 {
			t.Errorf("%d messages", len(got))
		}
	})
}

// dieBeforeBurying runs a worker that dies between the skip entry and the dead letter, and another one after it. It returns how many
// messages are neither in the file nor dead.
func dieBeforeBurying(r *rig, change func(*Config)) (lost int) {
	r.publish(typ, 100)
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		if op == queuetest.OpBury {
			return queuetest.Fault{Kind: queuetest.Hang}
		}
		return queuetest.Fault{}
	})
	p := r.start(func(c *Config) { c.Filter = no7 })
	time.Sleep(time.Second)
	p.cancel()
	<-p.done
	if _, skipped := r.inFile(); skipped == 0 || len(r.letters()) > 0 {
		r.t.Fatalf("%d skip entries, %d letters: this is not the moment meant", skipped, len(r.letters()))
	}
	r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
	if err := r.drain(change); err != nil { // it needs no filter for that
		r.t.Fatal(err)
	}
	got, _ := r.inFile()
	return len(r.sent[typ]) - len(got) - len(r.letters())
}

// Crash row: between the skip entry and the dead letter. The next holder buries the message.
func TestSkippedMessageIsBuriedByTheNextHolder(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if n := dieBeforeBurying(r, func(*Config) {}); n != 0 {
			t.Errorf("%d messages are lost", n)
		}
	})
}

func TestMutantThatForgetsSkippedMessagesLosesThem(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if n := dieBeforeBurying(r, func(c *Config) { c.mutant.forgetSkipped = true }); n == 0 {
			t.Error("nothing is lost: the scenario proves nothing")
		}
	})
}

// dieBeforeBuryingAtALimit is dieBeforeBurying when the file has reached its size limit with what it skipped: its successor would begin
// with a checkpoint.
func dieBeforeBuryingAtALimit(r *rig, change func(*Config)) (lost int) {
	pad := strings.Repeat("x", 2000)
	r.publishWith(typ, 1000, func(i int) string { return fmt.Sprintf("%s %d", pad, i) })
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		if op == queuetest.OpBury {
			return queuetest.Fault{Kind: queuetest.Hang}
		}
		return queuetest.Fault{}
	})
	limit := func(c *Config) { c.Filter, c.MaxFileBytes = no7, 1<<20 }
	p := r.start(func(c *Config) { limit(c); change(c) })
	time.Sleep(time.Second)
	p.cancel()
	<-p.done
	r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
	if err := r.drain(limit); err != nil {
		r.t.Fatal(err)
	}
	messages := 0
	for _, p := range r.chain(typ) {
		if strings.HasPrefix(p, pad) { // the others are reasons
			messages++
		}
	}
	return len(r.sent[typ]) - messages - len(r.letters())
}

func TestSkippedMessagesAreBuriedBeforeACheckpoint(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if n := dieBeforeBuryingAtALimit(r, func(*Config) {}); n != 0 {
			t.Errorf("%d messages are lost", n)
		}
	})
}

func TestMutantThatBuriesBehindACheckpointLosesMessages(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		if n := dieBeforeBuryingAtALimit(r, func(c *Config) { c.mutant.buryLate = true }); n == 0 {
			t.Error("nothing is lost: the scenario proves nothing")
		}
	})
}

// Whatever the queue does, and with crashes, size limits and takeovers: every message is in the file or dead, in order.
func TestRefusedMessagesUnderFaultsAreNotLost(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var calls atomic.Int64
		r.disturb(func(op queuetest.Op, k int) queuetest.Fault {
			n := calls.Add(1)
			switch {
			case op == queuetest.OpInsert, op == queuetest.OpRegisterType, op == queuetest.OpNow, n > 3000, n%3 > 0:
				return queuetest.Fault{}
			case n%2 == 0:
				return queuetest.Fault{Kind: queuetest.LostAnswer}
			}
			return queuetest.Fault{Kind: queuetest.Partial, Keep: k / 2}
		})
		for range 20 {
			r.publish(typ, 100)
			p := r.start(func(c *Config) { c.Filter, c.Batch = no7, 10 })
			time.Sleep(300 * time.Millisecond)
			p.cancel()
			<-p.done
		}
		if err := r.drain(func(c *Config) { c.Filter = no7 }); err != nil {
			t.Fatal(err)
		}
		got, skipped := r.inFile()
		r.settledInOrder(got)
		if skipped != 200 || len(r.letters()) != 200 {
			t.Errorf("%d entries are skipped, %d letters, want 200", skipped, len(r.letters()))
		}
	})
}

// A foreign publisher may store what the file cannot take.
func (r *rig) putTooLarge(producer, n uint64) {
	r.t.Helper()
	m := *message(producer, n)
	m.Payload, m.Headers = fmt.Appendf(nil, "too large"), map[string]string{"k": strings.Repeat("v", storage.MaxHeaders+1)}
	r.queue.Queue.(*queuetest.Memory).Plant(typ, m)
}

func TestMessageThatTheFileCannotTake(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.put(7, 1, 2)
		r.putTooLarge(7, 3)
		r.put(7, 4, 5)
		p := r.start(nil)
		time.Sleep(time.Minute)
		p.stop()
		if n := r.pending(); n == 0 || !strings.Contains(r.log.String(), "--on-error dead") {
			t.Errorf("%d messages are pending; the log must tell what to do", n)
		}
		if err := r.drain(func(c *Config) { c.OnError = DeadLetter }); err != nil {
			t.Fatal(err)
		}
		got, skipped := r.inFile()
		if want := []string{"7/1", "7/2", "7/4", "7/5"}; !slices.Equal(got, want) || skipped != 1 || r.pending() != 0 {
			t.Errorf("in the file: %q and %d skipped, %d pending", got, skipped, r.pending())
		}
		if l := r.letters(); len(l) != 1 || !strings.Contains(l[0].Reason, "headers") {
			t.Errorf("letters: %+v", l)
		}
	})
}

// The key of what the file cannot take is free for a message that is published again, in the same session and for the next one.
func TestMessageThatTheFileCannotTakeDoesNotOccupyItsKey(t *testing.T) {
	for _, restart := range []bool{false, true} {
		onRig(t, func(t *testing.T, r *rig) {
			dead := func(c *Config) { c.OnError, c.IdleTimeout = DeadLetter, time.Hour }
			m := queue.Message{ID: queue.NewID(time.Now(), 7, 1), Payload: []byte("too large"),
				Headers: map[string]string{"k": strings.Repeat("v", storage.MaxHeaders+1), queue.KeyHeader: "7"}}
			r.queue.Queue.(*queuetest.Memory).Plant(typ, m)
			p := r.start(dead)
			time.Sleep(5 * time.Second)
			if l := r.letters(); len(l) != 1 || !strings.Contains(l[0].Reason, "headers") {
				t.Fatalf("letters: %+v", l)
			}
			if restart {
				p.stop()
				p = r.start(dead)
			}
			r.publishKeyed("again", "7")
			time.Sleep(5 * time.Second)
			p.stop()
			if got, skipped := r.inFile(); !slices.Equal(got, []string{"again 7"}) || skipped != 1 || r.pending() != 0 {
				t.Errorf("restart %v: the file holds %q and %d skip entries, %d pending", restart, got, skipped, r.pending())
			}
		})
	}
}

// Headers do not count in the limits of a fetch; the file's batches are smaller all the same.
func TestBatchThatIsTooLargeByItsHeaders(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		headers := map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-1)}
		pub, err := queue.NewPublisher(context.Background(), r.queue, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.pub = pub
		var msgs []queue.Message
		for i := range 1100 {
			p := fmt.Sprint(i)
			r.sent[typ] = append(r.sent[typ], p)
			msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(p), Headers: headers})
		}
		for i, res := range pub.PublishAll(context.Background(), msgs) {
			if res.Status != queue.Stored {
				t.Fatalf("message %d: %v", i, res.Err)
			}
		}
		if err := r.drain(func(c *Config) { c.Batch = 1100 }); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
	})
}

func TestPanickingFilterBlocksOrPutsAside(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		boom := func(m queue.Message) error {
			if string(m.Payload) == "orders 5" {
				panic("boom")
			}
			return nil
		}
		p := r.start(func(c *Config) { c.Filter = boom })
		time.Sleep(time.Minute)
		p.stop()
		if r.pending() == 0 || len(r.letters()) > 0 || !strings.Contains(r.log.String(), "refuse_test.go") {
			t.Errorf("%d pending, %d letters; the log must show where", r.pending(), len(r.letters()))
		}
		if err := r.drain(func(c *Config) { c.Filter, c.OnError = boom, DeadLetter }); err != nil {
			t.Fatal(err)
		}
		got, _ := r.inFile()
		r.settledInOrder(got)
		if l := r.letters(); len(l) != 1 || l[0].Reason != "panic: boom" {
			t.Errorf("letters %+v", l)
		}
	})
}
