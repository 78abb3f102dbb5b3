package slots

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// gauge is a slow store that measures how many bytes are created concurrently.
type gauge struct {
	Store
	takes time.Duration // duration of a create, unless its context ends before

	mu        sync.Mutex
	now, most int
	creates   int
}

func (g *gauge) MaxValue() int  { return 64 << 20 }
func (g *gauge) String() string { return "gauge:" }

func (g *gauge) Create(ctx context.Context, _ string, data []byte) error {
	g.add(len(data))
	defer g.add(-len(data))
	select {
	case <-time.After(g.takes):
		g.mu.Lock()
		g.creates++
		g.mu.Unlock()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

// syncs appends to many files of a store, and syncs them concurrently. It returns their errors.
func syncs(t *testing.T, f *FS, files, bytes int) []error {
	t.Helper()
	errs := make([]error, files)
	var all sync.WaitGroup
	for i := range files {
		file, err := f.Until(t.Context()).Open(storage.TempName(fmt.Sprintf("type-%d", i), 1, 7), storage.ModeCreate)
		if err == nil {
			_, _, err = file.Append(make([]byte, bytes))
		}
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { errs[i] = file.Datasync() })
	}
	all.Wait()
	return errs
}

// However many types are busy, the bytes in flight are bounded, and values of any size get their turn.
func TestBytesBeingCreatedAreBounded(t *testing.T) {
	for _, tc := range []struct{ files, bytes int }{{40, 3 << 20}, {3, 20 << 20}, {200, 100}} {
		synctest.Test(t, func(t *testing.T) {
			g := &gauge{takes: 100 * time.Millisecond}
			for _, err := range syncs(t, New(t.Context(), g), tc.files, tc.bytes) {
				if err != nil {
					t.Error(err)
				}
			}
			most, whole := mostCreating, tc.files*tc.bytes
			if g.most > most || g.most < min(most/2, whole) {
				t.Errorf("%d files of %d bytes: %d bytes in flight, want at most %d", tc.files, tc.bytes, g.most, most)
			}
		})
	}
}

// On a slow connection the time of an attempt begins only after its bytes have memory: no attempt times out because others went first.
func TestWaitingForRoomTakesNoTimeOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gauge{takes: 6 * time.Second}
		began := time.Now()
		for _, err := range syncs(t, New(t.Context(), g), 8, 8<<20) {
			if err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 24*time.Second {
			t.Errorf("the last one was created after %v", took)
		}
	})
}

// If a store does not answer, all files fail within the time of their own attempts, and not one after the other.
func TestWaitingForRoomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gauge{takes: time.Hour}
		began := time.Now()
		for _, err := range syncs(t, New(t.Context(), g), 40, 8<<20) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took > patience+time.Second {
			t.Errorf("the last one failed after %v", took)
		}
	})
}
