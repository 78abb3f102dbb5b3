package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/fencepost/fencepost/internal/clock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// planned implements planStore on a server.
type planned struct{ *Queue }

// now is the clock that decides what is due: the stricter reading of clock.Server, so that nothing is promoted early.
func (q planned) now() time.Time { return q.clock.Agreed() }

var started = clock.Start()

// steady is the time since this process started, by a monotonic clock.
func (q planned) steady() time.Duration { return started.Elapsed() }

// planDoc is the plan as it is stored. Earlier versions of the program also read and replace it.
type planDoc struct {
	Version string `bson:"v"`
	Items   []struct {
		Key string `bson:"k"`
		As  string `bson:"as"`
	} `bson:"items"`
	Sequences []struct {
		Type     string `bson:"t"`
		Producer int64  `bson:"p"`
		N        int64  `bson:"n"`
		At       int64  `bson:"at"`   // ms
		Used     *int64 `bson:"used"` // ms
	} `bson:"seq"`
	Dead []struct {
		Key string `bson:"k"`
		Why string `bson:"why"`
	} `bson:"dead"`
	// rule: the letters of a plan belong to its version. Earlier versions of this program replace only the other
	// fields.
	DeadOf string `bson:"of"`
	Passed int64  `bson:"passed"` // ms
}

// fields returns all fields of the document but _id: an update sets them all, so nothing of the old plan remains.
func (p plan) fields() bson.D {
	items, sequences, dead := make(bson.A, 0, len(p.items)), make(bson.A, 0, len(p.sequences)), make(bson.A, 0, len(p.letters))
	for _, l := range p.letters {
		dead = append(dead, bson.D{{Key: "k", Value: slotKey(l.slot)}, {Key: "why", Value: l.why}})
	}
	for _, item := range p.items {
		items = append(items, bson.D{{Key: "k", Value: slotKey(item.slot)}, {Key: "as", Value: item.as.String()}})
	}
	for typ, s := range p.sequences {
		sequences = append(sequences, bson.D{{Key: "t", Value: typ}, {Key: "p", Value: int64(s.Producer)}, {Key: "n", Value: int64(s.N)}, {Key: "at", Value: s.At},
			{Key: "used", Value: s.Used}})
	}
	return bson.D{{Key: "v", Value: p.version}, {Key: "items", Value: items}, {Key: "seq", Value: sequences},
		{Key: "dead", Value: dead}, {Key: "of", Value: p.version}, {Key: "passed", Value: p.passed.Milliseconds()}}
}

var errPlan = errors.New("the document \"plan\" in the collection scheduled is damaged: delayed messages cannot be promoted; restore it, or remove it, " +
	"which may promote the last few hundred messages twice")

// readPlan implements planStore.
//
//	find {_id: "plan"} in scheduled; index: _id.
func (q planned) readPlan(ctx context.Context) (plan, bool, error) {
	raw, err := q.scheduled.write.FindOne(ctx, bson.D{{Key: "_id", Value: planKey}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return plan{}, false, nil
	}
	if err != nil {
		return plan{}, false, err
	}
	p, err := decodePlan(raw)
	return p, err == nil, err
}

// decodePlan decodes the plan strictly: promoting from a damaged plan could give one number to two messages.
func decodePlan(raw bson.Raw) (plan, error) {
	var doc planDoc
	if err := bson.Unmarshal(raw, &doc); err != nil {
		return plan{}, fmt.Errorf("%w: %w", errPlan, err)
	}
	p := plan{version: doc.Version, sequences: map[string]queuedriver.Sequence{}, passed: time.Duration(doc.Passed) * time.Millisecond}
	for _, item := range doc.Items {
		slot, ok := parseSlot(item.Key)
		id, err := queue.ParseID(item.As)
		if !ok || err != nil {
			return plan{}, errPlan
		}
		p.items = append(p.items, planItem{slot, id})
	}
	for _, s := range doc.Sequences {
		if s.Used == nil { // an earlier version has used it, possibly just now
			s.Used = &doc.Passed
		}
		p.sequences[s.Type] = queuedriver.Sequence{Producer: uint64(s.Producer), N: uint64(s.N), At: s.At, Used: *s.Used}
	}
	if p.version == "" || doc.Passed < 0 || doc.Passed > math.MaxInt64/int64(time.Millisecond) {
		return plan{}, errPlan
	}
	if doc.DeadOf != p.version {
		return p, nil
	}
	for _, l := range doc.Dead {
		slot, ok := parseSlot(l.Key)
		if !ok {
			return plan{}, errPlan
		}
		p.letters = append(p.letters, planLetter{slot, l.Why})
	}
	return p, nil
}

// createPlan implements planStore.
//
//	insertOne {_id: "plan", …} into scheduled, w: majority. Duplicate key: another process was first.
func (q planned) createPlan(ctx context.Context, p plan) error {
	_, err := q.scheduled.write.InsertOne(ctx, append(bson.D{{Key: "_id", Value: planKey}}, p.fields()...))
	if isDuplicate(err) {
		return nil
	}
	return err
}

// swapPlan implements planStore.
//
//	updateOne {_id: "plan", v: <version>} → {$set: {v, items, seq, dead, of, passed}}, w: majority; index: _id. Nothing matched: another process was first.
func (q planned) swapPlan(ctx context.Context, version string, p plan) (bool, error) {
	result, err := q.scheduled.write.UpdateOne(ctx, bson.D{{Key: "_id", Value: planKey}, {Key: "v", Value: version}}, bson.D{{Key: "$set", Value: p.fields()}})
	return err == nil && result.MatchedCount == 1, err
}

// dueUntil implements planStore.
//
//	find {_id: {$gte: "<the first slot that is not kept>", $lt: "<until + 1 ms>"}}, sort {_id: 1}; index: _id. Ends after 1000 documents
//	that cannot be promoted.
func (q planned) dueUntil(ctx context.Context, until time.Time, limit queue.Limit) (out []delayed, err error) {
	first, ok, err := q.firstDelayed(ctx)
	if err != nil || !ok || first.Type == "" || first.Due.After(until) {
		return nil, err
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: slotKey(first)}, {Key: "$lt", Value: dueKey(until.Add(time.Millisecond))}}}}
	var size int64
	passed := 0
	err = q.eachDelayed(ctx, filter, limit.Messages, func(d delayed, ok bool) bool {
		action, why := queuedriver.DecideDue(&d.Message, len(d.Payload))
		switch d.unfit = why; {
		case ok && d.cancelled: // is removed, whatever else it is
		case !ok, action == queuedriver.Keep, q.isKept(slotKey(queue.ScheduleKeyOf(&d.Message))):
			if ok && action == queuedriver.Keep {
				q.Queue.keep(slotKey(queue.ScheduleKeyOf(&d.Message)))
			}
			passed++
			return passed < keysPage // firstDelayed skips the rest, and reads keys only
		}
		out = append(out, d)
		size += int64(d.Size())
		return len(out) < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes)
	})
	return out, err
}

// keep implements planStore.
func (q planned) keep(slot queue.ScheduleKey) { q.Queue.keep(slotKey(slot)) }

// delayedAt implements planStore. See eachAt.
func (q planned) delayedAt(ctx context.Context, slots []queue.ScheduleKey) (out []delayed, err error) {
	err = q.eachAt(ctx, slots, func(d delayed) bool {
		out = append(out, d)
		return true
	})
	return out, err
}

// existing implements planStore.
//
//	find {_id: {$in: ["<slot>", …]}} → _id only, in scheduled; index: _id.
func (q planned) existing(ctx context.Context, slots []queue.ScheduleKey) (out []queue.ScheduleKey, err error) {
	cursor, err := q.scheduled.write.Find(ctx, in(slotKeys(slots)), options.Find().SetProjection(idOnly))
	if err != nil {
		return nil, err
	}
	err = eachKey(ctx, cursor, func(key string) {
		if slot, ok := parseSlot(key); ok {
			out = append(out, slot)
		}
	})
	return out, err
}

// settled implements planStore.
//
//	find {_id: {$in: ["settled/<ID>", …]}} → _id only, in scheduled; index: _id.
func (q planned) settled(ctx context.Context, ids []queue.ID) (map[queue.ID]bool, error) {
	found := map[queue.ID]bool{}
	if len(ids) == 0 {
		return found, nil
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = settledPrefix + id.String()
	}
	cursor, err := q.scheduled.write.Find(ctx, in(keys), options.Find().SetProjection(idOnly))
	if err != nil {
		return nil, err
	}
	err = eachKey(ctx, cursor, func(key string) {
		if id, err := queue.ParseID(strings.TrimPrefix(key, settledPrefix)); err == nil {
			found[id] = true
		}
	})
	return found, err
}

// settle implements planStore.
//
//	insert {_id: "settled/<ID>", passed} into scheduled, w: majority. Duplicate key: noted before.
func (q planned) settle(ctx context.Context, ids []queue.ID, passed time.Duration) error {
	docs := make([]document, len(ids))
	for i, id := range ids {
		key := settledPrefix + id.String()
		docs[i] = document{key: key, message: i, size: 64, body: bson.D{{Key: "_id", Value: key}, {Key: "passed", Value: passed.Milliseconds()}}}
	}
	return insert(ctx, q.scheduled, docs, func(err error) error { return err })
}

// cancel implements planStore.
//
//	updateMany {_id: {$in: ["<slot>", …]}} → {$set: {x: true}} in scheduled, w: majority; index: _id.
func (q planned) cancel(ctx context.Context, slots []queue.ScheduleKey) error {
	_, err := q.scheduled.write.UpdateMany(ctx, in(slotKeys(slots)), bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: true}}}})
	return err
}

// publish implements planStore: it inserts, and registers the type once per process, as a publisher does.
func (q planned) publish(ctx context.Context, typ string, msgs []queue.Message) error {
	err := q.Insert(ctx, typ, msgs)
	if stored, _, refused := refusedDocument(err); err != nil && (!refused || stored == 0) {
		return err
	}
	q.mu.Lock()
	q.gotMessages[typ] = true
	q.mu.Unlock()
	q.registerOnce(ctx, typ)
	return err
}

// takes implements planStore.
//
//	insertOne {_id: "~probe", …} into messages, w: majority. Duplicate key: also accepted, and not removed yet. Then deleteOne.
func (q planned) takes(ctx context.Context, m *queue.Message) (bool, error) {
	docs := documents("", []queue.Message{*m})
	docs[0].key, docs[0].body[0].Value = probeKey, probeKey
	err := insert(ctx, q.store, docs, func(err error) error { return q.explain(ctx, "try what the server takes", err) })
	if _, _, refused := refusedDocument(err); refused {
		return false, nil
	}
	if err == nil {
		err = q.delete(ctx, []string{probeKey})
	}
	return err == nil, err
}

// bury implements planStore. Any refusal counts as a refusal of the document: a refused letter stays where it is, so
// it need not be certain which document the server means.
func (q planned) bury(ctx context.Context, typ string, letters []queue.DeadLetter) error {
	letters, err := queuedriver.CheckDeadLetters(typ, letters, q.now())
	if err != nil {
		return err
	}
	err = q.storeLetters(ctx, typ, letters)
	var ie *queue.InsertError
	if errors.Is(err, driver.ErrDocumentTooLarge) || errors.As(err, &ie) && ie.Refused && !ie.Temporary && errors.Is(err, queue.ErrUnsupported) {
		return &queue.InsertError{Refused: true, Err: &documentError{why: err.Error(), err: err}}
	}
	return err
}

// remove implements planStore.
//
//	deleteMany {_id: {$in: ["<slot>", …]}} in scheduled, w: majority; index: _id. If it is interrupted, the rest is removed later: it is
//	still in the plan, or marked as cancelled.
func (q planned) remove(ctx context.Context, slots []queue.ScheduleKey) error {
	if len(slots) == 0 {
		return nil
	}
	_, err := q.scheduled.write.DeleteMany(ctx, in(slotKeys(slots)))
	return err
}

// forget implements planStore. It ignores errors: the next call tries again.
//
//	deleteMany {_id: {$gt: "settled/", $lt: "settled/<a day ago>"}, passed: {$not: {$gte: before}}} in scheduled; index: _id. The bound on the ID
//	only saves the server from reading most of them; it is never a reason to remove one.
func (q planned) forget(ctx context.Context, before time.Duration) {
	q.mu.Lock()
	due := before > 0 && time.Since(q.forgot) > forgetEvery
	if due {
		q.forgot = time.Now()
	}
	q.mu.Unlock()
	if !due {
		return
	}
	filter := keyRange(settledPrefix, settledPrefix+queue.NewID(q.now().Add(-queuedriver.SettledFor), 0, 0).String())
	young := bson.D{{Key: "$gte", Value: before.Milliseconds()}}
	_, _ = q.scheduled.write.DeleteMany(ctx, append(filter, bson.E{Key: "passed", Value: bson.D{{Key: "$not", Value: young}}}))
}
