package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	CauseGone    Cause = "taken_away"    // the lock is somebody else's, or its record is gone
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

	// Stuck tells that a held type gets nowhere: no step of the session, not even one that failed, ended for minutes. A disk that
	// does not answer is the usual reason. A Handler may take as long as it likes.
	Stuck bool

	Stats                   // since the pool was created; Types is 0
	Losses map[Cause]uint64 // sessions that ended early
}

// typeRecord is what a pool notes about a type. Guarded by Pool.mu, which is only ever held for moments.
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

// Status returns what the pool is doing. It asks neither the server nor the disk. Safe for concurrent use.
func (p *Pool) Status() Status {
	stuckAfter := 2*time.Minute + 2*p.cfg.Lease + p.cfg.RetryMax + p.cfg.Linger
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Instance: p.instance, Started: p.book.started, Running: p.book.running}
	select {
	case <-p.stopping:
		s.Stopping = true
	default:
	}
	unanswered := time.Since(p.book.answered)
	if p.book.failure != nil && unanswered > failing {
		s.Outage = p.book.failure
	}
	for typ, r := range p.book.types {
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

// book is what Status reads.
type book struct {
	started time.Time
	running bool
	types   map[string]*typeRecord // "" for the list of types

	answered time.Time // when the queue last answered without an error
	failure  error     // the last answer, if that was an error
}

// note changes what is known about a type.
func (p *Pool) note(typ string, f func(*typeRecord)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.record(typ))
	p.restate(typ)
}

// restate finds the state of a type anew; p.mu is held.
func (p *Pool) restate(typ string) {
	r, state := p.record(typ), Waiting
	switch {
	case p.refused[typ] != nil:
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

// record finds the record of a type; p.mu is held.
func (p *Pool) record(typ string) *typeRecord {
	r := p.book.types[typ]
	if r == nil {
		r = &typeRecord{TypeStatus: TypeStatus{Type: typ, State: Waiting, Since: time.Now(), Losses: map[Cause]uint64{}}}
		p.book.types[typ] = r
	}
	return r
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

// notePaused tells whether an operator has paused a type.
func (p *Pool) notePaused(typ string, paused bool) {
	p.note(typ, func(r *typeRecord) {
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
func (p *Pool) noteRunning() (ended func()) {
	set := func(running bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.book.running = running
	}
	set(true)
	return func() { set(false) }
}

// noteHeld tells that the lock of a type was acquired, or given back.
func (p *Pool) noteHeld(typ string, lease *lock.Lease) {
	p.note(typ, func(r *typeRecord) {
		r.Held, r.Token, r.beat, r.handling = false, 0, time.Now(), false
		if lease != nil {
			r.Held, r.Token = true, lease.Token()
		}
	})
	if lease != nil {
		p.observe(Observation{Type: typ, Step: StepAcquire, Took: time.Since(p.wantsNoMore(typ))})
	}
}

// wants tells that the lock of a type is wanted from now on, if it was not before.
func (p *Pool) wants(typ string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.record(typ); r.wanted.IsZero() {
		r.wanted = time.Now()
	}
}

// wantsNoMore tells since when the lock was wanted, and that it is not any more.
func (p *Pool) wantsNoMore(typ string) (since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.record(typ)
	since, r.wanted = r.wanted, time.Time{}
	return since
}

// noteAnswer tells how a look at the queue has ended; the type is "" where it is about all of them.
func (p *Pool) noteAnswer(typ string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer(p.record(typ), err)
}

// answer is noteAnswer; p.mu is held.
func (p *Pool) answer(r *typeRecord, err error) {
	r.asking = time.Time{}
	switch {
	case errors.Is(err, context.Canceled):
	case err == nil:
		p.book.answered, p.book.failure = time.Now(), nil
	default:
		p.book.failure = err
		r.failed(err)
	}
}

// noteAsking tells that the queue is being asked about a type.
func (p *Pool) noteAsking(typ string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record(typ).asking = time.Now()
}

// noteEnd tells how a session, or the attempt at one, has ended.
func (p *Pool) noteEnd(typ string, err error) {
	p.note(typ, func(r *typeRecord) {
		over := err == nil || errors.Is(err, errAsked) || errors.Is(err, lock.ErrLost) || errors.Is(err, storage.ErrFenced) ||
			errors.Is(err, context.Canceled)
		r.failing = !over
		if err != nil && !errors.Is(err, errAsked) && !errors.Is(err, context.Canceled) {
			r.failed(err)
		}
	})
}

// noteEvent keeps what an event of a session tells.
func (p *Pool) noteEvent(e Event) {
	p.note(e.Type, func(r *typeRecord) {
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

// noteFile tells which file a session has opened.
func (s *session) noteFile(path string, durable uint64) {
	s.pool.note(s.typ, func(r *typeRecord) { r.Path, r.Index = path, durable })
}

// noteLoss counts a session that ended early. That the pool ends is no loss.
func (s *session) noteLoss(ctx context.Context, err error) {
	if cause := lossCause(err); cause != "" && ctx.Err() == nil {
		s.pool.note(s.typ, func(r *typeRecord) { r.Losses[cause]++ })
	}
}

// noteFailing tells that a message fails, and is tried again.
func (s *session) noteFailing(err error) {
	s.pool.note(s.typ, func(r *typeRecord) {
		r.failing = true
		r.failed(err)
	})
}

// handling tells that the Handler is at work.
func (p *Pool) handling(typ string, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record(typ).handling = yes
}

// progress notes that a step of a session has ended.
func (p *Pool) progress(o Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.record(o.Type)
	r.beat = time.Now()
	switch {
	case o.Step == StepFetch:
		p.answer(r, o.Err)
	case o.Step == StepAck && o.Err == nil && o.Messages > 0:
		r.failing = false // nothing goes on but what could be handled, or is in the file
		p.restate(o.Type)
	}
}

// countType counts for the pool and for a type.
func (p *Pool) countType(typ string, f func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.stats)
	f(&p.record(typ).Stats)
}

func (s *session) count(f func(*Stats)) { s.pool.countType(s.typ, f) }

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

// troubles is what keeps this pool from draining types now, by type.
func (p *Pool) troubles() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs map[string]string
	for typ, r := range p.book.types {
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
