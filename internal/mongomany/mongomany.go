// Package mongomany sends MongoDB one command for several documents, and reports the outcome for each as far as the answer shows it.
package mongomany

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Find returns, by ID, the documents that have one of ids, which differ. fields is a projection; nil returns them whole. Index: _id.
func Find(ctx context.Context, c *mongo.Collection, ids []string, fields bson.D) (map[string]bson.Raw, error) {
	find := options.Find().SetBatchSize(int32(len(ids) + 1)) // one answer, without a cursor on the server
	if fields != nil {
		find.SetProjection(fields)
	}
	cursor, err := c.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, find)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	found := make(map[string]bson.Raw, len(docs))
	for _, raw := range docs {
		id, _ := raw.Lookup("_id").StringValueOK()
		found[id] = raw
	}
	return found, nil
}

// Insert inserts documents in any order. It returns the errors of those that were not inserted, by their index in docs; the others were.
// With an error any of them may have been inserted.
func Insert[D any](ctx context.Context, c *mongo.Collection, docs []D) (failed map[int]error, err error) {
	_, err = c.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	if err == nil {
		return nil, nil
	}
	var write mongo.BulkWriteException
	// rule: a document that a majority may not have does not count as inserted. A write concern error is about all of them.
	if !errors.As(err, &write) || write.WriteConcernError != nil {
		return nil, err
	}
	failed = make(map[int]error, len(write.WriteErrors))
	for _, e := range write.WriteErrors {
		if e.Index < 0 || e.Index >= len(docs) {
			return nil, err
		}
		failed[e.Index] = e.WriteError
	}
	return failed, nil
}

// Update changes at most one document: the one with ID, if it matches Filter.
type Update struct {
	ID             string
	Filter, Update bson.D
}

// UpdateAll makes all updates, in any order, and returns how many matched: the answer does not show which. With an error any of them may
// have been made.
func UpdateAll(ctx context.Context, c *mongo.Collection, updates []Update) (matched int, err error) {
	statements := make([]mongo.WriteModel, len(updates))
	// Sorted, because a server that executes the command as one transaction keeps each document locked to the end: two commands in
	// different orders would wait for each other.
	for i, u := range slices.SortedFunc(slices.Values(updates), func(a, b Update) int { return cmp.Compare(a.ID, b.ID) }) {
		statements[i] = mongo.NewUpdateOneModel().SetFilter(u.Filter).SetUpdate(u.Update)
	}
	result, err := c.BulkWrite(ctx, statements, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return 0, err
	}
	return int(result.MatchedCount), nil
}
