package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// drawFaults draws the faults of the inserts of a scenario, one after the other; after them everything works.
var drawFaults = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) queuetest.Fault {
	return queuetest.Fault{
		Kind: rapid.SampledFrom([]queuetest.Kind{
			queuetest.None, queuetest.LostAnswer, queuetest.Lost, queuetest.Partial, queuetest.Late, queuetest.Hang,
			queuetest.HangPerformed, queuetest.Refused, queuetest.Unreachable,
		}).Draw(t, "kind"),
		Keep:  rapid.IntRange(0, 5).Draw(t, "keep"),
		Delay: time.Duration(rapid.IntRange(0, 20_000).Draw(t, "delay ms")) * time.Millisecond,
		Step:  time.Duration(rapid.IntRange(0, 5).Draw(t, "step ms")) * time.Millisecond,
	}
}), 0, 40)

// slow makes every insert take some time, so that callers overlap and batches form.
type slow struct {
	queue.Queue
	mu  sync.Mutex
	rng *rand.Rand
}

func (s *slow) Insert(ctx context.Context, typ string, msgs []queue.Message) error {
	s.mu.Lock()
	d := time.Duration(s.rng.IntN(20)) * time.Millisecond
	s.mu.Unlock()
	time.Sleep(d)
	return s.Queue.Insert(ctx, typ, msgs)
}

// scenario lets several callers publish in every way under faults, on virtual time, and returns what the oracle finds.
func scenario(t *testing.T, faults []queuetest.Fault, seed uint64) (verdict error) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		oracle := &queuetest.Oracle{}
		mem := queuetest.NewMemory()
		mem.OnStore = oracle.Observe
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
		p, err := queue.NewPublisher(ctx, &slow{Queue: faulty, rng: rand.New(rand.NewPCG(seed, 1))}, queue.PublisherOptions{
			BatchMessages: 7, BufferBytes: 20 * 300, RepeatFor: 5 * time.Second, AttemptTimeout: time.Second,
			Linger: time.Duration(seed%3) * time.Millisecond, BacklogWait: 2 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}

		stop := operator(ctx, t, mem, rand.New(rand.NewPCG(seed, 99)), seed%2 == 0)
		var callers sync.WaitGroup
		for c := range 3 {
			callers.Go(func() { caller(ctx, p, oracle, fmt.Sprint("caller-", c), rand.New(rand.NewPCG(seed, uint64(c+2)))) })
		}
		callers.Wait()
		closing, cancel := context.WithTimeout(ctx, time.Duration(seed%7)*time.Minute)
		defer cancel()
		closeErr := p.Close(closing)
		faulty.Wait()
		stop()
		verdict = oracle.Check()
		if st := p.Stats(); st.Buffered != 0 {
			verdict = errors.Join(verdict, fmt.Errorf("%d messages are still counted as buffered", st.Buffered))
		}
		if closeErr != nil && !errors.Is(closeErr, context.DeadlineExceeded) {
			verdict = errors.Join(verdict, fmt.Errorf("close: %w", closeErr))
		}
	})
	return verdict
}

// operator pauses and resumes the types, limits them, and drains pending messages, until it is stopped.
func operator(ctx context.Context, t *testing.T, mem *queuetest.Memory, rng *rand.Rand, works bool) (stop func()) {
	if !works {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(rng.IntN(1000)) * time.Millisecond):
			}
			typ := []string{"orders", "orders-x"}[rng.IntN(2)]
			_, err := mem.PatchSettings(ctx, typ, queue.SettingsPatch{PublishPaused: new(rng.IntN(3) == 0), MaxBacklog: new(rng.IntN(40))})
			msgs, fetched := mem.Fetch(ctx, typ, queue.ID{}, queue.Limit{Messages: 1 + rng.IntN(30)})
			var ids []queue.ID
			for _, m := range msgs {
				ids = append(ids, m.ID)
			}
			if err := errors.Join(err, fetched, mem.Ack(ctx, typ, ids)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// caller publishes messages of two types, one after the other, by all three methods.
func caller(ctx context.Context, p *queue.Publisher, oracle *queuetest.Oracle, name string, rng *rand.Rand) {
	type sent struct {
		m queue.Message
		r queue.Result
	}
	var all []*sent
	var mu sync.Mutex
	var pending sync.WaitGroup
	message := func() *sent {
		s := &sent{m: queue.Message{
			Type:    []string{"orders", "orders-x"}[rng.IntN(2)],
			Payload: fmt.Appendf(nil, "%s message %d", name, len(all)),
		}}
		all = append(all, s)
		return s
	}
	for range 12 {
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		patience := time.Hour
		if rng.IntN(3) == 0 {
			patience = time.Duration(rng.IntN(3000)) * time.Millisecond
		}
		cctx, cancel := context.WithTimeout(ctx, patience)
		switch rng.IntN(3) {
		case 0:
			s := message()
			buf := append([]byte(nil), s.m.Payload...)
			s.r.ID, s.r.Err = p.Publish(cctx, s.m.Type, buf, nil)
			s.r.Status = statusOf(s.r.Err)
			clear(buf) // the caller owns its buffer again
		case 1:
			var batch []*sent
			var msgs []queue.Message
			for range 1 + rng.IntN(20) {
				batch = append(batch, message())
				msgs = append(msgs, batch[len(batch)-1].m)
			}
			for i, r := range p.PublishAll(cctx, msgs) {
				batch[i].r = r
			}
		case 2:
			for range 1 + rng.IntN(20) {
				s := message()
				pending.Add(1)
				err := p.Send(cctx, s.m, func(r queue.Result) {
					mu.Lock()
					defer mu.Unlock()
					s.r = r
					pending.Done()
				})
				if err != nil {
					mu.Lock()
					s.r = queue.Result{Status: queue.Rejected, Err: err}
					mu.Unlock()
					pending.Done()
				}
			}
		}
		cancel()
	}
	pending.Wait()
	for _, s := range all {
		oracle.Report(name, s.m.Type, s.m.Payload, s.r)
	}
}

// statusOf is how a caller of Publish reads its error.
func statusOf(err error) queue.Status {
	switch {
	case err == nil:
		return queue.Stored
	case errors.Is(err, queue.ErrUnknown):
		return queue.Unknown
	}
	return queue.Rejected
}

// Under arbitrary faults, every Stored message is in the queue exactly once and in order, no Rejected one ever is, and
// the visible messages of a producer number have no gap at any instant.
func TestPublisherKeepsItsPromisesUnderFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := scenario(t, drawFaults.Draw(rt, "faults"), rapid.Uint64().Draw(rt, "seed")); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestPublisherInKnownScenarios: the same ones each time, enough of them to notice when a rule is missing (tools/mutants).
func TestPublisherInKnownScenarios(t *testing.T) {
	for i := range 100 {
		if err := scenario(t, drawFaults.Example(i), uint64(i)); err != nil {
			t.Fatalf("scenario %d: %v", i, err)
		}
	}
}
