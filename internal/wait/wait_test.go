package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := wait.For(t.Context(), time.Minute); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("waited %v of a minute: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if err := wait.For(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("waited %v for a context of a second: %v", time.Since(begin), err)
		}
		if err := wait.For(t.Context(), -time.Second); err != nil {
			t.Errorf("no pause at all: %v", err)
		}
	})
}

func TestBackoff(t *testing.T) {
	for range 100 {
		b := wait.Backoff{Min: 10 * time.Millisecond, Max: 75 * time.Millisecond}
		for range 2 {
			for _, bound := range []time.Duration{10, 20, 40, 75, 75} {
				bound *= time.Millisecond
				if d := b.Next(); d < bound/2 || d > bound {
					t.Errorf("a pause of %v where %v is the bound", d, bound)
				}
			}
			b.Reset()
		}
		for _, bound := range []time.Duration{10, 20, 40, 75, 75} {
			if d := b.Spread(); d < 0 || d > bound*time.Millisecond {
				t.Errorf("a pause of %v where %d ms is the bound", d, bound)
			}
		}
	}
}

func TestDecorrelated(t *testing.T) {
	longest := time.Duration(0)
	for range 100 {
		j := wait.Decorrelated{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
		for last := j.Min; last < j.Max; {
			d := j.Next()
			if d < j.Min || d > min(3*last, j.Max) {
				t.Fatalf("a pause of %v after one of %v", d, last)
			}
			last, longest = max(d, j.Min), max(longest, d)
		}
		j.Reset()
		if d := j.Next(); d > 3*j.Min {
			t.Errorf("a pause of %v after a reset", d)
		}
	}
	if longest != 200*time.Millisecond {
		t.Errorf("the longest pause is %v", longest)
	}
	none := wait.Decorrelated{Min: time.Millisecond}
	if d := none.Next(); d < time.Millisecond || d > 2*time.Millisecond {
		t.Errorf("a pause of %v without a bound", d)
	}
}

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := wait.Patience{Min: 5 * time.Second, Max: 30 * time.Second}
		takes := time.Second
		ask := func(ctx context.Context) error { return wait.For(ctx, takes) }
		waits := func(want time.Duration) {
			t.Helper()
			begin := time.Now()
			err := p.Ask(t.Context(), ask)
			if took := time.Since(begin); took != want || errors.Is(err, context.DeadlineExceeded) != (takes > want) {
				t.Errorf("waited %v for an answer after %v: %v, want %v", took, takes, err, want)
			}
		}
		waits(time.Second)
		takes = time.Minute
		for _, want := range []time.Duration{5, 10, 20, 30, 30} {
			waits(want * time.Second)
		}
		takes = 12 * time.Second // it stays patient …
		waits(takes)
		takes = time.Minute
		waits(24 * time.Second)
		takes = time.Second // … until an answer is quick
		waits(takes)
		takes = time.Minute
		waits(5 * time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the end of the caller's context says nothing about the server
		defer cancel()
		if err := p.Ask(ctx, ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		waits(5 * time.Second)
	})
}
