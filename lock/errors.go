package lock

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// Sentinels, for errors.Is.
var (
	// ErrHeld: the lock is held. See [HeldError].
	ErrHeld = errors.New("lock is held")
	// ErrLost: the lease ended without a release. See [LostError].
	ErrLost = errors.New("lock was lost")
	// ErrReleased: the lease was released. It is then the cause of [Lease.Context].
	ErrReleased = errors.New("lock was released")
	// ErrNotHeld: the lock to be released by request or by force is not held.
	ErrNotHeld = errors.New("nobody holds the lock")
	// ErrUnknown: the lock has no record: this name has never been used, or not for weeks.
	ErrUnknown = errors.New("there is no lock of this name; check the spelling, or list the locks")
	// ErrTooShort: the lease is held, but ends sooner than the caller of [Lease.Check] needs.
	ErrTooShort = errors.New("lease ends too soon")
	// ErrInvalid: an argument is out of range. See [InvalidError].
	ErrInvalid = errors.New("invalid lock argument")
	// ErrUnavailable: the store did not answer, or failed every write. See [UnavailableError].
	ErrUnavailable = errors.New("lock store is unavailable")
	// ErrDamaged: the record of a lock cannot be decoded. See [DamagedError].
	ErrDamaged = errors.New("lock record is damaged")
	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("locker is closed")
	// ErrPermanent is wrapped by a [Store]'s error if a retry cannot help (no permission, wrong
	// server) and it is certain that nothing was written.
	ErrPermanent = errors.New("permanent; do not retry")

	errNotSent = errors.New("not sent to the lock store")
)

// HeldError describes the holder of a lock that could not be acquired. It wraps ErrHeld, and the
// context's error if that ended the wait. Owner, Why and Lease are those of the holder, or of the
// first of several.
type HeldError struct {
	Name     string
	Owner    Process
	Why      string
	Token    int64         // the last token of the record
	Lease    time.Duration // the holder's
	Observed time.Duration // how long this Locker has observed this acquisition
	Own      bool          // the holder is this Locker itself
	Reserved bool          // the lock has room for the caller, but Owner is first in its queue
	Cause    error         // the context's, nil if TryAcquire or WithWait gave up
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("lock %q is held", e.Name)
	switch {
	case e.Reserved:
		s = fmt.Sprintf("lock %q is reserved for %v, first in line", e.Name, e.Owner)
	case e.Own:
		s += " by this process itself; to re-enter it, call Locker.Do with the context of the Do that holds it"
	case e.Owner != (Process{}):
		s += " by " + e.Owner.String()
	}
	if e.Why != "" {
		s += ": " + e.Why
	}
	if seen := e.Observed.Round(time.Millisecond); seen > 0 {
		s += fmt.Sprintf(", seen for %v", seen)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns ErrHeld and the cause, if there is one, for errors.Is.
func (e *HeldError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrHeld}
	}
	return []error{ErrHeld, e.Cause}
}

// LostReason is why a lease was lost.
type LostReason string

const (
	// LostExpired: no renewal was acknowledged in time. The lock may not have been taken over yet.
	LostExpired LostReason = "expired"
	// LostGone: the record no longer has this lease: the lock was taken over, or the record was deleted. It is also the reason if the
	// lock was released by force and the store did not answer at once when asked why.
	LostGone LostReason = "taken away"
	// LostForced: an operator released it by force ([Locker.ForceRelease]).
	LostForced LostReason = "released by force"
	// LostMaxHold: it was held for as long as [WithMaxHold] allows.
	LostMaxHold LostReason = "held too long"
)

// LostError is the cause of [Lease.Context] after a loss. It wraps ErrLost.
type LostError struct {
	Name   string
	Token  int64
	Reason LostReason
	Why    string // the reason given to ForceRelease
	Cause  error  // the error of the last renewal, if it failed
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("lock %q (token %d) was lost: ", e.Name, e.Token)
	switch e.Reason {
	case LostGone:
		return s + "the store no longer has this lease; the lock was taken over or released by force, or its record was deleted"
	case LostForced:
		return s + "it was released by force: " + e.Why
	case LostMaxHold:
		return s + "it was held for as long as WithMaxHold allows"
	}
	s += "no renewal was acknowledged within the lease"
	if e.Cause != nil {
		s += "; the last one failed: " + e.Cause.Error()
	}
	return s
}

// Unwrap returns ErrLost and the cause, if there is one.
func (e *LostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Cause}
}

// InvalidError reports an invalid argument: What it is ("lock name"), its Value, and the Problem with
// it. It wraps ErrInvalid.
type InvalidError struct {
	What, Value, Problem string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid %s %s: %s", e.What, e.Value, e.Problem)
}

// Unwrap returns ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// UnavailableError means that the store gave no usable answer until the caller gave up. It wraps
// ErrUnavailable.
type UnavailableError struct {
	Doing string        // "acquire" or "release"
	Name  string        // of the lock
	For   time.Duration // how long
	Cause error         // the last error
}

func (e *UnavailableError) Error() string {
	s := fmt.Sprintf("%s lock %q: the lock store has given no usable answer for %v; check that it runs, is reachable and "+
		"can be written to, and that the URL is right", e.Doing, e.Name, e.For.Round(time.Millisecond))
	if e.Doing == "release" {
		s += "; the lock frees itself after one lease"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns ErrUnavailable and the cause, if there is one.
func (e *UnavailableError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrUnavailable}
	}
	return []error{ErrUnavailable, e.Cause}
}

// DamagedError is the error of a [Store] that cannot decode a record: another program has written it.
// It wraps ErrDamaged and ErrPermanent. [Locker.ForceRelease] removes such a record.
type DamagedError struct {
	Name  string // of the lock
	Cause error  // what is wrong
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the record of lock %q is damaged: %v; remove it while the lock is not in use", e.Name, e.Cause)
}

// Unwrap returns ErrDamaged, ErrPermanent and the cause.
func (e *DamagedError) Unwrap() []error { return []error{ErrDamaged, ErrPermanent, e.Cause} }

// Limits of texts, in bytes.
const (
	// MaxName is the longest name of a lock.
	MaxName = 255
	// MaxWhy is the longest text of [WithWhy], and of each text in a [Process].
	MaxWhy = 512
)

// checkName accepts 1 to MaxName bytes of UTF-8 without control characters, so that a name can be a
// key in every backend and can be printed. Names are compared byte by byte.
func checkName(name string) error {
	bad := func(problem string) error {
		return &InvalidError{What: "lock name", Value: quote(name), Problem: problem}
	}
	switch {
	case name == "":
		return bad("it is empty")
	case len(name) > MaxName:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(name), MaxName))
	case !utf8.ValidString(name):
		return bad("it is not UTF-8")
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return bad("it has control characters")
		}
	}
	return nil
}

// checkText checks a text that is stored with a lock for people to read.
func checkText(what, s string) error {
	switch {
	case len(s) > MaxWhy:
		return &InvalidError{What: what, Value: quote(s), Problem: fmt.Sprintf("it has %d bytes, at most %d are allowed",
			len(s), MaxWhy)}
	case !utf8.ValidString(s):
		return &InvalidError{What: what, Value: quote(s), Problem: "it is not UTF-8"}
	}
	return nil
}

// checkOwner checks the texts of Options.Owner.
func checkOwner(o Process) error {
	for _, f := range [][2]string{{"owner host", o.Host}, {"owner instance", o.Instance}, {"owner boot", o.Boot},
		{"owner pid namespace", o.PIDNamespace}, {"owner start", o.Started}} {
		if err := checkText(f[0], f[1]); err != nil {
			return err
		}
	}
	return nil
}

// checkLease refuses leases too short for their safety margins, or so long that a dead holder would block the lock for days.
func checkLease(d time.Duration) error {
	switch {
	case d < MinLease:
		return &InvalidError{What: "lease", Value: d.String(), Problem: "it must be at least " + MinLease.String() +
			", so that the safety margins and renewals fit in"}
	case d > MaxLease:
		return &InvalidError{What: "lease", Value: d.String(), Problem: "it must be at most " + MaxLease.String() +
			": a crashed holder blocks the lock for that long"}
	}
	return nil
}

// quote quotes a text for an error message, truncating a long one.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
