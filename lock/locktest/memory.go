package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/internal/transition"
)

// Memory is an in-memory lock store that fails on command, in the same ways as a database behind a network. It works in virtual time
// (testing/synctest). Several [lock.Store] handles, one per simulated process, share its records. All methods are safe for concurrent use.
//
// Only what Read returns can be stale (Rollback); the conditions of writes are always evaluated on the true record.
type Memory struct {
	mu      sync.Mutex
	records map[string]lock.Record
	ghosts  map[string]ghost // by name: what reads return instead of the record
	fault   func(Call) Fault
	observe func(op Op, after lock.Record)
	around  func(Call) (after func())
	calls   map[Op]int
	stopped chan struct{}
	once    sync.Once
	pending sync.WaitGroup
}

// ghost is the record that reads return for a write that will be rolled back.
type ghost struct {
	record lock.Record
	until  time.Time
}

// Op names an operation of a store.
type Op string

// The operations of [lock.Store].
const (
	Read     Op = "read"
	Create   Op = "create"
	Acquire  Op = "acquire"
	TakeOver Op = "take over"
	Renew    Op = "renew"
	Confirm  Op = "confirm"
	Release  Op = "release"
	HandOver Op = "hand over"
	Expire   Op = "expire"
	Ask      Op = "ask"
	Force    Op = "force"
	Enqueue  Op = "enqueue"
	Dequeue  Op = "dequeue"
	Place    Op = "renew place"
	List     Op = "list"

	RenewMany Op = "renew many" // of lock.BatchRenewer, like the next one
	Requests  Op = "requests"
)

// Call is one operation about to be run.
type Call struct {
	Op     Op
	Name   string
	Handle int // the handle of the call, numbered from 0 in the order of Open
	N      int // the number of earlier calls of this operation, over all handles
}

// Fault is the fault of one call. With the zero value the call succeeds at once.
type Fault struct {
	// Request and Reply delay the request and the reply. A caller whose context ends meanwhile gets its
	// error; the operation is still applied when the request arrives, if it was sent.
	Request, Reply time.Duration
	// Refuse fails the call before it is applied.
	Refuse bool
	// LoseRequest drops the request; the caller waits until its context ends.
	LoseRequest bool
	// LoseReply applies the operation, but the caller waits until its context ends.
	LoseReply bool
	// BreakReply applies the operation and returns an error at once, as a broken connection does.
	BreakReply bool
	// Late returns an error at once, and applies the operation this long afterwards.
	Late time.Duration
	// Rollback shows the write to readers for this long and then undoes it, as a failover to a server that never had the write does. The
	// caller gets an error at once: such a write is never acknowledged.
	Rollback time.Duration
	// Half applies only the first half of a batch ([RenewMany]). With BreakReply or LoseReply the caller gets no answer; otherwise the
	// answer counts fewer renewals than it sent.
	Half bool
	// Hang blocks the caller, even after its context has ended, until Stop. Nothing is applied.
	Hang bool
}

// ErrInjected is the error of an injected fault.
var ErrInjected = errors.New("injected fault")

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{
		records: make(map[string]lock.Record),
		ghosts:  make(map[string]ghost),
		calls:   make(map[Op]int),
		stopped: make(chan struct{}),
	}
}

// Open returns a new handle on the records.
func (m *Memory) Open() lock.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &memoryHandle{m: m, number: m.calls["open"]}
	m.calls["open"]++
	return h
}

// Inject sets the function that decides the fault of every call; nil means no faults. f is called under a mutex of the Memory, so it must not
// call the Memory.
func (m *Memory) Inject(f func(Call) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// Around sets a function that is called before each call, on the goroutine of the caller and without any mutex held; the function that it
// returns is called just before the call returns. Both may block.
func (m *Memory) Around(f func(Call) (after func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.around = f
}

// Observe sets a function that is called for every write, in the order in which writes are applied. It is called under a mutex of the Memory,
// so it must not call the Memory. An Edit has the Op "".
func (m *Memory) Observe(f func(op Op, after lock.Record)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observe = f
}

// Calls returns the number of calls of op, failed calls included.
func (m *Memory) Calls(op Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// Stop ends hanging calls, cancels requests not yet applied, and waits for their goroutines.
func (m *Memory) Stop() {
	m.once.Do(func() { close(m.stopped) })
	m.pending.Wait()
}

// Get returns the true record of name, without faults.
func (m *Memory) Get(name string) (lock.Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.records[name]
	return r, ok
}

// Edit changes a record without going through the protocol, as an operator with a database shell would. change returns false to delete it.
func (m *Memory) Edit(name string, change func(*lock.Record) (keep bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[name]
	r.Name = name
	if change(&r) {
		m.records[name] = r
	} else {
		r = lock.Record{Name: name}
		delete(m.records, name)
	}
	if m.observe != nil {
		m.observe("", r)
	}
}

// memoryHandle is the connection of one simulated process: faults can be injected per handle (Call.Handle).
type memoryHandle struct {
	m      *Memory
	number int
}

// do runs one operation on the record of name, subject to faults.
func (h *memoryHandle) do(ctx context.Context, op Op, name string, f transition.Func) (ok bool, r lock.Record, err error) {
	type result struct {
		ok bool
		r  lock.Record
	}
	got, err := deliver(ctx, h, op, name, func(Fault) result {
		ok, r := h.m.apply(op, name, f)
		return result{ok, r}
	}, func(d time.Duration) { h.m.rollBack(name, d, f) })
	return got.ok, got.r, err
}

// deliver simulates a request to a server, subject to faults: it runs apply, or rollBack for a write that is rolled back.
func deliver[T any](ctx context.Context, h *memoryHandle, op Op, name string, apply func(Fault) T, rollBack func(time.Duration)) (got T, err error) {
	var none T
	m := h.m
	m.mu.Lock()
	call := Call{Op: op, Name: name, Handle: h.number, N: m.calls[op]}
	m.calls[op]++
	around := m.around
	m.mu.Unlock()
	if around != nil {
		defer around(call)()
	}
	m.mu.Lock()
	var fault Fault
	if m.fault != nil {
		fault = m.fault(call)
	}
	m.mu.Unlock()

	failed := func(what string) error { return fmt.Errorf("%s %q: %w: %s", op, name, ErrInjected, what) }
	switch {
	case fault.Hang:
		<-m.stopped
		return none, failed("hung")
	case fault.LoseRequest:
		<-ctx.Done()
		return none, ctx.Err()
	case fault.Refuse:
		return none, failed("refused")
	case fault.Late > 0:
		m.later(fault.Late, func() { apply(fault) })
		return none, failed("connection lost, request still on its way")
	case fault.Rollback > 0:
		rollBack(fault.Rollback)
		return none, failed("connection lost, write rolled back")
	}
	if fault.Request > 0 {
		done := make(chan T, 1)
		m.later(fault.Request, func() { done <- apply(fault) })
		select {
		case got = <-done:
		case <-ctx.Done():
			return none, ctx.Err()
		case <-m.stopped:
			return none, failed("stopped")
		}
	} else {
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
		got = apply(fault)
	}
	if fault.LoseReply {
		<-ctx.Done()
		return none, ctx.Err()
	}
	if fault.BreakReply {
		return none, failed("connection lost, request applied")
	}
	if fault.Reply > 0 {
		t := time.NewTimer(fault.Reply)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
	return got, nil
}

// later runs f after d, or never if the Memory is stopped first.
func (m *Memory) later(d time.Duration, f func()) {
	m.pending.Add(1)
	go func() {
		defer m.pending.Done()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			f()
		case <-m.stopped:
		}
	}()
}

// apply runs f on the true record or, for Read, on a ghost if there is one. A write ends the ghost: it goes to the new primary.
func (m *Memory) apply(op Op, name string, f transition.Func) (bool, lock.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, exists := m.records[name]
	if op == Read {
		if g, ok := m.ghosts[name]; ok && time.Now().Before(g.until) {
			r, exists = g.record, true
		}
	}
	r.Name = name
	before := r.Version
	if !f(&r, exists) {
		return false, r
	}
	if op == Read {
		return true, r
	}
	if r.Version != before {
		r.At = time.Now()
	}
	m.records[name] = r
	delete(m.ghosts, name)
	if m.observe != nil {
		m.observe(op, r)
	}
	return true, r
}

// rollBack shows the result of f to readers for a while, and does not change the true record.
func (m *Memory) rollBack(name string, visible time.Duration, f transition.Func) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, exists := m.records[name]
	r.Name = name
	if f(&r, exists) {
		m.ghosts[name] = ghost{record: r, until: time.Now().Add(visible)}
	}
}

// Read implements lock.Store. It may return a write that will be rolled back.
func (h *memoryHandle) Read(ctx context.Context, name string) (lock.Record, bool, error) {
	found, r, err := h.do(ctx, Read, name, func(_ *lock.Record, exists bool) bool { return exists })
	if !found {
		r = lock.Record{}
	}
	return r, found, err
}

func (h *memoryHandle) Create(ctx context.Context, name string, hold lock.Hold, v lock.Version) (bool, error) {
	ok, _, err := h.do(ctx, Create, name, transition.Create(hold, v, time.Now()))
	return ok, err
}

func (h *memoryHandle) Acquire(ctx context.Context, name string, hold lock.Hold, v lock.Version) (int64, bool,
	error) {
	return transition.Token(h.do(ctx, Acquire, name, transition.Acquire(hold, v, time.Now())))
}

func (h *memoryHandle) TakeOver(ctx context.Context, name string, seen lock.Version, hold lock.Hold, v lock.Version) (int64, bool,
	error) {
	return transition.Token(h.do(ctx, TakeOver, name, transition.TakeOver(seen, hold, v, time.Now())))
}

func (h *memoryHandle) HandOff(ctx context.Context, name string, from lock.HoldID, hold lock.Hold, v lock.Version) (int64, bool,
	error) {
	return transition.Token(h.do(ctx, HandOver, name, transition.HandOff(from, hold, v, time.Now())))
}

func (h *memoryHandle) Renew(ctx context.Context, name string, hold lock.Hold, v lock.Version) (asked string, ok bool, err error) {
	ok, r, err := h.do(ctx, Renew, name, transition.Renew(hold, v))
	return transition.Asked(r, hold), ok, err
}

func (h *memoryHandle) Confirm(ctx context.Context, name string, hold lock.Hold, floor int64, v lock.Version) (int64, bool,
	error) {
	return transition.Token(h.do(ctx, Confirm, name, transition.Confirm(hold, floor, v)))
}

func (h *memoryHandle) Release(ctx context.Context, name string, hold lock.Hold, v lock.Version) (bool, error) {
	ok, _, err := h.do(ctx, Release, name, transition.Release(hold, v))
	return ok, err
}

func (h *memoryHandle) Expire(ctx context.Context, name string, e lock.Entry, v lock.Version) (bool, error) {
	ok, _, err := h.do(ctx, Expire, name, transition.Expire(e, v))
	return ok, err
}

func (h *memoryHandle) Ask(ctx context.Context, name string, hold lock.Hold, why string) (bool, error) {
	ok, _, err := h.do(ctx, Ask, name, transition.Ask(hold, why))
	return ok, err
}

func (h *memoryHandle) Force(ctx context.Context, name string, hold lock.Hold, why string, v lock.Version) (bool, error) {
	ok, _, err := h.do(ctx, Force, name, transition.Force(hold, why, v))
	return ok, err
}

func (h *memoryHandle) Enqueue(ctx context.Context, name string, e lock.Entry) (lock.Record, bool, error) {
	ok, r, err := h.do(ctx, Enqueue, name, transition.Enqueue(e))
	if !ok {
		r = lock.Record{}
	}
	return r, ok, err
}

func (h *memoryHandle) RenewPlace(ctx context.Context, name string, e lock.Entry) (bool, error) {
	ok, _, err := h.do(ctx, Place, name, transition.RenewPlace(e))
	return ok, err
}

func (h *memoryHandle) Dequeue(ctx context.Context, name string, id lock.HoldID, seen lock.Version) (bool, error) {
	ok, _, err := h.do(ctx, Dequeue, name, transition.Dequeue(id, seen))
	return ok, err
}

// List implements lock.Store. It returns the true records.
func (h *memoryHandle) List(ctx context.Context) ([]lock.Record, error) {
	var list []lock.Record
	_, _, err := h.do(ctx, List, "", func(*lock.Record, bool) bool {
		for _, r := range h.m.records {
			list = append(list, r)
		}
		return false
	})
	slices.SortFunc(list, func(a, b lock.Record) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// Close implements lock.Store. The records stay in the Memory.
func (h *memoryHandle) Close() error { return nil }
