package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// A replica with nothing in flight stops within a second and without an error, whichever request the queue leaves unanswered.
func TestIdleReplicaStopsWhileTheQueueHangs(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*Config)
		publish int // messages that are drained before the queue hangs
		hangs   []queuetest.Op
		first   bool // the queue hangs from the start, with messages pending
	}{
		"watching":           {hangs: []queuetest.Op{queuetest.OpDepth}},
		"looking for types":  {hangs: []queuetest.Op{queuetest.OpTypes}, change: func(c *Config) { c.Types = []string{"ord*"} }},
		"opening":            {hangs: []queuetest.Op{queuetest.OpRegistryEntry}, first: true, publish: 3},
		"holding":            {hangs: []queuetest.Op{queuetest.OpFetch}, publish: 3},
		"everything":         {publish: 3},
		"everything, unheld": {},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				hang := func() {
					r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
						if tc.hangs == nil || slices.Contains(tc.hangs, op) {
							return queuetest.Fault{Kind: queuetest.Hang}
						}
						return queuetest.Fault{}
					})
				}
				if tc.publish > 0 {
					r.publish(typ, tc.publish)
				}
				if tc.first {
					hang()
				}
				p := r.start(func(c *Config) {
					c.Lease = 20 * time.Second
					if tc.change != nil {
						tc.change(c)
					}
				})
				time.Sleep(5*time.Second + 100*time.Millisecond)
				hang()
				time.Sleep(6 * time.Second)
				began := time.Now()
				p.stop()
				if took := time.Since(began); took > time.Second {
					t.Errorf("stopped after %v", took)
				}
				if rec, _ := r.locks.Get(typ); rec.Hold != nil {
					t.Error("the lock is still held")
				}
			})
		})
	}
}

// The whole server hangs, and so does the store of the locks.
func TestIdleReplicaStopsWhileTheServerHangs(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 3)
		p := r.start(func(c *Config) { c.Lease = 20 * time.Second })
		time.Sleep(5 * time.Second)
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{Kind: queuetest.Hang} })
		r.locks.Inject(func(locktest.Call) locktest.Fault { return locktest.Fault{LoseRequest: true} })
		time.Sleep(3 * time.Second)
		began := time.Now()
		p.Stop()
		for p.Status().Running && time.Since(began) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the pool ended after %v", took)
		}
		// The release continues in the background: it succeeds when the server answers again.
		r.locks.Inject(nil)
		if err := p.end(); err != nil {
			t.Error(err)
		}
		if rec, _ := r.locks.Get(typ); rec.Hold != nil {
			t.Error("the lock is still held")
		}
	})
}

// distant is a queue where an acknowledgement takes a moment, and does not arrive if the context ends before.
type distant struct{ queue.Queue }

func (o distant) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	time.Sleep(10 * time.Millisecond)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return o.Queue.AckFile(ctx, typ, f, ids)
}

// Messages in flight are finished, however long the queue takes to answer, and the lock is released.
func TestStopFinishesWhatIsInHandWhenTheQueueAnswersAgain(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpAck {
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		r.publish(typ, 100)
		p := r.start(func(c *Config) { c.Lease, c.Queue = 20*time.Second, distant{r.queue} })
		time.Sleep(3 * time.Second)
		p.Stop()
		time.Sleep(10 * time.Second)
		if !p.Status().Running {
			t.Fatalf("the pool ended with %d messages in flight", r.pending())
		}
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		if err := p.end(); err != nil {
			t.Error(err)
		}
		r.complete(typ)
		if rec, _ := r.locks.Get(typ); rec.Hold != nil {
			t.Error("the lock is still held")
		}
	})
}

// The next holder may write to the file before the last one has closed it. No session was lost by that.
func TestNextHolderIsFasterThanClose(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var stopping atomic.Bool
		slow := &storagetest.Tap{FS: r.disk, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpFileStat && stopping.Load() {
				time.Sleep(time.Second)
			}
			return nil
		}}
		r.publish(typ, 10)
		first := r.start(inFiles(func(f *Files) { f.Storage.FS = slow }))
		time.Sleep(10 * time.Second)
		second := r.start(nil)
		time.Sleep(10 * time.Second)
		stopping.Store(true)
		go func() {
			for range 40 {
				r.publish(typ, 1)
				time.Sleep(100 * time.Millisecond)
			}
		}()
		first.stop()
		time.Sleep(time.Minute)
		if n := first.Stats(); n.Lost != 0 {
			t.Errorf("%d sessions were lost", n.Lost)
		}
		if losses := first.Status().of(t, typ).Losses; len(losses) > 0 {
			t.Errorf("losses: %v", losses)
		}
		second.stop()
		r.complete(typ)
	})
}
