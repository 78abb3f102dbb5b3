package simulation

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// operate plays operators, kernels and networks during the storm.
func (w *world) operate(ctx context.Context) {
	p := w.spawn("operator", 0, 0)
	admin, err := p.locker()
	if err != nil {
		panic(err)
	}
	defer func() {
		p.cancel()
		_ = admin.Close(context.Background())
	}()
	for i := uint64(0); ; i++ {
		d := newDice(w.seed, p.id, i)
		pause := time.Duration(math.MaxInt64)
		if w.events > 0 {
			pause = d.upTo(8 * time.Second / time.Duration(w.events))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		typ := pick(d, w.types...)
		file := dir + "/" + storage.FileName(typ)
		for_ := d.upTo(pick(d, time.Second, 4*time.Second, 12*time.Second))
		switch event := d.n(15); event {
		case 0:
			w.outrage("queue", for_)
		case 1:
			w.outrage("locks", for_)
		case 2, 3:
			w.cutOff(d, for_)
		case 4:
			w.mu.Lock()
			c := w.processes[d.n(len(w.processes))]
			w.mu.Unlock()
			c.stop(d.upTo(w.longest()), "by hand")
		case 5:
			w.powerLoss(d, "by chance")
		case 6, 7, 8:
			w.placeFails(d, event, file, for_)
		case 9:
			w.tell("the lock of %s is deleted", typ)
			w.locks.Edit(typ, func(*lock.Record) bool { return false })
		case 10:
			w.tell("the lock of %s is taken away", typ)
			_ = admin.ForceRelease(ctx, typ, "simulation")
		case 11:
			w.tell("%s is asked for", typ)
			_ = admin.RequestRelease(ctx, typ, "simulation")
		case 12:
			w.pauseType(typ, d.chance(5000), for_)
		case 13:
			w.tell("the lock of %s is restored from a backup", typ)
			w.locks.Edit(typ, func(r *lock.Record) bool {
				r.Token -= min(r.Token/2, int64(d.n(3)))
				r.Version = lock.NewVersion()
				return r.Token > 0
			})
		case 14:
			if !w.handlers && !w.setBack { // a registry that is several files behind is not guaranteed to be found again
				w.compact(ctx, typ, int(i), for_, d.chance(3000))
			}
		}
	}
}

// cutOff cuts a process off from all servers. With a store it may cut off only one direction.
func (w *world) cutOff(d *dice, for_ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.processes[d.n(len(w.processes))]
	if w.slots && d.chance(5000) {
		p.deaf = time.Now().Add(for_)
		w.seen.Deaf++
		w.tellLocked(fmt.Sprintf("%s gets no answers for %v", p.name, for_))
		return
	}
	p.cut = time.Now().Add(for_)
	w.tellLocked(fmt.Sprintf("%s is cut off for %v", p.name, for_))
}

// placeFails makes the disk or the store fail.
func (w *world) placeFails(d *dice, event int, file string, for_ time.Duration) {
	switch {
	case w.slots:
		w.outrage(pick(d, storeAway, storeFull, storeSlow, storeRefuses), for_)
	case event == 6:
		w.tell("the disk is full for %v", for_)
		w.disk.SetFree(int64(d.n(20_000)))
		time.AfterFunc(for_, func() { w.disk.SetFree(1 << 50) })
	case event == 7:
		w.tell("what %s has in the cache is not written", file)
		key := d.next()
		w.disk.FailWriteback(file, func(b int64) bool { return newDice(key, uint64(b)).chance(5000) })
	default:
		key := d.next()
		w.disk.Writeback(file, func(b int64) bool { return newDice(key, uint64(b)).chance(5000) })
	}
}

// loseStore makes the store unreachable for a minute.
func (w *world) loseStore(storm context.Context) {
	select {
	case <-time.After(newDice(w.seed, number("minute")).upTo(15 * time.Second)):
		w.outrage(storeAway, time.Minute)
	case <-storm.Done():
	}
}

// setBackQueue restores the queue from a backup while no program runs, as the runbook says. The files do not change.
func (w *world) setBackQueue(storm context.Context) {
	d := newDice(w.seed, number("set back"))
	backupAt, restoreAt := d.upTo(w.storm/2), d.span(w.storm/2, w.storm)
	select {
	case <-time.After(backupAt):
	case <-storm.Done():
		return
	}
	w.mu.Lock()
	backup := w.database.Clone()
	for _, m := range w.sent {
		m.safe = m.result.Status == queue.Stored
	}
	w.tellLocked("the queue is backed up")
	w.mu.Unlock()
	select {
	case <-time.After(restoreAt - backupAt):
	case <-storm.Done():
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.processes {
		if !strings.HasPrefix(p.name, "operator") {
			p.killLocked("the queue is being restored")
		}
	}
	backup.OnStore = func(m queue.Message) {
		if m.Headers[queue.DelayedHeader] == "" { // delayed messages are promoted a second time, under other numbers
			w.oracle.Observe(m)
		}
	}
	// A request in flight reaches the old database.
	w.database, w.restored = backup, true
	w.seen.Restores++
	w.tellLocked("the queue is restored")
}

func (w *world) outrage(server string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outage[server] = time.Now().Add(d)
	w.tellLocked(fmt.Sprintf("server %s is away for %v", server, d))
}

func (w *world) pauseType(typ string, publish bool, d time.Duration) {
	w.tell("%s is paused for %v, publishing %t", typ, d, publish)
	yes, no := true, false
	change := func(v *bool) {
		c := queue.SettingsPatch{DrainPaused: v, Why: "simulation"}
		if publish {
			c = queue.SettingsPatch{PublishPaused: v, Why: "simulation"}
		}
		if _, err := w.queue().PatchSettings(context.Background(), typ, c); err != nil {
			panic(err)
		}
	}
	change(&yes)
	time.AfterFunc(d, func() { change(&no) })
}
