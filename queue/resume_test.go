package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// notebook keeps the last checkpoint, as a file would.
type notebook struct {
	mu   sync.Mutex
	last queue.Checkpoint
	fail error
}

func (n *notebook) save(c queue.Checkpoint) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail == nil {
		n.last = c
	}
	return n.fail
}

func (n *notebook) read() queue.Checkpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// generations publishes messages by one process after the other, under faults, while a consumer drains. Each process dies at some time, and
// knows only the last checkpoint of the one before. It returns the violations found at the end.
func generations(t *testing.T, faults []queuetest.Fault, seed uint64) (verdict error) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 7))
		oracle := &queuetest.Oracle{}
		mem := queuetest.NewMemory()
		ids := map[string]queue.ID{} // of everything that was ever stored
		mem.OnStore = func(m queue.Message) { oracle.Observe(m); ids[string(m.Payload)] = m.ID }
		var mu sync.Mutex
		faulty := &queuetest.Faulty{Queue: mem, Next: func(op queuetest.Op, _ string, _ int) queuetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if op != queuetest.OpInsert || len(faults) == 0 {
				return queuetest.Fault{}
			}
			f := faults[0]
			faults = faults[1:]
			return f
		}}
		msgs := messages("orders", 100)
		var book notebook
		position := 0 // in the input, at which a process that continues from the book begins
		for range 50 {
			from, begin, done := book.read(), position, position // done: how much of the input is stored
			save := func(c queue.Checkpoint) error { position = done; return book.save(c) }
			p, err := queue.NewPublisher(t.Context(), faulty, queue.PublisherOptions{BatchMessages: 7, BufferBytes: 20 * 300, RepeatFor: 5 * time.Second,
				AttemptTimeout: time.Second, IdleRotate: time.Minute, Resume: &queue.Resume{Type: "orders", From: from, Save: save}})
			if err != nil {
				t.Fatal(err)
			}
			life, die := context.WithTimeout(t.Context(), time.Duration(rng.IntN(8000))*time.Millisecond+time.Duration(rng.IntN(2))*10*time.Minute)
			sent := 0
			count := func(r queue.Result) {
				if r.Status == queue.Stored {
					done++
				}
			}
			for _, m := range msgs[begin:] {
				if p.Send(life, m, count) != nil {
					break
				}
				sent++
				switch rng.IntN(50) {
				case 0: // its input pauses for a long time
					time.Sleep(2 * time.Minute)
				case 1, 2, 3, 4, 5, 6, 7, 8, 9:
					time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
				}
			}
			whole := begin+sent == len(msgs)
			closing := life
			if rng.IntN(2) == 0 { // it ends normally
				closing = t.Context()
			}
			closed := p.Close(closing) == nil
			die()
			st := p.Stats()
			if whole && closed && st.Stored == uint64(sent) {
				break
			}
			pending, _ := mem.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1 + rng.IntN(30)})
			var drained []queue.ID
			for _, m := range pending {
				drained = append(drained, m.ID)
			}
			if err := mem.Ack(t.Context(), "orders", drained); err != nil {
				t.Error(err)
			}
		}
		faulty.Wait()
		verdict = oracle.Check()
		var last queue.ID
		for i, m := range msgs {
			id, ok := ids[string(m.Payload)]
			if !ok || id.Compare(last) <= 0 || id.N() != 1 && (id.Producer() != last.Producer() || id.N() != last.N()+1) {
				verdict = errors.Join(verdict, fmt.Errorf("message %d: stored %v, as %v, n=%d", i, ok, id, id.N()))
				return
			}
			last = id
		}
	})
	return verdict
}

// Whenever a process dies, the next one continues: every message is stored once, in order, without a gap.
func TestResumeLosesAndDoublesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := generations(t, drawFaults.Draw(rt, "faults"), rapid.Uint64().Draw(rt, "seed")); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestResumeInKnownScenarios: the same ones each time, enough of them to notice when a rule is missing (tools/mutants).
func TestResumeInKnownScenarios(t *testing.T) {
	for i := range 100 {
		if err := generations(t, drawFaults.Example(i), uint64(i)); err != nil {
			t.Fatalf("scenario %d: %v", i, err)
		}
	}
}

// resumed runs a test with a publisher that continues from c.
func resumed(t *testing.T, c queue.Checkpoint, book *notebook, test func(t *testing.T, b *bench)) {
	opt := queue.PublisherOptions{RepeatFor: time.Second, Resume: &queue.Resume{Type: "orders", From: c, Save: book.save}}
	onVirtualTime(t, opt, 0, test)
}

func TestResumeRepeatsTheVerySameMessages(t *testing.T) {
	var book notebook
	old := queue.Checkpoint{Producer: 42, N: 10, InFlight: 3, Time: time.UnixMilli(946_684_800_000)} // when bubbles begin
	resumed(t, old, &book, func(t *testing.T, b *bench) {
		var results []queue.Result
		var publishing sync.WaitGroup
		publishing.Go(func() { results = b.PublishAll(t.Context(), messages("orders", 2)) })
		time.Sleep(10 * time.Minute)
		if n := b.faulty.Calls(queuetest.OpInsert); n != 0 {
			t.Errorf("%d inserts before the batch is complete", n)
		}
		// A pause does not refuse messages that may already be stored.
		b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(true)})
		if err := b.Send(t.Context(), messages("orders", 3)[2], func(queue.Result) {}); err != nil {
			t.Fatal(err)
		}
		publishing.Wait()
		wantStatus(t, results, queue.Stored, queue.Stored)
		for i, m := range stored(t, b.mem, "orders") {
			if want := queue.NewID(old.Time, 42, uint64(11+i)); m.ID != want {
				t.Errorf("message %d has ID %v, want %v", i, m.ID, want)
			}
		}
		if (book.read() != queue.Checkpoint{}) {
			t.Errorf("saved %+v: a repeated batch is already saved", book.read())
		}
		b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(false)})
		time.Sleep(reread)
		id, err := b.Publish(t.Context(), "orders", nil, nil)
		if err != nil || id.Producer() != 42 || id.N() != 14 || book.read() != (queue.Checkpoint{Producer: 42, N: 13, InFlight: 1, Time: id.Time(), Sent: id.Time()}) {
			t.Errorf("%v, producer %d, n %d, saved %+v", err, id.Producer(), id.N(), book.read())
		}
	})
}

// The queue's clock was further ahead when the previous process read it.
func TestResumeGoesOnBehindTheTimeOfTheCheckpoint(t *testing.T) {
	var book notebook
	old := queue.Checkpoint{Producer: 42, N: 10, Time: time.UnixMilli(946_684_800_000).Add(time.Hour)}
	resumed(t, old, &book, func(t *testing.T, b *bench) {
		id, err := b.Publish(t.Context(), "orders", nil, nil)
		if want := queue.NewID(old.Time, 42, 11); err != nil || id != want {
			t.Errorf("%v, ID of producer %d, n %d and time %v, want %v", err, id.Producer(), id.N(), id.Time(), old.Time)
		}
	})
}

// A stream that continues after a long time takes a new producer number. Then its messages must not overtake those before the checkpoint, which
// may have been stored long after the time in their IDs, and not long ago if a clock was set.
func TestResumeUnderANewNumberOvertakesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		id, sent, repeatFor, linger time.Duration // how long ago by the queue's clock, and by this machine's
		keeps                       bool          // the producer number
		pause                       time.Duration
	}{
		"idle":                            {id: 2 * time.Hour, sent: 2 * time.Hour},
		"a minute ago":                    {id: time.Minute, sent: time.Minute, keeps: true},
		"stored a moment ago":             {id: 2 * time.Hour, sent: 2 * time.Hour, repeatFor: 3 * time.Hour, pause: 45 * time.Second},
		"stored a moment ago, sent later": {id: time.Hour - 10*time.Second, sent: time.Hour, linger: 20 * time.Second, repeatFor: 3 * time.Hour, pause: 45 * time.Second},
		"stored half a minute ago":        {id: 2 * time.Hour, sent: 2 * time.Hour, repeatFor: 2*time.Hour - 30*time.Second, pause: 15 * time.Second},
		"the queue's clock has jumped":    {id: 2 * time.Hour, sent: time.Second, keeps: true},
		"this machine's clock has jumped": {id: time.Second, sent: 2 * time.Hour, keeps: true},
		"this machine's clock is behind":  {id: 2 * time.Hour, sent: -time.Hour, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now := time.UnixMilli(time.Now().UnixMilli())
				from := queue.Checkpoint{Producer: 42, N: 10, Time: now.Add(-tc.id), Sent: now.Add(-tc.sent)}
				p, err := queue.NewPublisher(t.Context(), queuetest.NewMemory(), queue.PublisherOptions{RepeatFor: tc.repeatFor, Linger: tc.linger,
					Resume: &queue.Resume{Type: "orders", From: from, Save: func(queue.Checkpoint) error { return nil }}})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				id, err := p.Publish(t.Context(), "orders", nil, nil)
				if took := time.Since(began); err != nil || took < tc.pause || took > tc.pause+time.Second {
					t.Errorf("%v after %v, want a pause of %v", err, took, tc.pause)
				}
				if keeps := id.Producer() == 42; keeps != tc.keeps || keeps != (id.N() == 11) {
					t.Errorf("message %d of producer %d", id.N(), id.Producer())
				}
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestResumeTakesNothingBehindALostMessage(t *testing.T) {
	for name, tc := range map[string]struct {
		from  queue.Checkpoint
		fault queuetest.Kind
		fail  error
		want  queue.Status
	}{
		"unknown":                    {queue.Checkpoint{}, queuetest.Lost, nil, queue.Unknown},
		"refused":                    {queue.Checkpoint{}, queuetest.Refused, nil, queue.Rejected},
		"refused, but sent before":   {queue.Checkpoint{Producer: 1, InFlight: 1, Time: time.UnixMilli(946_684_800_000)}, queuetest.Refused, nil, queue.Unknown},
		"checkpoint cannot be saved": {queue.Checkpoint{}, queuetest.None, errors.New("disk full"), queue.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			book := notebook{fail: tc.fail}
			resumed(t, tc.from, &book, func(t *testing.T, b *bench) {
				var healed atomic.Bool
				b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
					if op != queuetest.OpInsert || healed.Load() {
						return queuetest.Fault{}
					}
					return queuetest.Fault{Kind: tc.fault}
				}
				results := b.PublishAll(t.Context(), messages("orders", 1))
				wantStatus(t, results, tc.want)
				if tc.fail != nil && (!errors.Is(results[0].Err, tc.fail) || b.faulty.Calls(queuetest.OpInsert) > 0) {
					t.Errorf("%v, %d inserts", results[0].Err, b.faulty.Calls(queuetest.OpInsert))
				}
				healed.Store(true)
				for _, later := range []time.Duration{0, 2 * queue.DefaultIdleRotate} {
					time.Sleep(later)
					_, err := b.Publish(t.Context(), "orders", nil, nil)
					if err == nil || errors.Is(err, queue.ErrUnknown) || !strings.Contains(err.Error(), "before it") {
						t.Errorf("the next message, %v later: %v", later, err)
					}
				}
				if _, err := b.Publish(t.Context(), "audit", nil, nil); err == nil {
					t.Error("a message of another type was taken")
				}
			})
		})
	}
}

func TestResumeRefusesWhatNobodyRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		try := func(r queue.Resume) error {
			p, err := queue.NewPublisher(t.Context(), queuetest.NewMemory(), queue.PublisherOptions{Resume: &r})
			if err == nil {
				err = p.Close(t.Context())
			}
			return err
		}
		save := func(queue.Checkpoint) error { return nil }
		now := time.UnixMilli(time.Now().UnixMilli())
		time.Sleep(queue.MaxCheckpointAge)
		if err := try(queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, N: 1, InFlight: 1, Time: now}}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if err := try(queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, N: 1, InFlight: 1, Time: now}}); !errors.Is(err, queue.ErrCheckpointTooOld) {
			t.Errorf("got %v", err)
		}
		// The queue's clock was ahead when it was saved, or is behind now.
		later := now.Add(48 * time.Hour)
		if err := try(queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, N: 1, InFlight: 1, Time: later, Sent: now}}); !errors.Is(err, queue.ErrCheckpointTooOld) {
			t.Errorf("by this machine's clock it is too old: %v", err)
		}
		if err := try(queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, N: 1, InFlight: 1, Time: later, Sent: now.Add(time.Minute)}}); err != nil {
			t.Error(err)
		}
		if err := try(queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, N: 1, Time: now}}); err != nil {
			t.Errorf("nothing is in flight: %v", err)
		}
		for _, bad := range []queue.Resume{{Type: "orders"}, {Type: "Orders", Save: save}, {Type: "orders", Save: save, From: queue.Checkpoint{N: 3}},
			{Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, InFlight: -1}}, {Type: "orders", Save: save, From: queue.Checkpoint{Producer: 1, InFlight: 1001}}} {
			if try(bad) == nil {
				t.Errorf("%+v must be refused", bad)
			}
		}
	})
}

// Before a message is sent, its caller may stop waiting, or it may be refused: even then no later message overtakes it.
func TestResumeTakesNothingBehindAMessageThatIsNotSent(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	tooLarge := queue.Message{Type: "orders", Payload: make([]byte, queue.MaxPayload+1)}
	for name, lose := range map[string]func(ctx context.Context, b *bench) queue.Result{
		"withdrawn": func(ctx context.Context, b *bench) queue.Result {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			return b.PublishAll(ctx, messages("orders", 1))[0]
		},
		"no time": func(_ context.Context, b *bench) queue.Result { return b.PublishAll(gone, messages("orders", 1))[0] },
		"invalid": func(ctx context.Context, b *bench) queue.Result {
			return b.PublishAll(ctx, []queue.Message{tooLarge})[0]
		},
		"by middleware": func(ctx context.Context, b *bench) queue.Result {
			return b.PublishAll(ctx, []queue.Message{{Type: "orders", Headers: map[string]string{"refuse": "1"}}})[0]
		},
		"no space": func(ctx context.Context, b *bench) queue.Result {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			return b.PublishAll(ctx, []queue.Message{{Type: "orders", Payload: make([]byte, 900)}, {Type: "orders", Payload: make([]byte, 900)}})[1]
		},
	} {
		for again, from := range map[string]queue.Checkpoint{"": {}, ", repeated": {Producer: 7, InFlight: 5, Time: time.UnixMilli(946_684_800_000)}} {
			t.Run(name+again, func(t *testing.T) {
				var book notebook
				opt := queue.PublisherOptions{Linger: time.Hour, BufferBytes: 1500, Resume: &queue.Resume{Type: "orders", From: from, Save: book.save},
					Use: []queue.Middleware{func(_ context.Context, out *queue.Outgoing) {
						if out.Message(0).Headers["refuse"] != "" {
							out.Refuse(0, nil)
						}
					}}}
				onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
					wantUnsent := func(r queue.Result, n uint64) {
						t.Helper()
						var want queue.ID
						status := queue.Rejected
						if from.InFlight > 0 { // the previous process may have stored it
							status, want = queue.Unknown, queue.NewID(from.Time, 7, n)
						}
						if r.ID != want || r.Status != status || errors.Is(r.Err, queue.ErrUnknown) != (status == queue.Unknown) {
							t.Errorf("%+v, want %v as %v, n=%d", r, status, want, n)
						}
					}
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour) // longer than Linger
					defer cancel()
					n := uint64(1)
					if name == "no space" {
						n = 2
					}
					wantUnsent(lose(ctx, b), n)
					wantUnsent(b.PublishAll(ctx, messages("orders", 1))[0], n+1)
					called := make(chan queue.Result, 1)
					if err := b.Send(t.Context(), messages("orders", 1)[0], func(r queue.Result) { called <- r }); err != nil {
						called <- queue.Result{Err: err}
					}
					_ = b.Close(ctx)
					if err := (<-called).Err; err == nil || errors.Is(err, queue.ErrUnknown) != (from.InFlight > 0) {
						t.Errorf("Send: %v", err)
					}
					if n := b.faulty.Calls(queuetest.OpInsert); n != 0 {
						t.Errorf("%d inserts", n)
					}
				})
			})
		}
	}
}
