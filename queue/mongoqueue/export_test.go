package mongoqueue

import (
	"context"
	"time"
)

// ForgetNow lets the next Promote remove old notes.
func (q *Queue) ForgetNow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forgot = time.Time{}
}

// ForgetKept makes the next search read skipped messages again, and those stored among them, as after a minute.
func (q *Queue) ForgetKept() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.walk.ended = time.Now().Add(-keptFor)
	for key, since := range q.kept {
		q.kept[key] = since.Add(-keptFor)
	}
}

// HoldWalk keeps every search from starting over, however slow the machine is.
func (q *Queue) HoldWalk() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.walk.ended = time.Now().Add(time.Hour)
}

// SetClock sets the time that q reads from the server's clock, and from this machine's.
func (q *Queue) SetClock(now time.Time) { q.clock.Read(now, now) }

// Ping makes a cheap round trip.
func (q *Queue) Ping(ctx context.Context) error { return q.client.Ping(ctx, nil) }

var Skip = skip

const (
	ScanMost = scanMost
	WalkMost = walkMost
	ReadCost = readCost
)
