package simulation

import (
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/storage/storagetest"
)

// powerLoss ends all workers. Unsynced data may or may not survive.
func (w *world) powerLoss(d *dice, why string) {
	w.mu.Lock()
	w.seen.PowerLosses++
	w.tellLocked("the host loses power: " + why)
	for _, p := range w.processes {
		if strings.HasPrefix(p.name, "worker") {
			p.killLocked("no power")
		}
	}
	w.mu.Unlock()
	w.disk.Crash(lostPages(d)) // a store keeps everything it has acknowledged
}

// lostPages lets a random part of the unsynced data survive.
func lostPages(d *dice) storagetest.Crash {
	chance := pick(d, 0, 5000, 10_000)
	key := d.next()
	return storagetest.Crash{
		Keep:     func(name string, block int64) bool { return newDice(key, number(name), uint64(block)).chance(chance) },
		KeepSize: func(name string) bool { return newDice(key, number(name), 1<<40).chance(5000) },
		KeepName: func(name string) bool { return newDice(key, number(name), 1<<41).chance(5000) },
	}
}

// tap is the disk as a process sees it.
func (p *process) tap() *storagetest.Tap {
	w := p.w
	return &storagetest.Tap{FS: w.disk,
		Before: func(c storagetest.Call) *storagetest.Fault {
			d := p.step("disk "+string(c.Op), c.Name, underMutex(c.Op))
			if !underMutex(c.Op) {
				p.wait()
			}
			if c.Op == storagetest.OpDatasync && !w.isCalm() && d.chance(w.syncError) {
				key := d.next()
				w.disk.FailWriteback(c.Name, func(b int64) bool { return newDice(key, uint64(b)).chance(5000) })
				w.tell("%s sync of %s fails", p.name, c.Name)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			fault := &storagetest.Fault{Err: errKilled}
			if c.Op == storagetest.OpAppend && d.chance(5000) {
				fault.Short = d.n(int(c.Len))
			}
			switch {
			case p.dead && w.calm, p.dead && p.counts["disk after death"] > 0:
				return &storagetest.Fault{Err: errKilled}
			case p.dead:
				p.counts["disk after death"]++ // it may be in the middle of a write
				return fault
			case w.calm || !d.chance(w.diskError):
				return nil
			}
			w.seen.DiskErrors++
			w.tellLocked(fmt.Sprintf("%s disk %s fails", p.name, c.Op))
			fault.Err = eio
			return fault
		},
		After: func(c storagetest.Call) {
			p.step("disk "+string(c.Op)+" done", c.Name, underMutex(c.Op))
			if !underMutex(c.Op) {
				p.wait()
			}
		},
	}
}
