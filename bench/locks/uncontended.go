package locks

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/lock"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// uncontended are the contenders, the yardstick first.
var uncontended = []string{nameInsert, nameAgain, nameUpsert, nameLeast, nameStore, nameFencepost, nameNewNames, nameSQLite}

// alone is the cost of acquiring and releasing an uncontended lock.
type alone struct {
	times    measure.Times // of blocks
	perBlock int
	commands map[string]float64 // per acquisition with release; not for the embedded store
}

func (a *alone) each(name string) time.Duration {
	return a.times.Median(name) / time.Duration(a.perBlock)
}

// single is a contender of this measurement.
type single struct {
	name      string
	main      locker
	rival     locker // a competitor's, on the same server
	sent      *server.Sent
	fresh     bool // a new name for each acquisition
	increment int64
	count     int64 // acquisitions
	lock      string
	last      int64 // token
}

func (s *single) next() string {
	s.count++
	if s.fresh {
		return fmt.Sprintf("%s %d", s.lock, s.count)
	}
	return s.lock
}

// once acquires and releases.
func (s *single) once(ctx context.Context) error {
	h, err := s.main.acquire(ctx, s.next())
	if err != nil {
		return err
	}
	token := h.token()
	if s.increment != 0 && s.last != 0 && token != s.last+s.increment {
		return fmt.Errorf("token %d after %d: another holder got the lock in between, or this one did not", token, s.last)
	}
	s.last = token
	return h.release(ctx)
}

// prove shows that the lock is one: while it is held a rival does not get it, and afterwards it
// does.
func (s *single) prove(ctx context.Context) error {
	name := s.next()
	h, err := s.main.acquire(ctx, name)
	if err != nil {
		return err
	}
	if second, err := s.rival.try(ctx, name); err == nil {
		return errors.Join(errors.New("two holders at the same time"), second.release(ctx))
	} else if !errors.Is(err, lock.ErrHeld) {
		return err
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	after, err := s.rival.try(ctx, name)
	if err != nil {
		return fmt.Errorf("after the release: %w", err)
	}
	s.last = after.token()
	return after.release(ctx)
}

// measureUncontended lets each contender acquire and release its own lock, in turns.
func (b *bench) measureUncontended(ctx context.Context) (a alone, err error) {
	plan := measure.Plan{Rounds: b.o.Rounds, Blocks: 4}
	a = alone{perBlock: 16, commands: map[string]float64{}}
	if b.o.Quick {
		plan.Blocks, a.perBlock = 1, 3
	}
	var singles []*single
	var contenders []measure.Contender
	for _, name := range uncontended {
		s, openErr := b.openSingle(ctx, name)
		if openErr != nil {
			return a, fmt.Errorf("%s: %w", name, openErr)
		}
		defer func() {
			end, cancel := server.Undisturbed(ctx)
			defer cancel()
			err = errors.Join(err, s.main.close(end), s.rival.close(end))
		}()
		singles = append(singles, s)
		contenders = append(contenders, measure.Contender{
			Name:    name,
			Prepare: func() error { return s.prove(ctx) },
			Run: func() error {
				for range a.perBlock {
					if err := s.once(ctx); err != nil {
						return err
					}
				}
				return nil
			},
		})
	}
	if a.times, err = measure.Run(ctx, plan, contenders); err != nil {
		return a, err
	}
	for _, s := range singles {
		if s.sent == nil {
			continue
		}
		before := s.sent.Load()
		for range a.perBlock {
			if err := s.once(ctx); err != nil {
				return a, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		a.commands[s.name] = float64(s.sent.Load()-before) / float64(a.perBlock)
	}
	return a, nil
}

func (b *bench) openSingle(ctx context.Context, name string) (s *single, err error) {
	s = &single{name: name, lock: "uncontended, " + name}
	contender := name
	switch name {
	case nameAgain:
		contender = nameInsert
	case nameFencepost, nameSQLite, nameStore, nameLeast:
		s.increment = 1
	case nameNewNames:
		s.fresh, contender = true, nameFencepost
	}
	if name == nameSQLite {
		path := filepath.Join(b.o.Dir, "locks.db")
		if s.main, err = openSQLite(ctx, path); err == nil {
			s.rival, err = openSQLite(ctx, path)
		}
		return s, err
	}
	if s.main, s.sent, err = b.open(ctx, contender, terms{}); err == nil {
		s.rival, _, err = b.open(ctx, contender, terms{})
	}
	return s, err
}

// open opens a contender with its own client, which lives until the end of the run.
func (b *bench) open(ctx context.Context, contender string, t terms) (locker, *server.Sent, error) {
	client, sent, err := server.Dial(b.uri)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	b.clients = append(slices.Clip(b.clients), client)
	b.mu.Unlock()
	l, err := openLocker(ctx, contender, client.Database(b.database), t)
	return l, sent, err
}
