package mongoqueue

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// decodeSettings reads a document of types. A field with an invalid value counts as not set: one
// type's document must not block the others.
func decodeSettings(raw bson.Raw) (typ string, s queue.Settings) {
	elements, err := raw.Elements()
	if err != nil {
		return "", queue.Settings{}
	}
	for _, e := range elements {
		v := e.Value()
		switch e.Key() {
		case "_id":
			typ, _ = v.StringValueOK()
		case "drain_paused":
			s.DrainPaused, _ = v.BooleanOK()
		case "publish_paused":
			s.PublishPaused, _ = v.BooleanOK()
		case "max_backlog":
			n, _ := v.AsInt64OK()
			s.MaxBacklog = int(min(max(n, 0), queue.MaxBacklogLimit))
		case "why":
			s.Why, _ = v.StringValueOK()
		case "changed":
			if ms, ok := v.DateTimeOK(); ok {
				s.Changed = time.UnixMilli(ms)
			}
		}
	}
	return typ, s
}

// Settings implements queue.Queue.
//
//	find {_id: "<type>"} in types; index: _id. Nothing matched: not registered, nothing is set.
func (q *Queue) Settings(ctx context.Context, typ string) (queue.Settings, error) {
	if err := queue.ValidateType(typ); err != nil {
		return queue.Settings{}, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.Settings{}, err
	}
	raw, err := q.types.FindOne(ctx, bson.D{{Key: "_id", Value: typ}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return queue.Settings{}, nil
	}
	if err != nil {
		return queue.Settings{}, q.explain(ctx, "read the settings of "+typ, err)
	}
	_, s := decodeSettings(raw)
	return s, nil
}

// somethingSet selects the types with at least one setting.
var somethingSet = bson.D{{Key: "$or", Value: bson.A{
	bson.D{{Key: "drain_paused", Value: true}},
	bson.D{{Key: "publish_paused", Value: true}},
	bson.D{{Key: "max_backlog", Value: bson.D{{Key: "$gt", Value: 0}}}},
}}}

// AllSettings implements queue.Queue.
//
//	find {$or: [{drain_paused: true}, {publish_paused: true}, {max_backlog: {$gt: 0}}]} in types; index: none, the server reads
//	one small document per registered type.
func (q *Queue) AllSettings(ctx context.Context) (map[string]queue.Settings, error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	all := map[string]queue.Settings{}
	cursor, err := q.types.Find(ctx, somethingSet)
	if err == nil {
		defer cursor.Close(ctx)
		for cursor.Next(ctx) {
			if typ, s := decodeSettings(cursor.Current); !s.IsZero() && queue.ValidateType(typ) == nil {
				all[typ] = s
			}
		}
		err = cursor.Err()
	}
	if err != nil {
		return nil, q.explain(ctx, "read the settings", err)
	}
	return all, nil
}

// PatchSettings implements queue.Queue.
//
//	updateOne {_id: "<type>"} → {$set: {why, changed, and what c changes}} in types, w: majority; index: _id. Nothing matched:
//	insertOne of the same. Duplicate key: another process has just registered it, and the update is repeated. Then find.
func (q *Queue) PatchSettings(ctx context.Context, typ string, c queue.SettingsPatch) (queue.Settings, error) {
	c, err := queuedriver.CheckSettingsPatch(typ, c)
	if err != nil {
		return queue.Settings{}, err
	}
	if err := q.enter(ctx); err != nil {
		return queue.Settings{}, err
	}
	fields := bson.D{{Key: "why", Value: c.Why}, {Key: "changed", Value: q.now()}}
	if c.DrainPaused != nil {
		fields = append(fields, bson.E{Key: "drain_paused", Value: *c.DrainPaused})
	}
	if c.PublishPaused != nil {
		fields = append(fields, bson.E{Key: "publish_paused", Value: *c.PublishPaused})
	}
	if c.MaxBacklog != nil {
		fields = append(fields, bson.E{Key: "max_backlog", Value: int64(*c.MaxBacklog)})
	}
	// rule: only changed fields are written, so that two concurrent changes both take effect
	if err := setFields(ctx, q.types, typ, fields); err != nil {
		return queue.Settings{}, q.explain(ctx, "change the settings of "+typ, err)
	}
	return q.Settings(ctx, typ)
}

// setFields sets fields of the document with that _id, which it creates if there is none. No
// upsert: servers report two concurrent ones in different ways.
func setFields(ctx context.Context, c *mongo.Collection, id string, fields bson.D) error {
	for {
		result, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: fields}})
		if err != nil || result.MatchedCount > 0 {
			return err
		}
		if _, err = c.InsertOne(ctx, append(bson.D{{Key: "_id", Value: id}}, fields...)); !isDuplicate(err) {
			return err
		}
	}
}
