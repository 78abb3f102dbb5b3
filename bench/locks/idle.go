package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// idle is the cost of a wait for the server.
type idle struct {
	what      string
	contender string
	lockers   int // each stands for a process
	each      int // waiters per locker
	perSecond float64
}

// measureIdle counts the commands of the waiters for a lock that stays held, and of its holder.
func (b *bench) measureIdle(ctx context.Context) ([]idle, error) {
	settle, span := time.Second, 10*time.Second
	if b.o.Quick {
		settle, span = 50*time.Millisecond, 200*time.Millisecond
	}
	var list []idle
	for _, contender := range handOffContenders {
		list = append(list,
			idle{what: "the holder", contender: contender},
			idle{what: "1 waiter", contender: contender, lockers: 1, each: 1},
			idle{what: "8 waiters, each in a process of its own", contender: contender, lockers: 8, each: 1},
			idle{what: "8 waiters, goroutines of one process", contender: contender, lockers: 1, each: 8})
	}
	var wg sync.WaitGroup
	errs := make([]error, len(list))
	for i := range list {
		wg.Go(func() { errs[i] = b.idle(ctx, fmt.Sprintf("idle-%d", i), &list[i], settle, span) })
	}
	wg.Wait()
	return list, errors.Join(errs...)
}

func (b *bench) idle(ctx context.Context, name string, of *idle, settle, span time.Duration) (err error) {
	end, cancelEnd := server.Undisturbed(ctx)
	defer cancelEnd()
	holder, holderSent, err := b.open(ctx, of.contender, terms{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.close(end)) }()
	h, err := holder.acquire(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.release(end)) }()
	counters := []*server.Sent{holderSent}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, of.lockers*of.each)
	for i := range of.lockers {
		l, sent, err := b.open(ctx, of.contender, terms{})
		if err != nil {
			return err
		}
		if i == 0 {
			counters = nil
		}
		defer l.close(end)
		counters = append(counters, sent)
		for range of.each {
			go func() {
				got, err := l.acquire(wait, name)
				if err == nil {
					err = errors.Join(errors.New("two holders at the same time"), got.release(end))
				} else if wait.Err() != nil {
					err = nil
				}
				results <- err
			}()
		}
	}
	defer func() { // before the lockers are closed and the lock is released
		cancel()
		for range of.lockers * of.each {
			err = errors.Join(err, <-results)
		}
	}()
	if err := server.Sleep(ctx, settle); err != nil {
		return err
	}
	before, start := total(counters), time.Now()
	if err := server.Sleep(ctx, span); err != nil {
		return err
	}
	of.perSecond = float64(total(counters)-before) / time.Since(start).Seconds() / float64(max(1, of.lockers*of.each))
	return nil
}

func total(counters []*server.Sent) (sum int64) {
	for _, c := range counters {
		sum += c.Load()
	}
	return sum
}
