package mongoqueue

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/internal/combine"
	"github.com/fencepost/fencepost/internal/distance"
	"github.com/fencepost/fencepost/internal/mongomany"
	"github.com/fencepost/fencepost/queue"
)

// Concurrent calls of the same kind, from sessions of many types, share a command: see docs/decisions/0020. What a command does for one of
// them must not depend on the others, and its answer must tell each caller the outcome of its own part. Where that is not certain, each
// caller repeats its part alone: everything shared is idempotent.
const (
	sharedMost = 32 // calls per shared command
	// Updates per command. A server may execute it as one transaction, which keeps the documents locked for as long as all of them take.
	sharedUpdates = 8
	sharedKeys    = 200 // keys of an acknowledgement that shares a command; one with more justifies a command of its own
	gateWidth     = 1   // commands in flight before calls gather
)

// shared has a Combiner for each kind of call that shares commands.
type shared struct {
	fetches *combine.Combiner[wanted, fetched]
	keys    *combine.Combiner[string, []string]
	entries *combine.Combiner[string, bson.Raw]
	inserts *combine.Combiner[fileDoc, bool]
	updates *combine.Combiner[mongomany.Update, bool]
	deletes *combine.Combiner[[]string, struct{}]
}

func newShared(q *Queue, far *distance.Meter) shared {
	gate := combine.NewGate(gateWidth, far.RoundTrip)
	return shared{
		fetches: combine.New(gate, combine.Options[wanted, fetched]{One: q.fetchOne, Many: q.fetchMany, Most: unionMost}),
		keys:    combine.New(gate, combine.Options[string, []string]{One: q.fewKeysOf, Many: q.fewKeysOfMany, Most: unionMost}),
		entries: combine.New(gate, combine.Options[string, bson.Raw]{One: q.readEntry, Many: q.readEntries, Most: sharedMost}),
		inserts: combine.New(gate, combine.Options[fileDoc, bool]{One: q.insertEntry, Many: q.insertEntries, Most: sharedMost}),
		updates: combine.New(gate, combine.Options[mongomany.Update, bool]{One: q.updateEntry, Many: q.updateEntries, Most: sharedUpdates}),
		deletes: combine.New(gate, combine.Options[[]string, struct{}]{One: q.deleteKeys, Many: q.deleteKeysOfMany, Most: sharedMost}),
	}
}

// failed is the answer to n calls whose command failed. rule: one member's error must not become that of the others, so each tries alone. If
// the server is unreachable, or rejects the user, that is the answer to all.
func failed[A any](n int, err error) []combine.Answer[A] {
	switch judge(err).sentinel {
	case queue.ErrUnreachable, queue.ErrPermission, queue.ErrClosed:
		return combine.All(n, combine.Answer[A]{Err: err})
	}
	return combine.All(n, combine.Answer[A]{Again: true})
}

// readEntry reads a type's document of files, nil if there is none.
func (q *Queue) readEntry(ctx context.Context, typ string) (bson.Raw, error) {
	raw, err := q.files.FindOne(ctx, bson.D{{Key: "_id", Value: typ}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return raw, err
}

func (q *Queue) readEntries(ctx context.Context, types []string) []combine.Answer[bson.Raw] {
	found, err := mongomany.Find(ctx, q.files, types, nil)
	if err != nil {
		return failed[bson.Raw](len(types), err)
	}
	answers := make([]combine.Answer[bson.Raw], len(types))
	for i, typ := range types {
		answers[i].Value = found[typ]
	}
	return answers
}

// insertEntry reports whether it inserted the entry; if not, there is one.
func (q *Queue) insertEntry(ctx context.Context, doc fileDoc) (bool, error) {
	_, err := q.files.InsertOne(ctx, doc)
	if isDuplicate(err) {
		return false, nil
	}
	return err == nil, err
}

func (q *Queue) insertEntries(ctx context.Context, docs []fileDoc) []combine.Answer[bool] {
	others, err := mongomany.Insert(ctx, q.files, docs)
	if err != nil {
		return failed[bool](len(docs), err)
	}
	answers := combine.All(len(docs), combine.Answer[bool]{Value: true})
	for i := range others {
		answers[i] = combine.Answer[bool]{Again: true}
	}
	return answers
}

// updateEntry reports whether the filter matched.
func (q *Queue) updateEntry(ctx context.Context, u mongomany.Update) (bool, error) {
	result, err := q.files.UpdateOne(ctx, u.Filter, u.Update)
	return err == nil && result.MatchedCount == 1, err
}

func (q *Queue) updateEntries(ctx context.Context, updates []mongomany.Update) []combine.Answer[bool] {
	matched, err := mongomany.UpdateAll(ctx, q.files, updates)
	if err != nil {
		return failed[bool](len(updates), err)
	}
	// rule: the answer has one number. It tells each caller that its own filter matched only if every filter did.
	if matched != len(updates) {
		return combine.All(len(updates), combine.Answer[bool]{Again: true})
	}
	return combine.All(len(updates), combine.Answer[bool]{Value: true})
}

func (q *Queue) deleteKeys(ctx context.Context, keys []string) (struct{}, error) {
	_, err := q.relaxed.DeleteMany(ctx, in(keys))
	return struct{}{}, err
}

func (q *Queue) deleteKeysOfMany(ctx context.Context, asked [][]string) []combine.Answer[struct{}] {
	var all []string
	for _, keys := range asked {
		all = append(all, keys...)
	}
	slices.Sort(all) // like the updates of mongomany.UpdateAll
	if _, err := q.deleteKeys(ctx, all); err != nil {
		return failed[struct{}](len(asked), err)
	}
	return make([]combine.Answer[struct{}], len(asked))
}
