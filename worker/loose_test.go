package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// inTransaction creates messages of a transaction, which become visible when they are inserted: at its commit.
func (r *rig) inTransaction(headers map[string]string, payloads ...string) []queue.Message {
	r.t.Helper()
	var msgs []queue.Message
	for _, p := range payloads {
		msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(p), Headers: headers})
	}
	msgs, err := queuedriver.MakeLoose(msgs, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	return msgs
}

// each returns the payloads of a type's file, sorted, and fails the test if one of them is there twice.
func (r *rig) each() []string {
	r.t.Helper()
	got, _ := r.inFile()
	slices.Sort(got)
	if n := len(got); len(slices.Compact(slices.Clone(got))) != n {
		r.t.Errorf("a message is in the file twice: %q", got)
	}
	return got
}

// The worker dies between sync and acknowledgement: before a checkpoint, after one, and in another file.
func TestLooseMessagesAreRefusedASecondTime(t *testing.T) {
	for name, between := range map[string]func(r *rig){
		"in the records":       func(*rig) {},
		"behind a checkpoint":  func(r *rig) { r.mustDrain(nil) },
		"in an earlier file":   func(r *rig) { r.rotate() },
		"the database is back": func(r *rig) { r.mustDrain(nil); time.Sleep(23 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				msgs := r.inTransaction(nil, "a", "b", "c")
				r.insert(msgs...)
				r.publish(typ, 3)
				r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
					if op == queuetest.OpAck {
						return queuetest.Fault{Kind: queuetest.Hang}
					}
					return queuetest.Fault{}
				})
				p := r.start(nil)
				time.Sleep(time.Second)
				p.cancel()
				<-p.done
				r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
				between(r)
				r.insert(msgs...) // the messages that were acknowledged meanwhile
				second := r.start(func(c *Config) { c.UntilEmpty = true })
				if err := second.end(); err != nil {
					t.Fatal(err)
				}
				if s := second.Stats(); s.Appended != 0 || s.Duplicates < 3 {
					t.Errorf("stats %+v, want the duplicates refused and nothing appended", s)
				}
				if n := r.pending(); n != 0 {
					t.Errorf("%d are pending", n)
				}
				if name == "in an earlier file" {
					chain := r.chain(typ)
					for _, want := range []string{"a", "b", "c"} {
						if n := len(slices.DeleteFunc(slices.Clone(chain), func(p string) bool { return p != want })); n != 1 {
							t.Errorf("%s is in the files %d times", want, n)
						}
					}
				} else if got := r.each(); len(got) != 6 {
					t.Errorf("the file holds %q", got)
				}
			})
		})
	}
}

// A transaction is committed long after its messages got their IDs, while others keep the walk at the end of the queue.
func TestLateCommitIsFoundWithinASweep(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		late := r.inTransaction(nil, "late")
		time.Sleep(time.Hour)
		p := r.start(nil)
		r.publish(typ, 10)
		time.Sleep(10 * time.Second)
		r.insert(late...)
		for range int(fullSweepEvery.Seconds()) + 2 {
			r.publish(typ, 1)
			time.Sleep(time.Second)
		}
		if got, _ := r.inFile(); !slices.Contains(got, "late") {
			t.Errorf("it is not in the file after %v: %q", fullSweepEvery, got)
		}
		p.stop()
		if strings.Contains(r.log.String(), "declared gap") || r.pending() != 0 {
			t.Errorf("%d are pending; a loose message cannot leave a gap", r.pending())
		}
	})
}

// Workers die at any time, acknowledgements are lost or unanswered, and transactions are committed late: all in the file once.
func TestLooseMessagesUnderFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				dice := rand.New(rand.NewPCG(seed, 1))
				kinds := []queuetest.Kind{queuetest.None, queuetest.None, queuetest.LostAnswer, queuetest.Lost, queuetest.Partial}
				fault := make(chan queuetest.Kind, 1) // one at a time: the schedule decides the order in which operations of several sessions draw
				r.disturb(func(op queuetest.Op, n int) queuetest.Fault {
					if op != queuetest.OpAck && op != queuetest.OpFetch && op != queuetest.OpMoveToDeadLetters {
						return queuetest.Fault{}
					}
					select {
					case k := <-fault:
						return queuetest.Fault{Kind: k, Keep: n / 2}
					default:
						return queuetest.Fault{}
					}
				})
				var want []string
				var open [][]queue.Message
				for round := range 40 {
					p := r.start(func(c *Config) {
						c.Batch = 5
						inFiles(func(f *Files) { f.Filter = no7 })(c)
					})
					for i := range 10 {
						payload := fmt.Sprintf("%d.%d", round, i)
						open = append(open, r.inTransaction(nil, payload, payload+"+"))
						for len(open) > 0 && dice.IntN(3) > 0 {
							k := dice.IntN(len(open))
							if dice.IntN(4) > 0 {
								for _, m := range open[k] {
									want = append(want, string(m.Payload))
								}
								r.insert(open[k]...)
							} // else it is aborted
							open = slices.Delete(open, k, k+1)
						}
						r.publish(typ, dice.IntN(2))
						select {
						case fault <- kinds[dice.IntN(len(kinds))]:
						default:
						}
						time.Sleep(time.Duration(dice.IntN(300)) * time.Millisecond)
					}
					if dice.IntN(3) > 0 {
						p.cancel()
						<-p.done
					} else {
						p.stop()
					}
				}
				r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
				if err := r.drain(inFiles(func(f *Files) { f.Filter = no7 })); err != nil {
					t.Fatal(err)
				}
				got := r.each()
				for _, l := range r.letters() {
					got = append(got, string(l.Payload))
				}
				want = append(want, r.sent[typ]...)
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) || r.pending() != 0 {
					t.Errorf("%d messages were committed, %d are in the file or dead letters, %d are pending", len(want), len(got), r.pending())
				}
			})
		})
	}
}

func TestLooseMessageWithAKeyIsAppendedOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publishKeyed("numbered", "a")
		time.Sleep(time.Second)
		r.insert(r.inTransaction(map[string]string{queue.KeyHeader: "a"}, "loose")...)
		r.mustDrain(nil)
		again := r.inTransaction(map[string]string{queue.KeyHeader: "b"}, "loose b")
		r.insert(again...)
		time.Sleep(time.Second)
		r.insert(r.inTransaction(map[string]string{queue.KeyHeader: "b"}, "loose b again")...)
		r.mustDrain(nil)
		r.insert(again...)
		r.mustDrain(nil)
		got, skipped := r.inFile()
		if want := []string{"numbered a", "loose b"}; !slices.Equal(got, want) || skipped != 2 || r.pending() != 0 {
			t.Errorf("the file holds %q and %d skip entries, want %q and 2", got, skipped, want)
		}
	})
}

// A message that the filter refuses becomes a dead letter, and again if it comes back. When requeued it is numbered, and the header does not make it loose.
func TestLooseMessageThatIsRefused(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		msgs := r.inTransaction(nil, "number 7", "number 8") // with the same time, so in any order
		for range 3 {
			r.insert(msgs...)
			if err := r.drain(inFiles(func(f *Files) { f.Filter = no7 })); err != nil {
				t.Fatal(err)
			}
		}
		letters := r.letters()
		if len(letters) != 1 || letters[0].ID != msgs[0].ID || letters[0].Reason != "ends in 7" {
			t.Fatalf("letters %+v", letters)
		}
		p, err := queue.NewPublisher(t.Context(), r.queue, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(context.Background())
		if n, err := queue.Requeue(t.Context(), r.queue, p, letters); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		r.mustDrain(nil)
		got, skipped := r.inFile()
		if want := []string{"number 8", "number 7"}; !slices.Equal(got, want) || skipped != 1 || len(r.letters()) != 0 {
			t.Errorf("the file holds %q and %d skip entries, want %q and 1", got, skipped, want)
		}
		if strings.Contains(r.log.String(), "declared gap") {
			t.Error("a gap was declared")
		}
	})
}

// A program that uses a producer number for two messages loses none of them.
func TestLooseMessagesWithOneProducerNumber(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		first, second := r.inTransaction(nil, "first")[0], r.inTransaction(nil, "second")[0]
		second.ID = queue.NewID(time.Now().Add(time.Second), first.ID.Producer(), 0)
		r.insert(first, second)
		r.mustDrain(nil)
		if got, letters := r.each(), r.letters(); len(got) != 1 || len(letters) != 1 || string(letters[0].Payload) != "second" || letters[0].Reason != reasonReused {
			t.Errorf("the file holds %q, the dead letters are %+v", got, letters)
		}
	})
}

// Handlers get loose messages, too, each once in a session; one that fails becomes a dead letter.
func TestHandlerGetsLooseMessages(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var rec record
		msgs := r.inTransaction(nil, "a", "b")
		bad := r.inTransaction(nil, "bad")
		r.publish(typ, 1)
		r.insert(slices.Concat(msgs, bad)...)
		p := r.start(handle(Each(func(_ context.Context, _ Lease, m queue.Message) error {
			if string(m.Payload) == "bad" {
				return Permanent(errors.New("no"))
			}
			rec.add(m)
			return nil
		}), deadLetters))
		time.Sleep(time.Second)
		r.insert(msgs...) // as by a read that began before
		time.Sleep(time.Minute)
		p.stop()
		got, want := rec.all(), slices.Concat(r.sent[typ], []string{"a", "b"})
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
		}
		if l := r.letters(); len(l) != 1 || string(l[0].Payload) != "bad" || r.pending() != 0 {
			t.Errorf("letters %+v, %d pending", l, r.pending())
		}
	})
}

// looseState is the state after a file with the loose messages 1 and 2.
func looseState(t *testing.T) []byte {
	t.Helper()
	l := ledger.New(ledger.Options{})
	for p := range uint64(2) {
		id := queue.NewID(time.UnixMilli(9), p+1, 0)
		if _, _, err := l.Replay(storage.Record{ID: id[:]}); err != nil {
			t.Fatal(err)
		}
	}
	return l.State()
}

func TestAuditOfLooseMessages(t *testing.T) {
	var a Audit
	record := func(producer, n uint64, ms int64) {
		t.Helper()
		id := queue.NewID(time.UnixMilli(ms), producer, n)
		if err := a.Record(storage.Record{ID: id[:]}); err != nil {
			t.Fatal(err)
		}
	}
	record(1, 0, 9)
	record(7, 1, 8)
	record(2, 0, 3)
	record(7, 2, 10)
	if problems, n := a.Problems(); n != 0 || a.Loose() != 2 || len(a.Producers()) != 1 {
		t.Fatalf("%v; %d loose, %d producers", problems, a.Loose(), len(a.Producers()))
	}
	record(2, 0, 3)
	record(1, 0, 10)
	if problems, n := a.Problems(); n != 2 || !strings.Contains(problems[0].Error(), "loose message") {
		t.Errorf("%v", problems)
	}
	// In a successor file the state shows them.
	var next Audit
	if err := next.Restore(looseState(t)); err != nil {
		t.Fatal(err)
	}
	a = next
	record(1, 0, 9)
	record(3, 0, 9)
	if _, n := a.Problems(); n != 1 {
		t.Errorf("%d problems, want the copy of a message in an earlier file", n)
	}
	// The last ones of a file of any size are remembered.
	for p := range uint64(looseMost) {
		record(p+100, 0, 9)
	}
	record(100, 0, 9)
	if _, n := a.Problems(); n != 2 || len(a.looseLast)+len(a.looseOld) > 2*looseMost {
		t.Errorf("%d problems, %d are remembered", n, len(a.looseLast)+len(a.looseOld))
	}
}

// More messages of transactions than are remembered: the worker sweeps, forgets those that are certainly gone, and appends each once.
func TestManyLooseMessagesAreDrained(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		const n = ledger.MaxLoose + 40_000
		msgs := make([]queue.Message, n)
		for i := range msgs {
			msgs[i] = queue.Message{Type: typ, ID: queue.NewID(epoch.Add(time.Duration(i)*time.Millisecond), uint64(i+1), 0),
				Headers: map[string]string{queue.LooseHeader: queue.LooseValue}}
		}
		r.insert(msgs...)
		p := r.start(func(c *Config) { c.UntilEmpty, c.Batch = true, 5000 })
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Appended != n || s.Duplicates != 0 || r.pending() != 0 {
			t.Errorf("stats %+v, %d are pending", s, r.pending())
		}
		if c := strings.Count(r.log.String(), "more messages of transactions"); c != 1 {
			t.Errorf("the log says %d times that messages are forgotten early", c)
		}
	})
}
