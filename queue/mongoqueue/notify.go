package mongoqueue

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// notificationLogs is the number of documents in the collection notifications. Each notification goes
// to a random one, so that many publishers do not contend for one document.
const notificationLogs = 8

// firstCount bounds the random count with which a log begins. If a log is removed and recreated, its
// count differs from the one that readers know, so they notice.
const firstCount = 1 << 40

// Notify implements queue.Queue.
//
//	updateOne {_id: "0" … "7", at random} → {$inc: {n: <types>}, $push: {t: {$each: [types], $slice: -128}}} in notifications, w: 1; index:
//	_id. Nothing matched: insertOne {_id, n: <random> + <types>, t}. Duplicate key: another process was first, and the update is repeated.
func (q *Queue) Notify(ctx context.Context, types []string) error {
	if err := queuedriver.CheckNotify(types); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil || len(types) == 0 {
		return err
	}
	log := strconv.Itoa(rand.IntN(notificationLogs))
	for {
		result, err := q.notifications.UpdateOne(ctx, bson.D{{Key: "_id", Value: log}}, notification(types))
		if err == nil && result.MatchedCount > 0 {
			return nil
		}
		if err == nil {
			first := rand.Int64N(firstCount) + int64(len(types))
			_, err = q.notifications.InsertOne(ctx, bson.D{{Key: "_id", Value: log}, {Key: "n", Value: first}, {Key: "t", Value: queuedriver.LatestNotifications(types)}})
		}
		if !isDuplicate(err) {
			return q.explain(ctx, "notify workers of new messages", err)
		}
	}
}

// notification is the update that adds types to a log.
func notification(types []string) bson.D {
	latest := bson.D{{Key: "$each", Value: queuedriver.LatestNotifications(types)}, {Key: "$slice", Value: -queuedriver.KeptNotifications}}
	return bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(len(types))}}}, {Key: "$push", Value: bson.D{{Key: "t", Value: latest}}}}
}

// Notifications implements queue.Queue.
//
//	find {$or: [{_id: "0", n: {$ne: <count>}}, … {_id: "7"}]} in notifications; index: _id. Nothing matched: nothing is new.
func (q *Queue) Notifications(ctx context.Context, since queue.NotificationMark) (queue.Notifications, error) {
	if err := q.enter(ctx); err != nil {
		return queue.Notifications{}, err
	}
	var changed bson.A
	for i := range notificationLogs {
		log := bson.D{{Key: "_id", Value: strconv.Itoa(i)}}
		if count, known := since[strconv.Itoa(i)]; known {
			// rule: a different count, not only a higher one: a restored database has a lower one
			log = append(log, bson.E{Key: "n", Value: bson.D{{Key: "$ne", Value: count}}})
		}
		changed = append(changed, log)
	}
	r := queuedriver.ReadNotifications(since)
	cursor, err := q.notifications.Find(ctx, bson.D{{Key: "$or", Value: changed}}, options.Find().SetLimit(notificationLogs))
	if err != nil {
		return queue.Notifications{}, q.explain(ctx, "read notifications", err)
	}
	defer cursor.Close(ctx)
	for cursor.Next(ctx) {
		if log, count, latest, ok := decodeLog(cursor.Current); ok {
			r.Log(log, count, latest)
		}
	}
	if err := cursor.Err(); err != nil {
		return queue.Notifications{}, q.explain(ctx, "read notifications", err)
	}
	return r.Result(), nil
}

// decodeLog reads a document of notifications. One without a count is not a log; list entries that are
// not strings are skipped.
func decodeLog(raw bson.Raw) (log string, count int64, latest []string, ok bool) {
	log, named := raw.Lookup("_id").StringValueOK()
	count, counts := raw.Lookup("n").AsInt64OK()
	return log, count, latestOf(raw.Lookup("t")), named && counts
}

// latestOf returns the last strings of a list.
func latestOf(t bson.RawValue) (types []string) {
	list, _ := t.ArrayOK()
	values, _ := list.Values()
	for _, v := range values[max(len(values)-queuedriver.KeptNotifications, 0):] {
		if typ, ok := v.StringValueOK(); ok {
			types = append(types, typ)
		}
	}
	return types
}

// PendingTypes implements queue.Queue: a skip scan over messages, see skipScan. When nothing is
// pending it is one find.
func (q *Queue) PendingTypes(ctx context.Context) ([]string, error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	if err := q.skipScan(ctx, q.messages, true, found); err != nil {
		return nil, q.explain(ctx, "list types with messages", err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}
