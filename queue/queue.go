// Package queue publishes typed messages and delivers them to a consumer in order. It defines what all
// backends share: the [Message] and its [ID], the [Queue] interface, the [Publisher] and the errors.
//
// Start with [NewPublisher] and [Publisher.Publish]. Messages are consumed by package worker; the
// backends are mongoqueue and sqlitequeue, and package queuedriver says how to write one.
//
// # Life of a message
//
//	Publish ──▶ pending ──Fetch──▶ the consumer appends or handles it ──Ack──▶ deleted
//	              ▲   │                                      └─ gives it up ──▶ dead letter ──▶ requeued or removed
//	              │   └ Fetch again, until Ack
//	PublishAt ──▶ delayed ──due──▶ promoted: pending, under a new ID
//
// # Where to read
//
//	queue.go, id.go      messages and IDs
//	backend.go           what a backend implements; delayed.go, dead.go, foreign.go, settings.go, members.go, notify.go: its further roles
//	publisher.go         Publish and Send: validation, buffer, outcomes
//	stream.go, admit.go  the batches of one type: when, how large, under which numbers
//	repeat.go            retries of a publish that got no clear answer
//	resume.go            a publisher whose stream another process can continue
//	loose.go             messages published in a transaction, which are not numbered
//
// # How it works
//
// A queue is a set of messages per type, sorted by ID. Publishing inserts, fetching reads a range,
// acknowledging deletes. Messages have no state, and fetching does not claim or hide them. A lock
// decides which consumer may serve a type. The consumer's file ensures that a message is consumed only
// once, because it refuses a second copy. [Publisher] and [MessageStore] document the guarantees that
// this relies on.
package queue

import (
	"cmp"
	"time"
)

// Limits of a message. A backend accepts every message within them.
const (
	// MaxPayload is the largest payload of one message, in bytes. Together with the largest headers
	// and the fields of a dead letter it fits into one MongoDB document, which is limited to 16 MiB.
	MaxPayload = 15 << 20
	// MaxHeaders bounds the sum of all header key and value lengths of one message, in bytes. For a
	// delayed message it is 82 bytes less, because promotion adds a DelayedHeader.
	MaxHeaders = 64 << 10
	// MaxHeaderCount is the largest number of headers of a message; for a delayed message it is one
	// less, for the same reason.
	MaxHeaderCount = 256
	// MaxTypeLen is the longest type name, in bytes.
	MaxTypeLen = 64
)

// Overhead of a message in memory, in bytes, for Message.Size. Measured: a map of 8 to 256 headers
// takes 44 to 82 bytes per header plus its key and value, and the file's record of it briefly takes 32
// more.
const (
	messageOverhead = 384 // with its ID, and a map with room for eight headers
	headerOverhead  = 100
)

// MaxSize is the largest Message.Size of a message that a publisher accepts.
const MaxSize = MaxPayload + MaxHeaders + MaxHeaderCount*headerOverhead + messageOverhead

// KeyHeader is the header with a message's idempotency key, 1 to 255 bytes. Of the messages of a type
// that have the same key and are published within the worker's dedupe window, the file gets one. Use
// it in programs that may publish the same thing twice, for example after a restart. The retries of a
// Publisher need no key. Header names are compared byte for byte: in another spelling, such as
// Idempotency-Key, it is a header without a meaning.
const KeyHeader = "idempotency-key"

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 255

// Message is one message of a type. A backend keeps no reference to it after a call returns; a fetched
// message belongs to the caller.
type Message struct {
	Type    string
	ID      ID
	Payload []byte
	Headers map[string]string // nil when there are none

	// Due, if set, delays a message: it becomes a normal one at that time by the queue's clock, see
	// Publisher.PublishAt. It is from 1970 to MaxDue. Messages that Fetch returns never have it.
	Due time.Time

	// Incomplete is set by Fetch when the backend cannot decode all of a message: an earlier version
	// or another program wrote it in another form, or it was modified in the database. Payload and
	// Headers are then empty. A consumer treats it as not yet arrived, unless it already has a message
	// with this ID: then it acknowledges it as a copy. It becomes complete once it is repaired in the
	// database.
	Incomplete bool
	Why        string // what is wrong with an Incomplete message, as far as the backend knows: the field, what it is and what it should be
}

// Unfit returns why a pending message can be neither appended nor handled as it is, or "" if it can.
func (m *Message) Unfit() string {
	switch {
	case m.Incomplete:
		return cmp.Or(m.Why, "it cannot be decoded completely")
	case m.ID.N() == 0 && !m.Loose():
		return "its number is 0: publishers count from 1, and a message that was published in a transaction has the header " + LooseHeader + ": 1"
	}
	return ""
}

// Limit bounds one read, such as Fetch. If there is a message, at least one is returned, however
// large.
type Limit struct {
	Messages int   // at most this many, > 0
	Bytes    int64 // stop after the message with which the sum of Message.Size reaches this; 0 = no bound

	// Foreign, if set, is called by Fetch for each foreign key that it skips, see ForeignKeyStore.
	// It costs no further read.
	Foreign func(key string)
}
