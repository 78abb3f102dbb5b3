package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
)

// The collection scheduled, with no index but the one on _id:
//
//	{_id: "<due, 15 digits of ms>/<type>/<ID>", b, h?}       a delayed message, or {…, p, s, h?} its head; x: true: cancelled
//	{_id: "#<due>/<type>/<ID>+<k>", b}                       a piece of a large one
//	{_id: "plan", v, items: [{k, as}], seq: [{t, p, n, at}]} the plan, see promote.go
//	{_id: "settled/<ID>"}                                    promoted or cancelled lately, see queue.SettledFor
const (
	slotFrom      = "0" // all slots lie between these
	slotTo        = ":"
	planKey       = "plan"
	settledPrefix = "settled/"

	tidyEvery   = 10 * time.Minute
	plannedMost = 500 // messages of one plan: its document stays below 100 KiB
)

func slotKey(s queue.Slot) string {
	return dueKey(s.Due) + "/" + s.Type + "/" + s.ID.String()
}

func dueKey(due time.Time) string { return fmt.Sprintf("%015d", due.UnixMilli()) }

func slotPieceKeys(s queue.Slot, pieces int) []string {
	keys := make([]string, 0, pieces)
	for k := 1; k <= pieces; k++ {
		keys = append(keys, pieceSeparator+slotKey(s)+"+"+string(rune('0'+k)))
	}
	return keys
}

// parseSlot reads a key; ok is false if it is no slot, or one that no message may have.
func parseSlot(key string) (s queue.Slot, ok bool) {
	due, rest, _ := strings.Cut(key, "/")
	typ, id, ok := strings.Cut(rest, "/")
	ms, err := strconv.ParseUint(due, 10, 48)
	if !ok || err != nil || len(due) != 15 || queue.ValidateType(typ) != nil {
		return s, false
	}
	s = queue.Slot{Due: time.UnixMilli(int64(ms)), Type: typ}
	s.ID, err = queue.ParseID(id)
	return s, err == nil && !s.ID.IsZero()
}

// Delay implements queue.Queue.
//
//	insert into scheduled, as Insert does into messages: ordered, w: majority; duplicate key: it landed before.
//
// What landed before and was promoted meanwhile lands once more. Promote knows it by its note (settled/…) and removes it.
func (q *Queue) Delay(ctx context.Context, msgs []queue.Message) error {
	msgs, err := queue.CheckDelay(msgs)
	if err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return &queue.InsertError{Refused: true, Err: err}
	}
	var docs []document
	for i := range msgs {
		m := &msgs[i]
		head, k := headKey(m.Type, m.ID), 0
		for _, d := range documents(m.Type, msgs[i:i+1]) {
			if d.message = i; d.key == head {
				d.key = slotKey(queue.SlotOf(m))
			} else {
				k++
				d.key = slotPieceKeys(queue.SlotOf(m), k)[k-1]
			}
			d.body[0].Value = d.key
			docs = append(docs, d)
		}
	}
	return insert(ctx, q.scheduled, docs, func(err error) error { return q.explain(ctx, "delay messages", err) })
}

// Promote implements queue.Queue. See promote.go for the protocol and planned for its operations.
func (q *Queue) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	if err := queue.CheckPromote(limit); err != nil {
		return queue.Promotion{}, err
	}
	limit.Messages = min(limit.Messages, plannedMost)
	var p queue.Promotion
	next, ok, err := q.NextDue(ctx)
	if p.Now = q.now(); err == nil && ok && !next.After(p.Now) {
		q.tidy(ctx)
		if p.Messages, err = q.promoter.promote(ctx, limit); err != nil {
			return queue.Promotion{}, q.explain(ctx, "promote delayed messages", err)
		}
		next, _, err = q.NextDue(ctx)
		p.Now = q.now()
	}
	p.Next = next
	return p, err
}

// NextDue implements queue.Queue.
//
//	find {_id: {$gt: "0", $lt: ":"}} → _id only, sort {_id: 1}, limit 1; index: _id, one key. Keys that are no slots are passed over.
func (q *Queue) NextDue(ctx context.Context) (time.Time, bool, error) {
	if err := q.enter(ctx); err != nil {
		return time.Time{}, false, err
	}
	for from := slotFrom; ; {
		key, err := firstKey(ctx, q.scheduled.write, keyRange(from, slotTo))
		if err != nil {
			return time.Time{}, false, q.explain(ctx, "look for delayed messages", err)
		}
		if key == "" {
			return time.Time{}, false, nil
		}
		if s, ok := parseSlot(key); ok {
			return s.Due, true, nil
		}
		from = key
	}
}

// Delayed implements queue.Queue.
//
//	find {_id: {$gt: "<slot>", $lt: ":"}}, sort {_id: 1}; index: _id.
func (q *Queue) Delayed(ctx context.Context, after queue.Slot, limit queue.Limit) ([]queue.Message, error) {
	if err := queue.CheckPromote(limit); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	from := slotFrom
	if after != (queue.Slot{}) {
		from = slotKey(after)
	}
	var out []queue.Message
	var size int64
	err := q.eachDelayed(ctx, keyRange(from, slotTo), limit.Messages, func(d delayed) bool {
		if !d.cancelled {
			out = append(out, d.Message)
			size += int64(len(d.Payload))
		}
		return len(out) < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes)
	})
	if err != nil {
		return nil, q.explain(ctx, "list delayed messages", err)
	}
	return out, nil
}

// CancelDelayed implements queue.Queue. See promote.go.
func (q *Queue) CancelDelayed(ctx context.Context, slots []queue.Slot) (cancelled int, err error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	for len(slots) > 0 {
		n := min(len(slots), plannedMost)
		done, err := q.promoter.cancel(ctx, slots[:n])
		cancelled += done
		if err != nil {
			return cancelled, q.explain(ctx, "cancel delayed messages", err)
		}
		slots = slots[n:]
	}
	return cancelled, nil
}

// planned is the planStore of a server.
type planned struct{ *Queue }

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
		At       int64  `bson:"at"` // ms
	} `bson:"seq"`
}

func (p plan) fields() bson.D {
	items, sequences := make(bson.A, 0, len(p.items)), make(bson.A, 0, len(p.sequences))
	for _, item := range p.items {
		items = append(items, bson.D{{Key: "k", Value: slotKey(item.slot)}, {Key: "as", Value: item.as.String()}})
	}
	for typ, s := range p.sequences {
		sequences = append(sequences, bson.D{{Key: "t", Value: typ}, {Key: "p", Value: int64(s.Producer)}, {Key: "n", Value: int64(s.N)}, {Key: "at", Value: s.At}})
	}
	return bson.D{{Key: "v", Value: p.version}, {Key: "items", Value: items}, {Key: "seq", Value: sequences}}
}

var errPlan = errors.New("the document \"plan\" in the collection scheduled is damaged: delayed messages cannot be promoted; restore it, or remove it, " +
	"which may promote the last few hundred messages twice")

// readPlan implements planStore.
//
//	find {_id: "plan"} in scheduled; index: _id.
func (q planned) readPlan(ctx context.Context) (plan, bool, error) {
	var doc planDoc
	err := q.scheduled.write.FindOne(ctx, bson.D{{Key: "_id", Value: planKey}}).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return plan{}, false, nil
	}
	if err != nil {
		return plan{}, false, err
	}
	p := plan{version: doc.Version, sequences: map[string]queue.Sequence{}}
	for _, item := range doc.Items {
		slot, ok := parseSlot(item.Key)
		id, err := queue.ParseID(item.As)
		if !ok || err != nil {
			return plan{}, false, errPlan
		}
		p.items = append(p.items, planItem{slot, id})
	}
	for _, s := range doc.Sequences {
		p.sequences[s.Type] = queue.Sequence{Producer: uint64(s.Producer), N: uint64(s.N), At: s.At}
	}
	if p.version == "" {
		return plan{}, false, errPlan
	}
	return p, true, nil
}

// createPlan implements planStore.
//
//	insertOne {_id: "plan", …} into scheduled, w: majority. Duplicate key: somebody was first.
func (q planned) createPlan(ctx context.Context, p plan) error {
	_, err := q.scheduled.write.InsertOne(ctx, append(bson.D{{Key: "_id", Value: planKey}}, p.fields()...))
	if isDuplicate(err) {
		return nil
	}
	return err
}

// swapPlan implements planStore.
//
//	updateOne {_id: "plan", v: <version>} → {$set: {v, items, seq}}, w: majority; index: _id. Nothing matched: somebody was first.
func (q planned) swapPlan(ctx context.Context, version string, p plan) (bool, error) {
	result, err := q.scheduled.write.UpdateOne(ctx, bson.D{{Key: "_id", Value: planKey}, {Key: "v", Value: version}}, bson.D{{Key: "$set", Value: p.fields()}})
	return err == nil && result.MatchedCount == 1, err
}

// dueUntil implements planStore.
//
//	find {_id: {$gt: "0", $lt: "<until + 1 ms>"}}, sort {_id: 1}; index: _id.
func (q planned) dueUntil(ctx context.Context, until time.Time, limit queue.Limit) (out []delayed, err error) {
	var size int64
	err = q.eachDelayed(ctx, keyRange(slotFrom, dueKey(until.Add(time.Millisecond))), limit.Messages, func(d delayed) bool {
		// What cannot be read whole, or is too large for any file, stays where it is, and holds nobody up.
		if check := d.Message; d.Incomplete || check.Validate() != nil {
			return true
		}
		out = append(out, d)
		size += int64(len(d.Payload))
		return len(out) < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes)
	})
	return out, err
}

// delayedAt implements planStore.
//
//	find {_id: {$in: ["<slot>", …], $gte: the first, $lte: the last}}, sort {_id: 1}; index: _id.
func (q planned) delayedAt(ctx context.Context, slots []queue.Slot) (out []delayed, err error) {
	if len(slots) == 0 {
		return nil, nil
	}
	keys := make([]string, len(slots))
	for i, s := range slots {
		keys[i] = slotKey(s)
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}, {Key: "$gte", Value: slices.Min(keys)}, {Key: "$lte", Value: slices.Max(keys)}}}}
	err = q.eachDelayed(ctx, filter, len(keys), func(d delayed) bool {
		out = append(out, d)
		return true
	})
	return out, err
}

// eachDelayed calls f with the delayed messages that filter matches, in order, until it returns false. Documents that are none of ours are
// passed over.
func (q *Queue) eachDelayed(ctx context.Context, filter bson.D, batch int, f func(delayed) bool) error {
	cursor, err := q.scheduled.write.Find(ctx, filter, options.Find().SetSort(byKey).SetBatchSize(int32(min(batch, deadBatch))))
	if err != nil {
		return err
	}
	defer cursor.Close(ctx)
	for cursor.Next(ctx) {
		var slot queue.Slot
		h, ok := decodeDocument(cursor.Current, func(key string) (ok bool) {
			slot, ok = parseSlot(key)
			return ok
		})
		if !ok {
			continue
		}
		h.Type, h.ID, h.Due = slot.Type, slot.ID, slot.Due
		if h.pieces > 0 && !h.Incomplete {
			if err := assembleOf(ctx, q.scheduled.write, &h, slotPieceKeys(slot, h.pieces)); err != nil {
				return err
			}
		}
		if h.Incomplete {
			h.Payload, h.Headers = nil, nil
		}
		d := delayed{Message: h.Message}
		d.cancelled, _ = cursor.Current.Lookup("x").BooleanOK()
		if !f(d) {
			return nil
		}
	}
	return cursor.Err()
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
//	insert {_id: "settled/<ID>"} into scheduled, w: majority. Duplicate key: noted before.
func (q planned) settle(ctx context.Context, ids []queue.ID) error {
	docs := make([]document, len(ids))
	for i, id := range ids {
		key := settledPrefix + id.String()
		docs[i] = document{key: key, message: i, size: 64, body: bson.D{{Key: "_id", Value: key}}}
	}
	return insert(ctx, q.scheduled, docs, func(err error) error { return err })
}

// cancel implements planStore.
//
//	updateMany {_id: {$in: ["<slot>", …]}} → {$set: {x: true}} in scheduled, w: majority; index: _id.
func (q planned) cancel(ctx context.Context, slots []queue.Slot) error {
	keys := make([]string, len(slots))
	for i, s := range slots {
		keys[i] = slotKey(s)
	}
	_, err := q.scheduled.write.UpdateMany(ctx, in(keys), bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: true}}}})
	return err
}

// publish implements planStore: Insert, and the type is registered, once per process, as a publisher does.
func (q planned) publish(ctx context.Context, typ string, msgs []queue.Message) error {
	if err := q.Insert(ctx, typ, msgs); err != nil {
		return err
	}
	q.mu.Lock()
	known := q.promotedTypes[typ]
	q.mu.Unlock()
	if !known && q.RegisterType(ctx, typ) == nil {
		q.mu.Lock()
		q.promotedTypes[typ] = true
		q.mu.Unlock()
	}
	return nil
}

// remove implements planStore.
//
//	deleteMany {_id: {$in: ["<slot>", …]}} and then deleteMany of their pieces in scheduled, w: majority; index: _id. A head without its
//	pieces would never be whole again; pieces without a head are removed a day later.
func (q planned) remove(ctx context.Context, slots []queue.Slot) error {
	if len(slots) == 0 {
		return nil
	}
	heads := make([]string, len(slots))
	for i, s := range slots {
		heads[i] = slotKey(s)
	}
	large := append(in(heads), bson.E{Key: "p", Value: bson.D{{Key: "$gt", Value: 0}}})
	cursor, err := q.scheduled.write.Find(ctx, large, options.Find().SetProjection(bson.D{{Key: "p", Value: 1}}))
	if err != nil {
		return err
	}
	defer cursor.Close(ctx)
	var pieces []string
	for cursor.Next(ctx) {
		key, _ := cursor.Current.Lookup("_id").StringValueOK()
		if n, isInt := cursor.Current.Lookup("p").AsInt64OK(); isInt && n < 10 {
			if s, ok := parseSlot(key); ok {
				pieces = append(pieces, slotPieceKeys(s, int(n))...)
			}
		}
	}
	if err := cursor.Err(); err != nil {
		return err
	}
	if _, err := q.scheduled.write.DeleteMany(ctx, in(heads)); err != nil {
		return err
	}
	if len(pieces) > 0 {
		_, err = q.scheduled.write.DeleteMany(ctx, in(pieces))
	}
	return err
}

// tidy removes, now and then, notes that are old enough, and pieces without a head. An error is no matter: there is a next time.
//
//	deleteMany {_id: {$gt: "settled/", $lt: "settled/<25 hours ago>"}} in scheduled; index: _id.
//	find {_id: {$gt: "#", $lt: "#<a day ago>"}} → _id only, sort {_id: 1}, limit 100; then find {_id: {$in: heads}} → _id only, and
//	deleteMany of those whose head is missing.
func (q *Queue) tidy(ctx context.Context) {
	q.mu.Lock()
	due := time.Since(q.tidied) > tidyEvery
	if due {
		q.tidied = time.Now()
	}
	q.mu.Unlock()
	if !due {
		return
	}
	old := queue.NewID(q.now().Add(-queue.SettledFor-time.Hour), 0, 0)
	_, _ = q.scheduled.write.DeleteMany(ctx, keyRange(settledPrefix, settledPrefix+old.String()))
	cursor, err := q.scheduled.write.Find(ctx, keyRange(pieceSeparator, pieceSeparator+dueKey(q.now().Add(-orphanPieces))),
		options.Find().SetProjection(idOnly).SetSort(byKey).SetLimit(sweepLimit))
	if err != nil {
		return
	}
	orphans := map[string][]string{} // by head
	var heads []string
	err = eachKey(ctx, cursor, func(key string) {
		head, _, _ := strings.Cut(key[1:], "+")
		orphans[head] = append(orphans[head], key)
		heads = append(heads, head)
	})
	if err != nil || len(heads) == 0 {
		return
	}
	if cursor, err = q.scheduled.write.Find(ctx, in(heads), options.Find().SetProjection(idOnly)); err != nil {
		return
	}
	if err := eachKey(ctx, cursor, func(key string) { delete(orphans, key) }); err != nil {
		return
	}
	for _, keys := range orphans {
		_, _ = q.scheduled.write.DeleteMany(ctx, in(keys))
	}
}
