package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// firstToken is the least token that is granted (package lock: minToken).
const firstToken = 1 << 40

// lockRules watches the writes of the lock store, in their order.
type lockRules struct {
	w     *world
	names map[string]*lockState
}

type lockState struct {
	token   int64 // the greatest so far
	holder  *lock.Hold
	written time.Duration // when the holder's record last changed
}

// saw checks one write: a lock changes hands only after its record has not changed for the holder's whole lease, and tokens grow.
func (l *lockRules) saw(op locktest.Op, after lock.Record) {
	if after.Name == hall || after.Name == desk { // see world.enter
		return
	}
	s := l.names[after.Name]
	if s == nil {
		s = &lockState{}
		l.names[after.Name] = s
	}
	now := l.w.now()
	switch op {
	case "": // an edit by an operator: a deleted record starts anew above, a restored one goes back
		if after.Version != (lock.Version{}) {
			s.token = after.Token
		}
	case locktest.TakeOver:
		l.w.mu.Lock()
		l.w.seen.Takeovers++
		l.w.mu.Unlock()
		// A process knows whether its own holds have ended.
		if s.holder != nil && now-s.written < s.holder.Lease && s.holder.Owner.Instance != after.Hold.Owner.Instance {
			l.w.failf("lock %s was taken over from %s %v after its last renewal, and its lease is %v", after.Name, s.holder.Owner.Instance, now-s.written, s.holder.Lease)
		}
		fallthrough
	case locktest.Acquire, locktest.HandOver, locktest.Create:
		l.w.mu.Lock()
		l.w.seen.Grants++
		l.w.mu.Unlock()
		if op != locktest.TakeOver && op != locktest.HandOver && s.holder != nil {
			l.w.failf("lock %s was granted to %s while %s held it", after.Name, after.Hold.Owner.Instance, s.holder.Owner.Instance)
		}
		if after.Token >= firstToken && after.Token <= s.token {
			l.w.failf("lock %s: token %d was granted after %d", after.Name, after.Token, s.token)
		}
	case locktest.Ask, locktest.Enqueue, locktest.Place, locktest.Dequeue:
		return
	default:
		if after.Token >= firstToken && after.Token < s.token {
			l.w.failf("lock %s: the token went back from %d to %d by %s", after.Name, s.token, after.Token, op)
		}
	}
	s.token = max(s.token, after.Token)
	s.holder, s.written = nil, now
	if after.Hold != nil {
		h := *after.Hold
		s.holder = &h
	}
}

// check checks the final state. First it makes sure that nothing depends on unsynced data.
func (w *world) check() {
	if w.slots {
		w.deliver()
	}
	w.disk.Crash(lostPages(newDice(w.seed, number("end"))))
	if err := w.oracle.Check(); err != nil {
		w.failf("the publishers broke a promise: %v", err)
	}
	for _, typ := range w.types {
		w.checkType(typ)
	}
}

// place is the position at which a message was found.
type place struct {
	index uint64
	kind  storage.Kind
}

// contents describes the content of a type's files.
type contents struct {
	next     uint64
	epoch    uint64
	payloads map[string][]place // of messages
	ids      map[queue.ID]place
	lost     map[uint64]bool // indexes of records that a repair gave up
	passed   bool            // the file is not the newest, and a disaster may have damaged it
	unread   bool            // such a file had more records than can be read …
	from     uint64          // … from this index on
}

func (w *world) checkType(typ string) {
	ctx := context.Background()
	f, registered, err := w.queue().RegistryEntry(ctx, typ)
	if err != nil {
		panic(err)
	}
	c := &contents{payloads: map[string][]place{}, ids: map[queue.ID]place{}, lost: map[uint64]bool{}}
	if registered {
		w.readFiles(typ, f, c)
	}
	w.readSink(typ, c)
	dead, killers := map[string]int{}, map[string]bool{}
	letters, err := w.queue().DeadLetters(ctx, typ, queue.ID{}, queue.Limit{Messages: 10_000})
	if err != nil {
		panic(err)
	}
	for _, l := range letters {
		dead[string(l.Payload)]++
		w.seen.Dead++
		if strings.Contains(l.Reason, "its number is in use") {
			w.seen.Reused++
		}
		if w.handlers && w.seen.Crashes >= l.Attempts && strings.Contains(l.Reason, "times the worker's process ended") { // decision 0003
			killers[string(l.Payload)] = true
		}
	}

	known := map[string]bool{}
	type keyed struct{ stored, found int }
	keys := map[string]*keyed{}
	missing := 0                // confirmed messages that are missing after a disaster
	last := map[string]uint64{} // per producer: the index of its last confirmed message, plus one
	for _, m := range w.sent {
		if m.Type != typ {
			continue
		}
		payload := string(m.Payload)
		known[payload] = true
		found, buried := len(c.payloads[payload]), dead[payload]
		w.count(m)
		stored, sort := m.result.Status == queue.Stored, "message"
		want, wantDead := 1, 0
		switch {
		case m.bad:
			want, wantDead, sort = 0, 1, "message that the filter refuses"
		case killers[payload]: // its handler may have stored it before its process died
			want, wantDead, sort = min(found, 1), 1, "message that counts as a killer"
		case m.key != "":
			k := keys[m.key]
			if k == nil {
				k = &keyed{}
				keys[m.key] = k
			}
			k.found += found
			if stored {
				k.stored++
			}
			sort = "message with " + m.key
		case m.delay > 0:
			sort = "delayed message"
			if w.restored && buried > 0 { // its number was already in use
				want, wantDead = 0, 1
			}
		}
		// Messages confirmed after the backup may be lost with the database.
		stored = stored && (!w.restored || m.safe)
		if w.disasters && stored && m.key == "" && found < want {
			missing, want = missing+1, found
		}
		if found > want || buried > wantDead || m.result.Status == queue.Rejected && found+buried > 0 ||
			stored && m.key == "" && (found != want || buried != wantDead) {
			w.failf("%s: %s %.40q of %s, reported %v as %v, is in the file %d times and %d times among the dead letters",
				typ, sort, payload, m.producer, m.result.Status, m.result.ID, found, buried)
		}
		if stored && m.delay == 0 && m.key == "" && !m.bad && found == 1 {
			producer := m.producer
			if w.disasters { // a gap delays one number of a producer, and not the next one
				producer = fmt.Sprint(producer, m.result.ID.Producer())
			}
			if at := c.payloads[payload][0].index + 1; at <= last[producer] {
				w.failf("%s: message %.40q of %s is at index %d, not after its predecessor at %d", typ, payload, m.producer, at-1, last[producer]-1)
			} else {
				last[producer] = at
			}
		}
	}
	for key, k := range keys {
		if w.disasters && k.stored > 0 && k.found == 0 {
			missing++
			continue
		}
		if k.found > 1 || k.stored > 0 && k.found != 1 {
			w.failf("%s: %d messages with %s were confirmed, and %d are in the file", typ, k.stored, key, k.found)
		}
	}
	if missing > len(c.lost) && !c.unread {
		w.failf("%s: %d confirmed messages are missing, and the file tells of %d that are lost", typ, missing, len(c.lost))
	}
	for payload, places := range c.payloads {
		if len(places) > 0 && !known[payload] {
			w.failf("%s: %.40q is in the file, but was never published", typ, payload)
		}
	}
	for payload := range dead {
		if !known[payload] {
			w.failf("%s: %.40q is a dead letter, but was never published", typ, payload)
		}
	}
}

func (w *world) count(m *message) {
	switch m.result.Status {
	case queue.Stored:
		w.seen.Confirmed++
	case queue.Unknown:
		w.seen.Unknown++
	default:
		w.seen.Rejected++
	}
	if m.delay > 0 {
		w.seen.Delayed++
	}
}

// readFiles verifies all files of a type.
func (w *world) readFiles(typ string, f queue.RegistryEntry, c *contents) {
	w.seen.Rotations += int(f.Generation - 1)
	var last *storage.Report
	for g := uint64(1); g <= f.Generation; g++ {
		path := w.dir() + "/" + storage.GenerationName(typ, g)
		c.passed = w.disasters && g < f.Generation
		c.goOn(w, path)
		r, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: w.files(), Type: typ, Deep: true, Visit: func(r storage.Record) error {
			w.visit(typ, r, c)
			return nil
		}})
		if err == nil {
			err = r.Err()
		}
		if w.passesOver(c, g == f.Generation, err) {
			continue
		}
		if err != nil {
			w.failf("%s: %v", path, err)
			return
		}
		opened := c.epoch
		for i, region := range r.Regions {
			if region.Epoch < c.epoch || i > 0 && region.Epoch == c.epoch {
				w.failf("%s: epoch %d comes after %d", path, region.Epoch, c.epoch)
			}
			c.epoch = region.Epoch
			if region.Opened {
				opened = region.Epoch
			}
		}
		if g < f.Generation && r.Sealed != nil { // a fence after the seal belongs to a writer that continues in the next file, which an earlier writer that slept may have created
			c.epoch = opened
		}
		w.seen.Void += len(r.Void)
		if w.slots {
			w.checkSlots(typ, g, r)
		}
		last = r
	}
	switch {
	case last.FileID != storage.FileID(f.FileID):
		w.failf("%s: the file %v is not the registered one", typ, last.FileID)
	case f.DurableIndex > last.NextIndex || f.Epoch > c.epoch:
		w.failf("%s: the registry knows of index %d and epoch %d, the file of %d and %d", typ, f.DurableIndex, f.Epoch, last.NextIndex, c.epoch)
	}
}

// goOn prepares for the file at path. A file written by a compaction repeats the content of the file before it.
func (c *contents) goOn(w *world, path string) {
	r, err := storage.OpenReader(path, storage.ReaderOptions{FS: w.files()})
	if err != nil {
		return // Verify reports it
	}
	defer r.Close()
	first := r.FirstIndex()
	if w.disasters {
		c.passOver(first)
	}
	if first >= c.next {
		return
	}
	c.next = first
	for payload, places := range c.payloads {
		c.payloads[payload] = slices.DeleteFunc(places, func(p place) bool { return p.index >= first })
	}
	maps.DeleteFunc(c.ids, func(_ queue.ID, p place) bool { return p.index >= first })
	maps.DeleteFunc(c.lost, func(index uint64, _ bool) bool { return index >= first })
}

func (w *world) visit(typ string, r storage.Record, c *contents) {
	if r.Index != c.next && !c.passed && !c.unread {
		w.failf("%s: index %d follows %d", typ, r.Index, int64(c.next)-1)
	}
	c.next = r.Index + 1
	if w.disasters && r.Kind == storage.KindLost {
		c.lost[r.Index] = true
		return
	}
	id := queue.ID(r.ID)
	at := place{r.Index, r.Kind}
	if other, twice := c.ids[id]; twice {
		w.failf("%s: %v is at index %d and at %d", typ, id, other.index, r.Index)
	}
	c.ids[id] = at
	if durable, gone := w.gone[exit{typ, id}]; gone && r.Index >= durable && !w.disasters { // after a disaster, a late copy may take the place of a lost message
		w.failf("%s: %v is at index %d, and left the queue when the registry knew of those below %d", typ, id, r.Index, durable)
	}
	switch r.Kind {
	case storage.KindMessage:
		c.payloads[string(r.Payload)] = append(c.payloads[string(r.Payload)], at)
	case storage.KindAfterGap:
		if !w.disasters {
			w.failf("%s: index %d is %v, although no messages were deleted", typ, r.Index, r.Kind)
		}
		c.payloads[string(r.Payload)] = append(c.payloads[string(r.Payload)], at)
	case storage.KindSkipped:
		w.seen.Skipped++
	default:
		w.failf("%s: index %d is %v, although no messages were deleted", typ, r.Index, r.Kind)
	}
}
