package mongoqueue

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// The collection scheduled, with no index but the one on _id:
//
//	{_id: "<due, 15 digits of ms>/<type>/<ID>", b, h?}       a delayed message; x: true: cancelled
//	{_id: "plan", v, items: [{k, as}], seq: [{t, p, n, at, used?}], dead: [{k, why}], of, passed?} the plan, see promote.go; dead is valid only if of = v
//	{_id: "settled/<ID>", passed?}                           recently promoted or cancelled, see queuedriver.SettledFor; earlier versions record no time
const (
	slotFrom      = "0"               // all slots lie between these
	slotTo        = "281474976710656" // the millisecond after queue.MaxDue
	planKey       = "plan"
	settledPrefix = "settled/"

	forgetEvery = time.Hour
	plannedMost = 500 // messages of one plan: its document stays below 100 KiB and 150 bytes per type of the last day; below 400 KiB if none can be promoted

	// probeKey sorts after the keys of all types, so it is never fetched.
	probeKey = "~probe"

	// keptFor is how long a message that cannot be promoted is skipped before it is read again: an operator may have repaired it.
	keptFor  = time.Minute
	keptMost = 100_000 // messages that are remembered for that
)

// slotKey is the _id of a delayed message: its ScheduleKey, encoded so that the keys sort like the messages.
func slotKey(s queue.ScheduleKey) string {
	return dueKey(s.Due) + "/" + s.Type + "/" + s.ID.String()
}

// dueKey is the prefix of the _id of everything due at that time. All times have the same number of digits, so they sort as text.
func dueKey(due time.Time) string { return fmt.Sprintf("%015d", due.UnixMilli()) }

func slotKeys(slots []queue.ScheduleKey) []string {
	keys := make([]string, len(slots))
	for i, s := range slots {
		keys[i] = slotKey(s)
	}
	return keys
}

// parseSlot parses the key of a delayed message; ok is false if it is not one. It does not decide
// whether the message can be promoted, see queuedriver.DecideDue.
func parseSlot(key string) (s queue.ScheduleKey, ok bool) {
	due, rest, _ := strings.Cut(key, "/")
	end := max(len(rest)-queue.IDLen-1, 0)
	ms, err := strconv.ParseUint(due, 10, 48)
	if err != nil || !strings.HasPrefix(rest[end:], "/") {
		return s, false
	}
	s = queue.ScheduleKey{Due: time.UnixMilli(int64(ms)), Type: rest[:end]}
	s.ID, err = queue.ParseID(rest[end+1:])
	return s, err == nil && slotKey(s) == key
}

// Delay implements queue.Queue.
//
//	insert into scheduled, as Insert does into messages: ordered, w: majority; duplicate key: stored before.
//
// A retry of a message that was promoted meanwhile inserts it again. Promote recognizes it by its note
// (settled/…) and removes it.
func (q *Queue) Delay(ctx context.Context, msgs []queue.Message) error {
	msgs, err := queuedriver.CheckDelay(msgs)
	if err != nil {
		return err
	}
	if err := q.enter(ctx); err != nil {
		return &queue.InsertError{Refused: true, Err: err}
	}
	docs := documents("", msgs)
	for i := range docs {
		docs[i].key = slotKey(queue.ScheduleKeyOf(&msgs[i]))
		docs[i].body[0].Value = docs[i].key
	}
	return insert(ctx, q.scheduled, docs, func(err error) error { return q.explain(ctx, "delay messages", err) })
}

// Promote implements queue.Queue. See promote.go for the protocol and planned for its operations.
func (q *Queue) Promote(ctx context.Context, limit queue.Limit) (queue.Promotion, error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return queue.Promotion{}, err
	}
	limit.Messages = min(limit.Messages, plannedMost)
	var p queue.Promotion
	next, ok, err := q.NextDue(ctx)
	// rule: the clock is read again now: the server's clock may have been wrong when this process connected, and corrected since
	if err == nil && ok && !next.After(q.clock.Agreed()) {
		if _, err := q.readClock(ctx); err != nil {
			return queue.Promotion{}, q.explain(ctx, "read the server's clock", err)
		}
	}
	if p.Now = q.clock.Agreed(); err == nil && ok && !next.After(p.Now) {
		if p.Messages, p.DeadLetters, err = q.promoter.promote(ctx, limit); err != nil {
			return queue.Promotion{}, q.explain(ctx, "promote delayed messages", err)
		}
		q.mu.Lock()
		p.Types = slices.Collect(maps.Keys(q.gotMessages))
		clear(q.gotMessages)
		q.mu.Unlock()
		next, _, err = q.NextDue(ctx)
		p.Now = q.clock.Agreed()
	}
	p.Next = next
	return p, err
}

// NextDue implements queue.Queue. See firstDelayed.
func (q *Queue) NextDue(ctx context.Context) (time.Time, bool, error) {
	if err := q.enter(ctx); err != nil {
		return time.Time{}, false, err
	}
	s, ok, err := q.firstDelayed(ctx)
	if err != nil {
		return time.Time{}, false, q.explain(ctx, "look for delayed messages", err)
	}
	return s.Due, ok, nil
}

// firstDelayed returns the key of the first delayed message that can be promoted, now or later. If too many foreign documents precede it
// for one call, the key has no type: nothing is due before its time, and the next call continues there.
//
//	find {_id: {$gt: "0", $lt: "281474976710656"}} → _id only, sort {_id: 1}, limit 1; index: _id, one key. Messages that cannot be promoted are skipped, in
//	pages of 1000 keys, see walk.
//	If it is due, it is read once as well, as delayedAt does, to see whether it can be promoted.
func (q *Queue) firstDelayed(ctx context.Context) (queue.ScheduleKey, bool, error) {
	now := q.clock.Agreed()
	w := q.beginWalk()
	for from, page, cost := w.from, 1, 0; ; page = keysPage {
		keys, more, err := readKeys(ctx, q.scheduled.write, from, slotTo, page)
		if err != nil {
			return queue.ScheduleKey{}, false, err
		}
		n, first, read, err := q.firstOf(ctx, keys, now, &w)
		if err != nil {
			return queue.ScheduleKey{}, false, err
		}
		if n > 0 {
			from = keys[n-1]
			w.from = min(from, dueKey(now)) // rule: a message may still be stored before one that is not due
		}
		cost += n + read*readCost
		switch future := from > dueKey(now); {
		case n < len(keys), !more:
			q.endWalk(w, true)
			return first, n < len(keys), nil
		case cost >= walkMost || future && page > 1:
			q.endWalk(w, future)
			return queue.ScheduleKey{Due: dueFrom(from, now)}, true, nil
		}
	}
}

// firstOf finds the first of some keys whose message can be promoted, buried or removed, or is not due yet. It returns the number of keys
// before it (all if there is none), the key itself, and the number of messages that it had to read.
func (q *Queue) firstOf(ctx context.Context, keys []string, now time.Time, w *walk) (n int, first queue.ScheduleKey, read int, err error) {
	var due []queue.ScheduleKey
	var at []int // positions of due in keys
	flush := func() (bool, error) {
		i, err := q.examine(ctx, due, w)
		if read += len(due); err != nil || i == len(due) {
			due, at = due[:0], at[:0]
			return false, err
		}
		n, first = at[i], due[i]
		return true, nil
	}
	for i, key := range keys {
		s, ok := parseSlot(key)
		switch {
		case !ok || s.ID.IsZero() || queue.ValidateType(s.Type) != nil: // rule: a message is not read if its key already excludes it
			w.pass(key, now)
		case q.isKept(key):
			queuedriver.CountStray(&w.kept, s.ID.String())
		case s.Due.After(now):
			if found, err := flush(); found || err != nil {
				return n, first, read, err
			}
			return i, s, read, nil
		default:
			due, at = append(due, s), append(at, i)
			if i == 0 || len(due) == deadBatch { // usually, the first one is the right one
				if found, err := flush(); found || err != nil {
					return n, first, read, err
				}
			}
		}
	}
	if found, err := flush(); found || err != nil {
		return n, first, read, err
	}
	return len(keys), queue.ScheduleKey{}, read, nil
}

// examine reads due messages, and returns the index of the first one that can be promoted, buried or
// removed; len(slots) if there is none. Those before it are skipped from now on (keep).
func (q *Queue) examine(ctx context.Context, slots []queue.ScheduleKey, w *walk) (int, error) {
	if len(slots) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	known := q.examined == slotKey(slots[0])
	q.mu.Unlock()
	if known {
		return 0, nil
	}
	found := len(slots) // messages that are not found were promoted or cancelled in the meantime
	err := q.eachAt(ctx, slots, func(d delayed) bool {
		s := queue.ScheduleKeyOf(&d.Message)
		if action, _ := queuedriver.DecideDue(&d.Message, len(d.Payload)); action == queuedriver.Keep && !d.cancelled {
			q.keep(slotKey(s))
			queuedriver.CountStray(&w.kept, s.ID.String())
			return true
		}
		found = slices.IndexFunc(slots, func(other queue.ScheduleKey) bool { return other.Compare(s) == 0 })
		return false
	})
	if err == nil && found < len(slots) {
		q.mu.Lock()
		q.examined = slotKey(slots[found])
		q.mu.Unlock()
	}
	return found, err
}

// keep makes later searches skip a key, for keptFor.
func (q *Queue) keep(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.kept) >= keptMost {
		clear(q.kept)
	}
	q.kept[maphash.String(q.seed, key)] = time.Now()
}

// isKept reports whether keep was called with the key within keptFor.
func (q *Queue) isKept(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	since, ok := q.kept[maphash.String(q.seed, key)]
	return ok && time.Since(since) < keptFor
}

// Delayed implements queue.Queue.
//
//	find {_id: {$gt: "<slot>", $lt: ":"}}, sort {_id: 1}; index: _id.
func (q *Queue) Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) ([]queue.Message, error) {
	if err := queuedriver.CheckPromote(limit); err != nil {
		return nil, err
	}
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	from := slotFrom
	if after != (queue.ScheduleKey{}) {
		from = slotKey(after)
	}
	var out []queue.Message
	var size int64
	err := q.eachDelayed(ctx, keyRange(from, slotTo), limit.Messages, func(d delayed, ok bool) bool {
		if s := queue.ScheduleKeyOf(&d.Message); ok && !d.cancelled && queuedriver.Listable(s) {
			out = append(out, d.Message)
			size += int64(d.Size())
		}
		return len(out) < limit.Messages && (limit.Bytes == 0 || size < limit.Bytes)
	})
	if err != nil {
		return nil, q.explain(ctx, "list delayed messages", err)
	}
	return out, nil
}

// CancelDelayed implements queue.Queue. See promote.go.
func (q *Queue) CancelDelayed(ctx context.Context, slots []queue.ScheduleKey) (cancelled int, err error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	for some := range slices.Chunk(slots, plannedMost) {
		done, err := q.promoter.cancel(ctx, some)
		cancelled += done
		if err != nil {
			return cancelled, q.explain(ctx, "cancel delayed messages", err)
		}
	}
	return cancelled, nil
}

// eachAt calls f with the existing messages among these keys, in order, until it returns false.
//
//	find {_id: {$in: ["<slot>", …], $gte: the first, $lte: the last}}, sort {_id: 1}; index: _id.
func (q *Queue) eachAt(ctx context.Context, slots []queue.ScheduleKey, f func(delayed) bool) error {
	if len(slots) == 0 {
		return nil
	}
	keys := slotKeys(slots)
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: keys}, {Key: "$gte", Value: slices.Min(keys)}, {Key: "$lte", Value: slices.Max(keys)}}}}
	return q.eachDelayed(ctx, filter, len(keys), func(d delayed, ok bool) bool { return !ok || f(d) })
}

// eachDelayed calls f with the documents that filter matches, in order, until it returns false. ok is
// false for documents that are not delayed messages.
func (q *Queue) eachDelayed(ctx context.Context, filter bson.D, batch int, f func(d delayed, ok bool) bool) error {
	cursor, err := q.scheduled.write.Find(ctx, filter, options.Find().SetSort(byKey).SetBatchSize(int32(min(batch, deadBatch))))
	if err != nil {
		return err
	}
	defer cursor.Close(ctx)
	for cursor.Next(ctx) {
		h, ok := decodeDelayed(cursor.Current)
		if h.Incomplete {
			h.Payload, h.Headers = nil, nil
		}
		if !f(delayed{Message: h, cancelled: isCancelled(cursor.Current)}, ok) {
			return nil
		}
	}
	return cursor.Err()
}

// decodeDelayed reads the head of a delayed message. ok is false if it has no slot.
func decodeDelayed(raw bson.Raw) (h queue.Message, ok bool) {
	var slot queue.ScheduleKey
	h, ok = decodeDocument(raw, func(key string) (ok bool) {
		slot, ok = parseSlot(key)
		return ok
	})
	h.Type, h.ID, h.Due = slot.Type, slot.ID, slot.Due
	return h, ok
}

func isCancelled(raw bson.Raw) bool {
	cancelled, _ := raw.Lookup("x").BooleanOK()
	return cancelled
}
