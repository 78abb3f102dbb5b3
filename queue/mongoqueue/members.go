package mongoqueue

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// memberDoc is a document of workers.
type memberDoc struct {
	ID       string    `bson:"_id"`
	Host     string    `bson:"host"`
	PID      int64     `bson:"pid"`
	Version  string    `bson:"version"`
	Started  time.Time `bson:"started"`
	Types    []string  `bson:"types"`
	MaxTypes int64     `bson:"max_types"`
	To       string    `bson:"to"`
	Held     []string  `bson:"held"`
	Idle     []string  `bson:"idle"`
	Leaving  []string  `bson:"leaving"`
	Stopping bool      `bson:"stopping"`
	// A list rather than a document, because types may contain dots, which field names should not.
	Errors []memberError `bson:"errors"`
	Beat   int64         `bson:"beat"`
	Seen   time.Time     `bson:"seen"`
}

type memberError struct {
	Type  string `bson:"type"`
	Error string `bson:"error"`
}

// Heartbeat implements queue.Queue.
//
//	updateOne {_id: "<ID>"} → {$set: {all fields}} in workers, w: 1; index: _id. Nothing matched: it is the first heartbeat, and insertOne. Then
//	hello, for the server's clock; an error there is harmless: the next heartbeat reads it again.
func (q *Queue) Heartbeat(ctx context.Context, m queue.Member) error {
	m, err := queuedriver.CheckHeartbeat(m, q.now())
	if err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return err
	}
	doc := encodeMember(m)
	if err = setFields(ctx, q.workers, m.Instance, doc.fields()); err == nil {
		_, _ = q.readClock(ctx)
	}
	return q.explain(ctx, "heartbeat of "+m.Instance, err)
}

// encodeMember sorts the errors by type, so that equal members have equal documents.
func encodeMember(m queue.Member) memberDoc {
	doc := memberDoc{ID: m.Instance, Host: m.Host, PID: int64(m.PID), Version: m.Version, Started: m.Started, Types: m.Types, MaxTypes: int64(m.MaxTypes), To: m.To,
		Held: m.Held, Idle: m.Idle, Leaving: m.Leaving, Stopping: m.Stopping, Beat: m.Beat, Seen: m.Seen}
	for _, typ := range slices.Sorted(maps.Keys(m.Errors)) {
		doc.Errors = append(doc.Errors, memberError{typ, m.Errors[typ]})
	}
	return doc
}

// fields returns all fields but _id.
func (d *memberDoc) fields() bson.D {
	return bson.D{{Key: "host", Value: d.Host}, {Key: "pid", Value: d.PID}, {Key: "version", Value: d.Version}, {Key: "started", Value: d.Started},
		{Key: "types", Value: d.Types}, {Key: "max_types", Value: d.MaxTypes}, {Key: "to", Value: d.To}, {Key: "held", Value: d.Held}, {Key: "idle", Value: d.Idle},
		{Key: "leaving", Value: d.Leaving}, {Key: "stopping", Value: d.Stopping}, {Key: "errors", Value: d.Errors},
		{Key: "beat", Value: d.Beat}, {Key: "seen", Value: d.Seen}}
}

// Members implements queue.Queue.
//
//	find {_id: {$gt: "<after>", $lt: membersEnd}} in workers, in the order of _id, limit: most; index: _id. A document that cannot be decoded is skipped:
//	another find fills its place.
func (q *Queue) Members(ctx context.Context, after string, most int) (all []queue.Member, err error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	for more := true; more; {
		if all, after, more, err = q.moreMembers(ctx, all, after, most); err != nil {
			return nil, q.explain(ctx, "list the members", err)
		}
	}
	return all, nil
}

// membersEnd sorts after all IDs of members: the highest character, repeated beyond the longest
// possible ID. A find with only one bound may read everything (decision 0306).
var membersEnd = strings.Repeat("\U0010ffff", queuedriver.MaxMemberID/4+1)

// moreMembers appends members after the given ID to all, with one find. last is where to continue, if
// there may be more.
func (q *Queue) moreMembers(ctx context.Context, all []queue.Member, after string, most int) (_ []queue.Member, last string, more bool, err error) {
	missing := max(most-len(all), 0)
	cursor, err := q.workers.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: membersEnd}}}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(missing)))
	if err != nil {
		return nil, "", false, err
	}
	defer cursor.Close(ctx)
	read := 0
	for ; cursor.Next(ctx); read++ {
		last = cursor.Current.Lookup("_id").StringValue() // a string, like both bounds
		if m, ok := decodeMember(cursor.Current); ok {
			all = append(all, m)
		}
	}
	return all, last, most > len(all) && read == missing, cursor.Err()
}

func decodeMember(raw bson.Raw) (m queue.Member, ok bool) {
	var d memberDoc
	if bson.Unmarshal(raw, &d) != nil {
		return m, false
	}
	var errs map[string]string
	for _, e := range d.Errors {
		if errs == nil {
			errs = make(map[string]string, len(d.Errors))
		}
		errs[e.Type] = e.Error
	}
	return queue.Member{Instance: d.ID, Host: d.Host, PID: int(d.PID), Version: d.Version, Started: d.Started, Types: d.Types, MaxTypes: int(d.MaxTypes), To: d.To,
		Held: d.Held, Idle: d.Idle, Leaving: d.Leaving, Stopping: d.Stopping, Errors: errs, Beat: d.Beat, Seen: d.Seen}, true
}

// Leave implements queue.Queue.
//
//	deleteOne {_id: "<ID>"} in workers, w: 1; index: _id. Nothing deleted: it was gone.
func (q *Queue) Leave(ctx context.Context, id string) error {
	if err := q.enter(ctx); err != nil {
		return err
	}
	_, err := q.workers.DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
	return q.explain(ctx, "leave of "+id, err)
}
