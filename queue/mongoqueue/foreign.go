package mongoqueue

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// ForeignKeys implements queue.Queue.
//
//	find {_id: {$gt: "<type>/" or the key, $lt: "<type>0", $not: a message's key}} → _id only, sort {_id: 1}, limit; index: _id, every key of
//	the range. Nothing matched: there are no foreign keys.
func (q *Queue) ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error) {
	if err := queuedriver.CheckForeignKeys(typ, most); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: max(after, typ+headSeparator)}, {Key: "$lt", Value: typ + headEnd}, {Key: "$not", Value: messageKey(typ)}}}}
	cursor, err := q.messages.Find(ctx, filter, options.Find().SetProjection(idOnly).SetSort(byKey).SetLimit(int64(most)))
	var keys []string
	if err == nil {
		err = eachKey(ctx, cursor, func(key string) { keys = append(keys, key) })
	}
	if err != nil {
		return nil, q.explain(ctx, "look for foreign keys of "+typ, err)
	}
	return keys, nil
}

// isForeign reports whether a key is in the range of a type without being a message's.
func isForeign(typ, key string) bool {
	rest, ok := strings.CutPrefix(key, typ+headSeparator)
	id, err := queue.ParseID(rest)
	return ok && (err != nil || id.IsZero())
}

// RemoveForeignKeys implements queue.Queue.
//
//	deleteMany {_id: {$in: ["<key>", …]}}, w: majority; index: _id. Fewer deleted than requested: the others were gone.
func (q *Queue) RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error) {
	if err := queue.ValidateType(typ); err != nil {
		return 0, err
	}
	for _, key := range keys {
		if !isForeign(typ, key) { // rule: no message is removed by its key
			return 0, queuedriver.NotForeignKey(typ, key)
		}
	}
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	for some := range slices.Chunk(keys, 1000) { // a key may be long
		result, err := q.messages.DeleteMany(ctx, in(some))
		if err != nil {
			return removed, q.explain(ctx, "remove foreign keys of "+typ, err)
		}
		removed += int(result.DeletedCount)
	}
	return removed, nil
}
