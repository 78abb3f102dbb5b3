package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
)

// State is what a pool does with a type.
//
//	waiting ──lock──▶ held ──▶ waiting
//	   │               │ ▲
//	   │        failed ▼ │ done again
//	   │             blocked: the next attempt is waited for, or a person who repairs a message
//	   ├─▶ paused: an operator has stopped it; ◀── resumed
//	   └─▶ refused: its file cannot be used, a person is needed; looked at again now and then
type State string

// States of a type.
const (
	Waiting State = "waiting" // for messages, or for the lock that another replica holds
	Held    State = "held"    // this pool holds the lock and drains the type
	Blocked State = "blocked" // a message, the disk or the server fails, and is tried again until it works; or something in the queue cannot be appended
	Paused  State = "paused"  // an operator has paused it
	Refused State = "refused" // its file cannot be used, or an operation is forbidden
)

// Cause is why a session ended before it was over.
type Cause string

// Causes.
const (
	CauseExpired Cause = "expired"       // no renewal of the lease was acknowledged in time
	CauseGone    Cause = "taken_away"    // another worker has the lock, or its record is gone
	CauseForced  Cause = "forced"        // an operator released it by force
	CauseMaxHold Cause = "held_too_long" // it was held for longer than allowed
	CauseFenced  Cause = "fenced"        // another writer has fenced the file: a write of this pool became void
	CauseError   Cause = "error"         // an I/O error, a server that refused
)

// Status is what a Pool is doing, at one instant.
type Status struct {
	Instance string // of this replica, random
	Started  time.Time
	Running  bool         // Run was called and has not returned
	Stopping bool         // Stop was called
	Types    []TypeStatus // those that this pool serves, sorted by name
	Outage   error        // why the server cannot be used: set while nothing that was asked of it is answered
}

// Stats counts what a Pool has done since it was created.
type Stats struct {
	Types      int    // types served so far
	Sessions   uint64 // times a file was opened under its lock
	Appended   uint64 // messages made durable and acknowledged
	Bytes      uint64 // their payload bytes
	Duplicates uint64 // redelivered messages that the files refused
	Repeated   uint64 // messages that were not appended because of their idempotency key
	Gaps       uint64 // declared gaps
	Forgotten  uint64 // producers that were forgotten early, as they were more than a file remembers
	Lost       uint64 // sessions ended by a lost lease or by another writer's fence
	Handled    uint64 // messages that a Handler has handled
	Retries    uint64 // calls of a Handler after one that failed
	Dead       uint64 // messages put aside as dead letters
	Promoted   uint64 // delayed messages of any type that this pool made normal ones
}

// TypeStatus is what a Pool is doing with a type. Times are this machine's.
type TypeStatus struct {
	Type  string
	State State
	Since time.Time // of State

	Held        bool   // this pool has the type's lock
	Token       int64  // of the lock, while held: the fencing token, and the epoch of the file
	Index       uint64 // records of the file below it are durable; 0 with a Handler, and before the first session
	Path        string // of the file, if one was opened
	LastCommit  time.Time
	LastError   string // the last failure, over or not; see State
	LastErrorAt time.Time

	// Stuck tells that a held type makes no progress: no step of the session, not even one that
	// failed, ended for minutes. A disk that does not answer is the usual reason. A Handler may
	// take as long as it likes.
	Stuck bool

	Stats                   // since the pool was created; Types is 0
	Losses map[Cause]uint64 // sessions that ended early
}

// typeRecord is what a pool notes about a type. Guarded by book.mu, which is only ever held for
// moments.
type typeRecord struct {
	TypeStatus
	unfits   *unfit      // what is known of what cannot be appended
	unfit    *UnfitError // what of it is overdue; nil: nothing
	failing  bool        // what the type waits for has failed, and is tried again
	handling bool        // the Handler is at work
	beat     time.Time   // when the session last got a step done
	wanted   time.Time   // since when the lock is wanted; zero: it is not
	asking   time.Time   // since when an answer of the queue is waited for; zero: it is not
}

// The server counts as away when this pool had no good answer for this long.
const (
	failing = 2 * time.Second  // if the last answer was an error
	silence = 10 * time.Second // if there is none to a question
)

// The book. Sessions, the watch over types, and the scheduler record here what happens to them,
// each in a few words under one mutex that is never held for long. Status and Stats read it, the
// heartbeat takes from it what is wrong, and Run what its error says. Nothing that keeps messages
// safe depends on it.

// book is what a pool records about its types, for Status and Stats. Safe for concurrent use.
type book struct {
	mu      sync.Mutex
	started time.Time
	running bool
	types   map[string]*typeRecord // "" for the list of types

	answered time.Time // when the queue last answered without an error
	failure  error     // the last answer, if that was an error

	refused map[string]error // types whose file cannot be used, until it can
	stats   Stats
}

func (r *typeRecord) enter(s State) {
	if r.State != s {
		r.State, r.Since = s, time.Now()
	}
}

func (r *typeRecord) failed(err error) {
	if err != nil {
		r.LastError, r.LastErrorAt = err.Error(), time.Now()
	}
}

// lossCause tells why a session ended early; "" for one that did not.
func lossCause(err error) Cause {
	var lost *lock.LostError
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, storage.ErrFenced):
		return CauseFenced
	case !errors.As(err, &lost):
		return CauseError
	}
	switch lost.Reason {
	case lock.LostExpired:
		return CauseExpired
	case lock.LostForced:
		return CauseForced
	case lock.LostMaxHold:
		return CauseMaxHold
	default:
		return CauseGone
	}
}

func newBook() *book {
	return &book{started: time.Now(), types: make(map[string]*typeRecord), refused: make(map[string]error)}
}

// status is Pool.Status. A type whose session has not finished a step for stuckAfter is stuck.
func (b *book) status(stuckAfter time.Duration) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{Started: b.started, Running: b.running}
	unanswered := time.Since(b.answered)
	if b.failure != nil && unanswered > failing {
		s.Outage = b.failure
	}
	for typ, r := range b.types {
		if s.Outage == nil && !r.asking.IsZero() && min(time.Since(r.asking), unanswered) > silence {
			s.Outage = fmt.Errorf("the server has not answered for %v", time.Since(r.asking).Round(time.Second))
		}
		if typ == "" {
			continue // the list of types
		}
		t := r.TypeStatus
		t.Losses = maps.Clone(r.Losses)
		t.Stuck = t.Held && !r.handling && time.Since(r.beat) > stuckAfter
		s.Types = append(s.Types, t)
	}
	slices.SortFunc(s.Types, func(a, b TypeStatus) int { return strings.Compare(a.Type, b.Type) })
	return s
}

// note changes what is known about a type.
func (b *book) note(typ string, f func(*typeRecord)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.record(typ))
	b.restate(typ)
}

// restate finds the state of a type anew; b.mu is held.
func (b *book) restate(typ string) {
	r, state := b.record(typ), Waiting
	switch {
	case b.refused[typ] != nil:
		state = Refused
	case r.failing, r.unfit != nil:
		state = Blocked
	case r.Held:
		state = Held
	case r.State == Paused:
		state = Paused
	}
	r.enter(state)
}

// record finds the record of a type; b.mu is held.
func (b *book) record(typ string) *typeRecord {
	r := b.types[typ]
	if r == nil {
		r = &typeRecord{TypeStatus: TypeStatus{Type: typ, State: Waiting, Since: time.Now(), Losses: map[Cause]uint64{}}}
		b.types[typ] = r
	}
	return r
}

// notePaused tells whether an operator has paused a type.
func (b *book) notePaused(typ string, paused bool) {
	b.note(typ, func(r *typeRecord) {
		switch {
		case paused:
			r.failing, r.unfit = false, nil
			r.enter(Paused)
		case r.State == Paused:
			r.enter(Waiting)
		}
	})
}

// noteRunning tells that Run has begun, and the function that it returns that it has ended.
func (b *book) noteRunning() (ended func()) {
	set := func(running bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.running = running
	}
	set(true)
	return func() { set(false) }
}

// noteHeld tells that the lock of a type was acquired, or given back (nil).
func (b *book) noteHeld(typ string, lease *lock.Lease) {
	b.note(typ, func(r *typeRecord) {
		r.Held, r.Token, r.beat, r.handling = false, 0, time.Now(), false
		if lease != nil {
			r.Held, r.Token = true, lease.Token()
		}
	})
}

// wants tells that the lock of a type is wanted from now on, if it was not before.
func (b *book) wants(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.record(typ); r.wanted.IsZero() {
		r.wanted = time.Now()
	}
}

// wantsNoMore tells since when the lock was wanted, and that it is not any more.
func (b *book) wantsNoMore(typ string) (since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(typ)
	since, r.wanted = r.wanted, time.Time{}
	return since
}

// noteAnswer tells how a look at the queue has ended; the type is "" where it is about all of them.
func (b *book) noteAnswer(typ string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer(b.record(typ), err)
}

// answer is noteAnswer; b.mu is held.
func (b *book) answer(r *typeRecord, err error) {
	r.asking = time.Time{}
	switch {
	case errors.Is(err, context.Canceled):
	case err == nil:
		b.answered, b.failure = time.Now(), nil
	default:
		b.failure = err
		r.failed(err)
	}
}

// noteAsking tells that the queue is being asked about a type.
func (b *book) noteAsking(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).asking = time.Now()
}

// noteEnd tells how a session, or the attempt at one, has ended.
func (b *book) noteEnd(typ string, err error) {
	b.note(typ, func(r *typeRecord) {
		over := err == nil || errors.Is(err, lock.ErrLost) || errors.Is(err, storage.ErrFenced) ||
			errors.Is(err, context.Canceled)
		r.failing = !over
		if err != nil && !errors.Is(err, context.Canceled) {
			r.failed(err)
		}
	})
}

// noteEvent keeps what an event of a session tells.
func (b *book) noteEvent(e Event) {
	b.note(e.Type, func(r *typeRecord) {
		switch e.Kind {
		case Acquired:
			r.Token = e.Token // it may have been raised
		case Committed:
			r.LastCommit = time.Now()
			r.Index = max(r.Index, e.Index)
		case Rotated:
			r.Index, r.Path = e.Index, e.Path
		case Dead:
			r.failing = false
			r.failed(fmt.Errorf("message %s was put aside: %s", e.Letter.ID, e.Letter.Reason))
		}
	})
}

// noteAlive tells that a session which has nothing to do waits.
func (b *book) noteAlive(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).beat = time.Now()
}

// handling tells that the Handler is at work.
func (b *book) handling(typ string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).handling = yes
}

// progress notes that a step of a session has ended.
func (b *book) progress(o Observation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(o.Type)
	r.beat = time.Now()
	switch {
	case o.Step == StepFetch:
		b.answer(r, o.Err)
	case o.Step == StepAck && o.Err == nil && o.Messages > 0:
		r.failing = false // nothing goes on but what could be handled, or is in the file
		b.restate(o.Type)
	}
}

// countType counts for the pool and for a type.
func (b *book) countType(typ string, f func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
	f(&b.record(typ).Stats)
}

// troubles is what keeps this pool from draining types now, by type.
func (b *book) troubles() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs map[string]string
	for typ, r := range b.types {
		if typ == "" || r.LastError == "" || r.State != Blocked && r.State != Refused {
			continue
		}
		if errs == nil {
			errs = make(map[string]string)
		}
		errs[typ] = r.LastError
	}
	return errs
}

// setRefused records that a type's file cannot be used, and why; nil: it can again. A refused type
// is looked at now and then, as somebody may have repaired it.
func (b *book) setRefused(typ string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.refused, typ)
	} else {
		b.refused[typ] = err
	}
	b.restate(typ)
}

// allRefused returns the refusals if none of the types that the pool serves is left, else nil.
func (b *book) allRefused(types []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range types {
		if isGlob(t) || b.refused[t] == nil {
			return nil
		}
	}
	return b.refusalsLocked()
}

// refusals is what Run returns about types that could not be served.
func (b *book) refusals() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusalsLocked()
}

func (b *book) refusalsLocked() error {
	var errs []error
	for _, err := range b.refused {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// totals are the counters of all types.
func (b *book) totals() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// add begins the record of a type.
func (b *book) add(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ)
}

// count counts for the pool.
func (b *book) count(f func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
}
