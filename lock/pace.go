package lock

import (
	"context"
	"sync"
	"time"
)

// pace estimates how long the store takes to answer, as TCP does for its retransmissions (RFC 6298): a smoothed
// mean and a smoothed deviation. Acquisitions on a slow but working store get more time. Otherwise each of them would
// be given up shortly before its answer, undone and restarted, which would make the store slower still. Safe for
// concurrent use.
type pace struct {
	mu        sync.Mutex
	answered  time.Duration // when the last answer came, on Locker.clock; 0 = none yet
	mean      time.Duration
	deviation time.Duration
}

// saw records a call from began to end, with or without an answer.
//
// rule: a call without an answer counts only if other calls were answered meanwhile. An unreachable store is not slow:
// it does not lengthen timeouts.
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

// timeout bounds one operation of this attempt. At least two fit into a lease. A release keeps the short timeout even on
// a slow store: if its request is lost, the waiters have to wait for the retry.
func (a *attempt) timeout() time.Duration {
	return max(opTimeout(a.hold.Lease), min(a.l.pace.patience(), a.hold.Lease/2))
}

// ask calls the store for an attempt, and records in pace how long the answer took.
func ask[T any](a *attempt, wait context.Context, timeout time.Duration, op func(context.Context) (T, error), late func(T, error)) (T, error) {
	began := a.l.clock()
	v, err := call(a.l, wait, timeout, op, late)
	if end := a.l.clock(); err == nil || end-began >= timeout {
		a.l.pace.saw(began, end, err == nil)
	}
	return v, err
}
