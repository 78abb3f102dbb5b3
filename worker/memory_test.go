package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

func defaultMemory() *memory { return newMemory(new(Config{}.withDefaults())) }

// total returns the size of an unused memory.
func (m *memory) total() int64 { return m.free + max(m.fetch, m.promote) }

// unused fails the test if a part of the memory is granted or waited for.
func (m *memory) unused(t *testing.T, total int64) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total() != total || m.reserved || len(m.waiting) > 0 {
		t.Errorf("%d of %d bytes are free, the reserve is taken: %v, %d wait", m.total(), total, m.reserved, len(m.waiting))
	}
}

func TestMemoryIsAsLargeAsTheFlagsNeed(t *testing.T) {
	if n := defaultMemory().total(); n != minMemory {
		t.Errorf("with default flags there are %d bytes, want %d", n, minMemory)
	}
	for _, cfg := range []Config{{BatchBytes: MaxBatchBytes}, {Prefetch: MaxPrefetch}, {BatchBytes: 1, Prefetch: 1}} {
		cfg = cfg.withDefaults()
		m := newMemory(&cfg)
		if want := max(minMemory, int64(cfg.Prefetch+1)*(cfg.BatchBytes+queue.MaxSize)); m.total() < want || m.total() > want+promoteLimit.Bytes+queue.MaxSize {
			t.Errorf("BatchBytes %d, Prefetch %d: %d bytes, want about %d", cfg.BatchBytes, cfg.Prefetch, m.total(), want)
		}
	}
}

// Any number of types fetch, keep a part, and give up while they wait: never more than the total is in use, and each gets its request.
func TestMemoryIsNeverMoreThanThereIs(t *testing.T) {
	m := defaultMemory()
	total := m.total()
	var used, most atomic.Int64
	use := func(n int64) {
		now := used.Add(n)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
	}
	var types sync.WaitGroup
	for range 20 {
		types.Go(func() {
			for range 300 {
				want, idle := m.fetch, closed
				if rand.N(10) == 0 {
					want = m.promote
				}
				ctx, cancel := context.WithCancel(context.Background())
				if rand.N(4) == 0 {
					go cancel()
				}
				g, err := m.take(ctx, want, idle)
				if cancel(); err != nil {
					continue
				}
				use(want)
				runtime.Gosched()
				kept := rand.N(want + 1)
				use(kept - want) // before others can get it
				g.keep(kept)
				runtime.Gosched()
				use(-kept)
				g.give()
				g.give()
			}
		})
	}
	types.Wait()
	if most.Load() > total {
		t.Errorf("%d bytes were in use, there are %d", most.Load(), total)
	}
	if most.Load() < total/2 {
		t.Errorf("%d bytes at most were in use, there are %d: the test tests nothing", most.Load(), total)
	}
	m.unused(t, total)
}

// Types with batches in flight queue up for the shared part; a type with none gets the reserve, even from the end of the queue.
func TestReserveIsForTypesWithNothingInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := defaultMemory()
		total := m.total()
		var shared []*grant
		for g := m.try(m.fetch); g != nil; g = m.try(m.fetch) {
			shared = append(shared, g)
		}
		idle := make(chan struct{})
		got := make(chan string, 4)
		wait := func(name string, idle <-chan struct{}) {
			go func() {
				g, err := m.take(t.Context(), m.fetch, idle)
				if err != nil {
					return
				}
				got <- name
				time.Sleep(time.Second)
				g.give()
			}()
			synctest.Wait()
		}
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			select {
			case name := <-got:
				if name != want {
					t.Fatalf("%s got the memory, want %q", name, want)
				}
			default:
				if want != "" {
					t.Fatalf("%s did not get the memory", want)
				}
			}
		}
		wait("the first one", idle)
		expect("")
		wait("one with nothing in flight", closed)
		expect("one with nothing in flight")
		wait("another one with nothing in flight", closed)
		expect("")
		time.Sleep(time.Second)
		expect("another one with nothing in flight")
		time.Sleep(time.Second)
		expect("")
		close(idle)
		expect("the first one")
		wait("a fourth one", nil)
		expect("")
		shared[0].give()
		expect("a fourth one")
		time.Sleep(2 * time.Second)
		for _, g := range shared {
			g.give()
		}
		m.unused(t, total)
	})
}

// largeMessages is a queue whose messages all have the same large payload; every Fetch returns one of them.
type largeMessages struct {
	queue.Queue
	payload []byte
	fetched atomic.Int64 // bytes
}

func (q *largeMessages) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	limit.Bytes = 1
	msgs, err := q.Queue.Fetch(ctx, typ, after, limit)
	for i := range msgs {
		msgs[i].Payload = q.payload
		q.fetched.Add(int64(msgs[i].Size()))
	}
	return msgs, err
}

func typeNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("type-%d", i))
	}
	return names
}

// More types than fit have large messages, and no file becomes durable: the fetched bytes are bounded. When the disk works again, all types are drained.
func TestFilesShareTheMemory(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		const types, each = 12, 5
		q := &largeMessages{Queue: r.queue, payload: make([]byte, 4<<20)}
		names := typeNames(types)
		for _, name := range names {
			r.publish(name, each)
		}
		goOn := make(chan struct{})
		var fetches atomic.Int32
		var durable atomic.Int64
		tap := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpDatasync && fetches.Load() >= types {
				<-goOn
			}
			return nil
		}}
		p := r.start(func(c *Config) {
			c.Queue, c.Types, c.UntilEmpty = q, names, true
			inFiles(func(f *Files) { f.Storage.FS = tap })(c)
			c.Events = func(e Event) {
				if e.Kind == Committed {
					durable.Add(int64(e.Messages) * int64((&queue.Message{Payload: q.payload}).Size()))
				}
			}
			c.Observe = func(o Observation) {
				if o.Step == StepFetch {
					fetches.Add(1)
				}
			}
		})
		total := defaultMemory().total()
		time.Sleep(2 * time.Second)
		if n := q.fetched.Load() - durable.Load(); n > minMemory || n < minMemory/3 {
			t.Errorf("%d bytes were fetched, of %d allowed", n, minMemory)
		}
		close(goOn)
		if err := p.end(); err != nil {
			t.Error(err)
		}
		for _, name := range names {
			if got := contents(t, r.disk, dir+"/"+storage.FileName(name)); len(got) != each {
				t.Errorf("the file of %s holds %d messages, want %d", name, len(got), each)
			}
		}
		p.memory.unused(t, total)
	})
}

// Slow handlers, of more types than there is memory for, do not keep other types from being served.
func TestSlowHandlersStarveNobody(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		const types, each = 12, 6
		q := &largeMessages{Queue: r.queue, payload: make([]byte, queue.MaxPayload)}
		names := typeNames(types)
		for _, name := range names {
			r.publish(name, each)
		}
		var mu sync.Mutex
		handled, calls := map[string]int{}, map[string]int{}
		goOn := make(chan struct{})
		quick := names[types-1]
		h := HandlerFunc(func(_ context.Context, lease Lease, msgs []queue.Message) error {
			mu.Lock()
			calls[lease.Name()]++
			mu.Unlock()
			if lease.Name() != quick {
				<-goOn
			}
			mu.Lock()
			defer mu.Unlock()
			handled[lease.Name()] += len(msgs)
			return nil
		})
		p := r.start(handle(h, func(c *Config) { c.Queue, c.Types, c.UntilEmpty = q, names, true }))
		total := defaultMemory().total()
		time.Sleep(10 * time.Second)
		mu.Lock()
		if len(calls) != types || handled[quick] != each {
			t.Errorf("%d of %d types were served, of a quick one %d of %d messages were handled", len(calls), types, handled[quick], each)
		}
		waiting := q.fetched.Load() - int64(types-1)*queue.MaxPayload - int64(each)*queue.MaxPayload // minus those that handlers have or had
		mu.Unlock()
		if waiting > minMemory {
			t.Errorf("%d bytes wait for their handlers, there are %d", waiting, minMemory)
		}
		close(goOn)
		if err := p.end(); err != nil {
			t.Error(err)
		}
		for _, name := range names {
			if handled[name] != each {
				t.Errorf("%d messages of %s were handled, want %d", handled[name], name, each)
			}
		}
		p.memory.unused(t, total)
	})
}

// takeAll takes all memory, including the reserve.
func (m *memory) takeAll(t *testing.T) (give func()) {
	t.Helper()
	m.mu.Lock()
	all := m.free
	m.mu.Unlock()
	shared := m.try(all)
	reserve, err := m.take(t.Context(), m.fetch, closed)
	if shared == nil || err != nil {
		t.Fatal("a part of the memory is in use", err)
	}
	return func() { shared.give(); reserve.give() }
}

// A type without messages notices that without memory, and is released in time.
func TestIdleTypeNeedsNoMemory(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 3)
		p := r.start(func(c *Config) { c.IdleTimeout, c.NoScheduler = 10*time.Second, true })
		time.Sleep(3*time.Second + 333*time.Microsecond)
		give := p.memory.takeAll(t)
		time.Sleep(12 * time.Second)
		if rec, _ := r.locks.Get(typ); rec.Hold != nil {
			t.Error("the type is still held")
		}
		give()
		r.publish(typ, 3)
		time.Sleep(5 * time.Second)
		p.stop()
		r.complete(typ)
	})
}

// fetchLog records where each Fetch began.
type fetchLog struct {
	queue.Queue
	mu   sync.Mutex
	from []queue.ID
}

func (q *fetchLog) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	q.mu.Lock()
	q.from = append(q.from, after)
	q.mu.Unlock()
	return q.Queue.Fetch(ctx, typ, after, limit)
}

// A session that has waited for memory for too long to continue its walk begins from the very start.
func TestLongWaitForMemoryEndsWithAFullSweep(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		q := &fetchLog{Queue: r.queue}
		r.publish(typ, 5)
		p := r.start(func(c *Config) { c.Queue, c.NoScheduler = q, true })
		time.Sleep(3*time.Second + 333*time.Microsecond)
		give := p.memory.takeAll(t)
		r.publish(typ, 1)
		time.Sleep(fullSweepEvery + 5*time.Second)
		before := len(q.from)
		give()
		time.Sleep(5 * time.Second)
		p.stop()
		r.complete(typ)
		if len(q.from) <= before || !q.from[before].IsZero() {
			t.Errorf("the first fetch of %d began at %v, want the very start", len(q.from)-before, q.from[before:min(before+1, len(q.from))])
		}
	})
}

// Messages that wait for an operator take no memory from others.
func TestLettersThatCannotBeStoredHoldNoMemory(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.reuseNumber(queuetest.Unreachable)
		p := r.start(func(c *Config) { c.NoScheduler = true })
		time.Sleep(5*time.Second + 333*time.Microsecond)
		if n := r.queue.Calls(queuetest.OpMoveToDeadLetters); n == 0 {
			t.Fatal("there is no letter")
		}
		p.memory.unused(t, defaultMemory().total())
		p.cancel()
		<-p.done
	})
}

// weakPayloads records the payloads that it returns, without keeping them in memory.
type weakPayloads struct {
	queue.Queue
	mu       sync.Mutex
	payloads []weak.Pointer[byte]
}

func (q *weakPayloads) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	msgs, err := q.Queue.Fetch(ctx, typ, after, limit)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range msgs {
		q.payloads = append(q.payloads, weak.Make(&msgs[i].Payload[0]))
	}
	return msgs, err
}

// A session that waits for messages has none left in memory, whatever its target is.
func TestIdleSessionKeepsNoMessages(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"file":    nil,
		"handler": handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error { return nil })),
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				q := &weakPayloads{Queue: r.queue}
				r.publishWith(typ, 3, func(i int) string { return strings.Repeat("x", 1000+i) })
				p := r.start(func(c *Config) {
					if change != nil {
						change(c)
					}
					c.Queue = q
				})
				time.Sleep(5 * time.Second)
				if rec, _ := r.locks.Get(typ); rec.Hold == nil || len(q.payloads) < 3 {
					t.Fatalf("there is no session, or it has fetched nothing: %d payloads", len(q.payloads))
				}
				runtime.GC()
				for i, w := range q.payloads {
					if w.Value() != nil {
						t.Errorf("payload %d of %d is still there", i, len(q.payloads))
					}
				}
				p.stop()
			})
		})
	}
}
