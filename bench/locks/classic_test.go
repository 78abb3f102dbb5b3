package locks

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
)

// onBothVariants runs f with the lock by insert and with the one by upsert.
func onBothVariants(t *testing.T, f func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic)) {
	for _, upsert := range []bool{false, true} {
		t.Run(map[bool]string{false: "insert", true: "upsert"}[upsert], func(t *testing.T) {
			db := mongotest.Database(t)
			f(t, db, func(o classicOptions) *classic {
				o.Upsert = upsert
				c, err := newClassic(t.Context(), db, o)
				if err != nil {
					t.Fatal(err)
				}
				return c
			})
		})
	}
}

// ourLocker opens Fencepost's lock on the same database, to show what it does in the same situation.
func ourLocker(t *testing.T, db *mongo.Database) *lock.Locker {
	t.Helper()
	s, err := mongolock.New(t.Context(), db, mongolock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(s, lock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

func mustClassic(t *testing.T, c *classic, name string) held {
	t.Helper()
	l, err := c.try(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestClassicExcludes: without faults the classic lock works, and duplicate keys are not errors.
func TestClassicExcludes(t *testing.T) {
	onBothVariants(t, func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic) {
		c := open(classicOptions{Poll: time.Millisecond})
		var holders, grants atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					l, err := c.acquire(t.Context(), "n")
					if err != nil {
						t.Error(err)
						return
					}
					if holders.Add(1) != 1 {
						t.Error("two holders")
					}
					grants.Add(1)
					holders.Add(-1)
					if err := l.release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if grants.Load() != 80 {
			t.Errorf("%d grants", grants.Load())
		}
		held := mustClassic(t, c, "n")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.acquire(ctx, "n"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for a held lock: %v", err)
		}
		if err := held.release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestClassicTokenResets: the counter is deleted with its document. Fencepost's token only grows.
func TestClassicTokenResets(t *testing.T) {
	onBothVariants(t, func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic) {
		c, ours := open(classicOptions{}), ourLocker(t, db)
		var classic, fenced []int64
		for range 3 {
			l := mustClassic(t, c, "n")
			classic = append(classic, l.token())
			l.release(t.Context())
			le, err := ours.TryAcquire(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			fenced = append(fenced, le.Token())
			le.Release(t.Context())
		}
		if classic[0] != 1 || classic[1] != 1 || classic[2] != 1 {
			t.Errorf("the classic lock's tokens are %v; they were to show that it cannot count", classic)
		}
		if fenced[0] >= fenced[1] || fenced[1] >= fenced[2] {
			t.Errorf("our tokens are %v", fenced)
		}
	})
}

// sweep does what the server's TTL sweeper does once a minute, so that the tests need not wait for it.
func sweep(t *testing.T, db *mongo.Database) {
	t.Helper()
	_, err := db.Collection(classicCollection).DeleteMany(t.Context(), bson.D{{Key: "expireAt", Value: bson.D{{Key: "$lt", Value: time.Now()}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestClassicZombieFreesItsSuccessorsLock: a holder that outlived its expiry deletes the document by name, although it
// belongs to another holder. Fencepost tells it that it lost the lock, and frees nothing.
func TestClassicZombieFreesItsSuccessorsLock(t *testing.T) {
	onBothVariants(t, func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic) {
		c := open(classicOptions{Expiry: time.Millisecond})
		zombie := mustClassic(t, c, "n")
		time.Sleep(10 * time.Millisecond)
		sweep(t, db)
		long := open(classicOptions{Expiry: time.Hour})
		mustClassic(t, long, "n") // the successor
		if err := zombie.release(t.Context()); err != nil {
			t.Fatalf("the zombie's release: %v", err)
		}
		third, err := long.try(t.Context(), "n")
		if err != nil {
			t.Fatalf("the successor still holds it (%v): the failure was not shown", err)
		}
		third.release(t.Context())

		ours := ourLocker(t, db)
		le, err := ours.TryAcquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		// Another process takes the lock over, and this holder does not know.
		_, err = db.Collection(mongolock.DefaultCollection).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "n"}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "h.id", Value: bson.NewObjectID()}, {Key: "v", Value: bson.NewObjectID()}}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := le.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("our release of a lock that was lost: %v", err)
		}
		var doc bson.M
		if err := db.Collection(mongolock.DefaultCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: "n"}}).Decode(&doc); err != nil || doc["h"] == nil {
			t.Errorf("our zombie freed its successor's lock: %v, %v", doc, err)
		}
	})
}

// TestClassicExpiredLockStaysUntilTheSweep: an expired document is not taken over; the next in line waits for the server's
// sweeper. Fencepost's lock is taken over one lease after its holder died.
func TestClassicExpiredLockStaysUntilTheSweep(t *testing.T) {
	onBothVariants(t, func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic) {
		c := open(classicOptions{Expiry: time.Millisecond})
		shown := false
		for range 5 { // the sweeper may run just then
			mustClassic(t, c, "n")
			time.Sleep(50 * time.Millisecond)
			l, err := c.try(t.Context(), "n")
			if shown = errors.Is(err, lock.ErrHeld); shown {
				break
			}
			l.release(t.Context())
		}
		if !shown {
			t.Error("an expired lock was free at once, five times: the failure was not shown")
		}
		sweep(t, db)
		mustClassic(t, c, "n")
	})
}

// TestClassicClockSkew: the expiry is by the holder's clock. If that is an hour behind, the lock is swept while it is
// held.
func TestClassicClockSkew(t *testing.T) {
	onBothVariants(t, func(t *testing.T, db *mongo.Database, open func(classicOptions) *classic) {
		behind := open(classicOptions{Clock: func() time.Time { return time.Now().Add(-time.Hour) }})
		mustClassic(t, behind, "n")
		sweep(t, db)
		if _, err := open(classicOptions{}).try(t.Context(), "n"); err != nil {
			t.Errorf("the lock is still held (%v): the failure was not shown", err)
		}
	})
}
