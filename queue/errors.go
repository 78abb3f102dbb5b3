package queue

import (
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// Sentinels, for errors.Is. The errors that wrap them name the rule and the remedy.
var (
	// ErrInvalidType: a type name breaks the rule. The error is a *TypeError.
	ErrInvalidType = errors.New("invalid type name")
	// ErrInvalidHeader: a header cannot be stored. The error is a *HeaderError.
	ErrInvalidHeader = errors.New("invalid header")
	// ErrInvalidID: a text is not a message ID, or a message to insert has none.
	ErrInvalidID = errors.New("invalid message ID")
	// ErrInvalidDue: a message cannot be delayed until that time.
	ErrInvalidDue = errors.New("invalid due time")
	// ErrTooLarge: a message exceeds a limit. The error is a *SizeError.
	ErrTooLarge = errors.New("message too large")
	// ErrInvalidURL: the address of a queue cannot be parsed.
	ErrInvalidURL = errors.New("invalid queue URL")
	// ErrOptions: a field of PublisherOptions is invalid.
	ErrOptions = errors.New("publisher options")
	// ErrUnreachable: the server cannot be reached now. A retry may succeed.
	ErrUnreachable = errors.New("queue unreachable")
	// ErrPermission: the server or the file system does not allow it (wrong credentials, missing
	// role, read-only file).
	ErrPermission = errors.New("not permitted by the queue")
	// ErrUnsupported: the server lacks a required feature, or refuses a message by a rule of its own,
	// such as a validator.
	ErrUnsupported = errors.New("refused by the queue")
	// ErrClosed: the queue or the publisher was closed.
	ErrClosed = errors.New("closed")
	// ErrReplaced: the database was removed or replaced while the Queue had it open. Every later
	// call fails with it, too: stop all users of the database, put it back, start them again.
	ErrReplaced = errors.New("lost its database")
	// ErrDamaged: an entry of the registry of files cannot be decoded, because another program has
	// written it. Other types are not affected.
	ErrDamaged = errors.New("damaged entry")
	// ErrIncomplete: a message that Fetch could not decode, see Message.Incomplete, was passed to
	// be published or stored.
	ErrIncomplete = errors.New("it is incomplete and cannot be inserted; fetch it again first")
	// ErrPaused: an operator has paused publishing for the type.
	ErrPaused = errors.New("publishing is paused")
	// ErrBacklogFull: as many messages of the type are pending as its backlog limit allows.
	ErrBacklogFull = errors.New("the backlog is full")
	// ErrUnknown: the message may or may not be stored. Publishing it again as a new message could
	// store it twice.
	ErrUnknown = errors.New("publish outcome unknown, the message may be stored")
)

// TypeError says why a type name is invalid. errors.Is(err, ErrInvalidType) holds.
type TypeError struct {
	Type   string
	Reason string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%v %q: %s; a type has 1 to %d characters, a-z or 0-9 first, then a-z, 0-9, '.', '_' or '-' (example: orders.v2)",
		ErrInvalidType, shorten.Text(e.Type), e.Reason, MaxTypeLen)
}

// Unwrap returns ErrInvalidType.
func (e *TypeError) Unwrap() error { return ErrInvalidType }

// SizeError says which limit a message exceeds. errors.Is(err, ErrTooLarge) holds.
type SizeError struct {
	What string // "payload", "headers", or "number of headers"
	Size int    // bytes, or headers
	Max  int
}

func (e *SizeError) Error() string {
	remedy := "store the data elsewhere and publish a reference, or split it into several messages"
	switch e.What {
	case "headers":
		remedy = "move the data into the payload"
	case "number of headers":
		return fmt.Sprintf("%v: %d headers, at most %d are allowed; move the data into the payload", ErrTooLarge, e.Size, e.Max)
	}
	return fmt.Sprintf("%v: %s of %d bytes, at most %d are allowed; %s", ErrTooLarge, e.What, e.Size, e.Max, remedy)
}

// Unwrap returns ErrTooLarge.
func (e *SizeError) Unwrap() error { return ErrTooLarge }

// HeaderError says which header cannot be stored. errors.Is(err, ErrInvalidHeader) holds.
type HeaderError struct {
	Key    string
	Reason string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("%v %q: %s; keys and values are UTF-8 text, keys are not empty and hold no NUL (put binary data into the payload)",
		ErrInvalidHeader, shorten.Text(e.Key), e.Reason)
}

// Unwrap returns ErrInvalidHeader.
func (e *HeaderError) Unwrap() error { return ErrInvalidHeader }

// InsertError is the error of Insert and Delay. It divides the messages into those that are certainly
// stored and the others, which are either certainly refused or unclear.
type InsertError struct {
	// Stored is how many messages, from the front, are certainly durable.
	Stored int
	// Refused means that this call has not stored any of the others and never will. Otherwise some
	// may be stored already, or may be stored later by a server that has received them.
	Refused bool
	// Temporary goes with Refused: a retry may succeed, because the cause can go away (no server
	// was reachable, the database was busy, the disk is full).
	Temporary bool
	Err       error
}

func (e *InsertError) Error() string {
	rest := "the others may or may not be stored; insert the same messages again to find out"
	if e.Refused {
		rest = "the others are not stored"
	}
	return fmt.Sprintf("insert: %v (%d stored; %s)", e.Err, e.Stored, rest)
}

// Unwrap returns the cause.
func (e *InsertError) Unwrap() error { return e.Err }

// PausedError is the error of a message whose type an operator has paused. It matches ErrPaused.
type PausedError struct {
	Type string
	Why  string // the operator's reason, if given
}

func (e *PausedError) Error() string {
	why := ""
	if e.Why != "" {
		why = fmt.Sprintf(" (%s)", shorten.Text(e.Why))
	}
	return fmt.Sprintf("publish: not stored: %v for type %s%s", ErrPaused, e.Type, why)
}

// Is makes the error ErrPaused.
func (e *PausedError) Is(target error) bool { return target == ErrPaused }

// BacklogFullError is the error of a message that waited in vain for room in a full backlog. It matches
// ErrBacklogFull.
type BacklogFullError struct {
	Type  string
	Limit int // messages
}

func (e *BacklogFullError) Error() string {
	return fmt.Sprintf("publish: not stored: %v: %d messages of type %s are pending, which is its limit; start a worker for it, or raise the limit",
		ErrBacklogFull, e.Limit, e.Type)
}

// Is makes the error ErrBacklogFull.
func (e *BacklogFullError) Is(target error) bool { return target == ErrBacklogFull }
