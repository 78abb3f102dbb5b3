package mongolock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ttlIndex removes names that have not been used for Options.Retention.
//
// rule: TTL is garbage collection of idle names, never the way a lock becomes free.
const ttlIndex = "at_ttl"

// ErrSetup: the collection of locks is not in the state that [Setup] creates.
var ErrSetup = errors.New("the lock collection is not set up")

// Setup creates the collection of locks and its TTL index. [Open] and [New] call it, too, but do not
// fail if the server refuses. It is safe to repeat. It changes no existing index: if one has a
// different retention, or another TTL index would remove locks as well, the error says what to do.
func Setup(ctx context.Context, db *mongo.Database, o Options) error {
	if err := o.check(db); err != nil {
		return err
	}
	_, err := o.locks(db).Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "at", Value: 1}},
		Options: options.Index().SetName(ttlIndex).SetExpireAfterSeconds(o.seconds()),
	})
	// Even if that failed, the index may be there: an administrator may have created it under another name, or for a user
	// without that privilege. Even if it succeeded, there may be a TTL index of another program.
	switch problem := CheckSetup(ctx, db, o); {
	case problem == nil:
		return nil
	case errors.Is(problem, ErrSetup) && err != nil:
		return fmt.Errorf("%w (%w)", problem, err)
	case errors.Is(problem, ErrSetup):
		return problem
	case err != nil:
		return fmt.Errorf("lock store: no TTL index on %s.%s, so idle names will not be removed: %w", db.Name(), o.Collection, err)
	}
	return nil // the index is there, and the server does not list the others
}

// CheckSetup checks that Setup has nothing to do. Otherwise the error is [ErrSetup] and names the
// remedy. Locks work without the index, but names no longer in use are not removed.
func CheckSetup(ctx context.Context, db *mongo.Database, o Options) error {
	if err := o.check(db); err != nil {
		return err
	}
	where := db.Name() + "." + o.Collection
	cur, err := o.locks(db).Indexes().List(ctx)
	if err != nil {
		return fmt.Errorf("lock store: list the indexes of %s: %w", where, err)
	}
	var indexes []struct {
		Name         string `bson:"name"`
		Key          bson.D `bson:"key"`
		ExpireAfter  *int64 `bson:"expireAfterSeconds"`
		HasCondition bson.D `bson:"partialFilterExpression"`
	}
	if err := cur.All(ctx, &indexes); err != nil {
		return fmt.Errorf("lock store: list the indexes of %s: %w", where, err)
	}
	found, plain := false, ""
	for _, x := range indexes {
		onAt := len(x.Key) == 1 && x.Key[0].Key == "at" && x.HasCondition == nil
		switch {
		case x.ExpireAfter == nil && onAt:
			plain = x.Name
		case x.ExpireAfter == nil:
		case !onAt:
			return fmt.Errorf("%w: a TTL index %s on %s removes locks by %v, perhaps while they are in use; drop it", ErrSetup, x.Name, where, x.Key)
		case *x.ExpireAfter != int64(o.seconds()):
			return fmt.Errorf("%w: index %s on %s removes idle names after %v, not %v; drop it and run setup, or configure that "+
				"retention", ErrSetup, x.Name, where, time.Duration(*x.ExpireAfter)*time.Second, o.Retention)
		default:
			found = true
		}
	}
	switch {
	case found:
		return nil
	case plain != "":
		return fmt.Errorf("%w: index %s on %s has no expiry and blocks the creation of the TTL index; drop it and run setup", ErrSetup, plain, where)
	}
	return fmt.Errorf("%w: %s has no TTL index on at, so idle names will not be removed; run setup with a user who may create indexes", ErrSetup, where)
}

// seconds is the retention in the unit of a TTL index, bounded by its type.
func (o *Options) seconds() int32 { return int32(min(o.Retention/time.Second, 1<<31-1)) }
