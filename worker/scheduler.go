package worker

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// The scheduler promotes delayed messages: when they are due, they become normal messages of their
// types. Every pool regularly queries when the next one is due, which reads one index entry. When one
// is due, the pool acquires the scheduler's lock, so that one pool promotes at a time.
//
// rule: the lock saves the other pools the work, and nothing else rests on it. Queue.Promote is correct for any number of concurrent callers,
// even one that was paused and resumes long after it lost the lock.
const (
	schedulerLock = "_scheduler"           // not a valid name of a type
	scheduleMin   = 100 * time.Millisecond // pause between two checks: the first …
	scheduleMax   = time.Second            // … and the longest; with many replicas, which check for one another, …
	scheduleMost  = 5 * time.Second        // … up to this

	maxDueLooks    = 10               // with UntilEmpty: successive checks that find due messages but promote none, before it continues
	promoteTimeout = 30 * time.Second // of one promotion, and of one check: a scheduler without an answer must not keep the lock
)

// startScheduler starts the scheduler and returns a function that stops it. With UntilEmpty it first
// promotes the messages that are already due, so that they are drained, too.
func (p *replica) startScheduler(ctx context.Context) (stop func()) {
	if p.cfg.NoScheduler {
		return func() {}
	}
	ctx, cancel := p.untilStop(ctx)
	if p.cfg.UntilEmpty {
		p.promoteDue(ctx)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.schedule(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// promoteDue promotes until nothing is due. It retries when the queue is unreachable, and when messages
// are due that it did not promote: another pool may be promoting them. After maxDueLooks it gives up on
// those.
func (p *replica) promoteDue(ctx context.Context) {
	retry := wait.Backoff{Min: scheduleMin, Max: scheduleMax}
	var outage outage
	for looks := 0; ctx.Err() == nil && looks < maxDueLooks; {
		done, err := p.promote(ctx)
		failed := p.outages.note(ctx, &outage, &p.log, err, "promote delayed messages that are due")
		switch {
		case failed && fatal(err):
			return
		case failed:
		case done.Messages+done.DeadLetters > 0:
			looks = 0
			retry.Reset()
			continue
		case done.Next.IsZero() || done.Next.After(done.Now):
			return
		default:
			looks++
		}
		if !p.pause(ctx, retry.Next()) {
			return
		}
	}
}

// schedule checks for due messages, and promotes them, until ctx ends.
func (p *replica) schedule(ctx context.Context) {
	poll := wait.Backoff{Min: scheduleMin, Max: scheduleMax}
	var outage outage
	for ctx.Err() == nil {
		wait, err := p.look(ctx)
		if err == nil && wait <= 0 {
			var promoted int
			if promoted, err = p.promoteUnderLock(ctx); promoted > 0 {
				poll.Reset()
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.strays.warn(p.cfg.Queue.Strays(), &p.log)
		p.outages.note(ctx, &outage, &p.log, err, "promote delayed messages")
		pause := min(p.rebalancer.Spread(poll.Next()), scheduleMost)
		if wait > 0 {
			pause = min(pause, wait)
		}
		if !p.pause(ctx, pause) {
			return // ctx ends too, but not at once
		}
	}
}

// look is nextDue with memory reserved for the first message, which the queue may have to read.
func (p *replica) look(ctx context.Context) (time.Duration, error) {
	memory, err := p.memory.take(ctx, p.memory.promote, closed)
	if err != nil {
		return 0, err
	}
	defer memory.give()
	return p.nextDue(ctx)
}

// nextDue returns how long it is until the first delayed message is due; an hour if there is none.
func (p *replica) nextDue(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, promoteTimeout)
	defer cancel()
	due, ok, err := p.cfg.Queue.NextDue(ctx)
	if err != nil || !ok {
		return time.Hour, err
	}
	now, err := p.cfg.Queue.Now(ctx)
	return due.Sub(now), err
}

// promoteUnderLock promotes until nothing is due now or soon. If another pool has the lock, it returns
// 0, nil.
func (p *replica) promoteUnderLock(ctx context.Context) (promoted int, err error) {
	lease, err := p.cfg.Locker.Acquire(ctx, schedulerLock,
		lock.WithLease(p.cfg.Lease), lock.WithWait(acquireSlice), lock.WithWhy("scheduler of worker "+p.instance))
	if errors.Is(err, lock.ErrHeld) || lease == nil && ctx.Err() != nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		rctx, cancel := p.parting(context.WithoutCancel(ctx), p.cfg.Lease/5)
		defer cancel()
		if rerr := lease.Release(rctx); rerr != nil && err == nil && !errors.Is(rerr, lock.ErrLost) {
			p.log.Warn().Err(rerr).Msg("lock of the scheduler not released yet; without an answer it will expire")
		}
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(lease.Context(), stop)()
	for ctx.Err() == nil {
		done, err := p.promote(ctx)
		promoted += done.Messages
		if ctx.Err() != nil {
			break // the lock is lost, or the pool stops: another pool continues
		}
		if err != nil {
			return promoted, err
		}
		wait := done.Next.Sub(done.Now)
		switch {
		case done.Messages+done.DeadLetters > 0 && wait <= 0 && !done.Next.IsZero():
			continue
		case done.Next.IsZero() || wait <= 0 || wait > scheduleMax:
			return promoted, nil
		}
		if !p.pause(ctx, wait) {
			break
		}
	}
	return promoted, nil
}

// promote promotes one batch, counts it, and notifies the pools that serve its types.
func (p *replica) promote(ctx context.Context) (queue.Promotion, error) {
	ctx, cancel := context.WithTimeout(ctx, promoteTimeout)
	defer cancel()
	memory, err := p.memory.take(ctx, p.memory.promote, closed)
	if err != nil {
		return queue.Promotion{}, err
	}
	defer memory.give()
	done, err := p.cfg.Queue.Promote(ctx, promoteLimit)
	if done.Messages > 0 {
		p.book.count(func(s *Stats) { s.Promoted += uint64(done.Messages) })
		p.log.Debug().Int("messages", done.Messages).Msg("promoted delayed messages")
	}
	if len(done.Types) > 0 {
		_ = p.cfg.Queue.Notify(ctx, done.Types) // a hint: the next sweep finds the messages anyway
	}
	if done.DeadLetters > 0 {
		p.log.Warn().Int("messages", done.DeadLetters).Msg("delayed messages cannot be promoted and are dead letters now; fencepost dead ls says why")
	}
	return done, err
}

// promotesLate reports whether delayed messages have been due for longer than d. If it cannot tell, it
// returns true, which is the safe answer.
func (p *replica) promotesLate(ctx context.Context, d time.Duration) bool {
	memory := p.memory.try(p.memory.promote)
	if memory == nil {
		return true
	}
	defer memory.give()
	wait, err := p.nextDue(ctx)
	return err != nil || -wait > d
}
