package worker

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
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// badRegistry is a queue whose registry of files refuses updates until it is repaired.
type badRegistry struct {
	queue.Queue
	update func(ctx context.Context, well <-chan struct{}) (bool, error)
	well   chan struct{} // closed when it is repaired
	asked  atomic.Int64
	acked  atomic.Int64
}

func (q *badRegistry) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	q.asked.Add(1)
	select {
	case <-q.well:
		return q.Queue.UpdateFile(ctx, typ, f)
	default:
		return q.update(ctx, q.well)
	}
}

func (q *badRegistry) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	q.acked.Add(int64(len(ids)))
	return q.Queue.AckFile(ctx, typ, f, ids)
}

// A holder that cannot register appends nothing and acknowledges nothing. It continues when the registry is repaired.
func TestNothingIsAppendedWithoutTheRegistry(t *testing.T) {
	for name, update := range map[string]func(context.Context, <-chan struct{}) (bool, error){
		"it names another file": func(context.Context, <-chan struct{}) (bool, error) { return false, nil },
		"it fails":              func(context.Context, <-chan struct{}) (bool, error) { return false, errors.New("the server is away") },
		"it does not answer": func(ctx context.Context, well <-chan struct{}) (bool, error) {
			select {
			case <-well:
				return false, errors.New("the server went away meanwhile")
			case <-ctx.Done():
				return false, ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 50)
				q := &badRegistry{Queue: r.queue, update: update, well: make(chan struct{})}
				p := r.start(func(c *Config) { c.Queue = q })
				time.Sleep(20 * time.Second)
				if got := contents(t, r.disk, testFile); len(got) > 0 || q.acked.Load() > 0 || r.pending() != 50 {
					t.Errorf("%d records in the file, %d acknowledged, %d of 50 messages are pending", len(got), q.acked.Load(), r.pending())
				}
				if q.asked.Load() == 0 {
					t.Error("the registry was not called: the scenario proves nothing")
				}
				close(q.well)
				select {
				case <-p.done: // it has given up the only type it serves, as for any unusable file
				case <-time.After(2 * time.Minute):
					p.stop()
				}
				if err := r.drain(nil); err != nil {
					t.Fatal(err)
				}
				r.complete(typ)
			})
		})
	}
}

// witness is a queue that records how much of the file was registered as durable when each message left the queue.
type witness struct {
	queue.Queue
	mu   sync.Mutex
	left map[queue.ID]uint64
}

func (w *witness) note(ctx context.Context, ids []queue.ID) {
	f, _, err := w.Queue.RegistryEntry(ctx, typ)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if _, known := w.left[id]; !known {
			w.left[id] = f.DurableIndex
		}
	}
}

func (w *witness) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	w.note(ctx, ids)
	return w.Queue.Ack(ctx, typ, ids)
}

func (w *witness) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	ok, err := w.Queue.AckFile(ctx, typ, f, ids)
	if ok {
		w.note(ctx, ids) // a Memory does both at once
	}
	return ok, err
}

func (w *witness) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	for _, l := range letters {
		w.note(ctx, []queue.ID{l.ID})
	}
	return w.Queue.MoveToDeadLetters(ctx, typ, letters)
}

// When a message leaves the queue, acknowledged, as a copy or as a dead letter, the registry already knows its record, even while files are replaced.
func TestTheRegistryKnowsBeforeAMessageIsGone(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		w := &witness{Queue: r.queue, left: map[queue.ID]uint64{}}
		pad := strings.Repeat("x", 2000)
		p := r.start(func(c *Config) {
			c.Queue, c.Batch = twice{w}, 50
			inFiles(func(f *Files) { f.Filter, f.MaxBytes = no7, 1<<20 })(c)
		})
		for range 10 {
			r.publishWith(typ, 200, func(i int) string { return fmt.Sprintf("%s %d", pad, i) })
			time.Sleep(time.Second)
		}
		p.stop()
		paths := r.generations(typ)
		seen := map[storage.Kind]int{}
		for _, path := range paths {
			_, err := storage.Verify(t.Context(), path, storage.VerifyOptions{FS: r.disk, Visit: func(rec storage.Record) error {
				seen[rec.Kind]++
				if durable, ok := w.left[queue.ID(rec.ID)]; !ok || rec.Index >= durable {
					t.Errorf("record %d, %v: its message left the queue (%v) when the registry knew those below %d", rec.Index, rec.Kind, ok, durable)
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := p.Stats(); len(paths) < 3 || seen[storage.KindMessage] != 1800 || seen[storage.KindSkipped] != 200 || s.Duplicates < 1800 || s.Dead < 200 {
			t.Errorf("%d files with %v, %+v: the scenario proves nothing", len(paths), seen, s)
		}
	})
}

// A session whose file is no longer the registered one, or has a later writer, acknowledges nothing more and ends.
func TestFileThatIsNoLongerRegisteredEndsTheSession(t *testing.T) {
	for name, another := range map[string]bool{"another file is registered": true, "a higher epoch is registered": false} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.publish(typ, 10)
				p := r.start(nil)
				time.Sleep(time.Second)
				f, ok, err := r.queue.RegistryEntry(t.Context(), typ)
				if err != nil || !ok || f.DurableIndex != 10 || r.pending() != 0 {
					t.Fatalf("%+v, %v, %v", f, ok, err)
				}
				later := queue.RegistryEntry{FileID: f.FileID, Generation: 1, Epoch: f.Epoch + 5}
				if another {
					later.FileID[0]++
					_, _, err = r.queue.SucceedFile(t.Context(), typ, f.FileID, later)
				} else {
					_, err = r.queue.UpdateFile(t.Context(), typ, later)
				}
				if err != nil {
					t.Fatal(err)
				}
				r.publish(typ, 10)
				time.Sleep(time.Minute)
				if n := p.Stats().Lost; n != 1 || !strings.Contains(r.log.String(), "the registry of files no longer names") {
					t.Errorf("%d sessions were fenced, want 1", n)
				}
				if err := p.end(); !errors.Is(err, storage.ErrIntegrity) {
					t.Errorf("the pool ended with %v", err)
				}
				if n := r.pending(); n != 10 {
					t.Errorf("%d of 10 messages are pending", n)
				}
			})
		})
	}
}

// A copy is acknowledged because its original is in the file. If the file is gone, nothing is acknowledged.
func TestCopyIsNotAcknowledgedForAFileThatWasMoved(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		m := queue.Message{Type: typ, ID: queue.NewID(time.Now(), 7, 1)}
		r.insert(m)
		p := r.start(nil)
		time.Sleep(time.Second)
		if n := r.pending(); n != 0 {
			t.Fatalf("%d messages are pending", n)
		}
		if err := r.disk.Rename(testFile, testFile+".aside"); err != nil {
			t.Fatal(err)
		}
		r.insert(m)
		time.Sleep(time.Minute)
		if err := p.end(); !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("the pool ended with %v", err)
		}
		if n := r.pending(); n != 1 {
			t.Errorf("%d messages are pending, want the copy", n)
		}
	})
}

// A session that fails registers the records it made durable, including those it could not acknowledge.
func TestFailedSessionTellsTheRegistry(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		var failing atomic.Bool
		tap := &storagetest.Tap{FS: r.disk, Before: func(storagetest.Call) *storagetest.Fault {
			if failing.Load() {
				return &storagetest.Fault{Err: errors.New("input/output error")}
			}
			return nil
		}}
		r.disturb(func(op queuetest.Op, _ int) queuetest.Fault {
			if op == queuetest.OpAck {
				return queuetest.Fault{Kind: queuetest.Lost}
			}
			return queuetest.Fault{}
		})
		p := r.start(inFiles(func(f *Files) { f.Storage.FS = tap }))
		r.publish(typ, 10)
		time.Sleep(time.Second)
		if f, _, err := r.queue.RegistryEntry(t.Context(), typ); err != nil || f.DurableIndex != 0 {
			t.Fatalf("%+v, %v: no acknowledgement got through", f, err)
		}
		failing.Store(true)
		p.cancel()
		<-p.done
		if f, _, err := r.queue.RegistryEntry(t.Context(), typ); err != nil || f.DurableIndex != 10 {
			t.Errorf("the registry has %+v, %v; 10 records were durable", f, err)
		}
		failing.Store(false)
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		r.mustDrain(nil)
		r.complete(typ)
	})
}

// twoDatabases is a queue whose registry of files can be rolled back by itself.
type twoDatabases struct {
	queue.Queue
	mu    sync.Mutex
	files *queuetest.Memory
}

func (q *twoDatabases) registry() *queuetest.Memory {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.files
}

func (q *twoDatabases) setBack(to *queuetest.Memory) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.files = to
}

func (q *twoDatabases) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	return q.registry().RegistryEntry(ctx, typ)
}

func (q *twoDatabases) RegisterFile(ctx context.Context, typ string, f queue.RegistryEntry) (queue.RegistryEntry, error) {
	return q.registry().RegisterFile(ctx, typ, f)
}

func (q *twoDatabases) UpdateFile(ctx context.Context, typ string, f queue.RegistryEntry) (bool, error) {
	return q.registry().UpdateFile(ctx, typ, f)
}

func (q *twoDatabases) SucceedFile(ctx context.Context, typ string, old [16]byte, f queue.RegistryEntry) (queue.RegistryEntry, bool, error) {
	return q.registry().SucceedFile(ctx, typ, old, f)
}

func (q *twoDatabases) AckFile(ctx context.Context, typ string, f queue.RegistryEntry, ids []queue.ID) (bool, error) {
	ok, err := q.registry().AckFile(ctx, typ, f, nil)
	if err == nil && ok {
		err = q.Queue.Ack(ctx, typ, ids)
	}
	return ok, err
}

// setFileBack drains 20 messages, and restores the file to when it had 10 of them, between two sessions of the pool that it returns. The
// registry is rolled back with the file, or emptied.
func setFileBack(r *rig, empty bool) (*twoDatabases, *runningPool) {
	q := &twoDatabases{Queue: r.queue, files: queuetest.NewMemory()}
	p := r.start(func(c *Config) { c.Queue, c.IdleTimeout, c.Types = q, time.Second, []string{typ, "other"} })
	r.publish(typ, 10)
	time.Sleep(10 * time.Second) // the session has ended
	file, registry := bytes.Clone(r.disk.ReadFile(testFile)), q.registry().Clone()
	if empty {
		registry = queuetest.NewMemory()
	}
	r.publish(typ, 10)
	time.Sleep(10 * time.Second)
	r.complete(typ)
	r.disk.WriteFile(testFile, file)
	q.setBack(registry)
	r.publish(typ, 10)
	time.Sleep(time.Minute)
	return q, p
}

// A pool does not continue with an old copy, although the registry was rolled back with it and cannot tell. It does when the newest copy is back.
func TestPoolNeverGoesBackBehindWhatItSawDurable(t *testing.T) {
	for name, empty := range map[string]bool{"registry set back": false, "registry emptied": true} {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				_, p := setFileBack(r, empty)
				if got := contents(t, r.disk, testFile); len(got) != 10 || r.pending() != 10 {
					t.Errorf("%d records in the file, %d messages pending, want 10 and 10", len(got), r.pending())
				}
				errs := p.Status().Types
				i := slices.IndexFunc(errs, func(s TypeStatus) bool { return s.Type == typ })
				if i < 0 || !strings.Contains(fmt.Sprint(errs[i]), "records below index 20 were durable") || !strings.Contains(fmt.Sprint(errs[i]), "give up what is missing") {
					t.Errorf("the status is %+v", errs)
				}
				p.Stop()
				if err := p.end(); !errors.Is(err, storage.ErrIntegrity) {
					t.Errorf("the pool ended with %v", err)
				}
			})
		})
	}
}

// Records that an operator gave up by a repair, with a registry that was rolled back, are given up for the pool, too.
func TestPoolGoesOnBehindARepair(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		q, p := setFileBack(r, false)
		began := time.Now()
		locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		cfg := Config{Queue: q, Locker: locker, To: Files{Dir: dir, Storage: storage.Options{FS: r.disk}}}
		if report, err := Rewrite(t.Context(), cfg, typ, RewriteOptions{Repair: true, AcceptLoss: true, Wait: time.Minute}); err != nil || report.NextIndex != 10 {
			t.Fatalf("%+v, %v", report, err)
		}
		time.Sleep(2 * time.Minute)
		p.Stop()
		if err := p.end(); err != nil {
			t.Error(err)
		}
		if got, want := r.chain(typ), slices.Concat(r.sent[typ][:10], r.sent[typ][20:]); !slices.Equal(got, want) {
			t.Errorf("the files hold %d messages; they differ from %d on", len(got), differ(got, want))
		}
	})
}

// A pool keeps the state of a type's producers in memory once, even while it holds the type again.
func TestLivesAreKeptOnce(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		p := r.start(nil)
		kept := func() int {
			p.files.mu.Lock()
			defer p.files.mu.Unlock()
			return len(p.files.lives)
		}
		for i := range 2 {
			r.publish(typ, 1)
			time.Sleep(10 * time.Second)
			if n := kept(); n != 0 {
				t.Errorf("session %d: the lives of %d earlier sessions are kept", i, n)
			}
			time.Sleep(2 * DefaultIdleTimeout)
			if n := kept(); n != 1 {
				t.Errorf("after session %d: the lives of %d sessions are kept, want 1", i, n)
			}
		}
		p.stop()
	})
}
