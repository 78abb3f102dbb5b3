// Package wait implements the pauses between two attempts: their length, and what ends them early.
//
// There are two rules for their length. [Backoff] is for one caller that retries after a failure: pauses double up to a bound.
// [Decorrelated] is for many callers that compete for the same resource: pauses are random, so that callers that began together drift
// apart. [Patience] is how long one attempt may take.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d. It returns ctx's error if ctx ends first.
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

// Note calls f once unless stop is called within after. stop waits for f to return.
func Note(after time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	t := time.AfterFunc(after, func() {
		defer close(done)
		f()
	})
	return func() {
		if !t.Stop() {
			<-done
		}
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

// Next returns a pause of at least half the bound: for a caller that waits alone and keeps a pace.
func (b *Backoff) Next() time.Duration { return AtLeastHalf(b.grow()) }

// Spread returns a pause from zero to the bound, so that callers that failed together do not retry
// together.
func (b *Backoff) Spread() time.Duration { return rand.N(b.grow() + 1) }

// Reset restarts at Min.
func (b *Backoff) Reset() { b.bound = 0 }

// AtLeastHalf draws a pause from d/2 to d.
func AtLeastHalf(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// Decorrelated yields pauses of decorrelated jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): each
// pause is uniform between Min and three times the previous one, and at most Max. Max counts as Min plus a millisecond if it is less. It is
// not safe for concurrent use.
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

// Reset restarts at Min.
func (j *Decorrelated) Reset() { j.last = 0 }

// Patience bounds the time of a repeated query: Min, and twice as long with each attempt while answers are late, up to Max. A slow server
// answers eventually. If every query were abandoned shortly before its answer, the server would work in vain, and the driver would close a
// connection each time. It is not safe for concurrent use.
type Patience struct {
	Min, Max time.Duration
	bound    time.Duration
}

// Ask calls ask with a context that ends after the current bound.
func (p *Patience) Ask(ctx context.Context, ask func(context.Context) error) error {
	p.bound = max(p.bound, p.Min)
	asking, cancel := context.WithTimeout(ctx, p.bound)
	defer cancel()
	began := time.Now()
	err := ask(asking)
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		p.bound = min(2*p.bound, p.Max)
	} else {
		p.bound = min(p.bound, 2*time.Since(began))
	}
	return err
}
