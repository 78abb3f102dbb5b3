package mongoqueue

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/combine"
	"github.com/fencepost/fencepost/queue"
)

// Reads of the messages of several types in one command. A find has one limit for all types, so this is an aggregate with a pipeline for
// each:
//
//	aggregate [$match {_id: the type's range}, $sort {_id: 1}, $limit, {$unionWith: the same for the next type}, …]; index: _id, no sort stage.
const (
	unionMost  = 8       // types per command: planning one with more takes longer than it saves
	unionDocs  = 100     // documents per type
	unionBytes = 4 << 20 // for all types together
)

// part is what one caller reads: the first documents of a type in a range of keys.
type part struct {
	typ    string
	filter bson.D
	limit  int
	keys   bool // _id only
}

// keysPart reads the first keys of a type.
func keysPart(typ string, limit int) part {
	return part{typ: typ, filter: typeRange(typ, queue.ID{}), limit: limit, keys: true}
}

func (p part) pipeline() bson.A {
	stages := bson.A{bson.D{{Key: "$match", Value: p.filter}}, bson.D{{Key: "$sort", Value: byKey}}, bson.D{{Key: "$limit", Value: int64(p.limit)}}}
	if p.keys {
		stages = append(stages, bson.D{{Key: "$project", Value: idOnly}})
	}
	return stages
}

// readParts reads several parts. whole is false if the answer exceeds unionBytes.
func (q *Queue) readParts(ctx context.Context, parts []part) (byType map[string][]bson.Raw, whole bool, err error) {
	pipeline, most := parts[0].pipeline(), parts[0].limit
	for _, p := range parts[1:] {
		pipeline = append(pipeline, bson.D{{Key: "$unionWith", Value: bson.D{{Key: "coll", Value: q.messages.Name()}, {Key: "pipeline", Value: p.pipeline()}}}})
		most += p.limit
	}
	cursor, err := q.messages.Aggregate(ctx, pipeline, options.Aggregate().SetBatchSize(int32(most+1)))
	if err != nil {
		if judge(err).sentinel == queue.ErrUnsupported || hasCode(err, codeUnknownStage) {
			q.unionless.Store(true)
		}
		return nil, false, err
	}
	return gather(ctx, cursor)
}

// gather groups documents by type and sorts each group by key: a server guarantees no order for the result of a union.
func gather(ctx context.Context, cursor *mongo.Cursor) (byType map[string][]bson.Raw, whole bool, err error) {
	defer cursor.Close(ctx)
	byType = map[string][]bson.Raw{}
	size := 0
	for cursor.Next(ctx) {
		if size += len(cursor.Current); size > unionBytes {
			return nil, false, nil
		}
		typ, _, _ := strings.Cut(keyOf(cursor.Current), headSeparator)
		byType[typ] = append(byType[typ], append(bson.Raw(nil), cursor.Current...))
	}
	for _, docs := range byType {
		slices.SortFunc(docs, func(a, b bson.Raw) int { return strings.Compare(keyOf(a), keyOf(b)) })
	}
	return byType, true, cursor.Err()
}

// keyOf returns the key of a document; "" if it is not a string.
func keyOf(raw bson.Raw) string {
	key, _ := raw.Lookup("_id").StringValueOK()
	return key
}

// readAsked reads a part for each caller, and builds each answer with answer.
//
// rule: a type requested by two callers is read by each alone: their documents cannot be told apart.
func readAsked[Q, A any](ctx context.Context, q *Queue, asked []Q, partOf func(Q) part, answer func(Q, []bson.Raw) combine.Answer[A]) []combine.Answer[A] {
	parts, times := make([]part, len(asked)), map[string]int{}
	for i, a := range asked {
		parts[i] = partOf(a)
		times[parts[i].typ]++
	}
	byType, whole, err := q.readParts(ctx, parts)
	if err != nil {
		return failed[A](len(asked), err)
	}
	answers := combine.All(len(asked), combine.Answer[A]{Again: true})
	for i, p := range parts {
		if whole && times[p.typ] == 1 {
			answers[i] = answer(asked[i], byType[p.typ])
		}
	}
	return answers
}

// wanted is a request for a fetch.
type wanted struct {
	typ    string
	filter bson.D
	limit  queue.Limit
}

// fetched is the answer to wanted.
type fetched struct {
	msgs    []queue.Message
	read    int    // documents seen
	last    string // key of the last one
	foreign []string
	bytes   int64
}

// add adds a document. It returns false when the limit is reached.
func (f *fetched) add(w *wanted, raw bson.Raw) bool {
	f.read++
	f.last = keyOf(raw)
	h, ok := decodeHead(w.typ, raw)
	if !ok {
		if w.limit.Foreign != nil {
			f.foreign = append(f.foreign, f.last)
		}
		return true
	}
	if h.Incomplete {
		h.Payload, h.Headers = nil, nil
	}
	f.msgs = append(f.msgs, h)
	f.bytes += int64(h.Size())
	return w.limit.Bytes == 0 || f.bytes < w.limit.Bytes
}

// fetchOne runs one find.
func (q *Queue) fetchOne(ctx context.Context, w wanted) (f fetched, err error) {
	find := options.Find().SetSort(byKey).SetLimit(int64(w.limit.Messages)).SetBatchSize(q.batchSize(w.typ, w.limit))
	cursor, err := q.messages.Find(ctx, w.filter, find)
	if err != nil {
		return fetched{}, err
	}
	defer cursor.Close(ctx)
	f.msgs = make([]queue.Message, 0, cursor.RemainingBatchLength())
	for cursor.Next(ctx) && f.add(&w, cursor.Current) {
	}
	if err := cursor.Err(); err != nil {
		return fetched{}, err
	}
	return f, nil
}

func (q *Queue) fetchMany(ctx context.Context, asked []wanted) []combine.Answer[fetched] {
	limit := func(w wanted) int { return min(w.limit.Messages, unionDocs) }
	return readAsked(ctx, q, asked, func(w wanted) part { return part{typ: w.typ, filter: w.filter, limit: limit(w)} },
		func(w wanted, docs []bson.Raw) combine.Answer[fetched] {
			// rule: a shared read that reaches its limit says nothing about later messages. To read more, a caller reads alone.
			if len(docs) == unionDocs && w.limit.Messages > unionDocs {
				return combine.Answer[fetched]{Again: true}
			}
			var f fetched
			for _, raw := range docs {
				if !f.add(&w, raw) {
					break
				}
			}
			return combine.Answer[fetched]{Value: f}
		})
}

// fewKeys is the number of keys that show whether a type has a message: the limit of a Depth of at most one.
const fewKeys = 2

func (q *Queue) fewKeysOf(ctx context.Context, typ string) ([]string, error) {
	return q.keysOf(ctx, typ, fewKeys)
}

func (q *Queue) fewKeysOfMany(ctx context.Context, types []string) []combine.Answer[[]string] {
	return readAsked(ctx, q, types, func(typ string) part { return keysPart(typ, fewKeys) },
		func(_ string, docs []bson.Raw) (a combine.Answer[[]string]) {
			for _, raw := range docs {
				a.Value = append(a.Value, keyOf(raw))
			}
			return a
		})
}
