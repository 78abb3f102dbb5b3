package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// costly is a store that is a round trip away, counts the created values, and recommends that a writer waits for more.
type costly struct {
	slots.Store
	linger time.Duration

	mu      sync.Mutex
	creates int
}

const roundTrip = 30 * time.Millisecond

func (c *costly) Linger() time.Duration { return c.linger }

func (c *costly) Create(ctx context.Context, name string, data []byte) error {
	time.Sleep(roundTrip)
	c.mu.Lock()
	c.creates++
	c.mu.Unlock()
	return c.Store.Create(ctx, name, data)
}

func (c *costly) created() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.creates
}

// keepsFiles makes a pool store its files in c.
func (c *costly) keepsFiles(cfg *Config) {
	fsys := slots.New(context.Background(), slots.Observe(c, func(slots.Request) {}))
	cfg.To = Files{Dir: fsys.Dir(), Storage: storage.Options{FS: fsys}}
}

// lags measures the time from publishing to durability of messages, all of one publisher and so in order.
type lags struct {
	mu      sync.Mutex
	sent    []time.Time
	durable []time.Time
}

func (l *lags) note(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range e.Messages {
		l.durable = append(l.durable, time.Now())
	}
}

// worst returns the longest lag, and how many messages are durable.
func (l *lags) worst() (most time.Duration, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, at := range l.durable {
		most = max(most, at.Sub(l.sent[i]))
	}
	return most, len(l.durable)
}

// A message every 10 ms causes as many requests as the store's linger allows, whatever the round trip is, and none waits longer than that.
func TestTrickleSharesRequests(t *testing.T) {
	const span, every = 20 * time.Second, 10 * time.Millisecond
	for _, tc := range []struct {
		name        string
		store, flag time.Duration
		want        time.Duration // the linger that is in force
	}{
		{name: "a store that says nothing", want: DefaultLinger},
		{name: "a store of requests that are paid for", store: time.Second, want: time.Second},
		{name: "the setting counts", store: time.Second, flag: 200 * time.Millisecond, want: 200 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				c := &costly{Store: slotstest.NewMem(1 << 20), linger: tc.store}
				l := &lags{}
				p := r.start(func(cfg *Config) { c.keepsFiles(cfg); cfg.Linger, cfg.Events = tc.flag, l.note })
				send := func() {
					l.mu.Lock()
					l.sent = append(l.sent, time.Now())
					l.mu.Unlock()
					r.publish(typ, 1)
					time.Sleep(every)
				}
				for range 200 { // until the file is open
					send()
				}
				before := c.created()
				for range span / every {
					send()
				}
				n := c.created() - before
				time.Sleep(5 * time.Second)
				p.stop()
				worst, durable := l.worst()
				t.Logf("%d creates in %v, the longest wait is %v", n, span, worst)
				if durable != len(l.sent) {
					t.Errorf("%d of %d messages became durable", durable, len(l.sent))
				}
				// A round trip is longer than the shortest linger, and fetching takes no time here. A checkpoint may be among the creates.
				most := int(span/max(tc.want, roundTrip)) + 2
				if n > most || n < most/2 {
					t.Errorf("%d creates in %v, want about %d", n, span, most)
				}
				if limit := tc.want + 10*roundTrip + time.Second/2; worst > limit {
					t.Errorf("a message waited for %v, want %v at most", worst, limit)
				}
			})
		})
	}
}

// waitFor waits for a condition, in virtual time.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 6000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s", what)
}

// Only messages in the queue wait for a linger: an end, full batches and draining do not.
func TestLingerDelaysNothingElse(t *testing.T) {
	const linger, soon = time.Hour, 5 * time.Second
	within := func(t *testing.T, what string, do func()) {
		t.Helper()
		began := time.Now()
		do()
		if took := time.Since(began); took > soon {
			t.Errorf("%s took %v", what, took)
		}
	}
	released := func(t *testing.T, p *runningPool) {
		t.Helper()
		waitFor(t, "the lock is free", func() bool {
			rec, err := p.locker.Inspect(t.Context(), typ)
			return err == nil && rec.Hold == nil
		})
	}
	ends := map[string]func(t *testing.T, r *rig, p *runningPool){
		"a stop": func(t *testing.T, r *rig, p *runningPool) { p.stop() },
		"a release": func(t *testing.T, r *rig, p *runningPool) {
			if err := p.locker.RequestRelease(t.Context(), typ, "test"); err != nil {
				t.Fatal(err)
			}
			released(t, p)
		},
		"a pause": func(t *testing.T, r *rig, p *runningPool) {
			if _, err := r.queue.PatchSettings(t.Context(), typ, queue.SettingsPatch{DrainPaused: new(true)}); err != nil {
				t.Fatal(err)
			}
			released(t, p)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				c := &costly{Store: slotstest.NewMem(1 << 20), linger: linger}
				p := r.start(func(cfg *Config) { c.keepsFiles(cfg) })
				r.publish(typ, 1)
				waitFor(t, "the first message is appended", func() bool { return p.Stats().Appended == 1 })
				r.publish(typ, 1) // it waits
				time.Sleep(time.Minute)
				if n := p.Stats().Appended; n != 1 {
					t.Fatalf("%d messages were appended, but the second one should wait", n)
				}
				within(t, name, func() { end(t, r, p) })
			})
		})
	}
	t.Run("full batches", func(t *testing.T) {
		onRig(t, func(t *testing.T, r *rig) {
			c := &costly{Store: slotstest.NewMem(1 << 20), linger: linger}
			r.publish(typ, 100)
			p := r.start(func(cfg *Config) { c.keepsFiles(cfg); cfg.Batch = 10 })
			within(t, "the drain", func() {
				waitFor(t, "all is appended", func() bool { return p.Stats().Appended == 100 })
			})
		})
	})
	t.Run("until empty", func(t *testing.T) {
		onRig(t, func(t *testing.T, r *rig) {
			c := &costly{Store: slotstest.NewMem(1 << 20), linger: linger}
			r.publish(typ, 25)
			within(t, "the drain", func() {
				if err := r.drain(func(cfg *Config) { c.keepsFiles(cfg); cfg.Batch = 10 }); err != nil {
					t.Error(err)
				}
			})
			if got := len(inStore(t, c, typ)); got != 25 {
				t.Errorf("%d messages in the file", got)
			}
		})
	})
}
