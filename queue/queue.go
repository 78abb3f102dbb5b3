// Package queue publishes typed messages and hands them to a consumer in order. It holds what all
// backends share: the message and its ID, the Queue interface, the Publisher and the errors.
//
// A queue is a set of messages per type, sorted by ID. Publishing inserts, fetching reads a range,
// acknowledging deletes; no message carries a state, and nothing is claimed. Who may consume a type
// is decided elsewhere (a lock), and that a message is consumed once is decided by the consumer's
// own file, which refuses a second copy. What the queue guarantees in return is what Publisher
// documents.
package queue

import (
	"cmp"
	"time"
)

// Limits of a message. A backend accepts every message within them.
const (
	// MaxPayload is the largest payload of one message, in bytes. With the largest headers there
	// may be, and with what a dead letter has besides, it fits into one document of MongoDB, which
	// has at most 16 MiB.
	MaxPayload = 15 << 20
	// MaxHeaders bounds the sum of all header key and value lengths of one message, in bytes. A
	// delayed message has 82 bytes less: it gets a DelayedHeader when it is promoted.
	MaxHeaders = 64 << 10
	// MaxHeaderCount is how many headers a message has at most. A delayed message has one less, for
	// the same reason.
	MaxHeaderCount = 256
	// MaxTypeLen is the longest type name, in bytes.
	MaxTypeLen = 64
)

// What a message takes in memory besides its bytes, in bytes, see Message.Size. Measured: a map of
// 8 to 256 headers takes 44 to 82 bytes for each besides long texts, and a file's record of it 32
// more for a moment.
const (
	messageOverhead = 384 // with its ID, and a map with room for eight
	headerOverhead  = 100
)

// MaxSize is the largest Message.Size of a message that a publisher takes.
const MaxSize = MaxPayload + MaxHeaders + MaxHeaderCount*headerOverhead + messageOverhead

// KeyHeader is the header that holds a message's idempotency key, 1 to 255 bytes: of messages of a
// type with the same key that are published within the worker's dedupe window, one gets into the
// file. It is for programs that may publish the same thing twice, such as one that was restarted; a
// Publisher's own repetitions are recognised without.
const KeyHeader = "idempotency-key"

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 255

// Message is one message of a type. Backends own nothing of it after a call returns; a fetched
// message belongs to the caller.
type Message struct {
	Type    string
	ID      ID
	Payload []byte
	Headers map[string]string // nil when there are none

	// Due, if set, delays a message that is published: it becomes a normal one at that time, by the
	// queue's clock, see Publisher.PublishAt. It is set in delayed messages only, never in what
	// Fetch returns.
	Due time.Time

	// Incomplete is set by Fetch when the backend cannot read a message whole: an earlier version
	// or a foreign program wrote it in another form, or somebody changed it. Payload is then empty.
	// An incomplete message is treated as "not here yet", unless the consumer knows its ID already:
	// then it is acknowledged like any other. It becomes complete when it is repaired.
	Incomplete bool
	Why        string // what is wrong with an Incomplete message, as far as the backend knows: which field, what it is, what it should be
}

// Unfit says why a pending message cannot be appended or handled as it is; "" if nothing is wrong
// with it.
func (m *Message) Unfit() string {
	switch {
	case m.Incomplete:
		return cmp.Or(m.Why, "it cannot be read whole")
	case m.ID.N() == 0 && !m.Loose():
		return "its number is 0: publishers count from 1, and a message that was published in a transaction has the header " + LooseHeader + ": 1"
	}
	return ""
}

// Limit bounds one Fetch. At least one message is returned when there is one, however large.
type Limit struct {
	Messages int   // at most this many, > 0
	Bytes    int64 // stop after the message with which they have this Size together; 0 = no bound

	// Foreign, if set, is called by Fetch for each foreign key that it passes, see ForeignKeyStore.
	// That costs nothing: Fetch reads them anyway.
	Foreign func(key string)
}
