package mongoqueue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Foreign documents in our collections are skipped in pages, not with a round trip for each key. One call
// skips a bounded number and the next one continues there, so that everything after them is eventually
// reached. See docs/decisions/0117.
const (
	keysFew   = 100 // keys per page when each kind has many
	keysPage  = 1000
	pageBytes = 8 << 20 // of the keys of a page, which may be long

	scanMost = 1_000_000 // foreign keys that one call of Types skips in a collection
	walkMost = 100_000   // delayed messages and foreign keys that one search for due messages skips …
	readCost = 10        // … counting this many for one that must be read

	// walkAgain is how long skipped keys are not read again. A message that is stored among them after it
	// was due may be late by that much more.
	walkAgain = 5 * time.Second
)

// readKeys reads the keys of c between two others, in order. more means that others may follow the last
// one.
//
//	find {_id: {$gt: from, $lt: to}} → _id only, sort {_id: 1}, limit; index: _id.
func readKeys(ctx context.Context, c *mongo.Collection, from, to string, limit int) (keys []string, more bool, err error) {
	cursor, err := c.Find(ctx, keyRange(from, to), options.Find().SetProjection(idOnly).SetSort(byKey).SetLimit(int64(limit)).SetBatchSize(int32(limit)))
	if err != nil {
		return nil, false, err
	}
	defer cursor.Close(ctx)
	size := 0
	for cursor.Next(ctx) {
		key := cursor.Current.Lookup("_id").StringValue() // a string, like both bounds
		keys = append(keys, key)
		if size += len(key); size >= pageBytes {
			return keys, true, nil
		}
	}
	return keys, len(keys) == limit, cursor.Err()
}

// scan is an unfinished skip scan.
type scan struct {
	from   string
	found  map[string]bool // before from
	strays queue.Strays
}

// skipScan adds the types that have a document in c: it reads a page of keys, then the page after the
// range of the last type in it, and so on.
//
// A call ends after scanMost keys that belong to no type. With inTime it also ends before the deadline of
// ctx, once it has read a page. Its findings are kept and the next call continues from there, also after
// an error: on a busy server, calls that each start over would never reach the end.
func (q *Queue) skipScan(ctx context.Context, c *mongo.Collection, inTime bool, found map[string]bool) error {
	s := q.beginScan(c)
	var slowest time.Duration
	for limit, passed := keysFew, 0; ; {
		began := time.Now()
		keys, more, err := readKeys(ctx, c, s.from, typesEnd, limit)
		if err != nil {
			q.keepScan(c, s)
			return err
		}
		slowest = max(slowest, time.Since(began))
		kinds := 0
		for _, key := range keys {
			if key <= s.from { // of the same kind as the previous one
				continue
			}
			typ, next, stray := skip(key)
			if typ != "" {
				s.found[typ] = true
			} else {
				passed++
			}
			if stray {
				queuedriver.CountStray(&s.strays, key)
			}
			s.from = next // >= key: always forward
			kinds++
		}
		end, limited := ctx.Deadline()
		if !more || passed >= scanMost || inTime && limited && time.Until(end) < 2*slowest {
			q.strays.Set(s.strays)
			if more {
				q.keepScan(c, s)
			}
			maps.Copy(found, s.found)
			return nil
		}
		// If each type has many messages, a page of few keys shows as many types as a large one.
		if limit = keysFew; kinds >= keysFew/10 {
			limit = keysPage
		}
	}
}

// beginScan continues the last scan of a collection if it was interrupted, or begins a new one.
func (q *Queue) beginScan(c *mongo.Collection) scan {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, ok := q.scans[c.Name()]
	if !ok {
		return scan{from: slotFrom, found: map[string]bool{}, strays: straysOf(c, "keys that are not a message's")}
	}
	delete(q.scans, c.Name()) // a concurrent call begins a new one
	return s
}

// keepScan keeps an interrupted scan, for the next call.
func (q *Queue) keepScan(c *mongo.Collection, s scan) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.scans[c.Name()] = s
}

// walk is the position up to which the searches for due messages have skipped those that cannot be
// promoted.
type walk struct {
	from  string    // nothing up to it can be promoted, and all of it is due
	ended time.Time // when it reached something else; zero: not yet

	foreign, kept queue.Strays
	future        queue.Strays // foreign keys that look like messages not due yet: every search skips them
}

// pass counts a foreign key.
func (w *walk) pass(key string, now time.Time) {
	if key < dueKey(now) {
		queuedriver.CountStray(&w.foreign, key)
	} else {
		queuedriver.CountStray(&w.future, key)
	}
}

// beginWalk returns where a search begins: after the keys skipped recently, or at the start.
func (q *Queue) beginWalk() walk {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.walk
	w.future = queue.Strays{}
	if w.from == "" || !w.ended.IsZero() && time.Since(w.ended) >= walkAgain {
		w = walk{from: slotFrom, foreign: straysOf(q.scheduled.write, "keys that are not a delayed message's"), kept: straysOf(q.scheduled.write, "delayed messages that cannot be decoded completely")}
		w.kept.Remedy = "fencepost scheduled ls lists them, scheduled rm removes them"
	}
	return w
}

// endWalk records the progress of a search. ended means that nothing is left to skip, for now.
func (q *Queue) endWalk(w walk, ended bool) {
	all := w.foreign
	all.Count, all.Example = all.Count+w.future.Count, cmp.Or(all.Example, w.future.Example)
	q.strays.Set(all)
	q.strays.Set(w.kept)
	if ended && w.ended.IsZero() {
		w.ended = time.Now()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.walk = w
}

// dueFrom returns a time before which nothing after a key is due, now or later.
func dueFrom(key string, now time.Time) time.Time {
	digits := 0
	for digits < min(len(key), len(slotTo)) && '0' <= key[digits] && key[digits] <= '9' {
		digits++
	}
	ms, err := strconv.ParseInt(key[:digits]+strings.Repeat("0", len(slotTo)-digits), 10, 64)
	if due := time.UnixMilli(ms); err == nil && due.After(now) {
		return due
	}
	return now
}

const (
	typePattern = `[a-z0-9][a-z0-9._-]{0,63}`
	slotPattern = `^[0-9]{15}\/` + typePattern + `\/(?!0{32})[0-9a-v]{32}$`
)

// straysOf returns an empty queue.Strays for a collection.
func straysOf(c *mongo.Collection, what string) queue.Strays {
	return queue.Strays{In: "the collection " + c.Name(), What: what,
		Remedy: fmt.Sprintf("in mongosh, db.%s.deleteMany(%s) removes them", c.Name(), strayFilter(c.Name()))}
}

// strayFilter is a filter for mongosh that matches the foreign documents in a collection, and no
// message.
func strayFilter(collection string) string {
	filter := func(pattern string, bounds string) string {
		return fmt.Sprintf("{_id: {%s$not: /%s/}}", bounds, pattern)
	}
	switch collection {
	case "types", "files":
		return filter("^"+typePattern+"$", "")
	case "scheduled":
		return filter(slotPattern, fmt.Sprintf("$gt: %q, $lt: %q, ", slotFrom, slotTo))
	}
	return filter("^"+typePattern+"["+`\/`+pieceSeparator+"]", fmt.Sprintf("$gt: %q, $lt: %q, ", slotFrom, typesEnd))
}

// Strays implements queue.Queue.
func (q *Queue) Strays() []queue.Strays { return q.strays.All() }
