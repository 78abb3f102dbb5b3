package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
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
		filter := inFiles(func(f *Files) { f.Filter = no7 })
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
		// Nothing is buried twice, and the type continues.
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.inFile(); len(got) != 100 {
			t.Errorf("%d messages", len(got))
		}
	})
}

// Crash row: between the skip entry and the dead letter. The next holder buries the message with the same reason, without a filter.
func TestSkippedMessageIsBuriedByTheNextHolder(t *testing.T) { onRig(t, dieBeforeBurying) }

func dieBeforeBurying(t *testing.T, r *rig) {
	r.publish(typ, 100)
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		if op == queuetest.OpMoveToDeadLetters {
			return queuetest.Fault{Kind: queuetest.Hang}
		}
		return queuetest.Fault{}
	})
	p := r.start(inFiles(func(f *Files) { f.Filter = no7 }))
	time.Sleep(time.Second)
	p.cancel()
	<-p.done
	if _, skipped := r.inFile(); skipped == 0 || len(r.letters()) > 0 {
		r.t.Fatalf("%d skip entries, %d letters: this is not the moment meant", skipped, len(r.letters()))
	}
	r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
	r.mustDrain(nil)
	got, _ := r.inFile()
	r.settledInOrder(got)
	if letters := r.letters(); len(letters) != 10 || letters[9].Reason != "ends in 7" {
		t.Errorf("letters %+v", letters)
	}
}

// The same when the skip entries filled the file to its size limit: the next holder knows them from a checkpoint only.
func TestSkippedMessageIsBuriedByTheNextHolderBehindACheckpoint(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		pad := strings.Repeat("x", 2000)
		r.publishWith(typ, 1000, func(i int) string { return fmt.Sprintf("%s %d", pad, i) })
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpMoveToDeadLetters {
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		})
		limit := inFiles(func(f *Files) { f.Filter, f.MaxBytes = no7, 1<<20 })
		p := r.start(limit)
		time.Sleep(time.Second)
		p.cancel()
		<-p.done
		if n := len(r.generations(typ)); n < 2 || len(r.letters()) > 0 {
			t.Fatalf("%d files, %d letters: this is not the moment meant", n, len(r.letters()))
		}
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		r.mustDrain(limit)
		messages := slices.DeleteFunc(r.chain(typ), func(p string) bool { return !strings.HasPrefix(p, pad) }) // the others are reasons
		r.settledInOrder(messages)
	})
}

// Restoring a database to before a message was put aside brings the message back: it becomes a dead letter again, and does not count as a copy of
// a record in the file. It was skipped by this session, by an earlier one whose records are read, or by one before the last checkpoint.
func TestMessageThatWasPutAsideIsPutAsideAgain(t *testing.T) {
	for name, between := range map[string]func(r *rig){
		"the same session":    func(*rig) {},
		"the next session":    func(*rig) {},
		"behind a checkpoint": func(r *rig) { r.rotate() },
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				same := name == "the same session"
				var msgs []queue.Message
				for n := range uint64(3) {
					msgs = append(msgs, queue.Message{Type: typ, ID: message(7, n+6).ID, Payload: fmt.Appendf(nil, "message %d", n+6)})
				}
				r.put(7, 1, 2, 3, 4, 5)
				r.insert(msgs...)
				p := r.start(func(c *Config) {
					c.OnError, c.IdleTimeout = DeadLetter, time.Hour
					inFiles(func(f *Files) { f.Filter = no7 })(c)
				})
				time.Sleep(5 * time.Second)
				switch name {
				case "the next session": // which finds no checkpoint
					p.cancel()
					<-p.done
				case "behind a checkpoint":
					p.stop()
				}
				if l := r.letters(); len(l) != 1 || l[0].Reason != "ends in 7" {
					t.Fatalf("letters %+v", l)
				}
				between(r)
				if err := r.queue.RemoveDeadLetters(t.Context(), typ, []queue.ID{msgs[1].ID}); err != nil {
					t.Fatal(err)
				}
				r.insert(msgs...)
				if same {
					time.Sleep(time.Minute)
					p.stop()
				} else {
					p = r.start(func(c *Config) { c.UntilEmpty = true })
					if err := p.end(); err != nil {
						t.Fatal(err)
					}
				}
				l := r.letters()
				if len(l) != 1 || string(l[0].Payload) != "message 7" || name == "the next session" && l[0].Reason != "ends in 7" ||
					name != "the next session" && l[0].Reason != reasonPutAside {
					t.Errorf("letters %+v", l)
				}
				if s := p.Stats(); s.Duplicates != 2 || r.pending() != 0 {
					t.Errorf("%+v, %d pending", s, r.pending())
				}
				if got := slices.DeleteFunc(r.messages(), func(p string) bool { return p == "ends in 7" }); !slices.Equal(got, []string{"7/1", "7/2", "7/3", "7/4", "7/5", "message 6", "message 8"}) {
					t.Errorf("the files hold %q", got)
				}
			})
		})
	}
}

// With any faults of the queue, crashes, size limits and takeovers: every message is in the file or dead, in order.
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
			p := r.start(func(c *Config) { c.Batch = 10; inFiles(func(f *Files) { f.Filter = no7 })(c) })
			time.Sleep(300 * time.Millisecond)
			p.cancel()
			<-p.done
		}
		if err := r.drain(inFiles(func(f *Files) { f.Filter = no7 })); err != nil {
			t.Fatal(err)
		}
		got, skipped := r.inFile()
		r.settledInOrder(got)
		if skipped != 200 || len(r.letters()) != 200 {
			t.Errorf("%d entries are skipped, %d letters, want 200", skipped, len(r.letters()))
		}
	})
}

// A foreign publisher may store messages that the file cannot take.
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
		if n := r.pending(); n == 0 || !strings.Contains(r.log.String(), "which blocks its type") {
			t.Errorf("%d messages are pending; the log must say why", n)
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

// The key of a message that the file cannot take is free for a message that is published again, in the same session and in the next.
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

// Headers do not count toward the limits of a fetch; the file's batches are smaller nevertheless.
func TestBatchThatIsTooLargeByItsHeaders(t *testing.T) {
	race.Skip(t)
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
	t.Run("panic", func(t *testing.T) { testPanickingFilter(t, func() { panic("boom") }, "panic: boom") })
	t.Run("goexit", func(t *testing.T) { testPanickingFilter(t, runtime.Goexit, errGoexit.Error()) })
}

// testPanickingFilter calls fail in the filter of a message, whose letter then has the reason.
func testPanickingFilter(t *testing.T, fail func(), reason string) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		boom := func(m queue.Message) error {
			if string(m.Payload) == "orders 5" {
				fail()
			}
			return nil
		}
		p := r.start(inFiles(func(f *Files) { f.Filter = boom }))
		time.Sleep(time.Minute)
		p.stop()
		if r.pending() == 0 || len(r.letters()) > 0 || !strings.Contains(r.log.String(), "deadletter_test.go") {
			t.Errorf("%d pending, %d letters; the log must show where", r.pending(), len(r.letters()))
		}
		if err := r.drain(func(c *Config) { c.OnError = DeadLetter; inFiles(func(f *Files) { f.Filter = boom })(c) }); err != nil {
			t.Fatal(err)
		}
		got, _ := r.inFile()
		r.settledInOrder(got)
		if l := r.letters(); len(l) != 1 || l[0].Reason != reason {
			t.Errorf("letters %+v", l)
		}
	})
}
