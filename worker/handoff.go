package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// Handoffs. A type moves from one replica to another without an interruption: the next holder waits
// in the lock's queue before this one ends its session. Package share decides which replica should hold
// which type; nothing here decides which may write.
//
//	asked for the type, or the pool stops ──▶ a successor waits in the lock's queue, or HandOver expires ──▶ ended ──▶ lock released
//	an operator pauses the type ──────────────────────────────────────────────────────────────────────────────┘

const (
	successorPoll = 100 * time.Millisecond // how often a holder that is to end checks for a successor
	trafficFor    = time.Second            // it waits for one only if it fetched a message within this time plus Config.Linger
)

// ErrPaused is the sentinel for errors.Is that matches a [PausedError].
var ErrPaused = errors.New("type is paused")

// PausedError is the error of a pool with Config.UntilEmpty that could not drain everything because a
// type with messages is paused.
type PausedError struct{ Type string }

func (e *PausedError) Error() string {
	return fmt.Sprintf("type %s is paused and has messages that were not drained; resume it", e.Type)
}

// Is reports whether target is ErrPaused.
func (e *PausedError) Is(target error) bool { return target == ErrPaused }

// lockReason is the reason (lock.WithWhy) in the record of a lock that a worker holds. takeShare
// compares it.
func lockReason(instance string) string { return "worker " + instance }

// instanceOf returns the instance in the reason of a worker's lock; "" if the reason is another one.
func instanceOf(why string) string {
	if instance, ok := strings.CutPrefix(why, lockReason("")); ok {
		return instance
	}
	return ""
}

// takeShare asks the holder of a type to release it, unless the holder is about to do so anyway, and
// waits in the lock's queue. It returns ErrHeld if it did not get the lock.
func (p *replica) takeShare(ctx context.Context, typ string) (*lock.Lease, error) {
	holder, leaving := p.rebalancer.Holder(typ)
	wait := p.cfg.Lease / 5
	rec, err := p.cfg.Locker.Inspect(ctx, typ)
	if err != nil && !errors.Is(err, lock.ErrUnknown) {
		return nil, err
	}
	if rec.Hold != nil {
		wait = rec.Hold.Lease / 5
		reason := lockReason(p.instance) + " takes its share"
		switch {
		case rec.Hold.Why != lockReason(holder):
			return nil, lock.ErrHeld // another replica holds it by now
		case leaving:
		case rec.Hold.Asked != "" && rec.Hold.Asked != reason:
			return nil, lock.ErrHeld // another replica was first
		case rec.Hold.Asked == "":
			if err := p.cfg.Locker.RequestRelease(ctx, typ, reason); err != nil && !errors.Is(err, lock.ErrNotHeld) {
				return nil, err
			}
		}
	}
	// The holder sees the request when it renews its lease.
	return p.cfg.Locker.Acquire(ctx, typ, lock.WithLease(p.cfg.Lease), lock.WithWhy(lockReason(p.instance)), lock.WithFair(), lock.WithWait(wait+3*time.Second))
}

// watch ends the session, with s.end, when the release of its lock is requested, an operator pauses the
// type, or the pool stops.
func (s *session) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.halted:
	case <-s.lease.ReleaseRequested():
		s.pool.rebalancer.Leave(s.typ)
		s.awaitSuccessor(ctx)
	case <-s.pool.stopping.Done():
		s.awaitSuccessor(ctx)
	}
	s.end()
}

// awaitSuccessor delays the end of a session with traffic until another replica waits for the lock,
// for Config.HandOver at most. So the type is served without interruption.
func (s *session) awaitSuccessor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.pool.cfg.HandOver)
	defer cancel()
	serves := func() bool { return s.pool.cfg.HandOver > 0 && s.QuietFor()-s.pool.cfg.Linger < trafficFor }
	if serves() {
		s.pool.rebalancer.Exchange(ctx)
	}
	for serves() && s.pool.rebalancer.HasSuccessor(s.typ) {
		if rec, err := s.pool.cfg.Locker.Inspect(ctx, s.typ); err == nil && len(rec.Queue) > 0 {
			return
		}
		t := time.NewTimer(s.pool.rebalancer.SuccessorPause(successorPoll))
		select {
		case <-t.C:
		case <-s.halted:
			t.Stop()
			return
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// poolView implements share.View: the pool as its rebalancer sees it.
type poolView struct {
	*replica
	failed map[string]*outage // by operation; owned by the rebalancer's goroutine
}

func (v poolView) Stopping() <-chan struct{}   { return v.stopping.Done() }
func (v poolView) Troubles() map[string]string { return v.book.troubles() }

func (v poolView) Parting(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return v.parting(ctx, most)
}

// Report keeps one outage per operation: see outages.
func (v poolView) Report(ctx context.Context, what string, err error) (failed bool) {
	o := v.failed[what]
	if o == nil {
		o = &outage{}
		v.failed[what] = o
	}
	return v.outages.note(ctx, o, &v.log, err, what)
}

// newRebalancer connects a pool with package share, which reads and writes the list of replicas
// through the queue.
func newRebalancer(p *replica) *share.Rebalancer {
	host, _ := os.Hostname()
	self := queue.Member{Instance: p.instance, Host: host, PID: os.Getpid(), Version: Version(), Types: p.cfg.Types, MaxTypes: p.cfg.MaxTypes, To: queue.ToHandler}
	if p.toFiles() {
		self.To = queue.ToFiles
	}
	return share.New(poolView{p, map[string]*outage{}}, p.cfg.Queue, self, p.log)
}
