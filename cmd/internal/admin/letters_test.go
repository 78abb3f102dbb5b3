package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// morgue is a backend in memory with dead letters of type orders.
type morgue struct {
	*fencepost.Backend
	t *testing.T
}

func newMorgue(t *testing.T, letters int) morgue {
	t.Helper()
	locker, err := lock.New(locktest.NewMemory().Open(), lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	m := morgue{&fencepost.Backend{Queue: queuetest.NewMemory(), Locker: locker}, t}
	for n := range letters {
		m.bury(n + 1)
	}
	return m
}

func (m morgue) bury(n int) {
	m.t.Helper()
	l := queue.DeadLetter{Message: queue.Message{ID: queue.NewID(time.UnixMilli(1000), 1, uint64(n)), Payload: fmt.Append(nil, n)}}
	if err := m.Queue.MoveToDeadLetters(m.t.Context(), "orders", []queue.DeadLetter{l}); err != nil {
		m.t.Fatal(err)
	}
}

const somePortions = 1200 // more letters than fit in one portion

// TestDeadActionIsAboutWhatWasThere: letters that die during a requeue are not requeued, or a message that dies each time would be requeued forever.
func TestDeadActionIsAboutWhatWasThere(t *testing.T) {
	m := newMorgue(t, somePortions)
	done := 0
	err := Letters{}.act(t.Context(), m.Backend, Turn{}, &Outcome{}, func(_ context.Context, portion []queue.DeadLetter) error {
		for _, l := range portion {
			if done++; l.ID.N() > somePortions {
				t.Errorf("letter %d was not there in the beginning", l.ID.N())
			}
		}
		m.bury(somePortions + done)
		return nil
	})
	if err != nil || done != somePortions {
		t.Errorf("%d letters, %v; want %d", done, err, somePortions)
	}
}

// TestDeadActionsTakeTurns: a command that waited for another one chooses among the letters that the other one has left.
func TestDeadActionsTakeTurns(t *testing.T) {
	m := newMorgue(t, somePortions)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := map[queue.ID]int{}
	for range 3 {
		wg.Go(func() {
			_ = Letters{}.act(t.Context(), m.Backend, Turn{Wait: 10 * time.Minute}, &Outcome{}, func(ctx context.Context, portion []queue.DeadLetter) error {
				var ids []queue.ID
				mu.Lock()
				defer mu.Unlock()
				for _, l := range portion {
					taken[l.ID]++
					ids = append(ids, l.ID)
				}
				return m.Queue.RemoveDeadLetters(ctx, "orders", ids)
			})
		})
	}
	wg.Wait()
	for id, n := range taken {
		if n != 1 {
			t.Fatalf("letter %s was taken %d times", id, n)
		}
	}
	if len(taken) != somePortions {
		t.Errorf("%d letters were taken, want %d", len(taken), somePortions)
	}
}

// TestForeignTypesCanBeRemoved: a type name that is invalid for locks needs no lock.
func TestForeignTypesCanBeRemoved(t *testing.T) {
	m, done := newMorgue(t, 0), false
	err := Turn{}.Take(t.Context(), m.Backend, "a\x00b", func(context.Context) error { done = true; return nil })
	if err != nil || !done {
		t.Errorf("done %t, %v", done, err)
	}
}

// slowDead is a queue that reads dead letters slowly.
type slowDead struct {
	queue.Queue
	read func(ctx context.Context, found int) // called when letters were read
}

func (q slowDead) DeadLetters(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.DeadLetter, error) {
	letters, err := q.Queue.DeadLetters(ctx, typ, after, limit)
	q.read(ctx, len(letters))
	return letters, err
}

// TestDeadActionEndsWithItsLock: no portion is begun after the lock is lost.
func TestDeadActionEndsWithItsLock(t *testing.T) {
	for letters, want := range map[int]int{somePortions: 1, 10: 0} {
		t.Run(fmt.Sprint(letters, " letters"), func(t *testing.T) {
			t.Parallel()
			m := newMorgue(t, letters)
			lose := func(ctx context.Context) {
				if err := m.Locker.ForceRelease(ctx, queue.AdminLock("orders"), "a test"); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
			}
			ends := 0
			m.Queue = slowDead{m.Queue, func(ctx context.Context, found int) {
				if found > 0 {
					return
				}
				if ends++; ends == 2 && want == 0 { // all letters are read, but nothing is done
					lose(ctx)
				}
			}}
			portions := 0
			err := Letters{}.act(t.Context(), m.Backend, Turn{Wait: time.Minute}, &Outcome{}, func(ctx context.Context, _ []queue.DeadLetter) error {
				if portions++; portions == 1 {
					lose(ctx)
				}
				return nil
			})
			if !errors.Is(err, lock.ErrLost) || portions != want {
				t.Errorf("%d portions, %v; want %d, and the loss", portions, err, want)
			}
		})
	}
}
