// Package wait has the pauses between one try and the next: how long they are, and what ends them early.
//
// There are two rules for their length. [Backoff] is for one who tries again after a failure: pauses double up to a bound. [Decorrelated]
// is for many who compete for the same thing: pauses are drawn so that those who began together drift apart.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d. The error is that of ctx, if ctx ended before.
func For(ctx context.Context, d time.Duration) error {
	if !Unless(ctx.Done(), d) {
		return ctx.Err()
	}
	return nil
}

// Unless waits for d, or until stop is closed. It reports whether it waited to the end.
func Unless(stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}

// Backoff yields pauses whose bound doubles from Min to Max. It is not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration
	bound    time.Duration
}

func (b *Backoff) grow() time.Duration {
	b.bound = min(max(2*b.bound, b.Min), b.Max)
	return b.bound
}

// Next returns a pause of at least half the bound: for one who waits alone, and keeps a pace.
func (b *Backoff) Next() time.Duration { return AtLeastHalf(b.grow()) }

// Spread returns a pause from nothing to the bound: many that failed together do not try again together.
func (b *Backoff) Spread() time.Duration { return rand.N(b.grow() + 1) }

// Reset begins again at Min.
func (b *Backoff) Reset() { b.bound = 0 }

// AtLeastHalf draws a pause from d/2 to d.
func AtLeastHalf(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// Decorrelated yields pauses of decorrelated jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): each one
// is uniform between Min and three times the one before, and at most Max. Max counts as Min plus a millisecond if it is less. It is not
// safe for concurrent use.
type Decorrelated struct {
	Min, Max time.Duration
	last     time.Duration
}

// Next returns a pause.
func (j *Decorrelated) Next() time.Duration {
	d := j.Min + rand.N(max(3*max(j.last, j.Min)-j.Min, time.Millisecond))
	j.last = min(d, max(j.Max, j.Min+time.Millisecond))
	return j.last
}

// Reset begins again at Min.
func (j *Decorrelated) Reset() { j.last = 0 }
