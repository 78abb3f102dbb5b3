package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
)

// promoted is the n-th message of a sequence, promoted the given time after the epoch from the k-th delayed message of a publisher.
func promoted(sequence, n uint64, after time.Duration, publisher, k uint64) queue.Message {
	as := queue.NewID(epoch.Add(after), sequence, n)
	return queue.Message{Type: typ, ID: as, Payload: fmt.Appendf(nil, "%d/%d", publisher, k),
		Headers: queuedriver.PromotedHeaders(nil, queue.NewID(epoch.Add(time.Duration(k)*time.Millisecond), publisher, k), as)}
}

// insert stores messages as a promotion does.
func (r *rig) insert(msgs ...queue.Message) {
	r.t.Helper()
	if err := r.queue.Queue.Insert(context.Background(), typ, msgs); err != nil {
		r.t.Fatal(err)
	}
}

const pad = "pad "

// rotate makes the type continue in a new file, once.
func (r *rig) rotate() {
	r.t.Helper()
	r.insert(queue.Message{Type: typ, ID: queue.NewID(epoch, 99, 1), Payload: []byte(pad + strings.Repeat("x", 1<<20))})
	before := len(r.generations(typ))
	r.mustDrain(inFiles(func(f *Files) { f.MaxBytes = 1 << 20 }))
	if n := len(r.generations(typ)); n != before+1 {
		r.t.Fatalf("%d files, want one more than %d", n, before)
	}
}

// messages returns the payloads of the messages in the type's files, except those of rotate.
func (r *rig) messages() (got []string) {
	r.t.Helper()
	for _, payload := range r.chain(typ) {
		if !strings.HasPrefix(payload, pad) && !strings.HasPrefix(payload, "duplicate: ") { // the reason of a skip entry
			got = append(got, payload)
		}
	}
	return got
}

func (r *rig) mustDrain(change func(*Config)) {
	r.t.Helper()
	if err := r.drain(change); err != nil {
		r.t.Fatal(err)
	}
}

// A restored database issues a number a second time. The second message is no copy of the first: it becomes a dead letter, and the others are
// appended, whether the first one was appended by the same session or by an earlier one, and is known from records or from a checkpoint.
func TestReusedNumberIsPutAsideAndNeverTakenForACopy(t *testing.T) {
	for name, between := range map[string]func(r *rig){
		"the same session":  func(*rig) {},
		"the next session":  func(r *rig) { r.mustDrain(nil) },
		"behind a new file": func(r *rig) { r.rotate() },
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.insert(promoted(7, 1, time.Hour, 1, 1), promoted(7, 2, 2*time.Hour, 1, 2))
				p := r.start(nil)
				time.Sleep(time.Second)
				if name != "the same session" {
					p.stop()
				}
				between(r)
				r.insert(promoted(7, 2, 3*time.Hour, 1, 3), promoted(7, 3, 4*time.Hour, 1, 4))
				if name == "the same session" {
					time.Sleep(time.Minute)
					p.stop()
				}
				r.mustDrain(nil)
				letters := r.letters()
				if len(letters) != 1 || string(letters[0].Payload) != "1/3" || letters[0].Reason != reasonReused {
					t.Errorf("letters %+v", letters)
				}
				if got := r.messages(); !slices.Equal(got, []string{"1/1", "1/2", "1/4"}) {
					t.Errorf("the file holds %q", got)
				}
				if n := r.pending(); n != 0 {
					t.Errorf("%d messages are pending", n)
				}
			})
		})
	}
}

// reuseNumber publishes, after the messages in the file, one whose number is in use and one more, while no dead letter can be stored.
func (r *rig) reuseNumber(fault queuetest.Kind) {
	r.insert(promoted(7, 1, time.Hour, 1, 1))
	r.mustDrain(nil)
	r.insert(promoted(7, 1, 2*time.Hour, 1, 2), promoted(7, 2, 2*time.Hour, 1, 3))
	r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
		if op == queuetest.OpMoveToDeadLetters {
			return queuetest.Fault{Kind: fault}
		}
		return queuetest.Fault{}
	})
}

// The letter is stored before the message is removed, even when the queue fails, and before the next message with the same time is in the file:
// its time would make the first one look like a copy.
func TestReusedNumberSurvivesFaults(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.reuseNumber(queuetest.Hang)
		p := r.start(nil)
		time.Sleep(5 * time.Second)
		p.cancel()
		<-p.done
		if n := r.pending(); n != 2 {
			t.Fatalf("%d messages are pending after a death before the letter was stored", n)
		}
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		r.mustDrain(nil)
		if letters := r.letters(); len(letters) != 1 || string(letters[0].Payload) != "1/2" {
			t.Errorf("letters %+v", letters)
		}
		if got := r.messages(); !slices.Equal(got, []string{"1/1", "1/3"}) {
			t.Errorf("the file holds %q", got)
		}
	})
}

// A handler has no file, but its session neither loses the messages it knows nor hands them over twice.
func TestReusedNumberInAHandlersSession(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var got record
		r.insert(promoted(7, 1, time.Hour, 1, 1))
		p := r.start(handle(HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error {
			got.add(msgs...)
			return nil
		}), func(*Config) {}))
		time.Sleep(time.Minute)
		r.insert(promoted(7, 1, 2*time.Hour, 1, 2), promoted(7, 2, 3*time.Hour, 1, 3))
		time.Sleep(time.Minute)
		p.stop()
		if all := got.all(); !slices.Equal(all, []string{"1/1", "1/3"}) || len(r.letters()) != 1 || r.pending() != 0 {
			t.Errorf("handled %q, %d letters, %d pending", all, len(r.letters()), r.pending())
		}
	})
}

// A restored database promotes messages again that it had promoted since the backup, under the same or other numbers: the file already has them.
func TestDelayedMessageThatIsPromotedAgainIsACopy(t *testing.T) {
	for name, again := range map[string]queue.Message{
		"under the number it had":      promoted(7, 2, 3*time.Hour, 1, 2),
		"under the next number":        promoted(7, 4, 3*time.Hour, 1, 2),
		"under another number":         promoted(8, 1, 3*time.Hour, 1, 2),
		"under the number of another":  promoted(7, 3, 3*time.Hour, 1, 2),
		"under a number that is ahead": promoted(7, 6, 3*time.Hour, 1, 2),
	} {
		for _, newFile := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				onRig(t, func(t *testing.T, r *rig) {
					r.insert(promoted(7, 1, time.Hour, 1, 1), promoted(7, 2, time.Hour, 1, 2), promoted(7, 3, 2*time.Hour, 1, 3))
					r.mustDrain(nil)
					if newFile {
						r.rotate()
					}
					r.insert(again)
					r.insert(promoted(9, 1, 5*time.Hour, 1, 4))
					p := r.start(nil)
					time.Sleep(2 * time.Minute)
					p.stop()
					if got := r.messages(); !slices.Equal(got, []string{"1/1", "1/2", "1/3", "1/4"}) {
						t.Errorf("the files hold %q", got)
					}
					if len(r.letters()) != 0 || r.pending() != 0 {
						t.Errorf("%d letters, %d pending", len(r.letters()), r.pending())
					}
				})
			})
		}
	}
}

// A message that was put aside is not in the file, so the delayed message counts as new when it arrives again.
func TestDelayedMessageThatWasPutAsideIsNotInTheFile(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.insert(promoted(7, 1, time.Hour, 1, 17))
		r.mustDrain(inFiles(func(f *Files) { f.Filter = no7 }))
		large := promoted(7, 2, time.Hour, 1, 18)
		large.Headers["k"] = strings.Repeat("v", storage.MaxHeaders)
		r.queue.Queue.(*queuetest.Memory).Plant(typ, large)
		r.mustDrain(func(c *Config) { c.OnError = DeadLetter })
		if n := len(r.letters()); n != 2 {
			t.Fatalf("%d dead letters", n)
		}
		r.insert(promoted(8, 1, 2*time.Hour, 1, 17), promoted(8, 2, 2*time.Hour, 1, 18))
		r.mustDrain(nil)
		if got, _ := r.inFile(); !slices.Equal(got, []string{"1/17", "1/18"}) {
			t.Errorf("the file holds %q", got)
		}
	})
}

// A copy of the headers in another message means nothing.
func TestDelayedHeaderOfAnotherMessageIsIgnored(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		first := promoted(7, 1, time.Hour, 1, 1)
		second := queue.Message{Type: typ, ID: queue.NewID(epoch, 9, 1), Payload: []byte("passed on"), Headers: maps.Clone(first.Headers)}
		r.insert(first)
		r.mustDrain(nil)
		r.insert(second)
		r.mustDrain(nil)
		if got, _ := r.inFile(); !slices.Equal(got, []string{"1/1", "passed on"}) {
			t.Errorf("the file holds %q", got)
		}
	})
}

func TestAuditFindsADelayedMessageTwice(t *testing.T) {
	for name, restored := range map[string]bool{"in one file": false, "in two": true} {
		var a Audit
		first := promoted(7, 1, time.Hour, 1, 1)
		record := func(m queue.Message, kind storage.Kind) {
			r := storage.Record{Kind: kind, ID: m.ID[:], Headers: headers(m.Headers)}
			if kind == storage.KindSkipped {
				ledger.MakeSkipEntry(&r, "reason", true)
			}
			if err := a.Record(r); err != nil {
				t.Fatal(err)
			}
		}
		if restored {
			l := ledger.New(ledger.Options{})
			l.Admit(&first)
			l.Remember(&first)
			if err := a.Restore(l.State()); err != nil {
				t.Fatal(err)
			}
		} else {
			record(first, storage.KindMessage)
		}
		record(promoted(7, 2, time.Hour, 1, 1), storage.KindSkipped)
		record(promoted(7, 3, time.Hour, 1, 2), storage.KindMessage)
		if problems, n := a.Problems(); n != 0 {
			t.Errorf("%s: %v", name, problems)
		}
		record(promoted(8, 1, time.Hour, 1, 1), storage.KindMessage)
		if problems, n := a.Problems(); n != 1 || !strings.Contains(problems[0].Error(), "delayed message") {
			t.Errorf("%s: %v", name, problems)
		}
	}
}
