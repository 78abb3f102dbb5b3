package lock

import (
	"context"
	"sync"
	"time"
)

// pace estimates how long the store takes to answer, as TCP does for its retransmissions (RFC 6298): a smoothed
// mean and a smoothed deviation. A store that is slow, but works, gets more time for acquisitions. Otherwise each of
// them would be given up shortly before its answer, undone and begun again, which makes the store slower still.
// Safe for concurrent use.
type pace struct {
	mu        sync.Mutex
	answered  time.Duration // when the last answer came, on Locker.clock; 0 = none yet
	mean      time.Duration
	deviation time.Duration
}

// saw records a call that began at began and ended at end, with an answer or without.
//
// rule: a call without an answer counts only if others were answered meanwhile. A store that is gone is not slow:
// waiting for it takes no longer than before.
func (p *pace) saw(began, end time.Duration, answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := end - began
	switch {
	case !answered && p.answered <= began:
		return
	case p.answered == 0:
		p.mean, p.deviation = took, took/2
	default:
		p.deviation += (max(took-p.mean, p.mean-took) - p.deviation) / 4
		p.mean += (took - p.mean) / 8
	}
	if answered {
		p.answered = end
	}
}

// patience is how long to wait for an answer.
func (p *pace) patience() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mean + 4*p.deviation
}

// timeout bounds one operation of this attempt. A lease has time for two. A release waits no longer for a slow store:
// if its request is lost, others wait for the lock.
func (a *attempt) timeout() time.Duration {
	return max(opTimeout(a.hold.Lease), min(a.l.pace.patience(), a.hold.Lease/2))
}

// ask calls the store for an attempt, and learns how long its answers take.
func ask[T any](a *attempt, wait context.Context, timeout time.Duration, op func(context.Context) (T, error), late func(T, error)) (T, error) {
	began := a.l.clock()
	v, err := call(a.l, wait, timeout, op, late)
	if end := a.l.clock(); err == nil || end-began >= timeout {
		a.l.pace.saw(began, end, err == nil)
	}
	return v, err
}
