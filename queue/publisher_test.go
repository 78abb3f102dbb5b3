package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// attempt is one Insert that a recorder saw.
type attempt struct {
	typ        string
	msgs       []queue.Message
	begin, end time.Time
	overlapped bool // another Insert of the type was running
}

// recorder makes every Insert take some time, and keeps the inserted messages.
type recorder struct {
	queue.Queue
	latency time.Duration

	mu       sync.Mutex
	attempts []attempt
	flying   map[string]int
}

func (r *recorder) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	a := attempt{typ: typ, begin: time.Now()}
	for _, m := range msgs {
		m.Payload = bytes.Clone(m.Payload)
		a.msgs = append(a.msgs, m)
	}
	r.mu.Lock()
	a.overlapped = r.flying[typ] > 0
	r.flying[typ]++
	r.mu.Unlock()
	time.Sleep(r.latency)
	err := r.Queue.Insert(ctx, typ, msgs)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flying[typ]--
	a.end = time.Now()
	r.attempts = append(r.attempts, a)
	return err
}

func (r *recorder) inserts() []attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.attempts)
}

// bench is a publisher in front of a recorder, faults and a memory queue.
type bench struct {
	*queue.Publisher
	rec     *recorder
	faulty  *queuetest.Faulty
	mem     *queuetest.Memory
	givesUp bool // Close ends before all is settled
}

// onVirtualTime runs a test in a bubble, with a publisher that is closed at the end.
func onVirtualTime(t *testing.T, opt queue.PublisherOptions, latency time.Duration, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{mem: queuetest.NewMemory()}
		b.faulty = &queuetest.Faulty{Queue: b.mem}
		b.rec = &recorder{Queue: b.faulty, latency: latency, flying: map[string]int{}}
		p, err := queue.NewPublisher(t.Context(), b.rec, opt)
		if err != nil {
			t.Fatal(err)
		}
		b.Publisher = p
		defer func() {
			if err := p.Close(context.Background()); (err != nil) != b.givesUp {
				t.Errorf("Close: %v", err)
			}
			synctest.Wait() // a callback may have returned only now
			if n := p.Streams(); n != 0 {
				t.Errorf("%d streams are left after Close", n)
			}
		}()
		test(t, b)
	})
}

// failInserts makes the first inserts fail, one fault each.
func (b *bench) failInserts(faults ...queuetest.Fault) {
	var mu sync.Mutex
	b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op != queuetest.OpInsert || len(faults) == 0 {
			return queuetest.Fault{}
		}
		f := faults[0]
		faults = faults[1:]
		return f
	}
}

// failAllInserts makes every insert fail.
func (b *bench) failAllInserts(f queuetest.Fault) {
	b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		if op != queuetest.OpInsert {
			return queuetest.Fault{}
		}
		return f
	}
}

func messages(typ string, n int) []queue.Message {
	msgs := make([]queue.Message, n)
	for i := range msgs {
		msgs[i] = queue.Message{Type: typ, Payload: fmt.Appendf(nil, "%s %d", typ, i)}
	}
	return msgs
}

func stored(t *testing.T, q queue.Queue, typ string) []queue.Message {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

func wantStatus(t *testing.T, results []queue.Result, want ...queue.Status) {
	t.Helper()
	var got []queue.Status
	for _, r := range results {
		got = append(got, r.Status)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v (%v)", got, want, results)
	}
}

func TestPublishStoresPayloadHeadersAndRegistersTheType(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		payload, headers := []byte("hello"), map[string]string{"k": "v"}
		id, err := b.Publish(t.Context(), "orders", payload, headers)
		if err != nil {
			t.Fatal(err)
		}
		got := stored(t, b.mem, "orders")
		if len(got) != 1 || got[0].ID != id || string(got[0].Payload) != "hello" || got[0].Headers["k"] != "v" {
			t.Fatalf("got %v", got)
		}
		if id.N() != 1 || !id.Time().Equal(time.Now().Truncate(time.Millisecond)) {
			t.Errorf("ID has n=%d, time %v", id.N(), id.Time())
		}
		synctest.Wait()
		if n := b.faulty.Calls(queuetest.OpRegisterType); n != 1 {
			t.Errorf("registered %d times", n)
		}
		if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := b.faulty.Calls(queuetest.OpRegisterType); n != 1 {
			t.Errorf("registered %d times after two messages", n)
		}
	})
}

func TestPublisherRegistersAgainAfterAFailureWithoutDelayingOutcomes(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
			if op == queuetest.OpRegisterType && b.faulty.Calls(op) == 1 {
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		}
		begin := time.Now()
		if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil || time.Since(begin) > 0 {
			t.Fatalf("%v after %v: registering must not hold the outcome up", err, time.Since(begin))
		}
		if _, err := b.Publish(t.Context(), "orders", nil, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := b.faulty.Calls(queuetest.OpRegisterType); n != 2 {
			t.Errorf("registered %d times", n)
		}
	})
}

// Callers that arrive while a batch is in flight share the next one, and two batches of a type never overlap.
func TestOneBatchInFlightPerTypeAndCallersShareTheNext(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 10*time.Millisecond, func(t *testing.T, b *bench) {
		var callers sync.WaitGroup
		publish := func(typ string) {
			callers.Go(func() {
				if _, err := b.Publish(t.Context(), typ, nil, nil); err != nil {
					t.Error(err)
				}
			})
		}
		publish("orders")
		synctest.Wait() // the first batch is in flight, with one message
		begin := time.Now()
		for range 500 {
			publish("orders")
		}
		publish("audit")
		callers.Wait()
		if d := time.Since(begin); d != 20*time.Millisecond {
			t.Errorf("took %v, want two durations of an insert: the rest of the first batch and one more", d)
		}
		var sizes []int
		for _, a := range b.rec.inserts() {
			if a.overlapped {
				t.Error("two batches of a type were in flight together")
			}
			if a.typ == "orders" {
				sizes = append(sizes, len(a.msgs))
			} else if !a.begin.Equal(begin) {
				t.Error("another type has to wait")
			}
		}
		if !slices.Equal(sizes, []int{1, 500}) {
			t.Errorf("batches of %v messages, want [1 500]", sizes)
		}
	})
}

func TestBatchBounds(t *testing.T) {
	one := (&queue.Message{}).Size()
	for name, tc := range map[string]struct {
		opt  queue.PublisherOptions
		size []int
		want []int
	}{
		"messages":                  {queue.PublisherOptions{BatchMessages: 3}, []int{1, 1, 1, 1, 1, 1, 1}, []int{3, 3, 1}},
		"bytes":                     {queue.PublisherOptions{BatchBytes: 2*one + 100}, []int{50, 50, 1, 99, 2}, []int{2, 2, 1}},
		"a large one travels alone": {queue.PublisherOptions{BatchBytes: 100}, []int{10, 500, 10}, []int{1, 1, 1}},
		"larger than the buffer":    {queue.PublisherOptions{BufferBytes: 300}, []int{1000, 1000}, []int{1, 1}},
		"default":                   {queue.PublisherOptions{}, make([]int, 2500), []int{1000, 1000, 500}},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, tc.opt, time.Millisecond, func(t *testing.T, b *bench) {
				msgs := make([]queue.Message, len(tc.size))
				for i, n := range tc.size {
					msgs[i] = queue.Message{Type: "orders", Payload: make([]byte, n)}
				}
				for _, r := range b.PublishAll(t.Context(), msgs) {
					if r.Status != queue.Stored {
						t.Fatal(r)
					}
				}
				var got []int
				for _, a := range b.rec.inserts() {
					got = append(got, len(a.msgs))
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("got batches %v, want %v", got, tc.want)
				}
			})
		})
	}
}

func TestLingerWaitsForCompanyButNotWhenFullOrClosing(t *testing.T) {
	opt := queue.PublisherOptions{Linger: time.Second, BatchMessages: 3}
	onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
		begin := time.Now()
		var mu sync.Mutex
		var took []time.Duration
		send := func() {
			if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(queue.Result) {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(begin))
			}); err != nil {
				t.Fatal(err)
			}
		}
		outcomes := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(took)
		}
		send()
		time.Sleep(400 * time.Millisecond)
		send()
		synctest.Wait()
		if outcomes() != 0 {
			t.Fatal("a batch left before its time")
		}
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		send()
		send()
		send() // full
		synctest.Wait()
		send()
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{1e9, 1e9, 1e9, 1e9, 1e9, 1e9}; !slices.Equal(took, want) {
			t.Errorf("got %v, want %v", took, want)
		}
	})
}

// n counts 1, 2, 3 … per type under one producer number, which types do not share, and IDs ascend.
func TestIDsAreDensePerType(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{BatchMessages: 4}, 3*time.Millisecond, func(t *testing.T, b *bench) {
		msgs := append(messages("orders", 10), messages("audit", 5)...)
		results := b.PublishAll(t.Context(), msgs)
		producers := map[string]uint64{}
		n := map[string]uint64{}
		var last queue.ID
		for i, r := range results {
			typ := msgs[i].Type
			n[typ]++
			if n[typ] == 1 {
				producers[typ], last = r.ID.Producer(), queue.ID{}
			}
			if r.Status != queue.Stored || r.ID.N() != n[typ] || r.ID.Producer() != producers[typ] || r.ID.Compare(last) <= 0 {
				t.Fatalf("%s %d: %v n=%d", typ, n[typ], r, r.ID.N())
			}
			last = r.ID
		}
		if producers["orders"] == producers["audit"] {
			t.Error("two types share a producer number")
		}
		for i, m := range stored(t, b.mem, "orders") {
			if string(m.Payload) != fmt.Sprintf("orders %d", i) {
				t.Errorf("at %d: %s", i, m.Payload)
			}
		}
	})
}

func TestIDTimeIsTheQueuesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &shifted{Queue: queuetest.NewMemory(), by: -42 * time.Hour}
		p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		for range 3 {
			id, err := p.Publish(t.Context(), "orders", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := time.Now().Add(-42 * time.Hour); id.Time().UnixMilli() != want.UnixMilli() {
				t.Errorf("ID time %v, want %v", id.Time(), want)
			}
			time.Sleep(time.Minute)
		}
		if q.reads != 1 {
			t.Errorf("the queue's clock was read %d times", q.reads)
		}
	})
}

type shifted struct {
	queue.Queue
	by    time.Duration
	reads int
}

func (s *shifted) Now(context.Context) (time.Time, error) {
	s.reads++
	return time.Now().Add(s.by), nil
}

// After an unclear answer the same documents are sent again, byte for byte, even if the caller has returned and reuses its memory.
func TestUnclearBatchIsRepeatedUnchanged(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Lost}, queuetest.Fault{Kind: queuetest.Partial, Keep: 2},
			queuetest.Fault{Kind: queuetest.HangPerformed}, queuetest.Fault{Kind: queuetest.Late, Delay: time.Millisecond})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		msgs := messages("orders", 5)
		results := b.PublishAll(ctx, msgs)
		for i, r := range results {
			if r.Status != queue.Unknown || !errors.Is(r.Err, queue.ErrUnknown) || !errors.Is(r.Err, context.DeadlineExceeded) || r.ID.N() != uint64(i+1) {
				t.Fatalf("%d: %v", i, r)
			}
			clear(msgs[i].Payload)
		}
		next := b.PublishAll(t.Context(), messages("orders", 1))
		wantStatus(t, next, queue.Stored)
		attempts := b.rec.inserts()
		if len(attempts) != 6 {
			t.Fatalf("%d inserts, want 5 for the first batch and 1 for the second", len(attempts))
		}
		for _, a := range attempts[:5] {
			for i, m := range a.msgs {
				if m.ID != results[i].ID || string(m.Payload) != fmt.Sprintf("orders %d", i) {
					t.Errorf("repeated as %v %q, was %v", m.ID, m.Payload, results[i].ID)
				}
			}
		}
		if next[0].ID.N() != 6 || next[0].ID.Producer() != results[0].ID.Producer() {
			t.Error("all was stored in the end, so the producer number stays and n continues")
		}
		if got := stored(t, b.mem, "orders"); len(got) != 6 {
			t.Errorf("%d messages are stored", len(got))
		}
		synctest.Wait() // a batch counts when its stream is done with it, after reporting its outcomes
		if st := b.Stats(); st.Stored != 6 || st.Repeats != 4 || st.Rotations != 0 || st.Batches != 2 {
			t.Errorf("stats %+v", st)
		}
	})
}

// The process is suspended between two attempts, for longer than a consumer remembers the messages of the first one.
func TestNoAttemptStartsLate(t *testing.T) {
	stopped := func(queue.Repeat) { time.Sleep(48 * time.Hour) }
	onVirtualTime(t, queue.PublisherOptions{OnRepeat: stopped}, 0, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Lost})
		if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		if n := b.faulty.Calls(queuetest.OpInsert); n != 1 {
			t.Errorf("%d attempts, want one", n)
		}
	})
}

func TestRepeatsAreSpacedJitteredReportedAndBounded(t *testing.T) {
	var repeats []queue.Repeat
	opt := queue.PublisherOptions{OnRepeat: func(r queue.Repeat) { repeats = append(repeats, r) }}
	onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
		b.failAllInserts(queuetest.Fault{Kind: queuetest.Lost})
		begin := time.Now()
		_, err := b.Publish(t.Context(), "orders", nil, nil)
		if took := time.Since(begin); !errors.Is(err, queue.ErrUnknown) || took > queue.DefaultRepeatFor || took < queue.DefaultRepeatFor-queue.MaxRepeatWait {
			t.Fatalf("%v after %v", err, took)
		}
		for i, r := range repeats {
			longest := min(queue.MinRepeatWait<<min(i, 20), queue.MaxRepeatWait)
			if r.Attempt != i+1 || r.Messages != 1 || r.Type != "orders" || !errors.Is(r.Err, queuetest.ErrFault) || r.Wait > longest || r.Wait < longest/2 {
				t.Errorf("repeat %d: %+v, want a wait between %v and %v", i, r, longest/2, longest)
			}
		}
		waits := map[time.Duration]bool{}
		for _, r := range repeats[20:] {
			waits[r.Wait] = true
		}
		if len(waits) < 10 {
			t.Errorf("%d different waits in %d repeats: no jitter", len(waits), len(repeats))
		}
		if n := b.faulty.Calls(queuetest.OpInsert); n != len(repeats)+1 {
			t.Errorf("%d inserts, %d repeats reported", n, len(repeats))
		}
	})
}

// Which outcome the publisher may report for a message after each history of attempts.
func TestOutcomes(t *testing.T) {
	refused := func(keep int) queuetest.Fault { return queuetest.Fault{Kind: queuetest.Refused, Keep: keep} }
	const st, un, re = queue.Stored, queue.Unknown, queue.Rejected
	for name, tc := range map[string]struct {
		faults   []queuetest.Fault
		for_     queuetest.Kind // after faults, forever
		want     []queue.Status
		visible  int
		rotation bool
	}{
		"works":                        {nil, queuetest.None, []queue.Status{st, st, st}, 3, false},
		"refused":                      {[]queuetest.Fault{refused(0)}, queuetest.None, []queue.Status{re, re, re}, 0, true},
		"refused in the middle":        {[]queuetest.Fault{refused(2)}, queuetest.None, []queue.Status{st, st, re}, 2, true},
		"lost answer, then refused":    {[]queuetest.Fault{{Kind: queuetest.LostAnswer}, refused(1)}, queuetest.None, []queue.Status{st, un, un}, 3, true},
		"lost, then refused":           {[]queuetest.Fault{{Kind: queuetest.Lost}, refused(0)}, queuetest.None, []queue.Status{un, un, un}, 0, true},
		"late, then refused":           {[]queuetest.Fault{{Kind: queuetest.Late, Delay: time.Hour}, refused(0)}, queuetest.None, []queue.Status{un, un, un}, 3, true},
		"unreachable for a while":      {[]queuetest.Fault{{Kind: queuetest.Unreachable}, {Kind: queuetest.Unreachable}}, queuetest.None, []queue.Status{st, st, st}, 3, false},
		"unreachable all the time":     {nil, queuetest.Unreachable, []queue.Status{re, re, re}, 0, true},
		"lost, then never reachable":   {[]queuetest.Fault{{Kind: queuetest.Lost}}, queuetest.Unreachable, []queue.Status{un, un, un}, 0, true},
		"unreachable, then refused":    {[]queuetest.Fault{{Kind: queuetest.Unreachable}, refused(1)}, queuetest.None, []queue.Status{st, re, re}, 1, true},
		"hangs all the time":           {nil, queuetest.Hang, []queue.Status{un, un, un}, 0, true},
		"hangs once":                   {[]queuetest.Fault{{Kind: queuetest.Hang}}, queuetest.None, []queue.Status{st, st, st}, 3, false},
		"the answer is lost each time": {nil, queuetest.LostAnswer, []queue.Status{un, un, un}, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, queue.PublisherOptions{RepeatFor: time.Minute}, 0, func(t *testing.T, b *bench) {
				faults := tc.faults
				var healthy atomic.Bool
				b.faulty.Next = func(op queuetest.Op, _ string, _ int) (f queuetest.Fault) {
					switch {
					case op != queuetest.OpInsert || healthy.Load():
					case len(faults) > 0:
						f, faults = faults[0], faults[1:]
					default:
						f.Kind = tc.for_
					}
					return f
				}
				results := b.PublishAll(t.Context(), messages("orders", 3))
				wantStatus(t, results, tc.want...)
				for _, r := range results {
					if (r.Err == nil) != (r.Status == st) || errors.Is(r.Err, queue.ErrUnknown) != (r.Status == un) || r.ID.IsZero() != (r.Status == re) {
						t.Errorf("inconsistent result %v", r)
					}
				}
				b.faulty.Wait()
				if got := stored(t, b.mem, "orders"); len(got) != tc.visible {
					t.Errorf("%d messages are in the queue, want %d", len(got), tc.visible)
				}
				healthy.Store(true)
				next := b.PublishAll(t.Context(), messages("orders", 1))
				wantStatus(t, next, st)
				if rotated := next[0].ID.N() == 1; rotated != tc.rotation {
					t.Errorf("new producer number: %v, want %v", rotated, tc.rotation)
				}
				for _, r := range results {
					if tc.rotation && r.Status != re && (r.ID.Producer() == next[0].ID.Producer() || r.ID.Compare(next[0].ID) >= 0) {
						t.Errorf("the message after the failure has ID %v, after %v", next[0].ID, r.ID)
					}
				}
			})
		})
	}
}

// A consumer that has just read past the old number's place must have come back before it can see the new number.
func TestNewNumberWaitsUntilTheOldOneHasBeenSeen(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, time.Millisecond, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Refused, Keep: 1}, queuetest.Fault{Kind: queuetest.Refused})
		wantStatus(t, b.PublishAll(t.Context(), messages("orders", 2)), queue.Stored, queue.Rejected)
		wantStatus(t, b.PublishAll(t.Context(), messages("orders", 2)), queue.Rejected, queue.Rejected)
		wantStatus(t, b.PublishAll(t.Context(), messages("orders", 1)), queue.Stored)
		a := b.rec.inserts()
		if pause := a[1].begin.Sub(a[0].end); pause != queue.RotationPause {
			t.Errorf("paused %v, want %v", pause, queue.RotationPause)
		}
		if d := a[2].begin.Sub(a[1].end); d != 0 {
			t.Errorf("%v between two batches that follow no stored message", d)
		}
	})
}

// Messages that are delayed are promoted in the order of their IDs, whatever their producer numbers.
func TestDelayedMessagesSortBehindALostNumber(t *testing.T) {
	for range 20 { // producer numbers are random
		onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
			failing := false
			b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
				if op == queuetest.OpDelay && failing {
					return queuetest.Fault{Kind: queuetest.Refused}
				}
				return queuetest.Fault{}
			}
			due := b.Now().Add(time.Hour)
			first, err := b.PublishAt(t.Context(), due, "orders", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			failing = true
			if _, err := b.PublishAt(t.Context(), due, "orders", nil, nil); err == nil {
				t.Fatal("stored although it was refused")
			}
			failing = false
			second, err := b.PublishAt(t.Context(), due, "orders", nil, nil)
			if err != nil || second.Producer() == first.Producer() || second.Compare(first) < 0 {
				t.Errorf("%v after %v: %v", second, first, err)
			}
		})
	}
}

// A time in the past means as soon as possible, however long ago it is.
func TestPublishAtATimeInThePast(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		for _, due := range []time.Time{{}, time.Unix(-1, 0), time.Date(-4000, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMilli(0), b.Now().Add(-time.Minute)} {
			if _, err := b.PublishAt(t.Context(), due, "orders", nil, nil); err != nil {
				t.Errorf("%v: %v", due, err)
			}
		}
		if _, err := b.PublishAfter(t.Context(), -1<<63, "orders", nil, nil); err != nil {
			t.Errorf("the shortest delay: %v", err)
		}
		if due, ok, err := b.mem.NextDue(t.Context()); err != nil || !ok || due.After(b.Now()) {
			t.Errorf("the first is due at %v, %t, %v", due, ok, err)
		}
	})
}

// The caller modifies its payload and headers while the message waits to be sent.
func TestWaitingMessagesAreTheirOwn(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{Linger: time.Second}, 0, func(t *testing.T, b *bench) {
		payload, headers := []byte("as it was"), map[string]string{"k": "as it was"}
		if err := b.Send(t.Context(), queue.Message{Type: "orders", Payload: payload, Headers: headers}, func(queue.Result) {}); err != nil {
			t.Fatal(err)
		}
		copy(payload, "something")
		headers["k"] = "something else"
		time.Sleep(2 * time.Second)
		got := stored(t, b.mem, "orders")
		if len(got) != 1 || string(got[0].Payload) != "as it was" || got[0].Headers["k"] != "as it was" {
			t.Errorf("stored %+v", got)
		}
	})
}

func TestIdleStreamEndsAndTheNextHasANewNumber(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		publish := func() queue.ID {
			id, err := b.Publish(t.Context(), "orders", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		first := publish()
		time.Sleep(queue.DefaultIdleRotate - time.Second)
		synctest.Wait()
		second := publish()
		if second.Producer() != first.Producer() || second.N() != 2 {
			t.Error("rotated before its time")
		}
		time.Sleep(queue.DefaultIdleRotate)
		synctest.Wait()
		if n := b.Streams(); n != 0 {
			t.Errorf("%d streams (and goroutines) after an hour without messages", n)
		}
		third := publish()
		if third.Producer() == first.Producer() || third.N() != 1 || third.Compare(second) <= 0 {
			t.Errorf("after an hour: %v, n=%d", third, third.N())
		}
	})
}

func TestCallerWhoseContextEnds(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{BatchMessages: 2}, 0, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Hang})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("lost patience"))
		defer cancel()
		begin := time.Now()
		results := b.PublishAll(ctx, messages("orders", 4))
		if d := time.Since(begin); d != time.Second {
			t.Errorf("returned after %v", d)
		}
		wantStatus(t, results, queue.Unknown, queue.Unknown, queue.Rejected, queue.Rejected)
		for _, r := range results {
			if !strings.Contains(r.Err.Error(), "lost patience") {
				t.Errorf("%v does not name the cause", r.Err)
			}
		}
		wantStatus(t, b.PublishAll(ctx, messages("orders", 1)), queue.Rejected) // ctx has ended already
		if err := b.Send(ctx, queue.Message{Type: "orders"}, nil); err == nil {
			t.Error("Send with an ended context must not accept")
		}
		// The stream continues to settle the messages that it has sent, and n stays dense after them.
		id, err := b.Publish(t.Context(), "orders", []byte("later"), nil)
		if err != nil || id.N() != 3 || id.Producer() != results[0].ID.Producer() {
			t.Errorf("got %v n=%d, %v", id, id.N(), err)
		}
		if got := stored(t, b.mem, "orders"); len(got) != 3 {
			t.Errorf("%d messages are stored, want the two sent ones and the last", len(got))
		}
	})
}

// During an outage callers come and go. Their withdrawn messages must not pile up.
func TestWithdrawnMessagesLeaveNothingBehind(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{RepeatFor: time.Hour}, 0, func(t *testing.T, b *bench) {
		var down atomic.Bool
		down.Store(true)
		b.faulty.Next = func(op queuetest.Op, _ string, _ int) queuetest.Fault {
			if down.Load() && op == queuetest.OpInsert {
				return queuetest.Fault{Kind: queuetest.Unreachable}
			}
			return queuetest.Fault{}
		}
		for range 5000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			b.Publish(ctx, "orders", nil, nil)
			cancel()
		}
		if n := b.WaitingItems("orders"); n > 65 {
			t.Errorf("%d slots for no message", n)
		}
		if n := b.Stats().Buffered; n != 1 {
			t.Errorf("%d messages buffered, want the one that was sent", n)
		}
		down.Store(false)
		if id, err := b.Publish(t.Context(), "orders", nil, nil); err != nil || id.N() != 2 {
			t.Errorf("n=%d, %v", id.N(), err)
		}
	})
}

func TestBackPressure(t *testing.T) {
	m := queue.Message{Type: "orders", Payload: make([]byte, 44)}
	cost := int64(m.Size())
	opt := queue.PublisherOptions{BufferBytes: 3 * cost}
	onVirtualTime(t, opt, time.Second, func(t *testing.T, b *bench) {
		var results int
		send := func(ctx context.Context) error { return b.Send(ctx, m, func(queue.Result) { results++ }) }
		begin := time.Now()
		for range 3 {
			if err := send(t.Context()); err != nil || time.Since(begin) > 0 {
				t.Fatalf("%v after %v: the buffer has room", err, time.Since(begin))
			}
		}
		if n := b.Stats().Buffered; n != 3 {
			t.Errorf("%d buffered", n)
		}
		impatient, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := send(impatient); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "buffer is full") {
			t.Errorf("got %v", err)
		}
		if err := send(t.Context()); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v, want to wait for the first batch", err, time.Since(begin))
		}
		// A PublishAll larger than the buffer flows through it.
		for _, r := range b.PublishAll(t.Context(), messages("orders", 10)) {
			if r.Status != queue.Stored {
				t.Error(r)
			}
		}
		if results != 4 {
			t.Errorf("%d callbacks, want 4: none for the message that was not accepted", results)
		}
	})
}

func TestSendCallsBackInOrder(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{BatchMessages: 3, Linger: time.Second}, time.Millisecond, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{}, queuetest.Fault{Kind: queuetest.Refused, Keep: 1}, queuetest.Fault{Kind: queuetest.Lost})
		var order []int
		var status []queue.Status
		buf := make([]byte, 1)
		for i := range 9 {
			buf[0] = byte(i) // the caller's buffer, used again at once
			if err := b.Send(t.Context(), queue.Message{Type: "orders", Payload: buf}, func(r queue.Result) {
				order, status = append(order, i), append(status, r.Status)
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Errorf("called back in order %v", order)
		}
		const s, r = queue.Stored, queue.Rejected
		if !slices.Equal(status, []queue.Status{s, s, s, s, r, r, s, s, s}) {
			t.Errorf("got %v", status)
		}
		var payloads []byte
		for _, m := range stored(t, b.mem, "orders") {
			payloads = append(payloads, m.Payload...)
		}
		if !bytes.Equal(payloads, []byte{0, 1, 2, 3, 6, 7, 8}) {
			t.Errorf("stored %v", payloads)
		}
	})
}

func TestPublishAllReportsPerMessage(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		results := b.PublishAll(t.Context(), []queue.Message{
			{Type: "orders", Payload: []byte("a")},
			{Type: "Orders"},
			{Type: "audit", Payload: []byte("b")},
			{Type: "orders", Payload: make([]byte, queue.MaxPayload+1)},
			{Type: "orders", Headers: map[string]string{"": ""}},
			{Type: "orders", Incomplete: true},
			{Type: "orders", Payload: []byte("c")},
		})
		const s, r = queue.Stored, queue.Rejected
		wantStatus(t, results, s, r, s, r, r, r, s)
		if !errors.Is(results[1].Err, queue.ErrInvalidType) || !errors.Is(results[3].Err, queue.ErrTooLarge) || !errors.Is(results[4].Err, queue.ErrInvalidHeader) {
			t.Errorf("got %v", results)
		}
		if results[6].ID.N() != 2 {
			t.Errorf("n=%d: a rejected message must not use up a number", results[6].ID.N())
		}
		if r := b.PublishAll(t.Context(), nil); len(r) != 0 {
			t.Errorf("nothing published: %v", r)
		}
	})
}

func TestCloseFlushes(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{Linger: time.Hour, BatchMessages: 10}, time.Second, func(t *testing.T, b *bench) {
		var results []queue.Result
		for i := range 25 {
			if err := b.Send(t.Context(), queue.Message{Type: "orders", Payload: []byte{byte(i)}}, func(r queue.Result) { results = append(results, r) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(results) != 25 || len(stored(t, b.mem, "orders")) != 25 {
			t.Errorf("%d outcomes, %d stored", len(results), len(stored(t, b.mem, "orders")))
		}
		if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrClosed) || errors.Is(err, queue.ErrUnknown) {
			t.Errorf("publish after Close: %v", err)
		}
		if err := b.Send(t.Context(), queue.Message{Type: "orders"}, nil); !errors.Is(err, queue.ErrClosed) {
			t.Errorf("send after Close: %v", err)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{BatchMessages: 2, Linger: time.Second}, 0, func(t *testing.T, b *bench) {
		b.failInserts(queuetest.Fault{Kind: queuetest.Hang}, queuetest.Fault{Kind: queuetest.Hang})
		var got []queue.Status
		for range 5 {
			if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(r queue.Result) { got = append(got, r.Status) }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		b.givesUp = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		err := b.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "5 messages") {
			t.Errorf("got %v", err)
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("took %v", d)
		}
		const u, r = queue.Unknown, queue.Rejected
		if !slices.Equal(got, []queue.Status{u, u, r, r, r}) {
			t.Errorf("got %v", got)
		}
	})
}

// A callback that does not return must not keep a program from ending in time.
func TestCloseDoesNotWaitForCallbacks(t *testing.T) {
	const grace = 2 * time.Second
	returns := make(chan struct{})
	block := func() { <-returns }
	for name, opt := range map[string]queue.PublisherOptions{
		"done":     {},
		"OnRepeat": {OnRepeat: func(queue.Repeat) { block() }},
		"Save":     {Resume: &queue.Resume{Type: "orders", Save: func(queue.Checkpoint) error { block(); return nil }}},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, opt, 0, func(t *testing.T, b *bench) {
				returns, b.givesUp = make(chan struct{}), true
				b.failInserts(queuetest.Fault{Kind: queuetest.Lost}) // so that there is a repetition
				for range 2 {
					if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(queue.Result) { block() }); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				begin := time.Now()
				err := b.Close(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a callback") {
					t.Errorf("got %v", err)
				}
				if d := time.Since(begin); d != time.Hour+grace {
					t.Errorf("took %v", d)
				}
				if again := b.Close(t.Context()); again != err {
					t.Errorf("the second Close: %v", again)
				}
				close(returns)
			})
		})
	}
}

// All calls of Close have one result, that of the first.
func TestEachCloseReturnsTheFirstResult(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
		b.givesUp = true
		b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(1)})
		var got []queue.Status
		for range 2 {
			if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(r queue.Result) { got = append(got, r.Status) }); err != nil {
				t.Fatal(err)
			}
		}
		in := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		const longer = 3 * time.Second
		results := make(chan error, 3)
		go func() { results <- b.Close(in(longer)) }()
		synctest.Wait()
		begin := time.Now()
		if err := b.Close(in(time.Second)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "earlier call") || time.Since(begin) != time.Second {
			t.Errorf("a shorter context: %v after %v", err, time.Since(begin))
		}
		for range 2 {
			go func() { results <- b.Close(t.Context()) }()
		}
		first := <-results
		if !errors.Is(first, context.DeadlineExceeded) || !strings.Contains(first.Error(), "1 messages") || time.Since(begin) != longer {
			t.Errorf("%v after %v", first, time.Since(begin))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range []error{<-results, <-results, b.Close(t.Context()), b.Close(ended)} {
			if err != first {
				t.Errorf("got %v, want %v", err, first)
			}
		}
		if !slices.Equal(got, []queue.Status{queue.Stored, queue.Rejected}) {
			t.Errorf("got %v", got)
		}
	})
}

// Stop refuses messages that were never sent, at once, and does not touch those that may have landed.
func TestStop(t *testing.T) {
	const s, r = queue.Stored, queue.Rejected
	// stop stops a publisher that has accepted the given number of messages, and returns their outcomes and how long that took.
	stop := func(t *testing.T, b *bench, messages int) (got []queue.Status, took time.Duration) {
		var last error
		for range messages {
			if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(r queue.Result) { got, last = append(got, r.Status), r.Err }); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		begin := time.Now()
		b.Stop()
		if err := b.Send(t.Context(), queue.Message{Type: "orders"}, nil); !errors.Is(err, queue.ErrClosed) {
			t.Errorf("send after Stop: %v", err)
		}
		if err := b.Close(t.Context()); err != nil || !errors.Is(last, queue.ErrClosed) {
			t.Errorf("%v; the last message: %v", err, last)
		}
		return got, time.Since(begin)
	}
	t.Run("in flight", func(t *testing.T) {
		onVirtualTime(t, queue.PublisherOptions{BatchMessages: 2, Linger: time.Second}, 0, func(t *testing.T, b *bench) {
			b.failInserts(queuetest.Fault{Kind: queuetest.HangPerformed}, queuetest.Fault{Kind: queuetest.Lost}) // landed, without an answer
			got, _ := stop(t, b, 5)
			if n := len(stored(t, b.mem, "orders")); n != 2 || !slices.Equal(got, []queue.Status{s, s, r, r, r}) {
				t.Errorf("got %v, %d are stored", got, n)
			}
		})
	})
	t.Run("full backlog", func(t *testing.T) {
		onVirtualTime(t, queue.PublisherOptions{}, 0, func(t *testing.T, b *bench) {
			b.change(t, "orders", queue.SettingsPatch{MaxBacklog: new(1)})
			if got, took := stop(t, b, 3); !slices.Equal(got, []queue.Status{s, r, r}) || took > 0 {
				t.Errorf("got %v after %v", got, took)
			}
		})
	})
	t.Run("pause after a failure", func(t *testing.T) {
		onVirtualTime(t, queue.PublisherOptions{BatchMessages: 1}, 0, func(t *testing.T, b *bench) {
			b.failInserts(queuetest.Fault{}, queuetest.Fault{Kind: queuetest.Refused})
			if got, took := stop(t, b, 4); !slices.Equal(got, []queue.Status{s, r, r, r}) || took > 0 {
				t.Errorf("got %v after %v", got, took)
			}
		})
	})
}

func TestCloseReleasesThoseWhoWaitForSpace(t *testing.T) {
	onVirtualTime(t, queue.PublisherOptions{BufferBytes: 256}, time.Second, func(t *testing.T, b *bench) {
		var waiting sync.WaitGroup
		if err := b.Send(t.Context(), queue.Message{Type: "orders"}, func(queue.Result) {}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			waiting.Go(func() {
				if _, err := b.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrClosed) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		waiting.Wait()
	})
}

func TestNewPublisherRefusesBadOptionsAndDeadQueues(t *testing.T) {
	save := func(queue.Checkpoint) error { return nil }
	for _, c := range []struct {
		opt     queue.PublisherOptions
		problem string // the field, and the remedy
	}{
		{queue.PublisherOptions{Linger: -1}, "Linger is -1ns; use"},
		{queue.PublisherOptions{RepeatFor: -1}, "RepeatFor is -1ns; use"},
		{queue.PublisherOptions{RepeatFor: 13 * time.Hour}, "RepeatFor is 13h0m0s; use"},
		{queue.PublisherOptions{BacklogWait: 13 * time.Hour}, "BacklogWait is 13h0m0s; use"},
		{queue.PublisherOptions{BatchMessages: 1001}, "BatchMessages is 1001; use"},
		{queue.PublisherOptions{BatchMessages: -1}, "BatchMessages is -1; use"},
		{queue.PublisherOptions{BatchBytes: -1}, "BatchBytes is -1; use"},
		{queue.PublisherOptions{BufferBytes: -1}, "BufferBytes is -1; use"},
		{queue.PublisherOptions{IdleRotate: time.Second}, "IdleRotate is 1s; use"},
		{queue.PublisherOptions{IdleRotate: 13 * time.Hour}, "IdleRotate is 13h0m0s; use"},
		{queue.PublisherOptions{IdleRotate: -1}, "IdleRotate is -1ns; use"},
		{queue.PublisherOptions{AttemptTimeout: -1}, "AttemptTimeout is -1ns; use"},
		{queue.PublisherOptions{AttemptTimeout: 30}, "AttemptTimeout is 30ns; use"},
		{queue.PublisherOptions{Use: []queue.Middleware{nil}}, "Use is nil; leave it out"},
		{queue.PublisherOptions{Resume: &queue.Resume{Type: "Orders", Save: save}}, "Resume.Type: invalid type name"},
		{queue.PublisherOptions{Resume: &queue.Resume{Type: "orders"}}, "Resume.Save is missing; set it"},
		{queue.PublisherOptions{Resume: &queue.Resume{Type: "orders", Save: save, From: queue.Checkpoint{InFlight: -1}}}, "which was never passed to Save; use"},
	} {
		_, err := queue.NewPublisher(t.Context(), queuetest.NewMemory(), c.opt)
		if !errors.Is(err, queue.ErrOptions) || !strings.Contains(err.Error(), "publisher options: ") || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v", c.problem, err)
		}
	}
	closed := queuetest.NewMemory()
	closed.Close()
	if _, err := queue.NewPublisher(t.Context(), nil, queue.PublisherOptions{}); err == nil || !strings.Contains(err.Error(), "no queue") {
		t.Errorf("without a queue: %v", err)
	}
	if _, err := queue.NewPublisher(t.Context(), closed, queue.PublisherOptions{}); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("closed queue: %v", err)
	}
}

// A backend that breaks the contract and returns a plain error is taken as unclear.
func TestPlainErrorIsUnclear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &plain{Memory: queuetest.NewMemory()}
		p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{RepeatFor: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Publish(t.Context(), "orders", nil, nil); !errors.Is(err, queue.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

type plain struct{ *queuetest.Memory }

func (*plain) Insert(context.Context, string, []queue.Message) error { return errors.New("boom") }

// lostQueue is a queue whose database is replaced in its second Insert.
type lostQueue struct {
	queue.Queue
	inserts int
}

func (l *lostQueue) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	switch l.inserts++; l.inserts {
	case 1:
		return l.Queue.Insert(ctx, typ, msgs)
	case 2:
		return &queue.InsertError{Err: queue.ErrReplaced}
	}
	return &queue.InsertError{Refused: true, Err: queue.ErrReplaced}
}

// TestReplacedDatabaseIsReportedAtOnce: after a message in doubt the publisher does not wait, because no later one can be stored.
func TestReplacedDatabaseIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := queue.NewPublisher(t.Context(), &lostQueue{Queue: queuetest.NewMemory()}, queue.PublisherOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(context.Background())
		began := time.Now()
		for i, want := range []queue.Status{queue.Stored, queue.Unknown, queue.Rejected} {
			r := p.PublishAll(t.Context(), []queue.Message{{Type: "orders"}})[0]
			if r.Status != want || want != queue.Stored && !errors.Is(r.Err, queue.ErrReplaced) {
				t.Errorf("message %d is %v: %v; want %v", i, r.Status, r.Err, want)
			}
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
