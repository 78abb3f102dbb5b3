package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// recovery is how long a lock stays locked after its holder was killed.
type recovery struct {
	what      string
	contender string
	victim    terms
	times     int
	patience  time.Duration

	took  []time.Duration
	never int // did not recover within patience
}

// measureRecovery kills holders. Recoveries of one kind run one after another, but those of classic concurrently, and
// while the others are measured: they only wait.
func (b *bench) measureRecovery(ctx context.Context) ([]*recovery, error) {
	const short = 2 * time.Second
	list := []*recovery{
		{what: "same machine, lease of 20 s (the default)", contender: nameFencepost, times: 7, patience: 30 * time.Second},
		{what: "another machine, lease of 2 s", contender: nameFencepost, victim: terms{Lease: short, Elsewhere: true}, times: 7, patience: 30 * time.Second},
		{what: "another machine, lease of 20 s (the default)", contender: nameFencepost, victim: terms{Elsewhere: true}, times: 1, patience: 60 * time.Second},
	}
	classic := &recovery{what: "anywhere, expiry of 2 s", contender: nameInsert, victim: terms{Lease: short}, times: 3, patience: 75 * time.Second}
	if b.o.Quick {
		list, classic.times, classic.patience = list[:2], 1, time.Second
		list[0].times, list[1].times, list[1].victim.Lease = 1, 1, time.Second
	}
	list = append(list, classic)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	one := func(r *recovery, name string) {
		took, err := b.recover(ctx, r, name)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, errNoAnswer):
			r.never++
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("recovery, %s, %s: %w", r.contender, r.what, err))
		default:
			r.took = append(r.took, took)
		}
	}
	for i, r := range list {
		if r == classic {
			for k := range r.times {
				wg.Go(func() {
					_ = server.Sleep(ctx, time.Duration(k)*10*time.Second) // so that the TTL sweep finds them at different ages
					one(r, fmt.Sprintf("recovery-%d-%d", i, k))
				})
			}
			continue
		}
		wg.Go(func() {
			for k := range r.times {
				one(r, fmt.Sprintf("recovery-%d-%d", i, k))
			}
		})
	}
	wg.Wait()
	return list, failed
}

// recover kills a process that holds a lock and returns the time until another process, which waits for it, gets it.
func (b *bench) recover(ctx context.Context, r *recovery, name string) (time.Duration, error) {
	c, err := b.newCrew(ctx, []string{r.contender}, r.victim, terms{Lease: r.victim.Lease})
	if err != nil {
		return 0, err
	}
	defer c.stop()
	const victim, waiter = 0, 1
	if err := c.tell(victim, "acquire %s %s", name, r.contender); err != nil {
		return 0, err
	}
	if _, err := c.hear(ctx, victim, "granted", answerTimeout); err != nil {
		return 0, err
	}
	if err := c.tell(waiter, "acquire %s %s", name, r.contender); err != nil {
		return 0, err
	}
	if err := server.Sleep(ctx, 500*time.Millisecond+rand.N(500*time.Millisecond)); err != nil {
		return 0, err
	}
	if err := c.quiet(); err != nil {
		return 0, err
	}
	killed := monotonic()
	if err := c.members[victim].cmd.Process.Kill(); err != nil {
		return 0, err
	}
	if _, err := c.hear(ctx, victim, "gone", answerTimeout); err != nil {
		return 0, err
	}
	_ = c.members[victim].cmd.Wait() // it was killed
	granted, err := c.hear(ctx, waiter, "granted", r.patience)
	if err != nil {
		return 0, err
	}
	if granted.a < killed {
		return 0, errors.New("two holders: granted before the other one was killed")
	}
	return time.Duration(granted.a - killed), nil
}
