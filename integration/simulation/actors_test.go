package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
	"github.com/fencepost/fencepost/worker"
	"github.com/rs/zerolog"
)

var eio error = syscall.EIO

// underMutex reports whether a writer of package storage makes this call while it holds a mutex that another goroutine may want. The
// bubble's time does not advance while a goroutine waits for a mutex, so no goroutine may wait for time then, unless the runtime is patched.
func underMutex(op storagetest.Op) bool {
	return !patched && (op == storagetest.OpAppend || op == storagetest.OpFileStat || op == storagetest.OpClose)
}

// message is a message that a producer is to publish, and its result.
type message struct {
	queue.Message
	producer string // the process
	key      string
	delay    time.Duration
	bad      bool
	result   queue.Result
	safe     bool // when the queue is restored: it was confirmed before the backup, or is published after the restore
}

// script returns the messages that a producer publishes over all its lives, call by call.
func (w *world) script(slot int) (calls [][]*message) {
	d := newDice(w.seed, number("script"), uint64(slot))
	for call := range w.calls {
		var msgs []*message
		for i := range d.between(1, w.perCall) {
			m := &message{}
			payload := fmt.Sprintf("%d.%d.%d", slot, call, i)
			if m.bad = d.chance(w.bad); m.bad {
				payload = "bad " + payload
			}
			m.Type, m.Payload = pick(d, w.types...), []byte(payload)
			if w.large {
				m.Payload = append(m.Payload, bytes.Repeat([]byte{' '}, d.n(200<<10))...)
			}
			switch {
			case m.bad:
			case d.chance(w.delayed):
				m.delay = d.span(1, w.storm)
			case d.chance(w.keyed):
				m.key = fmt.Sprint("key ", d.n(4))
				m.Headers = map[string]string{queue.KeyHeader: m.key}
			}
			msgs = append(msgs, m)
		}
		calls = append(calls, msgs)
	}
	return calls
}

// produce publishes a script. A killed producer restarts after the call in which it was killed.
func (w *world) produce(slot int) {
	script := w.script(slot)
	for life := 0; len(script) > 0; life++ {
		p := w.spawn("producer", slot, life)
		d := newDice(w.seed, p.id, number("life"))
		pub, err := queue.NewPublisher(p.ctx, p.open(), queue.PublisherOptions{AttemptTimeout: d.span(time.Second, 5*time.Second),
			RepeatFor: d.span(time.Second, 15*time.Second), BatchMessages: pick(d, 1, 3, 1000), Linger: pick(d, 0, 10*time.Millisecond)})
		if err != nil {
			time.Sleep(d.span(100*time.Millisecond, time.Second))
			continue
		}
		for len(script) > 0 && !p.isDead() {
			time.Sleep(d.upTo(time.Duration(3) * w.storm / time.Duration(2*w.calls)))
			p.publish(pub, script[0])
			script = script[1:]
		}
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Minute)
		if err := pub.Close(ctx); err != nil && !p.isDead() {
			w.failf("%s: %v", p.name, err)
		}
		cancel()
		p.cancel()
		if len(script) > 0 {
			time.Sleep(d.span(100*time.Millisecond, 3*time.Second))
		}
	}
}

// publish makes one call, and records its results.
func (p *process) publish(pub *queue.Publisher, msgs []*message) {
	w := p.w
	call := make([]queue.Message, len(msgs))
	w.mu.Lock()
	for i, m := range msgs {
		call[i], m.producer, m.safe = m.Message, p.name, w.restored
		if m.delay > 0 {
			call[i].Due = pub.Now().Add(m.delay)
		}
		w.sent = append(w.sent, m)
	}
	w.mu.Unlock()
	outcome := map[queue.Status]int{}
	for i, r := range pub.PublishAll(p.ctx, call) {
		m := msgs[i]
		w.mu.Lock()
		m.result = r
		w.mu.Unlock()
		outcome[r.Status]++
		if m.delay == 0 {
			w.oracle.Report(p.name, m.Type, m.Payload, r)
		}
		w.tell("%s: %s %s is %v", p.name, m.Type, brief(m.Payload), r.Status)
	}
}

func brief(payload []byte) string {
	return string(bytes.TrimRight(payload[:min(len(payload), 40)], " "))
}

// running is a worker with its pool.
type running struct {
	*process
	pool *worker.Pool
	done chan struct{}
	err  error
}

var errBad = errors.New("refused by the filter")

// config returns the configuration of a worker.
func (p *process) config(locker *lock.Locker) worker.Config {
	w := p.w
	cfg := worker.Config{Queue: p.open(), Locker: locker, Types: w.types, Lease: w.lease, Batch: w.batch, Prefetch: w.prefetch,
		MaxTypes: w.maxTypes, IdleTimeout: w.idle, OnError: worker.DeadLetter}
	if w.handlers {
		cfg.To, cfg.MaxAttempts = worker.Handling{Handler: p.handler()}, 1_000_000 // only a permanent error puts a message aside
	} else {
		files := worker.Files{Dir: w.dir()}
		files.Storage = storage.Options{FS: p.files(), CheckpointBatches: w.checkpoint, Compress: w.compress, Holder: storage.Holder{Host: p.host(), PID: int(p.id & 0xffff)}}
		files.Filter = func(m queue.Message) error {
			if bytes.HasPrefix(m.Payload, []byte("bad ")) {
				return errBad
			}
			return nil
		}
		if w.large {
			files.MaxBytes = 1 << 20
		}
		cfg.To = files
	}
	if w.trace != nil {
		log := zerolog.New(tracer{p}) // a prettier logger would iterate over maps, and so consume random choices of the bubble
		cfg.Logger = &log
	}
	return cfg
}

// compact rewrites a type's newest file, as fencepost compact and repair do. Like a worker, it may die at any step.
func (w *world) compact(ctx context.Context, typ string, life int, wait time.Duration, repair bool) {
	p := w.spawn("worker", 7, life)
	defer p.cancel()
	locker, err := p.locker()
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(p.ctx, cancel)()
	defer cancel()
	_, err = worker.Rewrite(ctx, p.config(locker), typ, worker.RewriteOptions{Wait: wait, Repair: repair})
	w.tell("%s has compacted %s: %v", p.name, typ, err)
	if err == nil {
		w.mu.Lock()
		w.seen.Compactions++
		w.mu.Unlock()
	}
	closing, done := context.WithTimeout(p.ctx, 5*time.Second)
	defer done()
	_ = locker.Close(closing)
}

// start starts a worker.
func (w *world) start(slot, life int, untilEmpty bool) *running {
	p := w.spawn("worker", slot, life)
	locker, err := p.locker()
	if err != nil {
		panic(err)
	}
	cfg := p.config(locker)
	cfg.UntilEmpty = untilEmpty
	pool, err := worker.New(cfg)
	if err != nil {
		panic(err)
	}
	r := &running{process: p, pool: pool, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = pool.Run(p.ctx)
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
		defer cancel()
		_ = locker.Close(ctx) // locks it could not release expire
		w.mu.Lock()
		defer w.mu.Unlock()
		s := pool.Stats()
		w.seen.Sessions += int(s.Sessions)
		w.seen.SessionsLost += int(s.Lost)
		if s.Gaps > 0 && !w.disasters {
			w.failures = append(w.failures, fmt.Sprintf("%s declared %d gaps, although no messages were deleted", p.name, s.Gaps))
		}
		w.tellLocked(fmt.Sprintf("%s has ended: %v", p.name, r.err))
	}()
	return r
}

type tracer struct{ p *process }

func (t tracer) Write(line []byte) (int, error) {
	t.p.w.mu.Lock()
	defer t.p.w.mu.Unlock()
	t.p.w.trace(fmt.Sprintf("%10.4fs      %s: %s", t.p.w.now().Seconds(), t.p.name, bytes.TrimSpace(line)))
	return len(line), nil
}

// replica keeps a worker running until the end. The worker is stopped now and then, and restarted when it has ended.
func (w *world) replica(slot int, end <-chan struct{}) {
	for life := 0; ; life++ {
		r := w.start(slot, life, false)
		d := newDice(w.seed, r.id, number("life"))
		var roll <-chan time.Time
		if d.chance(w.events * 150) {
			roll = time.After(d.span(time.Second, w.storm))
		}
		select {
		case <-r.done:
		case <-roll:
			w.tell("%s is asked to stop", r.name)
			r.pool.Stop()
			<-r.done
		case <-end:
			r.pool.Stop()
			<-r.done
			if r.err != nil && !r.isDead() && !w.expected(r.err) {
				w.failf("%s was stopped and returned %v", r.name, r.err)
			}
			return
		}
		if r.err != nil && !r.isDead() && !w.expected(r.err) {
			w.failf("%s gave up: %v", r.name, r.err)
			return
		}
		w.mu.Lock()
		w.seen.Restarts++
		w.told = w.told || w.disasters && r.err != nil
		w.mu.Unlock()
		select {
		case <-time.After(d.span(10*time.Millisecond, 3*time.Second)):
		case <-end:
			return
		}
	}
}

// play runs the schedule: a storm, then calm weather until everything is drained.
func (w *world) play() {
	w.tell("%+v", w.weather)
	storm, over := context.WithTimeout(context.Background(), w.storm)
	defer over()
	end := make(chan struct{})
	var producers, workers, others sync.WaitGroup
	for slot := range w.producers {
		producers.Go(func() { w.produce(slot) })
	}
	for slot := range w.workers {
		workers.Go(func() { w.replica(slot, end) })
	}
	others.Go(func() { w.operate(storm) })
	for slot := range w.visitors {
		others.Go(func() { w.visitor(slot, storm) })
	}
	if w.transactions {
		others.Go(func() { w.transact(storm) })
	}
	if w.spoils {
		others.Go(func() { w.spoil(storm) })
	}
	if w.disasters {
		others.Go(func() { w.disaster(storm) })
	}
	if w.minute {
		others.Go(func() { w.loseStore(storm) })
	}
	if w.setBack {
		others.Go(func() { w.setBackQueue(storm) })
	}
	<-storm.Done()
	others.Wait()
	w.calmDown()
	producers.Wait()
	w.mu.Lock()
	late := w.lateUntil
	w.mu.Unlock()
	time.Sleep(time.Until(late))
	published := w.now()
	if w.disasters {
		w.mendFiles()
	}
	if w.untilEmpty {
		close(end)
		workers.Wait()
		if w.disasters {
			w.mendFiles()
		}
		for round := 0; w.left() > 0 && round < 20; round++ {
			r, s := w.start(8, 2*round, true), w.start(9, 2*round+1, true)
			<-r.done
			<-s.done
			if err := errors.Join(r.err, s.err); err != nil {
				w.failf("drained in calm weather: %v", err)
				break
			}
			// Messages that became due while the workers were ending may have been promoted, but not drained.
			if n := w.left(); n > 0 && w.delayed == 0 {
				w.failf("two workers with UntilEmpty have ended, and %d messages are left", n)
				break
			}
			time.Sleep(5 * time.Second) // for delayed messages
		}
	} else {
		for w.left() > 0 && w.now() < published+w.recoverWithin() {
			time.Sleep(250 * time.Millisecond)
			w.mu.Lock()
			told := w.told
			w.told = false
			w.mu.Unlock()
			if told { // a worker that slept through the disaster has reported damage
				w.mendFiles()
			}
		}
		w.seen.Recovery = w.now() - published
		if n := w.left(); n > 0 {
			w.failf("%d messages are left %v after all faults were over and all was published", n, w.seen.Recovery)
		}
		close(end)
		workers.Wait()
	}
	if w.disasters {
		w.mendFiles() // a worker that held the file all the time has not noticed the damage
	}
	w.mu.Lock()
	for _, p := range w.processes {
		p.cancel()
	}
	w.mu.Unlock()
	w.locks.Stop()
	time.Sleep(time.Minute) // lets abandoned calls end
	w.seen.Virtual = w.now()
}

// recoverWithin returns how long it may take from calm weather to an empty queue: a lease and the observer's margin, the longest pause
// after a failed session, the time until a worker reads everything again, and the time until delayed messages become due; with a store,
// also a request without an answer, and many sequential round trips.
func (w *world) recoverWithin() time.Duration {
	within := w.lease + w.lease/16 + w.lease/16 + 250*time.Millisecond + 30*time.Second + 30*time.Second + 20*time.Second
	if w.slots {
		within += 20 * time.Second
	}
	if w.disasters {
		within += 2 * time.Minute // a producer's latest messages may be missing: a gap timeout for each
	}
	return within
}

// calmDown ends all faults.
func (w *world) calmDown() {
	w.mu.Lock()
	w.tellLocked("the storm is over")
	w.calm = true
	for _, p := range w.processes {
		p.proceedLocked(p.resume)
	}
	w.mu.Unlock()
	w.disk.SetFree(1 << 50)
	for _, typ := range w.types {
		no := false
		if _, err := w.queue().PatchSettings(context.Background(), typ, queue.SettingsPatch{DrainPaused: &no, PublishPaused: &no}); err != nil {
			panic(err)
		}
	}
}

// left counts the messages that are not drained.
func (w *world) left() int {
	n := w.waiting()
	for _, typ := range w.types {
		d, err := w.queue().Depth(context.Background(), typ, 1000)
		if err != nil {
			panic(err)
		}
		n += d.Pending
	}
	return n
}

// waiting counts delayed messages.
func (w *world) waiting() int {
	list, err := w.queue().Delayed(context.Background(), queue.ScheduleKey{}, queue.Limit{Messages: 1000})
	if err != nil {
		panic(err)
	}
	return len(list)
}
