package mongoqueue

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/queue"
)

// HolderNote implements queue.Queue.
//
//	find {_id: "<type>"} in marks; index: _id. Nothing matched: none.
func (q *Queue) HolderNote(ctx context.Context, typ string) ([]byte, error) {
	if err := queue.ValidateType(typ); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	var doc struct {
		Note string `bson:"mark"`
	}
	err := q.notes.FindOne(ctx, bson.D{{Key: "_id", Value: typ}}).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, q.explain(ctx, "read the holder note of "+typ, err)
	}
	return []byte(doc.Note), nil
}

// SetHolderNote implements queue.Queue.
//
//	updateOne {_id: "<type>"} → {$set: {mark}} in marks, w: majority; index: _id. Nothing matched: insertOne. Duplicate key:
//	another process was first, and the update is repeated.
func (q *Queue) SetHolderNote(ctx context.Context, typ string, note []byte) error {
	if err := queue.ValidateType(typ); err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	err := setFields(ctx, q.notes, typ, bson.D{{Key: "mark", Value: string(note)}})
	return q.explain(ctx, "store the holder note of "+typ, err)
}
