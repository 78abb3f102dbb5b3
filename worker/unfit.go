package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// What cannot be appended, or handled: messages that cannot be decoded or have no number, and
// foreign keys (queue.ForeignKeys). Nothing removes them, and no other message waits for them for
// longer than the gap timeout. An operator has to repair or remove them, and learns of them by a
// warning for each, by the state of the type, and with Config.UntilEmpty by the error of Run.
//
//	message: incomplete ──gap timeout──▶ a warning, blocked ──repaired──▶ appended
//	foreign key: a warning, blocked ──removed──▶

const (
	unfitTold    = 20               // of a type have a warning of their own; the others are counted
	unfitMost    = 10_000           // of a type are remembered
	foreignEvery = 30 * time.Second // how often the foreign keys of a type without messages are listed …
	foreignMost  = 1000             // … and how many of them
)

// UnfitError tells that something in the queue cannot be appended or handled. It stays there until
// somebody repairs or removes it. Run returns it with Config.UntilEmpty.
type UnfitError struct {
	Type     string
	Messages int    // that cannot be decoded or have no number
	Foreign  int    // foreign keys, see queue.ForeignKeys
	Capped   bool   // there are more
	First    string // the ID or key of one of them …
	Why      string // … and what is wrong with it
}

func (e *UnfitError) Error() string {
	var parts []string
	if e.Messages > 0 {
		parts = append(parts, fmt.Sprintf("%d of its pending messages cannot be appended as they are", e.Messages))
	}
	if e.Foreign > 0 {
		parts = append(parts, fmt.Sprintf("%d foreign keys among its messages are not messages", e.Foreign))
	}
	what := strings.Join(parts, ", and ")
	if e.Capped {
		what = "at least " + what
	}
	return fmt.Sprintf("type %s: %s; they stay in the queue until somebody repairs or removes them; one is %s: %s",
		e.Type, what, e.First, e.Why)
}

const whyForeign = "its key holds no message ID"

// unfit is what a pool knows of a type's messages and keys that cannot be appended. It outlasts
// sessions, so that what was said is not said again.
type unfit struct {
	mu      sync.Mutex
	entries map[unfitKey]*unfitEntry
	sweep   uint64 // of the queue, begun last
	told    int    // entries that have had a warning
	counted int    // how many there were when they were last counted in a warning
	capped  bool   // there are more
	listed  time.Time
}

// unfitKey names one of them: a message, or a foreign key.
type unfitKey struct {
	id  queue.ID
	key string
}

func (k unfitKey) String() string {
	if k.key != "" {
		return strconv.Quote(k.key)
	}
	return k.id.String()
}

type unfitEntry struct {
	since time.Time // first seen
	sweep uint64    // last seen
	why   string
	late  bool // it has outlasted the gap timeout
	told  bool
}

// begin begins a sweep. What was not seen in the last two is gone: a sweep may begin anew before it
// came to the end.
func (u *unfit) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep++
	u.drop(func(e *unfitEntry) bool { return e.sweep+2 < u.sweep })
}

// any tells whether there are some, or were until a moment ago. Only looks at the type tell that
// they are gone.
func (u *unfit) any() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.entries) > 0
}

// drop forgets entries; u.mu is held.
func (u *unfit) drop(gone func(*unfitEntry) bool) {
	for k, e := range u.entries {
		if gone(e) {
			if e.told {
				u.told--
			}
			delete(u.entries, k)
		}
	}
	u.capped = u.capped && len(u.entries) == unfitMost
	u.counted = min(u.counted, len(u.entries))
}

// note says that k was seen. tell tells that it deserves a warning now.
func (u *unfit) note(k unfitKey, why string, timeout time.Duration) (tell bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.entries[k]
	if e == nil {
		if u.capped = u.capped || len(u.entries) == unfitMost; u.capped {
			return false
		}
		if u.entries == nil {
			u.entries = make(map[unfitKey]*unfitEntry)
		}
		e = &unfitEntry{since: time.Now()}
		u.entries[k] = e
	}
	e.sweep, e.why = u.sweep, why
	return (k.key != "" || time.Since(e.since) >= timeout) && u.overdue(e)
}

// overdue marks an entry, and tells whether it deserves a warning; u.mu is held.
func (u *unfit) overdue(e *unfitEntry) (tell bool) {
	if tell = !e.late && u.told < unfitTold; tell {
		e.told = true
		u.told++
	}
	e.late = true
	return tell
}

// end is called at the end of a sweep: what it has not seen is gone. With leave everything that is
// left is overdue; told are those that deserve a warning.
func (u *unfit) end(leave bool) (told []unfitKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(func(e *unfitEntry) bool { return e.sweep != u.sweep })
	if leave {
		for k, e := range u.entries {
			if u.overdue(e) {
				told = append(told, k)
			}
		}
	}
	return told
}

// error is what is overdue, nil if nothing is. count tells that there are so many more than could
// be told that it is worth another warning.
func (u *unfit) error(typ string) (err *UnfitError, count bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var first unfitKey
	for k, e := range u.entries {
		switch {
		case !e.late:
			continue
		case err == nil:
			err = &UnfitError{Type: typ, Capped: u.capped}
			first = k
		case cmp.Or(strings.Compare(k.key, first.key), k.id.Compare(first.id)) < 0: // a message, if there is one
			first = k
		}
		if k.key != "" {
			err.Foreign++
		} else {
			err.Messages++
		}
	}
	if err == nil {
		return nil, false
	}
	err.First, err.Why = first.String(), u.entries[first].why
	if n := err.Messages + err.Foreign; n > u.told && n >= 2*u.counted {
		u.counted, count = n, true
	}
	return err, count
}

// why is what is wrong with k.
func (u *unfit) why(k unfitKey) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.entries[k]; e != nil {
		return e.why
	}
	return ""
}

// warnUnfit says what is wrong with one of them.
func warnUnfit(log *zerolog.Logger, k unfitKey, why string) {
	if k.key != "" {
		log.Warn().Str("key", k.key).Msg("a foreign key is among the messages: " + why + "; it is not a message, and stays where it is")
		return
	}
	log.Warn().Stringer("id", k.id).Str("why", why).Msg("a message cannot be appended as it is, and stays in the queue until somebody repairs or removes it")
}

// strays are the kinds of foreign things in the queue of which there was a warning. Safe for
// concurrent use.
type strays struct {
	mu   sync.Mutex
	told map[string]bool
}

// warn warns of what the queue passes over, once of each kind.
func (t *strays) warn(found []queue.Strays, log *zerolog.Logger) {
	for _, s := range found {
		t.mu.Lock()
		told := t.told[s.In+s.What]
		if t.told == nil {
			t.told = map[string]bool{}
		}
		t.told[s.In+s.What] = true
		t.mu.Unlock()
		if !told {
			log.Warn().Str("in", s.In).Str("what", s.What).Int("at_least", s.Count).Str("one", s.Example).Str("remedy", s.Remedy).
				Msg("the queue holds documents that are not Fencepost's, and skipping them takes time; find out who writes them, and remove them")
		}
	}
}

// unfitOf finds what is known of a type.
func (b *book) unfitOf(typ string) *unfit {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(typ)
	if r.unfits == nil {
		r.unfits = &unfit{}
	}
	return r.unfits
}

// setUnfit changes the state of a type by what lies in its queue.
func (b *book) setUnfit(typ string, err *UnfitError) {
	b.note(typ, func(r *typeRecord) {
		if r.unfit = err; err != nil {
			r.failed(err)
		}
	})
}

// reviewUnfit makes the state of a type what it is. count tells in the log how many there are if
// they are many.
func (b *book) reviewUnfit(typ string, u *unfit, log *zerolog.Logger) {
	err, count := u.error(typ)
	if count {
		log.Warn().Int("messages", err.Messages).Int("foreign_keys", err.Foreign).Bool("more", err.Capped).
			Msgf("more of the queue cannot be appended than is named here; fencepost types show %s lists it", typ)
	}
	b.mu.Lock()
	changed := err != nil || b.record(typ).unfit != nil
	b.mu.Unlock()
	if changed {
		b.setUnfit(typ, err)
	}
}

// leftBehind is what Run returns of what is left when everything else is drained.
func (b *book) leftBehind() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, r := range b.types {
		if r.unfit != nil { // rule: who drains is not told that all is done while something is left in the queue
			errs = append(errs, r.unfit)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
