package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
	"github.com/fencepost/fencepost/worker/internal/share"
	"github.com/rs/zerolog"
)

const (
	typ      = "orders"
	dir      = "/data"
	testFile = dir + "/orders.fpl"
)

// rig is a queue, a lock service and a disk in memory, under virtual time.
type rig struct {
	t     *testing.T
	queue *queuetest.Faulty
	locks *locktest.Memory
	store func(lock.Store) lock.Store // wraps the lock store of a pool, if set
	disk  *storagetest.Mem
	log   syncLog
	sent  map[string][]string // payloads by type, in publish order
	pools []*runningPool
	pub   *queue.Publisher
	fault atomic.Pointer[func(queuetest.Op, int) queuetest.Fault]
}

// disturb makes f decide on a fault for every operation of the queue.
func (r *rig) disturb(f func(op queuetest.Op, n int) queuetest.Fault) { r.fault.Store(&f) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// message is producer's n-th message, published n ms after the epoch.
func message(producer, n uint64) *queue.Message {
	return &queue.Message{Type: "t", ID: queue.NewID(epoch.Add(time.Duration(n)*time.Millisecond), producer, n)}
}

type syncLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// onRig runs f in a bubble of virtual time.
func onRig(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, queue: &queuetest.Faulty{Queue: queuetest.NewMemory()}, locks: locktest.NewMemory(),
			disk: storagetest.NewMem(4096), sent: map[string][]string{}}
		r.queue.Next = func(op queuetest.Op, _ string, n int) queuetest.Fault {
			if f := r.fault.Load(); f != nil {
				return (*f)(op, n)
			}
			return queuetest.Fault{}
		}
		defer func() {
			for _, p := range r.pools {
				p.cancel()
				<-p.done
			}
			if r.pub != nil {
				r.pub.Close(context.Background())
			}
			r.locks.Stop()
			if t.Failed() {
				t.Log(r.log.String())
			}
		}()
		f(t, r)
	})
}

// runningPool is a pool and the goroutine that runs it.
type runningPool struct {
	*Pool
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	locker *lock.Locker
}

// inFiles changes the Files of a configuration.
func inFiles(change func(*Files)) func(*Config) {
	return func(c *Config) {
		f := c.To.(Files)
		change(&f)
		c.To = f
	}
}

// start starts a worker replica; change adjusts its configuration.
func (r *rig) start(change func(*Config)) *runningPool {
	r.t.Helper()
	began := time.Now()
	store := r.locks.Open()
	if r.store != nil {
		store = r.store(store)
	}
	locker, err := lock.New(store, lock.Options{Clock: func() time.Duration { return time.Since(began) }})
	if err != nil {
		r.t.Fatal(err)
	}
	log := zerolog.New(&r.log)
	cfg := Config{Queue: r.queue, Locker: locker, To: Files{Dir: dir, Storage: storage.Options{FS: r.disk}}, Types: []string{typ}, Lease: 5 * time.Second, Logger: &log}
	if change != nil {
		change(&cfg)
	}
	pool, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &runningPool{Pool: pool, t: r.t, cancel: cancel, done: make(chan struct{}), locker: locker}
	r.pools = append(r.pools, p)
	go func() {
		defer close(p.done)
		p.err = pool.Run(ctx)
		if err := locker.Close(context.Background()); err != nil {
			r.t.Errorf("close the locker: %v", err)
		}
	}()
	return p
}

// end waits for the pool to end by itself.
func (p *runningPool) end() error {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(10 * time.Minute):
		p.t.Fatal("the pool did not end within 10 minutes of virtual time")
	}
	p.cancel()
	return p.err
}

// stop stops the pool gracefully and expects that to work.
func (p *runningPool) stop() {
	p.t.Helper()
	p.Stop()
	if err := p.end(); err != nil {
		p.t.Errorf("a graceful stop returned %v", err)
	}
}

// drain runs one replica until everything is empty.
func (r *rig) drain(change func(*Config)) error {
	r.t.Helper()
	return r.start(func(c *Config) {
		c.UntilEmpty = true
		if change != nil {
			change(c)
		}
	}).end()
}

// publish publishes n messages of a type, all through the same publisher.
func (r *rig) publish(typ string, n int) {
	r.t.Helper()
	before := len(r.sent[typ])
	r.publishWith(typ, n, func(i int) string { return fmt.Sprintf("%s %d", typ, before+i) })
}

// publishWith publishes n messages with payloads chosen by the caller.
func (r *rig) publishWith(typ string, n int, payload func(i int) string) {
	r.t.Helper()
	if r.pub == nil {
		p, err := queue.NewPublisher(context.Background(), r.queue, queue.PublisherOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		r.pub = p
	}
	var msgs []queue.Message
	for i := range n {
		p := payload(i)
		r.sent[typ] = append(r.sent[typ], p)
		msgs = append(msgs, queue.Message{Type: typ, Payload: []byte(p)})
	}
	for i, res := range r.pub.PublishAll(context.Background(), msgs) {
		if res.Status != queue.Stored {
			r.t.Fatalf("message %d is %v: %v", i, res.Status, res.Err)
		}
	}
}

// put stores messages with chosen counters, as if a server had lost some in between.
func (r *rig) put(producer uint64, ns ...uint64) {
	r.t.Helper()
	for _, n := range ns {
		m := *message(producer, n)
		m.Type, m.Payload = typ, fmt.Appendf(nil, "%d/%d", producer, n)
		if err := r.queue.Queue.Insert(context.Background(), typ, []queue.Message{m}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// contents verifies a type's file and returns its payloads.
func contents(t *testing.T, fs storage.FS, path string) []string {
	t.Helper()
	var audit Audit
	var got []string
	rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: fs, Deep: true, Visit: func(rec storage.Record) error {
		got = append(got, string(rec.Payload))
		return audit.Record(rec)
	}})
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	if problems, n := audit.Problems(); n > 0 {
		t.Fatalf("%d violations of a producer's sequence, the first: %v", n, problems[0])
	}
	return got
}

// complete checks that a type's file holds the published messages, once and in order, and that nothing is pending.
func (r *rig) complete(typ string) {
	r.t.Helper()
	got := contents(r.t, r.disk, dir+"/"+storage.FileName(typ))
	if !slices.Equal(got, r.sent[typ]) {
		r.t.Fatalf("the file holds %d messages, %d were published; they differ from %d on", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
	}
	if d, err := r.queue.Queue.Depth(context.Background(), typ, 1); err != nil || d.Pending > 0 {
		r.t.Fatalf("messages are still pending (%v)", err)
	}
}

func differ(a, b []string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestPoolDrainsATypeInOrder(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 5000)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
	})
}

// The requests that draining a small type takes: with many small types nothing else matters.
func TestASmallTypeCostsFewOperations(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for range 2 { // the second time with an existing file
			r.publish(typ, 10)
			counts := map[queuetest.Op]int{}
			var mu sync.Mutex
			r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				counts[op]++
				return queuetest.Fault{}
			})
			if err := r.drain(nil); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			if counts[queuetest.OpFetch] != 1 || counts[queuetest.OpAck] != 1 || counts[queuetest.OpDepth] != 1 {
				t.Errorf("want a check, a fetch from the start that finds everything, one acknowledgement; got %v", counts)
			}
			mu.Unlock()
			r.complete(typ)
		}
	})
}

func TestPoolServesAllTypesIncludingNewOnes(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish("a", 10)
		r.publish("b.c", 20)
		p := r.start(func(c *Config) { c.Types, c.AllTypes, c.MaxTypes = nil, true, 2 })
		time.Sleep(3 * time.Second)
		for _, typ := range []string{"d", "e", "f"} {
			r.publish(typ, 30)
		}
		time.Sleep(10 * time.Second)
		p.stop()
		for typ := range r.sent {
			r.complete(typ)
		}
	})
}

func TestPoolUntilEmptyFindsTypesByPattern(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish("audit-a", 10)
		r.publish("audit-b", 10)
		r.publish("orders", 10)
		if err := r.drain(func(c *Config) { c.Types = []string{"audit-*"} }); err != nil {
			t.Fatal(err)
		}
		r.complete("audit-a")
		r.complete("audit-b")
		if d, _ := r.queue.Depth(context.Background(), "orders", 100); d.Pending != 10 {
			t.Errorf("%d of 10 messages of a type that was not asked for are left", d.Pending)
		}
	})
}

// Crash row: the acknowledgement is lost. The messages are delivered again, and the file refuses them.
func TestLostAcknowledgementsAreRefusedByTheFile(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		lost := 0
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpAck && lost == 0 {
				lost++
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		})
		p := r.start(nil)
		time.Sleep(time.Second)
		p.cancel() // the worker dies between sync and acknowledgement
		<-p.done
		if got := contents(t, r.disk, testFile); len(got) != 100 {
			t.Fatalf("%d messages in the file, the test needs all 100 there and none acknowledged", len(got))
		}
		second := r.start(func(c *Config) { c.UntilEmpty = true })
		if err := second.end(); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
		if s := second.Stats(); s.Duplicates != 100 || s.Appended != 0 {
			t.Errorf("stats %+v, want 100 duplicates refused and nothing appended", s)
		}
	})
}

// unackedAtPowerLoss runs a worker and cuts the power of a copy of its disk at every acknowledgement. It returns how many
// acknowledged messages were not on the disk.
func unackedAtPowerLoss(r *rig, change func(*Config)) (missing int) {
	r.t.Helper()
	var mu sync.Mutex
	acked := map[queue.ID]bool{}
	check := func(ids []queue.ID) {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			acked[id] = true
		}
		after := r.disk.Clone()
		after.Crash(storagetest.Crash{})
		onDisk := map[queue.ID]bool{}
		rd, err := storage.OpenReader(testFile, storage.ReaderOptions{FS: after})
		if err != nil {
			missing = len(acked)
			return
		}
		defer rd.Close()
		for {
			rec, err := rd.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				r.t.Error(err)
				return
			}
			onDisk[queue.ID(rec.ID)] = true
		}
		for id := range acked {
			if !onDisk[id] {
				missing++
			}
		}
	}
	// An acknowledgement that does not wait for the sync overtakes it.
	slow := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
		if c.Op == storagetest.OpDatasync {
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}}
	if err := r.drain(func(c *Config) {
		c.Queue = ackWatch{r.queue, check}
		c.Batch = 50
		inFiles(func(f *Files) { f.Storage.FS = slow })(c)
		if change != nil {
			change(c)
		}
	}); err != nil {
		r.t.Fatal(err)
	}
	return missing
}

// ackWatch calls check before every acknowledgement.
type ackWatch struct {
	queue.Queue
	check func([]queue.ID)
}

func (w ackWatch) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	w.check(ids)
	return w.Queue.AckFile(ctx, typ, f, ids)
}

// Crash row: the power fails at any moment. All acknowledged messages are on the disk.
func TestEveryAcknowledgedMessageSurvivesAPowerLoss(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1000)
		if n := unackedAtPowerLoss(r, nil); n > 0 {
			t.Fatalf("%d acknowledged messages were not on the disk", n)
		}
		r.complete(typ)
	})
}

// twice is a queue that returns every message of a Fetch twice.
type twice struct{ queue.Queue }

func (q twice) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	msgs, err := q.Queue.Fetch(ctx, typ, after, limit)
	return slices.Concat(msgs, msgs), err
}

// … even when the queue returns a copy while the first one is not durable yet.
func TestCopiesSurviveAPowerLoss(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 1000)
		if n := unackedAtPowerLoss(r, func(c *Config) { c.Queue = twice{c.Queue} }); n > 0 {
			t.Errorf("%d acknowledged messages were not on the disk", n)
		}
		if s := r.pools[0].Stats(); s.Duplicates != 1000 {
			t.Errorf("%d duplicates, want 1000: the scenario proves nothing", s.Duplicates)
		}
		r.complete(typ)
	})
}

// Crash row: two replicas of one type; the holder stops. The other continues, and nothing is duplicated.
func TestStandbyTakesOverAfterACleanStop(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		first := r.start(nil)
		r.publish(typ, 500)
		time.Sleep(time.Second)
		second := r.start(nil)
		r.publish(typ, 500)
		first.stop()
		stopped := time.Now()
		r.publish(typ, 500)
		for {
			if d, _ := r.queue.Depth(context.Background(), typ, 1); d.Pending == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		// When the second replica started, the first one's heartbeat may have been from before it held the type. Then the second one may
		// conclude that the type falls to the first, and learns from its next heartbeat that the first has left.
		if took := time.Since(stopped); took > share.HeartbeatEvery+500*time.Millisecond {
			t.Errorf("the standby needed %v after a clean stop", took)
		}
		second.stop()
		r.complete(typ)
	})
}

// Sessions that are fenced again and again pause for longer and longer. A session that is lost after a long time is followed by another at once.
func TestSessionsThatAreLostAgainAndAgain(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(handle(HandlerFunc(func(context.Context, Lease, []queue.Message) error { return ErrFenced })))
		r.publish(typ, 1)
		time.Sleep(10 * time.Minute)
		if n := p.Stats().Lost; n < 20 || n > 100 {
			t.Errorf("%d sessions were fenced in ten minutes", n)
		}
		p.stop()
	})
	onRig(t, func(t *testing.T, r *rig) {
		ended := make(chan time.Time, 1)
		p := r.start(func(c *Config) {
			c.IdleTimeout = time.Hour
			c.Events = func(e Event) {
				if e.Kind == Lost {
					ended <- time.Now()
					r.publish(typ, 1)
				}
			}
		})
		r.publish(typ, 1)
		for range 10 {
			time.Sleep(time.Minute)
			sessions := p.Stats().Sessions
			if err := p.locker.ForceRelease(t.Context(), typ, "a test"); err != nil {
				t.Fatal(err)
			}
			lost := <-ended
			for p.Stats().Sessions == sessions {
				time.Sleep(time.Millisecond)
			}
			if d := time.Since(lost); d > time.Second {
				t.Errorf("the next session began after %v", d)
			}
		}
		p.stop()
	})
}

// Crash row: the holder's lock is lost while it works (expired, deleted, forced). The holder stops by itself; another session continues.
func TestLostLockEndsTheSessionAndNothingIsLost(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		for range 5 {
			r.publish(typ, 200)
			time.Sleep(time.Second)
			r.locks.Edit(typ, func(*lock.Record) bool { return false })
			r.publish(typ, 200)
			time.Sleep(20 * time.Second)
		}
		p.stop()
		r.complete(typ)
		if s := p.Stats(); s.Lost < 5 {
			t.Errorf("%d sessions noticed the loss, want 5", s.Lost)
		} else if n := strings.Count(r.log.String(), `"error":`); uint64(n) != s.Lost {
			t.Errorf("%d losses were reported %d times", s.Lost, n)
		}
	})
}

// Crash row: the holder is paused for longer than its lease, then resumes. In the middle of an append: its write lands after the successor's
// fence and is void. Before it opens the file: the file's epoch is its successor's, which does not mean that the database was restored.
func TestPausedHolderIsFencedByTheFile(t *testing.T) {
	for name, here := range map[string]func(c storagetest.Call) bool{
		"append": func(c storagetest.Call) bool {
			return c.Op == storagetest.OpAppend && bytes.Contains(c.Data, []byte("orders 50"))
		},
		"open": func(c storagetest.Call) bool { return c.Op == storagetest.OpOpen },
	} {
		t.Run(name, func(t *testing.T) { testPausedHolder(t, here) })
	}
}

func testPausedHolder(t *testing.T, here func(c storagetest.Call) bool) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 100)
		paused := make(chan struct{})
		resume := make(chan struct{})
		var once sync.Once
		tap := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
			if here(c) {
				once.Do(func() { close(paused); <-resume })
			}
			return nil
		}}
		// The zombie's locker is paused with it: its clock does not advance, so that it considers its lock valid.
		var frozen sync.Map
		began := time.Now()
		locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration {
			if at, ok := frozen.Load("at"); ok {
				return at.(time.Duration)
			}
			return time.Since(began)
		}})
		if err != nil {
			t.Fatal(err)
		}
		zombie := r.start(func(c *Config) { c.Locker = locker; inFiles(func(f *Files) { f.Storage.FS = tap })(c) })
		<-paused
		frozen.Store("at", time.Since(began))
		r.locks.Edit(typ, func(rec *lock.Record) bool { rec.Hold = nil; rec.Version = lock.NewVersion(); return true })
		heir := r.start(func(c *Config) { c.UntilEmpty = true })
		if err := heir.end(); err != nil {
			t.Fatal(err)
		}
		close(resume)
		time.Sleep(time.Minute)
		zombie.stop()
		locker.Close(context.Background())
		r.complete(typ)
		if s := heir.Stats(); s.Appended != 100 {
			t.Errorf("the successor appended %d messages, want all 100", s.Appended)
		}
		if log := r.log.String(); !strings.Contains(log, "lock lost") {
			t.Error("the zombie's fencing is not in the log")
		} else if strings.Contains(log, "was restored") {
			t.Error("the log says that the database was restored")
		}
	})
}

// A message whose predecessor is missing waits, and is appended with a declared gap only after the gap timeout.
func TestMissingMessageIsAwaitedAndThenDeclared(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1, 2, 4, 5)
		r.put(2, 1)
		p := r.start(nil)
		time.Sleep(10 * time.Second)
		if got := contents(t, r.disk, testFile); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"1/1", "1/2", "2/1"}) {
			t.Fatalf("after 10 s the file holds %q", got)
		}
		r.put(1, 3)
		time.Sleep(5 * time.Second)
		r.put(1, 8)
		time.Sleep(25 * time.Second)
		if got := contents(t, r.disk, testFile); len(got) != 6 {
			t.Fatalf("the file holds %q", got)
		}
		time.Sleep(15 * time.Second)
		if got := contents(t, r.disk, testFile); got[len(got)-1] != "1/8" {
			t.Fatalf("after the gap timeout the file holds %q", got)
		}
		if s := p.Stats(); s.Gaps != 1 {
			t.Errorf("%d gaps declared, want 1", s.Gaps)
		}
		r.put(1, 6, 7) // late, but not lost
		time.Sleep(time.Minute)
		p.stop()
		got := contents(t, r.disk, testFile)
		if want := []string{"1/6", "1/7"}; !slices.Equal(got[len(got)-2:], want) {
			t.Errorf("the file ends with %q, want %q", got[len(got)-2:], want)
		}
		if d, _ := r.queue.Depth(context.Background(), typ, 10); d.Pending != 0 {
			t.Errorf("%d messages are still pending", d.Pending)
		}
	})
}

// A message that arrives with a lower ID than those already fetched is found by the sweeps.
func TestLateArrivalIsFound(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		r.put(2, 100_000, 100_001)
		time.Sleep(time.Minute) // all appended by now (with a declared gap for producer 2)
		r.put(1, 1)
		time.Sleep(fullSweepEvery + 5*time.Second)
		p.stop()
		if got := contents(t, r.disk, testFile); !slices.Contains(got, "1/1") {
			t.Fatalf("the late message is not in the file: %q", got)
		}
	})
}

// … even while other producers keep the walk at the end of the queue and no fetch ever returns nothing.
func TestLateArrivalIsFoundWhileOthersKeepPublishing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		n := uint64(0)
		more := func(count int) {
			for range count {
				n++
				r.put(2, n)
				time.Sleep(time.Millisecond)
			}
		}
		more(2000)
		r.put(1, 1500) // half a second behind the walk, …
		r.put(1, 1501) // (a declared gap, after 30 s)
		r.put(3, 1)    // … and two seconds
		old := *message(2, n)
		old.ID = queue.NewID(old.ID.Time().Add(-2*time.Minute), 4, 1) // … and two minutes
		old.Type, old.Payload = typ, []byte("4/1")
		if err := r.queue.Queue.Insert(t.Context(), typ, []queue.Message{old}); err != nil {
			t.Fatal(err)
		}
		more(35_000)
		p.stop()
		got := contents(t, r.disk, testFile)
		for payload, within := range map[string]int{"3/1": 2500, "4/1": 31_500, "1/1500": 31_500, "1/1501": 31_500} {
			if at := slices.Index(got, payload); at < 0 || at > 2000+within {
				t.Errorf("%s is at index %d; the walk had passed it at 2000, and it should be found within %d ms", payload, at, within)
			}
		}
	})
}

func TestPoolForgetsSilentProducersOnlyWhenNothingIsPending(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		r.put(1, 1)
		short := func(c *Config) { c.Retention = 12 * time.Hour; c.UntilEmpty = true }
		if err := r.drain(short); err != nil {
			t.Fatal(err)
		}
		// Given an acknowledgement that was lost and found a day later …
		time.Sleep(24 * time.Hour)
		r.put(1, 1)
		if err := r.drain(short); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, r.disk, testFile); len(got) != 1 {
			t.Fatalf("the file holds %q: a silent producer was forgotten while its message was pending", got)
		}
		// … and a producer that has been silent for long and has nothing pending, in a pool that has short sessions.
		time.Sleep(24 * time.Hour)
		p := r.start(func(c *Config) { c.Retention = 12 * time.Hour })
		for i := range uint64(4) {
			if strings.Contains(r.log.String(), "forgot silent producers") {
				t.Error("a producer was forgotten because of the queue's clock")
			}
			r.put(2, i+1)
			time.Sleep(4 * time.Hour)
		}
		p.stop()
		if p.Stats().Sessions != 4 {
			t.Errorf("%d sessions, want 4 short ones", p.Stats().Sessions)
		}
		if !strings.Contains(r.log.String(), `"producers":1,"message":"forgot silent producers`) {
			t.Error("a silent producer was never forgotten")
		}
	})
}

// An acknowledgement is lost, and its message reappears shortly before its producer would be forgotten, far behind the walk, which others keep near
// the end: no fetch finds the message before the next sweep from the start, which must find its producer in the ledger.
func TestPoolForgetsNobodyWhoseCopyIsYetToBeFound(t *testing.T) {
	race.Skip(t)
	onRig(t, func(t *testing.T, r *rig) {
		const retention, producers = 12 * time.Hour, 20
		p := r.start(func(c *Config) { c.Retention, c.IdleTimeout = retention, 48*time.Hour })
		var copies []queue.Message
		put := func(m queue.Message) {
			t.Helper()
			if err := r.queue.Queue.Insert(t.Context(), typ, []queue.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		for i := range producers { // every few seconds, so that a sweep begins at the last moment for only some of them
			time.Sleep(time.Until(began.Add(time.Duration(i) * 3 * time.Second)))
			m := queue.Message{Type: typ, ID: queue.NewID(time.Now(), uint64(i+1), 1), Payload: fmt.Append(nil, i)}
			copies = append(copies, m)
			put(m)
		}
		others := 0
		for at := retention - 5*time.Minute; at < retention+2*time.Minute; at += time.Second {
			time.Sleep(time.Until(began.Add(at)))
			others++
			put(queue.Message{Type: typ, ID: queue.NewID(time.Now(), producers+1, uint64(others)), Payload: []byte("far ahead")})
			if i := (at - retention + time.Second) / time.Second; i >= 0 && i%3 == 0 && int(i/3) < producers {
				put(copies[i/3])
			}
		}
		time.Sleep(retention + retention/2) // a session that rests looks again after a quarter of it
		p.stop()
		if got := contents(t, r.disk, testFile); len(got) != producers+others {
			t.Errorf("the file holds %d messages, want %d", len(got), producers+others)
		}
		if !strings.Contains(r.log.String(), "forgot silent producers") {
			t.Error("no producer was ever forgotten: the scenario proves nothing")
		}
	})
}

// A type with an unusable file does not keep the others from being served.
func TestRefusedTypeDoesNotStopTheOthers(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.disk.WriteFile(dir+"/bad.fpl", []byte("not one of ours"))
		r.publish("bad", 10)
		r.publish("good", 10)
		err := r.drain(func(c *Config) { c.Types = []string{"bad", "good"} })
		if !errors.Is(err, storage.ErrRefused) {
			t.Errorf("the pool ended with %v, want a refusal", err)
		}
		r.complete("good")
		if d, _ := r.queue.Depth(context.Background(), "bad", 100); d.Pending != 10 {
			t.Errorf("%d of 10 messages of the refused type are left", d.Pending)
		}

		// Without UntilEmpty the pool continues with the types it can serve, and picks up the refused type once it is repaired.
		p := r.start(func(c *Config) { c.Types = []string{"bad", "good"} })
		r.publish("good", 10)
		time.Sleep(time.Minute)
		r.complete("good")
		if err := r.disk.Remove(dir + "/bad.fpl"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.stop()
		r.complete("bad")

		// And it gives up when nothing is left to serve.
		r.disk.WriteFile(dir+"/worse.fpl", []byte("not one of ours"))
		r.publish("worse", 1)
		if err := r.start(func(c *Config) { c.Types = []string{"worse"} }).end(); !errors.Is(err, storage.ErrRefused) {
			t.Errorf("a pool with nothing to serve ended with %v", err)
		}
	})
}

// A pool that ends does not report a refusal that is over: the file was unusable, and now only lacks room.
func TestARefusalThatIsOver(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.disk.WriteFile(dir+"/bad.fpl", []byte("not one of ours"))
		r.publish("bad", 1)
		r.publish("good", 1)
		p := r.start(func(c *Config) { c.Types = []string{"bad", "good"} })
		time.Sleep(time.Minute)
		if s := p.Status().Types[0]; s.State != Refused {
			t.Errorf("%s is %s", s.Type, s.State)
		}
		r.disk.SetFree(0)
		if err := r.disk.Remove(dir + "/bad.fpl"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.stop()
	})
}

// A failure at the end of a session that has drained its type is reported, even by a pool that ends with it.
func TestUntilEmptyTellsOfAFailureAtTheVeryEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		fault func(r *rig, op storagetest.Op) *storagetest.Fault // once everything is acknowledged
		want  error
	}{
		"full disk": {func(_ *rig, op storagetest.Op) *storagetest.Fault {
			if op == storagetest.OpAppend {
				return &storagetest.Fault{Err: syscall.ENOSPC}
			}
			return nil
		}, storage.ErrNoSpace},
		"moved file": {func(r *rig, _ storagetest.Op) *storagetest.Fault { r.disk.Remove(testFile); return nil }, storage.ErrIntegrity},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 10)
				tap := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
					time.Sleep(time.Millisecond) // meanwhile the last messages are acknowledged
					if r.pending() > 0 {
						return nil
					}
					return tc.fault(r, c.Op)
				}}
				if err := r.drain(inFiles(func(f *Files) { f.Storage.FS = tap })); !errors.Is(err, tc.want) {
					t.Errorf("the pool ended with %v, want %v", err, tc.want)
				}
				if n := r.pending(); n > 0 {
					t.Errorf("%d messages are pending: the scenario proves nothing", n)
				}
			})
		})
	}
}

// Waiting does not repair wrong credentials.
func TestMissingPermissionEndsThePool(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for _, op := range []queuetest.Op{queuetest.OpDepth, queuetest.OpFetch} {
			r.publish(typ, 1)
			r.disturb(func(o queuetest.Op, _ int) queuetest.Fault {
				if o == op {
					return queuetest.Fault{Kind: queuetest.Refused}
				}
				return queuetest.Fault{}
			})
			if err := r.start(nil).end(); !errors.Is(err, queue.ErrPermission) {
				t.Errorf("%s: the pool ended with %v", op, err)
			}
		}
	})
}

// refusingLocks has unusable locks.
type refusingLocks struct {
	lock.Store
	errs *sync.Map // by name
}

func (s refusingLocks) refuse(name string) error {
	err, _ := s.errs.Load(name)
	e, _ := err.(error)
	return e
}

func (s refusingLocks) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	if err := s.refuse(name); err != nil {
		return lock.Record{}, false, err
	}
	return s.Store.Read(ctx, name)
}

func (s refusingLocks) Acquire(ctx context.Context, name string, h lock.Hold, v lock.Version) (int64, bool, error) {
	if err := s.refuse(name); err != nil {
		return 0, false, err
	}
	return s.Store.Acquire(ctx, name, h, v)
}

// A permanent refusal by the lock store is not retried. As with files, the pool continues with the types that it can serve.
func TestLocksThatCannotBeUsed(t *testing.T) {
	denied := fmt.Errorf("no role: %w", lock.ErrPermanent)
	damaged := &lock.DamagedError{Name: "bad", Cause: errors.New("not a record")}
	onRig(t, func(t *testing.T, r *rig) {
		var errs sync.Map
		r.store = func(s lock.Store) lock.Store { return refusingLocks{s, &errs} }
		both := func(c *Config) { c.Types = []string{"bad", "good"} }
		errs.Store("bad", damaged)
		r.publish("bad", 1)
		r.publish("good", 1)
		if err := r.drain(both); !errors.Is(err, lock.ErrDamaged) {
			t.Errorf("a pool that drains ended with %v", err)
		}
		r.complete("good")
		p := r.start(both)
		r.publish("good", 1)
		time.Sleep(time.Minute)
		r.complete("good")
		if got := p.Status().of(t, "bad"); got.State != Refused {
			t.Errorf("with a damaged record: %+v", got)
		}
		errs.Delete("bad") // an operator has removed it
		time.Sleep(time.Minute)
		r.complete("bad")
		p.stop()

		errs.Store("bad", damaged)
		p = r.start(func(c *Config) { c.Types = []string{"bad"} })
		r.publish("bad", 1)
		time.Sleep(time.Minute)
		errs.Delete("bad")
		time.Sleep(time.Minute)
		r.complete("bad")
		p.stop()

		errs.Store("bad", denied)
		errs.Store("good", denied)
		r.publish("bad", 1)
		r.publish("good", 1)
		for _, drain := range []bool{true, false} {
			if err := r.start(func(c *Config) { both(c); c.UntilEmpty = drain }).end(); !errors.Is(err, denied) {
				t.Errorf("without permission a pool ended with %v", err)
			}
		}
	})
}

// A file that has seen a higher epoch than the lock grants raises the lock's token.
func TestTokenIsRaisedAboveTheFilesEpoch(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		before, _ := r.locks.Get(typ)
		r.locks.Edit(typ, func(rec *lock.Record) bool { rec.Token -= 10_000; return true }) // as a restored database would
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
		if after, _ := r.locks.Get(typ); after.Token <= before.Token {
			t.Errorf("the lock's token is %d, the file had seen %d", after.Token, before.Token)
		}
		if !strings.Contains(r.log.String(), "the database was restored to an earlier state") {
			t.Error("the log does not say what happened")
		}
	})
}

// Crash row: the disk fails. Every error poisons the writer; the next session continues, nothing is lost or duplicated.
func TestDiskErrorsLoseNothing(t *testing.T) {
	for _, op := range []storagetest.Op{storagetest.OpAppend, storagetest.OpDatasync, storagetest.OpAllocate, storagetest.OpFileStat} {
		t.Run(string(op), func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				n := 0
				tap := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
					if c.Op != op {
						return nil
					}
					if n++; n%5 == 3 && n < 40 {
						return &storagetest.Fault{Err: errors.New("input/output error"), Short: 100}
					}
					return nil
				}}
				p := r.start(func(c *Config) { c.Batch = 50; inFiles(func(f *Files) { f.Storage.FS = tap })(c) })
				for range 20 {
					r.publish(typ, 100)
					time.Sleep(time.Second)
				}
				time.Sleep(5 * time.Minute)
				p.stop()
				r.complete(typ)
			})
		})
	}
}

// Crash row: the queue fails in every way at random. Nothing is lost or duplicated.
func TestQueueFaultsLoseNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		n := 0
		var mu sync.Mutex
		r.disturb(func(op queuetest.Op, k int) queuetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			n++
			switch {
			case op == queuetest.OpInsert, op == queuetest.OpRegisterType, op == queuetest.OpNow, n > 3000: // the publisher's
				return queuetest.Fault{}
			case n%7 == 3:
				return queuetest.Fault{Kind: queuetest.LostAnswer}
			case n%11 == 5:
				return queuetest.Fault{Kind: queuetest.Partial, Keep: k / 2}
			case n%13 == 7:
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		a, b := r.start(nil), r.start(nil)
		for range 30 {
			r.publish(typ, 100)
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		a.stop()
		b.stop()
		r.complete(typ)
	})
}

func TestStopBeforeRunAndTwice(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		p.Stop()
		p.stop()
	})
}

func TestConfigErrorsSayWhatToDo(t *testing.T) {
	q := queuetest.NewMemory()
	locker, err := lock.New(locktest.NewMemory().Open(), lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	good := Config{Queue: q, Locker: locker, To: Files{Dir: "d"}, Types: []string{"t"}}
	for _, c := range []struct {
		change func(*Config)
		words  string
	}{
		{func(c *Config) { c.Queue = nil }, "Queue"},
		{func(c *Config) { c.Locker = nil }, "Locker"},
		{func(c *Config) { c.To = nil }, "use Files"},
		{func(c *Config) { c.To = Files{} }, "directory"},
		{func(c *Config) { c.To = Files{Dir: "d", MaxBytes: 1} }, "MaxBytes"},
		{func(c *Config) { c.To = Files{Dir: "d", DedupeWindow: -1} }, "DedupeWindow"},
		{func(c *Config) { c.To = Handling{} }, "Handler"},
		{func(c *Config) { c.To = Handling{Handler: new(record).handler(), Timeout: -1} }, "Timeout is -1ns; use"},
		{func(c *Config) { c.To = Handling{Handler: new(record).handler(), Timeout: 30} }, "Timeout is 30ns; use"},
		{func(c *Config) { c.To = &Files{Dir: "d"} }, "without &"},
		{func(c *Config) { c.To = (*Files)(nil) }, "without &"},
		{func(c *Config) { c.To = &Handling{Handler: new(record).handler()} }, "without &"},
		{func(c *Config) { c.To = Files{Dir: "d\x00"} }, "NUL"},
		{func(c *Config) { c.To = Files{Dir: "d", Storage: storage.Options{Schema: strings.Repeat("x", 2000)}} }, "at most 1024"},
		{func(c *Config) { c.To = Files{Dir: "d", Storage: storage.Options{CheckpointBatches: -1}} }, "CheckpointBatches"},
		{func(c *Config) { c.To = Files{Dir: "d", Storage: storage.Options{Salvage: true}} }, "Rewrite"},
		{func(c *Config) { c.To = Files{Dir: "d", Storage: storage.Options{Adopt: true}} }, "RewriteOptions.Adopt"},
		{func(c *Config) { c.To = Handling{Handler: HandlerFunc(nil)} }, "Handler"},
		{func(c *Config) { c.To = Handling{Handler: new(record).handler(), Use: []Middleware{nil}} }, "Use[0]"},
		{func(c *Config) {
			c.To = Handling{Handler: new(record).handler(), Use: []Middleware{func(Handler) Handler { return nil }}}
		}, "Use[0]"},
		{func(c *Config) { c.Types = nil }, "no type"},
		{func(c *Config) { c.Types = []string{"T"} }, `"T"`},
		{func(c *Config) { c.Types = []string{"["} }, "malformed; use"},
		{func(c *Config) { c.Types = []string{"audit-[A-Z]*", "Orders-*"} }, `"Orders-*": it has an upper-case letter, so no type matches it`},
		{func(c *Config) { c.Types = []string{"shop/*"} }, `it contains '/', so no type matches it`},
		{func(c *Config) { c.Lease = time.Millisecond }, "Lease"},
		{func(c *Config) { c.Lease = 25 * time.Hour }, "Lease"},
		{func(c *Config) { c.Linger = -1 }, "Linger"},
		{func(c *Config) { c.Linger = math.MaxInt64 }, "at most 24h"},
		{func(c *Config) { c.RetryMax = math.MaxInt64 }, "RetryMax <= 24h"},
		{func(c *Config) { c.Retention = queue.MaxRepeatFor - 1 }, "at least 12h"},
		{func(c *Config) { c.Batch = -1 }, "Batch"},
		{func(c *Config) { c.BatchBytes = 1 << 40 }, "BatchBytes"},
		{func(c *Config) { c.Prefetch = 1000 }, "Prefetch"},
		{func(c *Config) { c.MaxTypes = -1 }, "MaxTypes"},
	} {
		cfg := good
		c.change(&cfg)
		if _, err := New(cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("error %v is no ErrConfig that says %q", err, c.words)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	if err := ValidateTypes([]string{"T"}); !errors.Is(err, ErrConfig) || !errors.Is(err, queue.ErrInvalidType) {
		t.Errorf("a wrong name is %v", err)
	}
}

// Times that ns cannot represent become the last one that they can.
func TestRecordOfTheFarFuture(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		for i, year := range []int{1970, 2026, 2262, 2263, 9999} {
			m := queue.Message{Type: typ, ID: queue.NewID(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), uint64(i+1), 1), Payload: fmt.Append(nil, year)}
			r.insert(m)
		}
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		var years []int
		if _, err := storage.Verify(t.Context(), testFile, storage.VerifyOptions{FS: r.disk, Deep: true, Visit: func(rec storage.Record) error {
			years = append(years, rec.When().Year())
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(years, []int{1970, 2026, 2262, 2262, 2262}) {
			t.Errorf("the records are of %v", years)
		}
	})
}

// replacedQueue answers, from a certain moment on, as if its database was replaced.
type replacedQueue struct {
	queue.Queue
	replaced atomic.Bool
}

func (q *replacedQueue) err() error {
	if q.replaced.Load() {
		return queue.ErrReplaced
	}
	return nil
}

func (q *replacedQueue) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	return cmp.Or(q.err(), q.Queue.Ack(ctx, typ, ids))
}

func (q *replacedQueue) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	if err := q.err(); err != nil {
		return false, err
	}
	return q.Queue.AckFile(ctx, typ, f, ids)
}

func (q *replacedQueue) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	s, err := q.Queue.AllSettings(ctx)
	return s, cmp.Or(q.err(), err)
}

// No pool continues with a database that was replaced, even if it has an acknowledgement to deliver, or looks for types indefinitely.
func TestReplacedDatabaseEndsThePool(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		q := &replacedQueue{Queue: r.queue}
		p := r.start(func(c *Config) { c.Queue, c.Types, c.Lease = q, []string{"*"}, time.Hour })
		time.Sleep(10 * time.Second)
		q.replaced.Store(true)
		r.publish(typ, 10)
		began := time.Now()
		if err := p.end(); !errors.Is(err, queue.ErrReplaced) {
			t.Errorf("the pool ended with %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it continued for %v", took)
		}
	})
}

// A queue or Locker that was closed never works again, so the pool ends, even if it looks for types indefinitely.
func TestPoolEndsWhenItsQueueOrLockerIsClosed(t *testing.T) {
	for name, closed := range map[string]error{"queue": queue.ErrClosed, "locker": lock.ErrClosed} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				q := &queuetest.Faulty{Queue: queuetest.NewMemory()}
				p := r.start(func(c *Config) { c.Queue, c.Types = q, []string{"*"} })
				time.Sleep(10 * time.Second)
				if name == "queue" {
					q.Queue.Close()
				} else {
					if err := q.Insert(t.Context(), typ, []queue.Message{{Type: typ, ID: queue.NewID(time.Now(), 1, 1)}}); err != nil {
						t.Fatal(err)
					}
					p.locker.Close(t.Context())
				}
				if err := p.end(); !errors.Is(err, closed) {
					t.Errorf("the pool ended with %v", err)
				}
			})
		})
	}
}

// The second call of Run does not disturb the first one.
func TestPoolRunsOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		time.Sleep(time.Second)
		events, cancel := p.Subscribe(10)
		defer cancel()
		if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "New") {
			t.Errorf("the second call: %v", err)
		}
		r.publish(typ, 10)
		time.Sleep(time.Second)
		p.stop()
		if err := p.Run(t.Context()); err == nil {
			t.Error("a call after the end: no error")
		}
		if len(events) == 0 || r.pending() > 0 {
			t.Errorf("%d events, %d pending", len(events), r.pending())
		}
	})
}

// A cancelled pool logs why a session failed meanwhile, unless the cancellation is the reason.
func TestFailureDuringACancellationIsLogged(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("given up"))
		for _, err := range []error{fmt.Errorf("fetch: %w", context.Cause(ctx)), errAsked, syscall.EIO} {
			if p.goesOn(ctx, typ, false, err, &wait.Backoff{}, nil) {
				t.Errorf("it continues after %v", err)
			}
			if failed := p.Status().of(t, typ).LastError != ""; failed != (err == syscall.EIO) {
				t.Errorf("%v is an error of the type: %v", err, failed)
			}
		}
		if log := r.log.String(); strings.Count(log, `"error":`) != 1 || !strings.Contains(log, syscall.EIO.Error()) {
			t.Errorf("logged:\n%s", log)
		}
	})
}

// A replica that asked for a type waits for its lock: a failed release is logged.
func TestLockThatSomebodyWaitsForIsNotReleased(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var rec record
		p := r.start(handle(rec.handler(), func(c *Config) {
			c.Events = func(e Event) {
				if e.Kind == Released {
					r.locks.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
				}
			}
		}))
		r.publish(typ, 1)
		time.Sleep(time.Second)
		if err := p.locker.RequestRelease(t.Context(), typ, "a test"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if !strings.Contains(r.log.String(), "lock not released yet") {
			t.Error("the log does not say that the lock is not released")
		}
		r.locks.Inject(nil)
		p.stop()
	})
}

// Cancelling a pool is no failure of its types: neither the log nor an event reports one.
func TestACancellationIsNoErrorOfAType(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		events, cancel := p.Subscribe(10, Acquired, Released, Lost)
		defer cancel()
		r.publish(typ, 1)
		time.Sleep(time.Second)
		r.calls(queuetest.Hang, queuetest.OpAck) // messages are in flight
		r.publish(typ, 1)
		time.Sleep(time.Second)
		p.cancel()
		<-p.done
		if got := kinds(events); !slices.Equal(got, []string{typ + " acquired 0", typ + " released 0"}) {
			t.Errorf("events %v", got)
		}
		if log := r.log.String(); !strings.Contains(log, "stopped serving the type: the pool was cancelled") || strings.Contains(log, "error") {
			t.Errorf("logged:\n%s", log)
		}
	})
}
