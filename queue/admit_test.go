package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// reread is the time after which every publisher has read the settings again.
const reread = 3 * time.Second

func (b *bench) change(t *testing.T, typ string, c queue.SettingsPatch) {
	t.Helper()
	if _, err := b.mem.PatchSettings(t.Context(), typ, c); err != nil {
		t.Fatal(err)
	}
}

// drain acknowledges the n oldest messages.
func (b *bench) drain(t *testing.T, typ string, n int) {
	t.Helper()
	var ids []queue.ID
	for _, m := range stored(t, b.mem, typ)[:n] {
		ids = append(ids, m.ID)
	}
	if err := b.mem.Ack(t.Context(), typ, ids); err != nil {
		t.Fatal(err)
	}
}

// failSwitch makes calls of an operation fail on demand. Call it before the first message.
func (b *bench) failSwitch(op queuetest.Op) (fail func(queuetest.Kind)) {
	var kind atomic.Int64
	b.faulty.Next = func(is queuetest.Op, _ string, _ int) queuetest.Fault {
		if is == op {
			return queuetest.Fault{Kind: queuetest.Kind(kind.Load())}
		}
		return queuetest.Fault{}
	}
	return func(k queuetest.Kind) { kind.Store(int64(k)) }
}

// Messages of a paused type are certainly refused, with the remedy. They use no number, and cause no pause afterwards.
func TestPausedTypeRefuses(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.change(t, "audit", queue.SettingsPatch{PublishPaused: new(true), Why: "new schema"})
		_, err := b.Publish(t.Context(), "audit", nil, nil) // the very first message
		var paused *queue.PausedError
		if !errors.Is(err, queue.ErrPaused) || !errors.As(err, &paused) || paused.Type != "audit" || !strings.Contains(err.Error(), "audit (new schema)") {
			t.Errorf("got %v", err)
		}
		first, err := b.Publish(t.Context(), "orders", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(true)})
		time.Sleep(reread)
		results := b.PublishAll(t.Context(), append(messages("orders", 3), messages("payments", 1)...))
		wantStatus(t, results, queue.Rejected, queue.Rejected, queue.Rejected, queue.Stored)
		if !errors.Is(results[0].Err, queue.ErrPaused) || !results[0].ID.IsZero() {
			t.Errorf("got %+v", results[0])
		}
		b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(false)})
		time.Sleep(reread)
		begin := time.Now()
		next, err := b.Publish(t.Context(), "orders", nil, nil)
		if err != nil || next.Producer() != first.Producer() || next.N() != 2 || time.Since(begin) > 0 {
			t.Errorf("%v after %v: producer %x, n %d, want %x, 2", err, time.Since(begin), next.Producer(), next.N(), first.Producer())
		}
		if st := b.Stats(); st.Rejected != 4 || st.Buffered != 0 || st.Rotations != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A pause does not affect messages that were sent before it: they may have landed.
func TestPauseDoesNotTouchWhatWasSent(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, time.Second, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Lost}, queuetest.Fault{Kind: queuetest.Lost}, queuetest.Fault{Kind: queuetest.Lost}, queuetest.Fault{Kind: queuetest.Lost})
		time.AfterFunc(time.Millisecond, func() { b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(true)}) })
		begin := time.Now()
		if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil || time.Since(begin) < reread {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// With a limit the backlog never exceeds it, and messages wait for room, in order and without a gap.
func TestBacklogLimitHoldsPublishersBack(t *testing.T) {
	var full []string
	opt := queue.PublisherOptions{OnBacklogFull: func(typ string, limit int) { full = append(full, fmt.Sprint(typ, " ", limit)) }}
	onVirtualTime(t, opt, time.Millisecond, func(t *testing.T, b *bench) {
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(10)})
		var results []queue.Result
		var publishing sync.WaitGroup
		publishing.Go(func() { results = b.PublishAll(t.Context(), messages("orders", 25)) })
		for drained := 0; drained < 20; drained += 5 {
			time.Sleep(2 * time.Minute)
			if n := len(stored(t, b.mem, "orders")); n != min(10, 25-drained) {
				t.Fatalf("%d messages are pending after %d were drained", n, drained)
			}
			if _, err := b.Publish(t.Context(), "audit", nil, nil); err != nil {
				t.Errorf("another type: %v", err)
			}
			b.drain(t, "orders", 5)
		}
		publishing.Wait()
		for i, r := range results {
			if r.Status != queue.Stored || r.ID.N() != uint64(i+1) || r.ID.Producer() != results[0].ID.Producer() {
				t.Fatalf("message %d: %+v", i, r)
			}
		}
		if fmt.Sprint(full) != "[orders 10 orders 10 orders 10]" {
			t.Errorf("told about %q", full)
		}
		// A limit that was removed blocks no message.
		publishing.Go(func() { results = b.PublishAll(t.Context(), messages("orders", 25)) })
		time.Sleep(time.Minute)
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(0)})
		begin := time.Now()
		publishing.Wait()
		if d := time.Since(begin); d > reread || results[24].Status != queue.Stored {
			t.Errorf("%+v after %v", results[24], d)
		}
	})
}

func TestFullBacklogRefusesAfterItsTime(t *testing.T) {
	for name, tc := range map[string]struct {
		option time.Duration
		want   time.Duration
	}{
		"default": {0, queue.DefaultBacklogWait},
		"option":  {time.Minute, time.Minute},
		"at once": {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, queue.PublisherOptions{BacklogWait: tc.option}, 0, func(t *testing.T, b *bench) {
				b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(2)})
				begin := time.Now()
				results := b.PublishAll(t.Context(), messages("orders", 4))
				wantStatus(t, results, queue.Stored, queue.Stored, queue.Rejected, queue.Rejected)
				if d := time.Since(begin); d < tc.want || d > tc.want+2*time.Second {
					t.Errorf("refused after %v, want %v", d, tc.want)
				}
				var full *queue.BacklogFullError
				if err := results[2].Err; !errors.Is(err, queue.ErrBacklogFull) || !errors.As(err, &full) || full.Type != "orders" || !strings.Contains(err.Error(), "raise the limit") {
					t.Errorf("got %v", err)
				}
				b.drain(t, "orders", 1)
				time.Sleep(reread)
				id, err := b.Publish(t.Context(), "orders", nil, nil)
				if err != nil || id.N() != 3 || id.Producer() != results[0].ID.Producer() {
					t.Errorf("%v, %d: what was refused must use no number", err, id.N())
				}
			})
		})
	}
}

// A caller waits no longer than its context, and the message is certainly withdrawn.
func TestContextEndsTheWaitForRoom(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(1)})
		if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Publish(ctx, "orders", nil, nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, queue.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		// So does Close.
		b.givesUp = true
		if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(r queue.Result) {
			if r.Status != queue.Rejected || !errors.Is(r.Err, queue.ErrClosed) {
				t.Errorf("got %+v", r)
			}
		}); err != nil {
			t.Fatal(err)
		}
		closing, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Close(closing); err == nil {
			t.Error("Close says nothing of the message that it gave up")
		}
		if n := len(stored(t, b.mem, "orders")); n != 1 {
			t.Errorf("%d messages are pending", n)
		}
	})
}

// Unreadable settings and counts block nothing; the last known ones stay in force.
func TestUnreadableSettingsHoldNobodyUp(t *testing.T) {
	for _, kind := range []queuetest.Kind{queuetest.Hang, queuetest.Lost, queuetest.Refused} {
		onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
			b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(true)})
			fail := b.failSwitch(queuetest.OpAllSettings)
			fail(kind)
			for _, most := range []time.Duration{11 * time.Second, 2 * time.Second} {
				begin := time.Now()
				if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil || time.Since(begin) > most {
					t.Errorf("%v after %v; want %v at most", err, time.Since(begin), most)
				}
				time.Sleep(reread)
			}
			fail(queuetest.None)
			time.Sleep(reread)
			if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrPaused) {
				t.Fatal(err)
			}
			fail(kind)
			time.Sleep(time.Minute)
			if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrPaused) {
				t.Errorf("forgotten because it could not be read again: %v", err)
			}
		})
		onVirtualTime(t, queue.PublisherOptions{BacklogWait: time.Minute}, 0, func(t *testing.T, b *bench) {
			b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(2)})
			fail := b.failSwitch(queuetest.OpDepth)
			fail(kind)
			begin := time.Now()
			wantStatus(t, b.PublishAll(t.Context(), messages("orders", 2)), queue.Stored, queue.Stored)
			if d := time.Since(begin); d > 11*time.Second {
				t.Errorf("took %v", d)
			}
			fail(queuetest.None)
			time.Sleep(2 * time.Minute)
			time.AfterFunc(time.Second, func() { fail(kind) })
			if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrBacklogFull) {
				t.Errorf("a backlog that was full when it was counted last: %v", err)
			}
		})
	}
}

// slowSettings takes nine seconds for a read of settings.
type slowSettings struct{ queue.Queue }

func (q slowSettings) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	select {
	case <-time.After(9 * time.Second):
		return q.Queue.AllSettings(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Given a publisher that has just started, when the server takes seconds to answer, then it waits for the settings and follows them.
func TestASlowServerIsNoReasonToIgnoreAPause(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.change(t, "orders", queue.SettingsPatch{PublishPaused: new(true)})
		b.rec.Queue = slowSettings{b.rec.Queue}
		if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrPaused) {
			t.Errorf("%v, want that the type is paused", err)
		}
	})
}

// Following the settings costs one read in two seconds, for all types together, and none when nothing is sent.
func TestSettingsCostNextToNothing(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 10*time.Millisecond, func(t *testing.T, b *bench) {
		b.change(t, "other", queue.SettingsPatch{MaxBacklog: new(1)})
		var callers sync.WaitGroup
		begin := time.Now()
		for i := range 5 {
			callers.Go(func() {
				for time.Since(begin) < 10*time.Second {
					if _, err := b.Publish(t.Context(), fmt.Sprint("t", i), nil, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		time.Sleep(30 * time.Minute)
		// After 0, 2, 4, 6 and 8 s, and after 10 s if one of the last messages is sent then.
		if n := b.faulty.Calls(queuetest.OpAllSettings); n != 5 && n != 6 {
			t.Errorf("%d reads of the settings in 10 s", n)
		}
		if n := b.faulty.Calls(queuetest.OpDepth); n != 0 {
			t.Errorf("%d counts for types without a limit", n)
		}
	})
}

// counting makes a count take some time.
type counting struct {
	queue.Queue
	takes time.Duration
	mu    sync.Mutex
	calls int
}

func (c *counting) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	time.Sleep(c.takes)
	return c.Queue.Depth(ctx, typ, most)
}

// Counting keeps a server busy for at most a tenth of the time, and less if a count is quick.
func TestBacklogIsCountedWithRests(t *testing.T) {
	for takes, most := range map[time.Duration]int{time.Second: 8, time.Microsecond: 140} {
		synctest.Test(t, func(t *testing.T) {
			c := &counting{Queue: queuetest.NewMemory(), takes: takes}
			if _, err := c.PatchSettings(t.Context(), "orders", queue.SettingsPatch{MaxBacklog: new(1)}); err != nil {
				t.Fatal(err)
			}
			p, err := queue.NewPublisher(t.Context(), c, queue.PublisherOptions{BacklogWait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			results := p.PublishAll(t.Context(), messages("orders", 2))
			wantStatus(t, results, queue.Stored, queue.Rejected)
			if c.calls > most {
				t.Errorf("counted %d times in a minute, %v each", c.calls, takes)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A stream that cannot send for long takes a new number, although it always has messages: consumers forget the old one.
func TestNumberOfAStreamThatWaitsTooLong(t *testing.T) {
	opt := queue.PublisherOptions{BacklogWait: 10 * time.Minute, IdleRotate: time.Hour}
	onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(1)})
		first, err := b.Publish(t.Context(), "orders", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var publishing sync.WaitGroup
		for range 30 { // some caller is always waiting
			time.Sleep(3 * time.Minute)
			publishing.Go(func() { _, _ = b.Publish(t.Context(), "orders", nil, nil) })
		}
		b.drain(t, "orders", 1)
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(0)})
		publishing.Wait()
		msgs := stored(t, b.mem, "orders")
		if len(msgs) == 0 || msgs[0].ID.Producer() == first.Producer() || msgs[0].ID.N() != 1 {
			t.Errorf("%d messages, the first one after a pause of 90 min is %v, as before it %v", len(msgs), msgs[0].ID, first)
		}
	})
}

// A stop does not wait for answers on which no outcome depends: a count of the backlog, the settings, the registration of the type.
func TestStopDoesNotWaitForAQuestion(t *testing.T) {
	for op, want := range map[queuetest.Op]queue.Status{queuetest.OpDepth: queue.Rejected, queuetest.OpAllSettings: queue.Rejected, queuetest.OpRegisterType: queue.Stored} {
		t.Run(string(op), func(t *testing.T) {
			onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
				fail := b.failSwitch(op)
				var asked atomic.Int64
				next := b.faulty.Next
				b.faulty.Next = func(is queuetest.Op, typ string, n int) queuetest.Fault {
					if is == op {
						asked.Add(1)
					}
					return next(is, typ, n)
				}
				if want == queue.Rejected {
					b.change(t, "audit", queue.SettingsPatch{MaxBacklog: new(1)})
					if err := b.mem.Insert(t.Context(), "audit", []queue.Message{{ID: queue.NewID(time.Now(), 1, 1)}}); err != nil {
						t.Fatal(err)
					}
				} else {
					fail(queuetest.Hang)
				}
				results := make(chan queue.Result, 1)
				if err := b.Send(t.Context(), queue.Message{Type: "audit"}, func(r queue.Result) { results <- r }); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second) // if it is not stored, it waits for room
				if before := asked.Load(); want == queue.Rejected {
					fail(queuetest.Hang)
					for asked.Load() == before {
						time.Sleep(time.Millisecond)
					}
				}
				began := time.Now()
				b.Stop()
				if err := b.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("stopped after %v", took)
				}
				if r := <-results; r.Status != want {
					t.Errorf("the message is %v: %v", r.Status, r.Err)
				}
			})
		})
	}
}

// Sent messages are settled after a stop, however long that takes.
func TestStopWaitsForWhatWasSent(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		fail := b.failSwitch(queuetest.OpInsert)
		fail(queuetest.Lost)
		results := make(chan queue.Result, 1)
		if err := b.Send(t.Context(), queue.Message{Type: "audit"}, func(r queue.Result) { results <- r }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.Stop()
		time.AfterFunc(20*time.Second, func() { fail(queuetest.None) })
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if r := <-results; r.Status != queue.Stored {
			t.Errorf("the message is %v: %v", r.Status, r.Err)
		}
	})
}
