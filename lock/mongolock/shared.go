package mongolock

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/internal/combine"
	"github.com/fencepost/fencepost/internal/distance"
	"github.com/fencepost/fencepost/internal/mongomany"
	"github.com/fencepost/fencepost/lock"
)

// Operations on different locks that wait concurrently share a command: see docs/decisions/0020. The answer to an update with
// several statements is one number, how many matched. The versions in the records then show which ones did: each operation
// writes its own. Renewals have their own batches and wait for none of these.
const (
	sharedMost = 32 // reads, or new records, per command
	// Updates per command. A server may run the command as one transaction, which keeps all the records locked until the last update.
	sharedUpdates = 8
	gateWidth     = 1 // commands in flight before calls are combined
)

// request is an operation on one lock for an exclusive hold.
type request struct {
	name  string
	hold  lock.Hold
	v     lock.Version
	floor int64 // of Confirm
}

// grant is the answer to a request.
type grant struct {
	token int64
	ok    bool
}

// shared has the operations that share commands.
type shared struct {
	reads    *combine.Combiner[string, bson.Raw]
	creates  *combine.Combiner[request, bool]
	acquires *combine.Combiner[request, grant]
	confirms *combine.Combiner[request, grant]
	releases *combine.Combiner[request, bool]
}

func newShared(s *store, far *distance.Meter) shared {
	gate := combine.NewGate(gateWidth, far.RoundTrip)
	return shared{
		reads:    combine.New(gate, combine.Options[string, bson.Raw]{One: s.readOne, Many: s.readMany, Most: sharedMost}),
		creates:  combine.New(gate, combine.Options[request, bool]{One: s.createOne, Many: s.createMany, Most: sharedMost}),
		acquires: combine.New(gate, combine.Options[request, grant]{One: s.acquireOne, Many: s.acquireMany, Settle: s.confirmOne, Most: sharedUpdates}),
		confirms: combine.New(gate, combine.Options[request, grant]{One: s.confirmOne, Many: s.confirmMany, Most: sharedUpdates}),
		releases: combine.New(gate, combine.Options[request, bool]{One: s.releaseOne, Many: s.releaseMany, Most: sharedUpdates}),
	}
}

// readOne returns the document of name, nil if there is none.
func (s *store) readOne(ctx context.Context, name string) (bson.Raw, error) {
	raw, err := s.locks.FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return raw, err
}

func (s *store) readMany(ctx context.Context, names []string) []combine.Answer[bson.Raw] {
	docs, err := mongomany.Find(ctx, s.locks, names, nil)
	if err != nil {
		return combine.All(len(names), combine.Answer[bson.Raw]{Err: err})
	}
	answers := make([]combine.Answer[bson.Raw], len(names))
	for i, name := range names {
		answers[i].Value = docs[name]
	}
	return answers
}

func (s *store) createOne(ctx context.Context, r request) (bool, error) {
	_, err := s.locks.InsertOne(ctx, created(r.name, r.hold, r.v))
	if mongo.IsDuplicateKeyError(err) {
		return false, nil
	}
	return err == nil, err
}

// createMany: one insert command; the answer names the documents that were not inserted.
func (s *store) createMany(ctx context.Context, requests []request) []combine.Answer[bool] {
	docs := make([]any, len(requests))
	for i, r := range requests {
		docs[i] = created(r.name, r.hold, r.v)
	}
	failed, err := mongomany.Insert(ctx, s.locks, docs)
	if err != nil {
		return combine.All(len(requests), combine.Answer[bool]{Err: err})
	}
	answers := combine.All(len(requests), combine.Answer[bool]{Value: true})
	for i, err := range failed {
		answers[i] = combine.Answer[bool]{}
		if !mongo.IsDuplicateKeyError(err) {
			answers[i].Err = err
		}
	}
	return answers
}

func (s *store) acquireOne(ctx context.Context, r request) (grant, error) {
	return s.granted(ctx, acquiring(r.name, r.hold), take(r.hold, r.v))
}

func (s *store) acquireMany(ctx context.Context, requests []request) []combine.Answer[grant] {
	return s.grantMany(ctx, requests, func(r request) (filter, update bson.D) { return acquiring(r.name, r.hold), take(r.hold, r.v) })
}

func (s *store) confirmOne(ctx context.Context, r request) (grant, error) {
	return s.granted(ctx, mine(r.name, r.hold), raise(r))
}

func (s *store) confirmMany(ctx context.Context, requests []request) []combine.Answer[grant] {
	return s.grantMany(ctx, requests, func(r request) (filter, update bson.D) { return mine(r.name, r.hold), raise(r) })
}

// acquiring is the filter of Acquire.
func acquiring(name string, h lock.Hold) bson.D { return and(name, is("h", nil), room(h), turn(h)) }

// raise is the update of Confirm for an exclusive hold.
func raise(r request) bson.D {
	return append(touch(r.hold, r.v), bson.E{Key: "$max", Value: is("token", r.floor+1)})
}

// granted is update without explain.
func (s *store) granted(ctx context.Context, filter, update bson.D) (grant, error) {
	d, ok, err := s.found(ctx, filter, update, is("token", 1))
	return grant{d.Token, ok}, err
}

// grantMany: one update command with a statement for each; then, unless none matched, find {_id: one of the names} for the tokens.
func (s *store) grantMany(ctx context.Context, requests []request, statement func(request) (filter, update bson.D)) []combine.Answer[grant] {
	matched, err := s.updateMany(ctx, requests, statement)
	if err != nil && !isWriteError(err) {
		return combine.All(len(requests), combine.Answer[grant]{Err: err})
	}
	answers := make([]combine.Answer[grant], len(requests))
	written, docs := 0, map[string]document(nil)
	if err == nil && matched > 0 {
		docs, err = s.written(ctx, requests)
	}
	for i, r := range requests {
		// rule: a token belongs to the hold only in a record that has this hold.
		if d := docs[r.name]; isWrittenBy(d, r) && d.Hold != nil && d.Hold.ID == bson.ObjectID(r.hold.ID) && d.Token > r.floor {
			answers[i].Value = grant{d.Token, true}
			written++
		}
	}
	// rule: the records identify the granted requests only if they show as many grants as the server has counted. Otherwise each request
	// is confirmed by a write bound to its hold.
	if err != nil || written != matched {
		return combine.All(len(requests), combine.Answer[grant]{Again: true})
	}
	return answers
}

// written reads the records of requests after a command that has changed some of them: a record that has the version of its request
// was changed by it. A record that was changed again since does not show that, nor does a stale read.
func (s *store) written(ctx context.Context, requests []request) (map[string]document, error) {
	names := make([]string, len(requests))
	for i, r := range requests {
		names[i] = r.name
	}
	docs, err := mongomany.Find(ctx, s.locks, names, bson.D{{Key: "v", Value: 1}, {Key: "h.id", Value: 1}, {Key: "token", Value: 1}})
	found := make(map[string]document, len(docs))
	for name, raw := range docs {
		var d document
		if bson.Unmarshal(raw, &d) == nil {
			found[name] = d
		}
	}
	return found, err
}

// isWrittenBy reports whether a record is unchanged since a request wrote it. rule: by the version, which is new for every request. The
// hold may come from an earlier try.
func isWrittenBy(d document, r request) bool { return d.Version == bson.ObjectID(r.v) }

// updateMany sends one update command with a statement for each request, and returns how many matched. Each is for a different lock
// or hold, so each matches at most one document.
func (s *store) updateMany(ctx context.Context, requests []request, statement func(request) (filter, update bson.D)) (matched int, err error) {
	updates := make([]mongomany.Update, len(requests))
	for i, r := range requests {
		updates[i].ID = r.name
		updates[i].Filter, updates[i].Update = statement(r)
	}
	return mongomany.UpdateAll(ctx, s.locks, updates)
}

// isWriteError reports whether the server has answered that some of the statements failed, or are not acknowledged by a majority.
func isWriteError(err error) bool {
	var write mongo.BulkWriteException
	return errors.As(err, &write)
}

func (s *store) releaseOne(ctx context.Context, r request) (bool, error) {
	res, err := s.locks.UpdateOne(ctx, mine(r.name, r.hold), remove(r.hold, r.v))
	return err == nil && res.MatchedCount == 1, err
}

var errReleaseUnclear = errors.New("it was released together with other locks, and the answer does not tell which of them were held")

// releaseMany: one update command with a statement for each; if only some matched, find {_id: one of the names}.
func (s *store) releaseMany(ctx context.Context, requests []request) []combine.Answer[bool] {
	matched, err := s.updateMany(ctx, requests, func(r request) (filter, update bson.D) { return mine(r.name, r.hold), remove(r.hold, r.v) })
	if err != nil {
		return combine.All(len(requests), combine.Answer[bool]{Err: err})
	}
	if matched == len(requests) || matched == 0 {
		return combine.All(len(requests), combine.Answer[bool]{Value: matched > 0})
	}
	answers := combine.All(len(requests), combine.Answer[bool]{})
	docs, err := s.written(ctx, requests)
	written := 0
	for i, r := range requests {
		if isWrittenBy(docs[r.name], r) {
			answers[i].Value = true
			written++
		}
	}
	for i := range answers {
		// rule: a request counts as not having held the lock only if the records show every release that the server has counted. Otherwise
		// its record may have been written again since.
		if !answers[i].Value && (err != nil || written != matched) {
			answers[i].Err = errReleaseUnclear
		}
	}
	return answers
}
