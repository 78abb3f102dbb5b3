package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/fencepost/fencepost/lock/sqlitelock"
)

// Names of the contenders, as they are shown.
const (
	nameFencepost = "fencepost"
	nameNewNames  = "fencepost, new names"
	nameSQLite    = "fencepost, sqlite"
	nameStore     = "fencepost's store alone"
	nameLeast     = "least with a token"
	nameInsert    = "classic insert"
	nameAgain     = "classic insert again"
	nameUpsert    = "classic upsert"
)

// locker is one way to lock.
type locker interface {
	// acquire waits for the lock; try does not, and its error is lock.ErrHeld if the lock is held.
	acquire(ctx context.Context, name string) (held, error)
	try(ctx context.Context, name string) (held, error)
	close(ctx context.Context) error
}

type held interface {
	release(ctx context.Context) error
	token() int64
}

// terms are the terms of a holder.
type terms struct {
	Lease     time.Duration // of Fencepost; expiry of classic. 0: the defaults of both
	Elsewhere bool          // claim to be on another machine, so that no process can prove this one dead
}

func (t terms) owner() lock.Process {
	if !t.Elsewhere {
		return lock.Process{} // this process
	}
	return lock.Process{Host: "another-host", PID: 1, Instance: "bench", Boot: "another-boot", PIDNamespace: "another", Started: "1"}
}

// pollOnly hides a store's other ability: change streams.
type pollOnly struct{ lock.Store }

// openLocker opens a contender on db.
func openLocker(ctx context.Context, contender string, db *mongo.Database, t terms) (locker, error) {
	switch contender {
	case nameFencepost:
		store, err := mongolock.New(ctx, db, mongolock.Options{})
		if err != nil {
			return nil, err
		}
		return openFencepost(store, t)
	case nameInsert, nameUpsert:
		return newClassic(ctx, db, classicOptions{Expiry: t.Lease, Upsert: contender == nameUpsert})
	case nameStore:
		return openBareStore(ctx, db)
	case nameLeast:
		return openLeast(db), nil
	}
	return nil, fmt.Errorf("unknown contender %q", contender)
}

func openSQLite(ctx context.Context, path string) (locker, error) {
	store, err := sqlitelock.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	return openFencepost(store, terms{})
}

func openFencepost(store lock.Store, t terms) (locker, error) {
	l, err := lock.New(pollOnly{store}, lock.Options{Lease: t.Lease, Owner: t.owner()})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return fencepost{l}, nil
}

type fencepost struct{ l *lock.Locker }

func (f fencepost) acquire(ctx context.Context, name string) (held, error) {
	return lease(f.l.Acquire(ctx, name))
}

func (f fencepost) try(ctx context.Context, name string) (held, error) {
	return lease(f.l.TryAcquire(ctx, name))
}

func (f fencepost) close(ctx context.Context) error { return f.l.Close(ctx) }

type fencepostLease struct{ le *lock.Lease }

func lease(le *lock.Lease, err error) (held, error) {
	if err != nil {
		return nil, err
	}
	return fencepostLease{le}, nil
}

func (f fencepostLease) release(ctx context.Context) error { return f.le.Release(ctx) }
func (f fencepostLease) token() int64                      { return f.le.Token() }
