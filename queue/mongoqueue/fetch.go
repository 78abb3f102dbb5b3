package mongoqueue

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

const (
	maxBatch = 10_000 // documents per reply
	ackKeys  = 10_000 // keys per delete command: well below 16 MiB

	// majorityMin and majorityMax bound the pause before reading again messages that a majority does not have yet.
	majorityMin = 2 * time.Millisecond
	majorityMax = 200 * time.Millisecond
)

// typeRange is the range of keys of a type's messages after the given ID.
func typeRange(typ string, after queue.ID) bson.D {
	from := typ + headSeparator
	if !after.IsZero() {
		from = headKey(typ, after)
	}
	return keyRange(from, typ+headEnd)
}

// keyRange is the filter for from < _id < to. Strings compare bytewise.
//
// rule: every sorted find has both bounds. A planner that knows nothing about the collection (PostgreSQL behind FerretDB, whose statistics
// date from when it was empty) expects many rows beyond a single bound, reads all of them and sorts them for one key.
func keyRange(from, to string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: from}, {Key: "$lt", Value: to}}}}
}

var byKey = bson.D{{Key: "_id", Value: 1}}

// Fetch implements queue.Queue.
//
//	find {_id: {$gt: "<type>/<after>", $lt: "<type>0"}}, sort {_id: 1}, limit; index: _id, no sort stage. Nothing matched:
//	nothing is pending after that ID. Not a snapshot: a message stored where the cursor has already passed is seen by the next
//	sweep. If there are loose messages, find {_id: {$in: their keys}} → _id only, with read concern majority; if one is missing
//	there, start over. Concurrent fetches of several types share an aggregate: see sharedreads.go.
func (q *Queue) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	filter := typeRange(typ, after)
	pause := wait.Backoff{Min: majorityMin, Max: majorityMax}
	for {
		out, read, last, err := q.fetch(ctx, typ, filter, limit)
		if err == nil {
			var settled bool
			// rule: a loose message is not returned before a majority has it. A failover would roll it back with the rest of its
			// transaction, although it would already be in the file. Nor is anything after it returned: a reader would conclude that it is
			// gone.
			if settled, err = q.settled(ctx, typ, out); err == nil && !settled {
				if err = wait.For(ctx, pause.Next()); err == nil {
					continue
				}
			}
		}
		if err != nil {
			return nil, q.explain(ctx, "fetch "+typ, err)
		}
		if len(out) > 0 || read < limit.Messages {
			return out, nil
		}
		filter = keyRange(last, typ+headEnd) // nothing but foreign keys: continue after them
	}
}

// settled reports whether a majority has all loose messages among msgs. Numbered ones need no check: if a failover rolls one back, its
// publisher retries it under the same ID.
func (q *Queue) settled(ctx context.Context, typ string, msgs []queue.Message) (bool, error) {
	var keys []string
	for i := range msgs {
		if msgs[i].ID.N() == 0 {
			keys = append(keys, headKey(typ, msgs[i].ID))
		}
	}
	if len(keys) == 0 {
		return true, nil
	}
	found := 0
	cursor, err := q.store.majority.Find(ctx, in(keys), options.Find().SetProjection(idOnly).SetBatchSize(int32(len(keys)+1)))
	if err == nil {
		err = eachKey(ctx, cursor, func(string) { found++ })
	}
	if err != nil && judge(err).sentinel == queue.ErrUnsupported {
		return true, nil // a server without read concerns has no transactions, and rolls nothing back
	}
	return found == len(keys), err
}

// fetch runs one find, or joins a shared command. read counts the documents seen, last is the key of the last one.
func (q *Queue) fetch(ctx context.Context, typ string, filter bson.D, limit queue.Limit) (out []queue.Message, read int, last string, err error) {
	var f fetched
	if w := (wanted{typ, filter, limit}); q.isLarge(typ) || q.unionless.Load() {
		f, err = q.fetchOne(ctx, w)
	} else {
		f, err = q.shared.fetches.Do(ctx, w)
	}
	if err != nil {
		return nil, 0, "", err
	}
	for _, key := range f.foreign {
		limit.Foreign(key)
	}
	q.learnSize(typ, len(f.msgs), f.bytes)
	return f.msgs, f.read, f.last, nil
}

// batchSize is the number of documents to request per reply, so that they have about the bytes of the limit, estimated from the size of the
// type's recent messages. Any more would be sent again in the next Fetch.
func (q *Queue) batchSize(typ string, limit queue.Limit) int32 {
	n := int64(min(limit.Messages, maxBatch))
	if limit.Bytes > 0 {
		q.mu.Lock()
		mean := q.size[typ]
		q.mu.Unlock()
		n = min(n, limit.Bytes/max(mean, 1)+1)
	}
	return int32(n)
}

// learnSize records the mean size of a type's messages, for batchSize, and whether fetching the type justifies a command of its own.
func (q *Queue) learnSize(typ string, messages int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if messages >= unionDocs || bytes >= unionBytes/unionMost {
		q.large[typ] = true
	} else {
		delete(q.large, typ)
	}
	if messages > 0 {
		q.size[typ] = bytes / int64(messages)
	}
}

func (q *Queue) isLarge(typ string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.large[typ]
}

// in matches the documents with one of these keys.
func in(keys []string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}}}}
}

// Ack implements queue.Queue.
//
//	deleteMany {_id: {$in: ["<type>/<ID>", …]}}, w: 1; index: _id. Concurrent calls for several types share one. Fewer deleted than
//	requested: the others were gone.
func (q *Queue) Ack(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	for some := range slices.Chunk(ids, ackKeys) {
		if err := q.delete(ctx, headKeys(typ, some)); err != nil {
			return q.explain(ctx, "ack "+typ, err)
		}
	}
	return nil
}

// delete removes documents of messages. rule: no durability needed, a lost deletion only redelivers.
func (q *Queue) delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	var err error
	if len(keys) <= sharedKeys {
		_, err = q.shared.deletes.Do(ctx, keys)
	} else {
		_, err = q.deleteKeys(ctx, keys)
	}
	return err
}

// Depth implements queue.Queue.
//
//	find {_id: the type's range} → _id only, sort {_id: 1}, limit max+1; index: _id, at most max+1 keys; the first is the oldest.
//	With a large max, or foreign keys among them: count {_id: the type's range, and a message's key}, limit max+1; and find the first one.
func (q *Queue) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	if err := queuedriver.CheckDepth(typ, most); err != nil {
		return queue.Depth{}, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.Depth{}, err
	}
	most = min(most, math.MaxInt-1) // one more is read
	n, foreign, oldest, err := q.firstKeys(ctx, typ, min(most, depthKeys)+1)
	if err == nil && (foreign > 0 || n > depthKeys && most > depthKeys) {
		n, err = q.count(ctx, typ, most+1)
	}
	if err == nil && n > 0 && oldest.IsZero() { // foreign keys before it
		oldest, err = q.oldest(ctx, typ)
	}
	if err != nil {
		return queue.Depth{}, q.explain(ctx, "depth of "+typ, err)
	}
	return queue.Depth{Pending: min(n, most), Capped: n > most, Oldest: oldest, Foreign: foreign}, nil
}

// depthKeys is how many keys are read rather than counted, to save a round trip.
const depthKeys = 100

// firstKeys reads the first keys of a type, up to limit. It counts messages and foreign keys, and returns the ID of the first message.
func (q *Queue) firstKeys(ctx context.Context, typ string, limit int) (n, foreign int, oldest queue.ID, err error) {
	var keys []string
	if limit == fewKeys && !q.unionless.Load() {
		keys, err = q.shared.keys.Do(ctx, typ)
	} else {
		keys, err = q.keysOf(ctx, typ, limit)
	}
	for _, key := range keys {
		id, err := queue.ParseID(key[len(typ)+1:])
		if err != nil || id.IsZero() { // rule: a foreign key is not a message: it is not counted, and blocks no publisher
			foreign++
			continue
		}
		if n++; n == 1 {
			oldest = id
		}
	}
	return n, foreign, oldest, err
}

// keysOf reads the first keys of a type.
func (q *Queue) keysOf(ctx context.Context, typ string, limit int) (keys []string, err error) {
	cursor, err := q.messages.Find(ctx, typeRange(typ, queue.ID{}),
		options.Find().SetProjection(idOnly).SetSort(byKey).SetLimit(int64(limit)).SetBatchSize(int32(limit)))
	if err == nil {
		err = eachKey(ctx, cursor, func(key string) { keys = append(keys, key) })
	}
	return keys, err
}

// count counts messages up to limit, without foreign keys.
func (q *Queue) count(ctx context.Context, typ string, limit int) (int, error) {
	var reply struct {
		N int64 `bson:"n"`
	}
	err := q.messages.Database().RunCommand(ctx, bson.D{
		{Key: "count", Value: q.messages.Name()},
		{Key: "query", Value: messageKeys(typ)},
		{Key: "limit", Value: int64(limit)},
	}).Decode(&reply)
	return int(reply.N), err
}

// oldest returns the ID of the first message, skipping foreign keys; zero if there is none.
func (q *Queue) oldest(ctx context.Context, typ string) (queue.ID, error) {
	key, err := firstKey(ctx, q.messages, messageKeys(typ))
	if key == "" || err != nil {
		return queue.ID{}, err
	}
	return queue.ParseID(key[len(typ)+1:])
}

// messageKey matches the keys of a type's messages: exactly those whose ID queue.ParseID accepts and that is not zero.
func messageKey(typ string) bson.Regex {
	return bson.Regex{Pattern: fmt.Sprintf(`^%s/(?!0{%d})[0-9a-v]{%d}\z`, regexp.QuoteMeta(typ), queue.IDLen, queue.IDLen)}
}

// messageKeys is typeRange without the foreign keys. The server examines every key in the range, in the index.
func messageKeys(typ string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: typ + headSeparator}, {Key: "$lt", Value: typ + headEnd}, {Key: "$regex", Value: messageKey(typ)}}}}
}

// firstKey returns the first string _id that the filter matches, or "".
//
//	find filter → _id only, sort {_id: 1}, limit 1; index: _id, one key.
func firstKey(ctx context.Context, in *mongo.Collection, filter bson.D) (string, error) {
	var doc struct {
		ID string `bson:"_id"`
	}
	err := in.FindOne(ctx, filter, options.FindOne().SetProjection(idOnly).SetSort(byKey)).Decode(&doc)
	if err != nil && err != mongo.ErrNoDocuments {
		return "", fmt.Errorf("first key: %w", err)
	}
	return doc.ID, nil
}
