// Package combine lets concurrent calls share one command of a server.
//
// A [Gate] lets a few commands through at a time. A call that finds it open is sent at once, alone. While it is closed, calls gather,
// and those of one kind are sent together when it is their turn. No call waits for others to arrive.
//
//	call ──▶ Combiner: reads    ──┐
//	call ──▶ Combiner: updates  ──┼──▶ Gate ──▶ a command for all waiting calls of a kind
//	call ──▶ Combiner: deletes  ──┘
package combine

import (
	"context"
	"sync"
)

// Combiner combines calls of one kind. Create it with [New]. Safe for concurrent use.
type Combiner[Q, A any] struct {
	gate *Gate
	o    Options[Q, A]

	mu      sync.Mutex
	waiting []*call[Q, A]
	inLine  bool // queued at the gate
}

// Options says how calls are made.
type Options[Q, A any] struct {
	// One makes one call. Its context is the caller's.
	One func(ctx context.Context, q Q) (A, error)
	// Many makes several calls with one command, and returns an answer for each, in order. Its context ends when all callers have gone.
	Many func(ctx context.Context, asked []Q) []Answer[A]
	// Settle determines the outcome of a call if Many could not. Defaults to One.
	Settle func(ctx context.Context, q Q) (A, error)
	// Most is the maximum number of calls that share a command.
	Most int
}

// Answer is the answer to one of several calls.
type Answer[A any] struct {
	Value A
	Err   error
	// Again means that the command does not show the outcome of the call: Settle determines it.
	Again bool
}

// All returns the same answer for n calls.
func All[A any](n int, a Answer[A]) []Answer[A] {
	all := make([]Answer[A], n)
	for i := range all {
		all[i] = a
	}
	return all
}

// call is a waiting call.
type call[Q, A any] struct {
	ctx    context.Context
	q      Q
	answer chan Answer[A] // has room for the answer, whether or not the caller still waits for it
}

// New creates a Combiner whose commands go through gate.
func New[Q, A any](gate *Gate, o Options[Q, A]) *Combiner[Q, A] {
	if o.Settle == nil {
		o.Settle = o.One
	}
	return &Combiner[Q, A]{gate: gate, o: o}
}

// Do makes a call, alone or with others. If ctx ends before the answer arrives, a command that was sent may still be executed.
func (c *Combiner[Q, A]) Do(ctx context.Context, q Q) (A, error) {
	m := &call[Q, A]{ctx: ctx, q: q, answer: make(chan Answer[A], 1)}
	c.enqueue(m)
	select {
	case a := <-m.answer:
		if a.Again {
			return c.o.Settle(ctx, q)
		}
		return a.Value, a.Err
	case <-ctx.Done():
		var none A
		return none, ctx.Err() // as a driver returns it
	}
}

func (c *Combiner[Q, A]) enqueue(m *call[Q, A]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, m)
	if !c.inLine {
		c.inLine = true
		c.gate.enter(c.send)
	}
}

// send sends one command for the waiting calls.
func (c *Combiner[Q, A]) send() {
	switch calls := c.take(); len(calls) {
	case 0:
	case 1:
		m := calls[0]
		value, err := c.o.One(m.ctx, m.q)
		m.answer <- Answer[A]{Value: value, Err: err}
	default:
		c.together(calls)
	}
}

// take takes the next waiting calls. If more are left, it queues at the gate again.
func (c *Combiner[Q, A]) take() (calls []*call[Q, A]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) > 0 && len(calls) < c.o.Most {
		m := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		if m.ctx.Err() == nil { // rule: nothing is sent for a caller that has gone
			calls = append(calls, m)
		}
	}
	if c.inLine = len(c.waiting) > 0; c.inLine {
		c.gate.enter(c.send)
	} else {
		c.waiting = nil
	}
	return calls
}

// together sends several calls with one command.
func (c *Combiner[Q, A]) together(calls []*call[Q, A]) {
	// rule: a shared command does not end with the context of one caller.
	ctx, cancel := context.WithCancel(context.WithoutCancel(calls[0].ctx))
	defer cancel()
	gone := countdown(len(calls), cancel)
	asked := make([]Q, len(calls))
	for i, m := range calls {
		asked[i] = m.q
		defer context.AfterFunc(m.ctx, gone)()
	}
	answers := c.o.Many(ctx, asked)
	for i, m := range calls {
		m.answer <- answers[i]
	}
}

// countdown returns a function that calls f when it is called for the nth time.
func countdown(n int, f func()) func() {
	var mu sync.Mutex
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			f()
		}
	}
}
