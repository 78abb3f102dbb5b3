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

// Unfit entries of the queue can be neither appended nor handled: messages that cannot be decoded or
// have no number, and foreign keys (queue.ForeignKeys). A pool never removes them, and no other
// message waits for them longer than the gap timeout. An operator has to repair or remove them. Each
// causes a warning, and the type's state is Blocked; with Config.UntilEmpty they are also in Run's error.
//
//	message: incomplete ──gap timeout──▶ a warning, blocked ──repaired──▶ appended
//	foreign key: a warning, blocked ──removed──▶

const (
	unfitTold    = 20               // entries of a type with a warning of their own; the others are counted
	unfitMost    = 10_000           // entries of a type that are remembered
	foreignEvery = 30 * time.Second // how often the foreign keys of a type without messages are listed …
	foreignMost  = 1000             // … and how many at most
)

// UnfitError means that the queue has messages or foreign keys that can be neither appended nor handled.
// They stay there until an operator repairs or removes them. [Pool.Run] returns the error with
// Config.UntilEmpty.
type UnfitError struct {
	Type     string
	Messages int    // how many messages cannot be decoded or have no number
	Foreign  int    // how many foreign keys there are, see queue.ForeignKeys
	Capped   bool   // there are more than Messages and Foreign say
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
	return fmt.Sprintf("type %s: %s; they stay in the queue until an operator repairs or removes them; one is %s: %s",
		e.Type, what, e.First, e.Why)
}

const whyForeign = "its key holds no message ID"

// unfit has the messages and keys of a type that were seen and cannot be appended. It outlasts sessions,
// so that a warning is not repeated. Safe for concurrent use.
type unfit struct {
	mu      sync.Mutex
	entries map[unfitKey]*unfitEntry
	sweep   uint64    // number of the current sweep over the queue
	told    int       // entries that had a warning of their own
	counted int       // how many there were at the last warning with a count
	capped  bool      // there are more than unfitMost
	listed  time.Time // when foreign keys were last listed
}

// unfitKey identifies an entry: the ID of a message, or a foreign key.
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

// begin begins a sweep, and forgets entries that the last two sweeps did not see. One sweep is not
// enough, because a sweep may restart before it has reached the end.
func (u *unfit) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep++
	u.drop(func(e *unfitEntry) bool { return e.sweep+2 < u.sweep })
}

// any reports whether there are entries. They stay until a sweep has shown that they are gone.
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

// note records that k was seen. tell means that k should get a warning now. A foreign key gets it at
// once, a message after timeout, because it may still become complete.
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

// overdue marks an entry as overdue, and reports whether the entry should get a warning; u.mu is held.
func (u *unfit) overdue(e *unfitEntry) (tell bool) {
	if tell = !e.late && u.told < unfitTold; tell {
		e.told = true
		u.told++
	}
	e.late = true
	return tell
}

// end ends a sweep: entries that it has not seen are gone. With leave, because the session ends, all
// remaining entries are overdue; told are those that should get a warning.
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

// error describes the overdue entries, or is nil. count means that the number of entries without a
// warning of their own has doubled since the last warning with a count, so another one is due.
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
		case cmp.Or(strings.Compare(k.key, first.key), k.id.Compare(first.id)) < 0: // messages, whose key is empty, precede foreign keys
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

// why returns what is wrong with k.
func (u *unfit) why(k unfitKey) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.entries[k]; e != nil {
		return e.why
	}
	return ""
}

// warnUnfit logs the warning of one entry.
func warnUnfit(log *zerolog.Logger, k unfitKey, why string) {
	if k.key != "" {
		log.Warn().Str("key", k.key).Msg("a foreign key is among the messages: " + why + "; it is not a message, and stays where it is")
		return
	}
	log.Warn().Stringer("id", k.id).Str("why", why).Msg("a message cannot be appended as it is, and stays in the queue until an operator repairs or removes it")
}

// strays records for which kinds of foreign documents in the queue a warning was logged. Safe for
// concurrent use.
type strays struct {
	mu   sync.Mutex
	told map[string]bool
}

// warn logs a warning for documents that the queue skips, once for each kind.
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

// unfitOf finds or creates the unfit of a type.
func (b *book) unfitOf(typ string) *unfit {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(typ)
	if r.unfits == nil {
		r.unfits = &unfit{}
	}
	return r.unfits
}

// setUnfit sets or clears the overdue entries of a type, which make it blocked.
func (b *book) setUnfit(typ string, err *UnfitError) {
	b.note(typ, func(r *typeRecord) {
		if r.unfit = err; err != nil {
			r.failed(err)
		}
	})
}

// reviewUnfit updates the state of a type from its unfit, and logs how many entries there are if many
// have no warning of their own.
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

// leftBehind returns the overdue entries of all types, as errors, for Run with Config.UntilEmpty.
func (b *book) leftBehind() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, r := range b.types {
		if r.unfit != nil { // rule: draining does not succeed while anything is left in the queue
			errs = append(errs, r.unfit)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
