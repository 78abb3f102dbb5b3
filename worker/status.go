package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
)

// State is what a pool does with a type.
//
//	waiting ──lock──▶ held ──▶ waiting
//	   │               │ ▲
//	   │        failed ▼ │ works again
//	   │             blocked: waits for the next attempt, or for an operator to repair a message
//	   ├─▶ paused: by an operator; ◀── resumed
//	   └─▶ refused: its file is unusable, an operator is needed; retried periodically
type State string

// States of a type.
const (
	Waiting State = "waiting" // for messages, or for the lock that another replica holds
	Held    State = "held"    // this pool holds the lock and drains the type
	Blocked State = "blocked" // a message, the disk or the server fails and is retried; or something in the queue cannot be appended
	Paused  State = "paused"  // an operator has paused it
	Refused State = "refused" // its file, or the record of its lock, is unusable, or an operation is forbidden
)

// Cause is why a session ended early: see [TypeStatus].Losses.
type Cause string

// Causes.
const (
	CauseExpired Cause = "expired"       // no renewal of the lease was acknowledged in time
	CauseGone    Cause = "taken_away"    // another worker has the lock, or its record is gone
	CauseForced  Cause = "forced"        // an operator released the lock by force
	CauseMaxHold Cause = "held_too_long" // the lock was held for longer than allowed
	CauseFenced  Cause = "fenced"        // another writer has fenced the file: a write of this pool became void
	CauseError   Cause = "error"         // an I/O error, a server that refused
)

// Status is what a [Pool] is doing at one moment: see [Pool.Status]. For health checks: a program whose
// type is Stuck should be restarted; one whose pool is Stopping, or not Running, is not ready. During an
// Outage the pool retries, and a restart does not help.
type Status struct {
	Instance string // of this replica, random
	Started  time.Time
	Running  bool         // Run was called and has not returned
	Stopping bool         // Stop was called
	Types    []TypeStatus // the types that this pool serves, sorted by name
	Outage   error        // why the server is unreachable or failing; nil while it answers. A string in JSON
}

// MarshalJSON encodes Outage as its text, or null: encoding/json would lose what an error says.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status // without this method
	j := struct {
		fields
		Outage *string
	}{fields: fields(s)}
	if s.Outage != nil {
		j.Outage = new(s.Outage.Error())
	}
	return json.Marshal(j)
}

// Stats counts what a Pool has done since it was created.
type Stats struct {
	Types      int    // types served so far
	Sessions   uint64 // times a file was opened under its lock
	Appended   uint64 // messages made durable in files
	Bytes      uint64 // their payload bytes
	Duplicates uint64 // redelivered messages that the files refused
	Repeated   uint64 // copies under another ID that were not appended: the same idempotency key, or a delayed message promoted twice
	Gaps       uint64 // declared gaps
	Forgotten  uint64 // producers forgotten early, because a file, or a session with a Handler, cannot remember more
	Lost       uint64 // sessions ended by a lost lease or by another writer's fence
	Handled    uint64 // messages that a Handler has handled
	Retries    uint64 // calls of a Handler after one that failed
	Dead       uint64 // messages put aside as dead letters
	Promoted   uint64 // delayed messages of all types that this pool has promoted
}

// TypeStatus is what a [Pool] is doing with one type. Times are by this machine's clock.
type TypeStatus struct {
	Type  string
	State State
	Since time.Time // when State began

	Held        bool   // this pool has the type's lock
	Token       int64  // of the lock, while held: the fencing token, and the epoch of the file
	Index       uint64 // records of the file below it are durable; 0 with a Handler, and before the first session
	Path        string // of the file, if one was opened
	LastCommit  time.Time
	LastError   string // the last failure, which may be resolved: State is current
	LastErrorAt time.Time

	// Stuck means that a held type makes no progress: for minutes no step of the session has ended,
	// not even with an error. The usual cause is an unresponsive disk. A running Handler does not
	// count as stuck.
	Stuck bool

	Stats                   // since the pool was created; Types is 0
	Losses map[Cause]uint64 // sessions that ended early
}

// typeRecord is the book's entry for one type. Guarded by book.mu.
type typeRecord struct {
	TypeStatus
	unfits   *unfit      // the messages and keys that cannot be appended
	unfit    *UnfitError // the overdue ones among them; nil: none
	failing  bool        // an operation or message of the type fails and is retried
	trouble  *trouble    // of the sessions that failed one after another; nil: the last one worked
	handling bool        // the Handler is running
	beat     time.Time   // when a step of the session last ended
	wanted   time.Time   // since when the pool wants the lock; zero: it does not
	asking   time.Time   // since when a query to the queue is unanswered; zero: none is open
}

// The server counts as unreachable (Status.Outage) after this long without a successful answer.
const (
	failing = 2 * time.Second  // if the last answer was an error
	silence = 10 * time.Second // if a query is unanswered
)

// The book. Sessions, the goroutines that watch types, and the scheduler record here what happens to
// the types, under one mutex that is only held briefly. Status, Stats, the heartbeat and the error of
// Run read it. No safety rule depends on it.

// book has what a pool records about its types, for Status and Stats. Safe for concurrent use.
type book struct {
	mu      sync.Mutex
	started time.Time
	running bool
	types   map[string]*typeRecord // "" is for queries about all types

	answered time.Time // when the queue last answered without an error
	failure  error     // the last answer, if that was an error

	refused map[string]error // types that currently cannot be served, and why
	stats   Stats
}

// enter changes the state. Since does not change if the state is the same.
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

// lossCause returns why a session with this error ended early, or "" if it did not.
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
			continue // queries about all types
		}
		t := r.TypeStatus
		t.Losses = maps.Clone(r.Losses)
		t.Stuck = t.Held && !r.handling && time.Since(r.beat) > stuckAfter
		s.Types = append(s.Types, t)
	}
	slices.SortFunc(s.Types, func(a, b TypeStatus) int { return strings.Compare(a.Type, b.Type) })
	return s
}

// note updates the record of a type, then its state.
func (b *book) note(typ string, f func(*typeRecord)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.record(typ))
	b.restate(typ)
}

// restate derives the state of a type from its record; b.mu is held.
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

// record finds or creates the record of a type; b.mu is held.
func (b *book) record(typ string) *typeRecord {
	r := b.types[typ]
	if r == nil {
		r = &typeRecord{TypeStatus: TypeStatus{Type: typ, State: Waiting, Since: time.Now(), Losses: map[Cause]uint64{}}}
		b.types[typ] = r
	}
	return r
}

// notePaused records whether an operator has paused a type.
func (b *book) notePaused(typ string, paused bool) {
	b.note(typ, func(r *typeRecord) {
		switch {
		case paused:
			r.failing, r.unfit, r.trouble = false, nil, nil
			r.enter(Paused)
		case r.State == Paused:
			r.enter(Waiting)
		}
	})
}

// setRunning records whether Run was called and has not returned.
func (b *book) setRunning(running bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = running
}

// noteHeld records that the lock of a type was acquired, or with nil that it was released.
func (b *book) noteHeld(typ string, lease *lock.Lease) {
	b.note(typ, func(r *typeRecord) {
		r.Held, r.Token, r.beat, r.handling = false, 0, time.Now(), false
		if lease != nil {
			r.Held, r.Token = true, lease.Token()
		}
	})
}

// wants records that the pool wants the lock of a type from now on, if it did not before.
func (b *book) wants(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.record(typ); r.wanted.IsZero() {
		r.wanted = time.Now()
	}
}

// wantsNoMore returns since when the pool has wanted the lock, and records that it no longer does.
func (b *book) wantsNoMore(typ string) (since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(typ)
	since, r.wanted = r.wanted, time.Time{}
	return since
}

// noteAnswer records the answer of the queue to a query about a type, or about all types (""). A query
// that was cancelled, because ctx has ended, says nothing about the server.
func (b *book) noteAnswer(ctx context.Context, typ string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(typ)
	r.asking = time.Time{}
	switch {
	case calledOff(ctx, err):
	case err == nil:
		b.answered, b.failure = time.Now(), nil
	default:
		b.failure = err
		r.failed(err)
	}
}

// noteAsking records that a query to the queue about a type is open.
func (b *book) noteAsking(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).asking = time.Now()
}

// noteEnd records how a session, or the attempt to start one, has ended.
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

// noteNothing records that this pool has nothing to do about a type, because the type has no messages or
// another replica serves it: a failed operation is no longer retried. It returns the trouble that is over, if any.
func (b *book) noteNothing(typ string) (over *trouble) {
	b.note(typ, func(r *typeRecord) {
		over, r.trouble = r.trouble, nil
		r.failing = false
		delete(b.refused, typ)
	})
	return over
}

// noteEvent updates the status of a type from an event.
func (b *book) noteEvent(e Event) {
	b.note(e.Type, func(r *typeRecord) {
		switch e.Kind {
		case Acquired:
			r.Token = e.Token // the token may have been raised
			delete(b.refused, e.Type)
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

// noteAlive records that an idle session is alive, so that it does not count as stuck.
func (b *book) noteAlive(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).beat = time.Now()
}

// handling records whether the Handler is running.
func (b *book) handling(typ string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ).handling = yes
}

// progress records that a step of a session has ended. It returns the trouble that is over, if any: messages have been acknowledged.
//
// rule: with a file, trouble is over only after something new is durable. The session that failed may have left durable messages that it could not
// acknowledge. The next one acknowledges them, and that says nothing about the disk.
func (b *book) progress(o Observation, toFiles bool) (over *trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.record(o.Type)
	r.beat = time.Now()
	if o.Err != nil || o.Messages == 0 {
		return nil
	}
	switch t := r.trouble; {
	case o.Step == StepSync && t != nil:
		t.durable = true
	case o.Step == StepAck && (t == nil || t.durable || !toFiles):
		over, r.trouble = t, nil
		r.failing = false // an acknowledgement shows that messages get through
		b.restate(o.Type)
	}
	return over
}

// countType updates the counters of a type and of the pool.
func (b *book) countType(typ string, f func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
	f(&b.record(typ).Stats)
}

// troubles returns the errors that keep this pool from draining types now, by type.
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

// setRefused records that a type cannot be served, and why; nil means that it can be served again. The
// pool retries a refused type periodically, because an operator may have repaired it.
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

// allRefused returns the refusals if all types of the configuration are refused, else nil. It returns nil
// if there is a glob, which may still match a new type.
func (b *book) allRefused(types []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range types {
		if globs.Is(t) || b.refused[t] == nil {
			return nil
		}
	}
	return b.refusalsLocked()
}

// refusals returns the errors of the types that could not be served, joined, for Run.
func (b *book) refusals() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusalsLocked()
}

func (b *book) refusalsLocked() error {
	var errs []error
	for _, typ := range slices.Sorted(maps.Keys(b.refused)) {
		errs = append(errs, b.refused[typ])
	}
	return errors.Join(errs...)
}

// totals returns the counters of the pool.
func (b *book) totals() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// add creates the record of a type.
func (b *book) add(typ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record(typ)
}

// count updates the counters of the pool only.
func (b *book) count(f func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
}
