package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// MoveToDeadLetters implements queue.Queue.
//
//	insert into dead, as Insert does into messages: ordered, w: majority; duplicate key: stored before. Then as Ack.
func (q *Queue) MoveToDeadLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	letters, err := queuedriver.CheckDeadLetters(typ, letters, q.now())
	if err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	if err := q.storeLetters(ctx, typ, letters); err != nil {
		return errors.Unwrap(err)
	}
	ids := make([]queue.ID, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}
	return q.Ack(ctx, typ, ids) // rule: only after the letters are durable
}

// storeLetters inserts dead letters. The error, if any, is an *InsertError.
func (q *Queue) storeLetters(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	msgs := make([]queue.Message, len(letters))
	for i := range letters {
		msgs[i] = letters[i].Message
	}
	docs := documents(typ, msgs)
	for i := range docs {
		l := &letters[i]
		docs[i].size += len(l.Reason) + len(l.Worker)
		docs[i].body = append(docs[i].body, bson.E{Key: "reason", Value: l.Reason}, bson.E{Key: "attempts", Value: int64(l.Attempts)},
			bson.E{Key: "worker", Value: l.Worker}, bson.E{Key: "at", Value: l.Time})
	}
	return insert(ctx, q.dead, docs, func(err error) error { return q.explain(ctx, "bury "+typ, err) })
}

// DeadLetters implements queue.Queue.
//
//	find in dead, as Fetch does in messages.
func (q *Queue) DeadLetters(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.DeadLetter, error) {
	if err := queuedriver.CheckFetch(typ, limit); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	letters, err := q.findDead(ctx, typ, typeRange(typ, after), limit)
	if err != nil {
		return nil, q.explain(ctx, "list the dead letters of "+typ, err)
	}
	return letters, nil
}

// findDead reads dead letters up to limit. Foreign documents do not count towards it, so the limit
// is enforced here and not by the server.
func (q *Queue) findDead(ctx context.Context, typ string, filter bson.D, limit queue.Limit) (letters []queue.DeadLetter, err error) {
	cursor, err := q.dead.write.Find(ctx, filter, options.Find().SetSort(byKey).SetBatchSize(int32(min(limit.Messages, deadBatch))))
	if err != nil {
		return nil, err
	}
	defer cursor.Close(ctx)
	var size int64
	for cursor.Next(ctx) {
		h, ok := decodeHead(typ, cursor.Current)
		if !ok {
			continue
		}
		if h.Incomplete {
			h.Payload = nil
		}
		l := queue.DeadLetter{Message: h}
		decodeLetter(cursor.Current, &l)
		letters = append(letters, l)
		if size += int64(l.Size()); len(letters) == limit.Messages || limit.Bytes > 0 && size >= limit.Bytes {
			break
		}
	}
	return letters, cursor.Err()
}

// decodeLetter decodes the fields that a dead letter has in addition to a message. A field of the
// wrong type is left out and reported: one damaged letter must not hide the others.
func decodeLetter(doc bson.Raw, l *queue.DeadLetter) {
	field := func(name, want string, as func(bson.RawValue) bool) {
		v, err := doc.LookupErr(name)
		if err == nil && v.Type != bson.TypeNull && !as(v) && l.Damaged == "" {
			l.Damaged = fmt.Sprintf("field %s is of the type %v, want %s", name, v.Type, want)
		}
	}
	text := func(to *string) func(bson.RawValue) bool {
		return func(v bson.RawValue) (ok bool) { *to, ok = v.StringValueOK(); return ok }
	}
	field("reason", "a text", text(&l.Reason))
	field("worker", "a text", text(&l.Worker))
	field("attempts", "a number", func(v bson.RawValue) bool { n, ok := v.AsInt64OK(); l.Attempts = int(n); return ok })
	field("at", "a date", func(v bson.RawValue) (ok bool) { l.Time, ok = v.TimeOK(); return ok })
}

// deadBatch is the number of letters that a server sends per reply.
const deadBatch = 200

// RemoveDeadLetters implements queue.Queue.
//
//	deleteMany {_id: {$in: ["<type>/<ID>", …]}} in dead, w: majority; index: _id. Fewer deleted than requested: the others were gone.
func (q *Queue) RemoveDeadLetters(ctx context.Context, typ string, ids []queue.ID) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	for some := range slices.Chunk(ids, ackKeys) {
		if _, err := q.dead.write.DeleteMany(ctx, in(headKeys(typ, some))); err != nil {
			return q.explain(ctx, "remove dead letters of "+typ, err)
		}
	}
	return nil
}
