package conform

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// numberPause is how long after its last stored message a publisher waits before it publishes under another producer number: see docs/protocol.md.
const numberPause = 45 * time.Second

// violations collects broken rules.
type violations struct {
	mu    sync.Mutex
	texts []string // each once
	rules map[string]int
	count int
}

const maxOfRule = 3 // reported violations per rule; the others are only counted

func (v *violations) add(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	if text := fmt.Sprintf(format, args...); v.rules[format] < maxOfRule && !slices.Contains(v.texts, text) {
		v.texts = append(v.texts, text)
		if v.rules == nil {
			v.rules = map[string]int{}
		}
		v.rules[format]++
	}
}

func (v *violations) all() (texts []string, count int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.texts), v.count
}

// record holds what a program has sent to the collection messages, and the responses of the server that reached it.
type record struct {
	*violations

	mu      sync.Mutex
	run     int                // of the program, counted from 1
	docs    map[string]*sent   // by key
	streams map[stream]*series // all streams so far
	current map[int]map[string]stream
	types   map[string]int // number of documents
	asked   map[int]knows  // by run
	changed chan struct{}  // closed and replaced when something was sent
}

// sent is a document that was sent.
type sent struct {
	sum    [sha256.Size]byte
	stored bool // it is stored, and a response has told the program so
}

// stream is the messages of a type under one producer number.
type stream struct {
	typ      string
	producer uint64
}

// series holds the messages that were sent in a stream.
type series struct {
	last     queue.ID
	unstored map[string]bool // keys of messages that no response has confirmed as stored
	storedAt time.Time       // when a response last confirmed one
}

func newRecord(v *violations) *record {
	return &record{violations: v, docs: map[string]*sent{}, streams: map[stream]*series{}, current: map[int]map[string]stream{}, types: map[string]int{}, asked: map[int]knows{},
		changed: make(chan struct{})}
}

// knows says whether a run has read the settings of types.
type knows int

const (
	neverAsked knows = iota
	noAnswer         // it asked without a response, so it continues with the settings that it knew
	answered
)

// settings records that the program reads settings, or got a response.
func (r *record) settings(k knows) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[r.run] = max(r.asked[r.run], k)
}

// knows returns whether the current run has read the settings.
func (r *record) knows() knows {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[r.run]
}

// began records that the program was started.
func (r *record) began() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run++
	r.current[r.run] = map[string]stream{}
}

// insert checks an insert.
func (r *record) insert(in *insertion, now time.Time) {
	if in.unordered {
		r.add("an insert has ordered: false; the visible messages of a producer number must always be its first ones: insert in order")
	}
	if in.relaxed != "" {
		r.add("an insert has the write concern %s, want {w: \"majority\", j: true}: otherwise a failover can lose a confirmed message", in.relaxed)
	}
	if in.retryable {
		r.add("an insert has a txnNumber: switch off the driver's own retries (retryWrites=false), or a refusal may be the response to the second of two attempts")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range in.keys {
		r.document(key, in.sums[i], in.keys[:i], now)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// document checks one document of an insert; before are the keys of the documents before it. r.mu is held.
func (r *record) document(key string, sum [sha256.Size]byte, before []string, now time.Time) {
	if d := r.docs[key]; d != nil {
		if d.sum != sum {
			r.add("a different document was sent under the _id %q; a repetition must send the same bytes", key)
		}
		return
	}
	typ, text, _ := strings.Cut(key, "/")
	id, err := queue.ParseID(text)
	if err != nil || queue.ValidateType(typ) != nil || id.N() == 0 {
		r.add("the _id %q is not <type>/<ID> with an ID of 32 characters of 0-9 and a-v and a number of 1 or more", key)
		return
	}
	r.docs[key] = &sent{sum: sum}
	r.types[typ]++
	at := stream{typ, id.Producer()}
	s := r.streams[at]
	if s == nil {
		s = &series{unstored: map[string]bool{}}
		r.streams[at] = s
		r.newNumber(at, now)
	}
	switch {
	case id.N() != s.last.N()+1:
		r.add("type %s, producer number %016x: number %d was sent after %d; numbers count 1, 2, 3 … without a gap", typ, at.producer, id.N(), s.last.N())
	case id.Time().Before(s.last.Time()):
		r.add("type %s, producer number %016x: the time of number %d is before that of %d", typ, at.producer, id.N(), s.last.N())
	}
	for other := range s.unstored {
		if !slices.Contains(before, other) {
			r.add("type %s, producer number %016x: number %d was sent before the server had confirmed earlier ones; after an unclear response repeat the same "+
				"documents, and have only one batch in flight", typ, at.producer, id.N())
			break
		}
	}
	s.last = id
	s.unstored[key] = true
}

// newNumber checks that a program may use a new producer number. r.mu is held.
func (r *record) newNumber(at stream, now time.Time) {
	if old, ok := r.current[r.run][at.typ]; ok {
		if s := r.streams[old]; !s.storedAt.IsZero() && now.Sub(s.storedAt) < numberPause {
			r.add("type %s: a new producer number was used %v after the last message under the old one was stored; wait %v, or messages may be read in the "+
				"wrong order", at.typ, now.Sub(s.storedAt).Round(time.Millisecond), numberPause)
		}
	}
	r.current[r.run][at.typ] = at
}

// stored records that a response has told the program that documents are stored.
func (r *record) stored(keys []string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		d := r.docs[key]
		if d == nil || d.stored {
			continue
		}
		d.stored = true
		typ, text, _ := strings.Cut(key, "/")
		id, _ := queue.ParseID(text)
		s := r.streams[stream{typ, id.Producer()}]
		delete(s.unstored, key)
		s.storedAt = now
	}
}

// isStored reports whether a response has told the program that a message is stored.
func (r *record) isStored(typ string, id queue.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.docs[typ+"/"+id.String()]
	return d != nil && d.stored
}

// count returns how many messages of a type were sent, and a channel that is closed when more are sent.
func (r *record) count(typ string) (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.types[typ], r.changed
}
