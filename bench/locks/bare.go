package locks

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
)

// bareStore is Fencepost's store without the engine: no renewal, no deadline, no takeover from a dead holder. The
// difference from a Locker is the cost of the engine.
type bareStore struct {
	s     lock.Store
	owner lock.Process
}

func openBareStore(ctx context.Context, db *mongo.Database) (locker, error) {
	s, err := mongolock.New(ctx, db, mongolock.Options{})
	return &bareStore{s, lock.ThisProcess()}, err
}

func (b *bareStore) acquire(ctx context.Context, name string) (held, error) {
	h := lock.Hold{ID: lock.NewHoldID(), Lease: lock.DefaultLease, Owner: b.owner}
	token, ok, err := b.s.Acquire(ctx, name, h, lock.NewVersion())
	if err == nil && !ok {
		if ok, err = b.s.Create(ctx, name, h, lock.NewVersion()); err == nil && ok {
			token, ok, err = b.s.Confirm(ctx, name, h, 0, lock.NewVersion())
		}
	}
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("%q: %w", name, lock.ErrHeld)
	}
	return &bareHold{b, name, h, token}, nil
}

func (b *bareStore) try(ctx context.Context, name string) (held, error) { return b.acquire(ctx, name) }
func (b *bareStore) close(context.Context) error                        { return b.s.Close() }

type bareHold struct {
	b      *bareStore
	name   string
	h      lock.Hold
	number int64
}

func (h *bareHold) token() int64 { return h.number }

func (h *bareHold) release(ctx context.Context) error {
	ok, err := h.b.s.Release(ctx, h.name, h.h, lock.NewVersion())
	if err == nil && !ok {
		err = lock.ErrLost
	}
	return err
}

// least is the least that any lock with a fencing token costs: the token has to outlive the release, so a document stays, and
// is updated twice.
type least struct{ locks *mongo.Collection }

func openLeast(db *mongo.Database) locker {
	return least{db.Collection("least", options.Collection().SetWriteConcern(writeconcern.Majority()))}
}

func (l least) acquire(ctx context.Context, name string) (held, error) {
	id := bson.NewObjectID()
	var doc struct {
		Token int64 `bson:"token"`
	}
	err := l.locks.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: name}, {Key: "h", Value: nil}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "h", Value: id}}}, {Key: "$inc", Value: bson.D{{Key: "token", Value: int64(1)}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After).SetProjection(bson.D{{Key: "token", Value: 1}})).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		doc.Token = 1
		_, err = l.locks.InsertOne(ctx, bson.D{{Key: "_id", Value: name}, {Key: "token", Value: doc.Token}, {Key: "h", Value: id}})
	}
	switch {
	case mongo.IsDuplicateKeyError(err):
		return nil, fmt.Errorf("%q: %w", name, lock.ErrHeld)
	case err != nil:
		return nil, err
	}
	return &leastHold{l, name, id, doc.Token}, nil
}

func (l least) try(ctx context.Context, name string) (held, error) { return l.acquire(ctx, name) }
func (least) close(context.Context) error                          { return nil }

type leastHold struct {
	l      least
	name   string
	id     bson.ObjectID
	number int64
}

func (h *leastHold) token() int64 { return h.number }

func (h *leastHold) release(ctx context.Context) error {
	res, err := h.l.locks.UpdateOne(ctx, bson.D{{Key: "_id", Value: h.name}, {Key: "h", Value: h.id}},
		bson.D{{Key: "$unset", Value: bson.D{{Key: "h", Value: ""}}}})
	if err == nil && res.MatchedCount == 0 {
		err = lock.ErrLost
	}
	return err
}
