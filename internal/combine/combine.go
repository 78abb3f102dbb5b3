// Package combine lets calls that wait at the same time share one command of a server.
//
// A [Gate] lets a few commands through at a time. A call that finds it open is sent at once, by itself. While it is closed calls gather,
// and those of one kind are sent together when it is their turn. Nobody waits for others to come.
//
//	call ──▶ Combiner: reads    ──┐
//	call ──▶ Combiner: updates  ──┼──▶ Gate ──▶ a command for all calls of a kind that wait
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
	inLine  bool // at the gate
}

// Options says how calls are made.
type Options[Q, A any] struct {
	// One makes one call. Its context is the caller's.
	One func(ctx context.Context, q Q) (A, error)
	// Many makes several calls with one command, and returns an answer for each, in order. Its context ends when all callers have gone.
	Many func(ctx context.Context, asked []Q) []Answer[A]
	// Settle finds out what became of a call of which Many could not tell. Defaults to One.
	Settle func(ctx context.Context, q Q) (A, error)
	// Most is how many calls may share a command.
	Most int
}

// Answer is the answer to one of several calls.
type Answer[A any] struct {
	Value A
	Err   error
	// Again is set if the command does not tell what became of the call, and another one does: Settle.
	Again bool
}

// All answers n calls in the same way.
func All[A any](n int, a Answer[A]) []Answer[A] {
	all := make([]Answer[A], n)
	for i := range all {
		all[i] = a
	}
	return all
}

// call is a call that waits.
type call[Q, A any] struct {
	ctx    context.Context
	q      Q
	answer chan Answer[A] // has room for the answer, whether or not somebody still waits for it
}

// New creates a Combiner whose commands go through gate.
func New[Q, A any](gate *Gate, o Options[Q, A]) *Combiner[Q, A] {
	if o.Settle == nil {
		o.Settle = o.One
	}
	return &Combiner[Q, A]{gate: gate, o: o}
}

// Do makes a call, alone or with others. When ctx ends before the answer is there, a command that was sent may yet be carried out.
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
		return none, ctx.Err() // as of a driver
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

// send sends one command for those that wait.
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

// take takes the next calls out of those that wait. If more are left, they are in line again.
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
	// rule: a command that is shared does not end with the context of one caller.
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
