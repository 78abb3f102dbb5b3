package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost/lock"
)

// classic is the MongoDB lock as it is usually written: insert a document under a unique index, delete it to release, let a
// TTL index remove the documents of crashed holders. It exists for comparison, by benchmarks and by the tests that show
// what it cannot do. Do not protect anything with it:
//
//   - A lock whose holder died stays until the server's next TTL sweep, which is up to a minute after the expiry.
//   - The expiry is by the holder's wall clock. A clock that is behind frees the lock while its holder still has it.
//   - A holder that has outlived its expiry is not notified, and its release frees the lock of its successor.
//   - The document is gone after a release, and a counter in it starts again: there is no fencing token.
//   - If the answer to an acquisition is lost, the lock stays held without a holder until the expiry.
//
// The Locker of package lock over the store of package mongolock has none of these failures, and is no slower.
type classic struct {
	locks *mongo.Collection
	o     classicOptions
}

// classicOptions configures newClassic. The zero value is ready to use.
type classicOptions struct {
	Expiry time.Duration    // defaults to a minute
	Poll   time.Duration    // how often acquire tries; defaults to 100 ms
	Upsert bool             // acquire by findOneAndUpdate with upsert instead of by insert
	Clock  func() time.Time // for the expiry; defaults to time.Now
}

// classicCollection is the collection of classic locks.
const classicCollection = "classic_locks"

const (
	classicExpiry = time.Minute
	classicPoll   = 100 * time.Millisecond
)

// classicDocument represents a held lock.
type classicDocument struct {
	Name     string    `bson:"_id"`
	Token    int64     `bson:"token"`
	ExpireAt time.Time `bson:"expireAt"`
}

// newClassic returns the classic lock on a collection of db, with a TTL index on it.
func newClassic(ctx context.Context, db *mongo.Database, o classicOptions) (*classic, error) {
	if o.Expiry == 0 {
		o.Expiry = classicExpiry
	}
	if o.Poll == 0 {
		o.Poll = classicPoll
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	c := &classic{o: o, locks: db.Collection(classicCollection, options.Collection().SetWriteConcern(writeconcern.Majority()).SetReadPreference(readpref.Primary()))}
	_, err := c.locks.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "expireAt", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(0)})
	if err != nil {
		return nil, fmt.Errorf("classic lock: create the TTL index: %w", err)
	}
	return c, nil
}

// classicLock is a lock that was acquired, and may no longer be held: there is no way to know.
type classicLock struct {
	c   *classic
	doc classicDocument
}

// try takes the lock if it has no document; otherwise the error is lock.ErrHeld.
func (c *classic) try(ctx context.Context, name string) (held, error) {
	doc := classicDocument{Name: name, Token: 1, ExpireAt: c.o.Clock().Add(c.o.Expiry)}
	var err error
	if c.o.Upsert {
		err = c.upsert(ctx, doc)
	} else {
		_, err = c.locks.InsertOne(ctx, doc)
	}
	switch {
	case mongo.IsDuplicateKeyError(err): // with upsert: two concurrent inserts
		return nil, fmt.Errorf("classic lock %q: %w", name, lock.ErrHeld)
	case err != nil:
		return nil, fmt.Errorf("classic lock %q: %w", name, err)
	}
	return &classicLock{c: c, doc: doc}, nil
}

// upsert inserts doc if there is none of that name; otherwise it returns lock.ErrHeld.
func (c *classic) upsert(ctx context.Context, doc classicDocument) error {
	err := c.locks.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: doc.Name}},
		bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "token", Value: doc.Token}, {Key: "expireAt", Value: doc.ExpireAt}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.Before)).Err()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil // there was none, so it was inserted, by this call
	case err != nil:
		return err
	}
	return lock.ErrHeld
}

// acquire retries until the lock is free or ctx ends.
func (c *classic) acquire(ctx context.Context, name string) (held, error) {
	tick := time.NewTicker(c.o.Poll)
	defer tick.Stop()
	for {
		l, err := c.try(ctx, name)
		if !errors.Is(err, lock.ErrHeld) {
			return l, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func (c *classic) close(context.Context) error { return nil }

// token is a counter in the lock's document: 1, each time.
func (l *classicLock) token() int64 { return l.doc.Token }

// release deletes the lock's document, whichever holder it belongs to by now.
func (l *classicLock) release(ctx context.Context) error {
	if _, err := l.c.locks.DeleteOne(ctx, bson.D{{Key: "_id", Value: l.doc.Name}}); err != nil {
		return fmt.Errorf("classic lock %q: release: %w", l.doc.Name, err)
	}
	return nil
}
