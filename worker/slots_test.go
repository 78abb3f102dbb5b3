package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// inStore returns the payloads of all files of a type in a store, each of which is checked.
func inStore(t *testing.T, store slots.Store, typ string) []string {
	t.Helper()
	fsys := slots.New(context.Background(), store)
	return inPlace(t, fsys, fsys.Dir(), typ)
}

// inPlace returns the payloads of all files of a type in a directory, each of which is checked.
func inPlace(t *testing.T, fsys storage.FS, dir, typ string) []string {
	t.Helper()
	chain, err := storage.ReadChain(fsys, dir, typ)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := chain.Check(); len(wrong) > 0 {
		t.Fatal(wrong[0])
	}
	var all []string
	for _, l := range chain {
		var audit Audit
		rep, err := storage.Verify(context.Background(), l.Path, storage.VerifyOptions{FS: fsys, Deep: true, Start: audit.Restore, Visit: func(r storage.Record) error {
			if r.Kind != storage.KindSkipped {
				all = append(all, string(r.Payload))
			}
			return audit.Record(r)
		}})
		if err == nil {
			err = rep.Err()
		}
		if problems, n := audit.Problems(); n > 0 && err == nil {
			err = problems[0]
		}
		if err != nil {
			t.Fatalf("%s: %v", l.Path, err)
		}
	}
	return all
}

// TestReplicasThatShareNoDisk: replicas on hosts that share only a queue, a lock service and a store of slots. The store's requests are slow,
// lost, executed late or executed without an answer, and the store is full at times. Hosts pause for longer than their leases, and die.
func TestReplicasThatShareNoDisk(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				c := &cluster{r: r, mem: slotstest.NewMem(20_000), rng: rand.New(rand.NewPCG(seed, 1))}
				limit := func(c *Config) { c.Batch = 40; inFiles(func(f *Files) { f.MaxBytes = 1 << 20 })(c) }
				for range 3 {
					c.join(limit)
				}
				for range 12 {
					r.publish(typ, c.draw(400))
					time.Sleep(time.Duration(c.draw(8000)) * time.Millisecond)
					switch c.draw(4) {
					case 0:
						c.die()
						c.join(limit)
					case 1:
						c.hosts[c.draw(len(c.hosts))].stand(time.Duration(c.draw(20)) * time.Second)
					}
				}
				c.calm()
				time.Sleep(2 * time.Minute)
				for _, h := range c.hosts {
					h.pool.Stop()
				}
				for _, h := range c.hosts {
					h.pool.end()
				}
				c.deliver()
				if err := r.drain(func(cfg *Config) { c.uses(cfg, c.mem); limit(cfg) }); err != nil {
					t.Fatal(err)
				}
				if got := inStore(t, c.mem, typ); !slices.Equal(got, r.sent[typ]) {
					t.Fatalf("the store holds %d messages, %d were published; they differ from %d on", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
				}
			})
		})
	}
}

// unwritable is a store that can refuse to create anything.
type unwritable struct {
	slots.Store
	now atomic.Bool
}

func (s *unwritable) Create(ctx context.Context, name string, data []byte) error {
	if s.now.Load() {
		return errors.New("service unavailable")
	}
	return s.Store.Create(ctx, name, data)
}

// Messages count as appended when they are durable: those of a failed request are appended by a later session.
func TestAppendedMessagesAreDurable(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		store := &unwritable{Store: slotstest.NewMem(20_000)}
		fsys := slots.New(t.Context(), store)
		p := r.start(func(c *Config) { c.To = Files{Dir: fsys.Dir(), Storage: storage.Options{FS: fsys}} })
		r.publish(typ, 10)
		time.Sleep(10 * time.Second)
		for _, want := range []Stats{{Appended: 10, Bytes: 10 * 8}, {Appended: 100, Bytes: 10*8 + 90*9}} {
			if s := p.Stats(); s.Appended != want.Appended || s.Bytes != want.Bytes {
				t.Errorf("%d messages, %d bytes, want %d, %d", s.Appended, s.Bytes, want.Appended, want.Bytes)
			}
			store.now.Store(true)
			if want.Appended == 10 {
				r.publish(typ, 90)
			}
			time.Sleep(time.Minute)
			if s := p.Stats(); s.Appended != want.Appended || s.Bytes != want.Bytes {
				t.Errorf("while the store fails: %d messages, %d bytes, want %d, %d", s.Appended, s.Bytes, want.Appended, want.Bytes)
			}
			store.now.Store(false)
			time.Sleep(time.Minute)
		}
		p.stop()
	})
}

// cluster is hosts that share a store.
type cluster struct {
	r     *rig
	mem   *slotstest.Mem
	hosts []*host
	dead  []*host // their requests may still be in flight

	mu    sync.Mutex
	rng   *rand.Rand
	quiet bool
}

// host is a machine with one replica.
type host struct {
	pool *runningPool
	tap  *slotstest.Tap
	mu   sync.Mutex
	till time.Time // it sends nothing before this
}

func (h *host) stand(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.till = time.Now().Add(d)
}

func (c *cluster) draw(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *cluster) uses(cfg *Config, s slots.Store) {
	fsys := slots.New(context.Background(), s)
	cfg.To = Files{Dir: fsys.Dir(), Storage: storage.Options{FS: fsys}}
}

func (c *cluster) join(change func(*Config)) {
	h := &host{tap: &slotstest.Tap{Store: c.mem}}
	h.tap.Before = func(call slotstest.Call) *slotstest.Fault {
		h.mu.Lock()
		wait := time.Until(h.till)
		h.mu.Unlock()
		time.Sleep(max(wait, time.Duration(c.draw(20))*time.Millisecond))
		return c.fault(call)
	}
	h.pool = c.r.start(func(cfg *Config) { c.uses(cfg, h.tap); change(cfg) })
	c.hosts = append(c.hosts, h)
}

func (c *cluster) fault(call slotstest.Call) *slotstest.Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet {
		return nil
	}
	switch n := c.rng.IntN(100); {
	case n < 3:
		return &slotstest.Fault{}
	case n < 6:
		return &slotstest.Fault{Applied: true}
	case n < 9 && call.Op == slotstest.OpCreate:
		return &slotstest.Fault{Late: true}
	case n < 10 && call.Op == slotstest.OpCreate:
		return &slotstest.Fault{Err: slots.ErrFull}
	}
	return nil
}

// die ends a host as a power failure does: its process does nothing more, but requests that it has sent may still arrive.
func (c *cluster) die() {
	i := c.draw(len(c.hosts))
	h := c.hosts[i]
	c.hosts = slices.Delete(c.hosts, i, i+1)
	c.dead = append(c.dead, h)
	h.pool.cancel()
	<-h.pool.done
	c.deliver()
}

// deliver executes some of the requests in flight, in any order.
func (c *cluster) deliver() {
	for _, h := range slices.Concat(c.dead, c.hosts) {
		for n := h.tap.Late(); n > 0; n-- {
			h.tap.Deliver(c.draw(n))
		}
	}
}

func (c *cluster) calm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = true
}

// TestAFileOfManySlotsGoesOnInAnother: a file has no more slots than can be listed at once.
func TestAFileOfManySlotsGoesOnInAnother(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		mem := slotstest.NewMem(64) // a slot for every few bytes
		c := &cluster{r: r, mem: mem}
		for range 3 {
			r.publish(typ, 6000)
			if err := r.drain(func(cfg *Config) { c.uses(cfg, mem); cfg.Batch = 10 }); err != nil {
				t.Fatal(err)
			}
		}
		if got := inStore(t, mem, typ); !slices.Equal(got, r.sent[typ]) {
			t.Fatalf("the store holds %d messages, %d were published", len(got), len(r.sent[typ]))
		}
		fsys := slots.New(context.Background(), mem)
		names, err := fsys.List("", typ)
		if err != nil || len(names) < 2 {
			t.Errorf("%d slots are in the files %q, %v", len(mem.Names()), names, err)
		}
	})
}

// TestFullStoreIsWaitedOut: a full store stops a type until there is room. The log reports the lack of room, not its effect on a writer.
func TestFullStoreIsWaitedOut(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		mem, c := slotstest.NewMem(1<<20), &cluster{}
		var full atomic.Bool
		tap := &slotstest.Tap{Store: mem, Before: func(call slotstest.Call) *slotstest.Fault {
			if call.Op == slotstest.OpCreate && full.Load() {
				return &slotstest.Fault{Err: slots.Full("mem:", errors.New("QuotaExceeded"))}
			}
			return nil
		}}
		p := r.start(func(cfg *Config) { c.uses(cfg, tap) })
		r.publish(typ, 100)
		time.Sleep(time.Minute)
		full.Store(true)
		r.publish(typ, 100)
		time.Sleep(2 * time.Minute)
		if n := strings.Count(r.log.String(), "the type continues when there is room"); n < 2 || n > 30 {
			t.Errorf("logged %d times in 2 minutes", n)
		}
		if log := r.log.String(); strings.Contains(log, "dead") || !strings.Contains(log, "orders.fpl: no room: the store is full: QuotaExceeded; free some space in the store") {
			t.Errorf("the log says: %s", log)
		}
		if err := r.drain(func(cfg *Config) { c.uses(cfg, tap) }); !errors.Is(err, storage.ErrNoSpace) || !errors.Is(err, slots.ErrFull) {
			t.Errorf("with UntilEmpty: %v", err)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		p.stop()
		if got := inStore(t, mem, typ); !slices.Equal(got, r.sent[typ]) {
			t.Errorf("the store holds %d messages, %d were published", len(got), len(r.sent[typ]))
		}
	})
}

// With a slow queue or a slow store, messages are acknowledged only after they are in the store.
func TestNothingIsAcknowledgedBeforeTheStoreHasIt(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		mem := slotstest.NewMem(1 << 20)
		var gone atomic.Bool
		tap := &slotstest.Tap{Store: mem, Before: func(call slotstest.Call) *slotstest.Fault {
			if call.Op == slotstest.OpCreate && gone.Load() {
				return &slotstest.Fault{}
			}
			return nil
		}}
		c := &cluster{r: r, mem: mem}
		r.publish(typ, 500)
		p := r.start(func(cfg *Config) { c.uses(cfg, tap); cfg.Batch = 50 })
		time.Sleep(5 * time.Second)
		var mu sync.Mutex
		acked := 0
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if op == queuetest.OpAck {
				acked++
			}
			return queuetest.Fault{}
		})
		gone.Store(true)
		r.publish(typ, 500)
		time.Sleep(20 * time.Second)
		mu.Lock()
		if acked > 0 {
			t.Errorf("%d acknowledgements, although the store accepts nothing", acked)
		}
		mu.Unlock()
		p.cancel()
		<-p.done
		if err := r.drain(func(cfg *Config) { c.uses(cfg, mem) }); err != nil {
			t.Fatal(err)
		}
		if got := inStore(t, mem, typ); !slices.Equal(got, r.sent[typ]) {
			t.Fatalf("the store holds %d messages, %d were published", len(got), len(r.sent[typ]))
		}
	})
}
