package worker

import (
	"context"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/queue"
)

// The memory of a pool bounds the messages that all its types together have fetched and not yet
// appended, and those that the scheduler promotes at a time, however many types are busy and however
// large their messages are. Sizes are those of queue.Message.Size.
//
//	take: the maximum size of a fetch ──▶ fetch ──▶ keep: its actual size ──▶ append, sync ──▶ give
//	                                                                     └─▶ a Handler has it ──▶ give
//
// Most of the memory is shared, first come, first served. The rest, the reserve, is as large as the
// largest request. One type at a time may have it, and only a type that has nothing in flight.
//
// rule: no type waits forever. The type that has the reserve gives it back without taking more memory: it fetches, and then its file appends and
// syncs the batch, or its handler gets the batch, which no longer counts. It does not depend on a type
// that waits for memory, because it has no earlier batch in flight. A type that has batches in flight,
// and so a part of the shared memory, waits for more of it only until those are settled, which takes no
// memory: then it has nothing in flight, and its turn for the reserve comes. So slow handlers, whose
// types hold batches fetched ahead, never keep other types from being served: they only keep them from
// fetching ahead.

// minMemory is the minimum memory of a pool, shared part and reserve together, in bytes. A default fetch
// returns up to 19 MiB, so three can be in memory at a time, and one more in the reserve.
const minMemory = 80 << 20

// promoteLimit bounds one promotion, and so the memory of a scheduler.
var promoteLimit = queue.Limit{Messages: 1000, Bytes: 8 << 20}

// memory accounts for the memory of a pool. Safe for concurrent use.
type memory struct {
	fetch   int64 // bytes that a fetch reserves
	promote int64 // bytes that a promotion reserves, or the query for the next due message

	mu       sync.Mutex
	free     int64    // bytes of the shared part
	reserved bool     // the reserve is granted
	waiting  []*grant // in order of arrival
}

// grant is a reservation of memory, or a place in the queue for it.
type grant struct {
	memory  *memory
	n       int64         // bytes
	alone   bool          // while it waits: its owner has nothing in flight, so it may get the reserve
	granted chan struct{} // closed when it is granted
	reserve bool          // it is the reserve
}

func newMemory(cfg *Config) *memory {
	m := &memory{fetch: cfg.BatchBytes + queue.MaxSize, promote: promoteLimit.Bytes + queue.MaxSize}
	reserve := max(m.fetch, m.promote)
	m.free = max(minMemory-reserve, int64(cfg.Prefetch)*m.fetch)
	return m
}

// try reserves n bytes of the shared part without waiting, or returns nil. It does not overtake waiting
// grants.
func (m *memory) try(n int64) *grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) > 0 || m.free < n {
		return nil
	}
	m.free -= n
	return &grant{memory: m, n: n}
}

// take waits for n bytes. idle is closed when the caller has nothing in flight: from then on it may
// get the reserve. The error is that of ctx.
func (m *memory) take(ctx context.Context, n int64, idle <-chan struct{}) (*grant, error) {
	if c := m.try(n); c != nil {
		return c, nil
	}
	c := &grant{memory: m, n: n, granted: make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, c)
	m.serve()
	m.mu.Unlock()
	for {
		select {
		case <-c.granted:
			return c, nil
		case <-idle:
			idle = nil
			m.mu.Lock()
			c.alone = true
			m.serve()
			m.mu.Unlock()
		case <-ctx.Done():
			c.give()
			return nil, ctx.Err()
		}
	}
}

// serve grants what can be granted, first come, first served. mu is held.
func (m *memory) serve() {
	for len(m.waiting) > 0 && m.free >= m.waiting[0].n {
		m.free -= m.waiting[0].n
		m.pass(0)
	}
	for i := 0; !m.reserved && i < len(m.waiting); i++ {
		// rule: only a type with nothing in flight gets the reserve: it has no earlier batch that could wait for a slow handler
		if c := m.waiting[i]; c.alone {
			m.reserved, c.reserve = true, true
			m.pass(i)
		}
	}
}

// pass grants the i-th waiting grant. mu is held.
func (m *memory) pass(i int) {
	close(m.waiting[i].granted)
	m.waiting = slices.Delete(m.waiting, i, i+1)
}

// keep gives back all but n bytes, when the size of the batch is known. If the grant is the reserve
// and the shared part has room for n bytes, they move there, and the reserve is free again.
func (c *grant) keep(n int64) {
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !c.reserve && n < c.n:
		m.free += c.n - n
		c.n = n
	case c.reserve && n <= m.free:
		m.free -= n
		m.reserved, c.reserve, c.n = false, false, n
	}
	m.serve()
}

// give gives everything back, or leaves the queue. Later calls do nothing.
func (c *grant) give() {
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.waiting, c); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	} else if c.reserve {
		m.reserved, c.reserve = false, false
	} else {
		m.free += c.n
	}
	c.n = 0
	m.serve()
}
