// Package queue publishes typed messages and hands them to a consumer in order. It holds what all backends share: the
// message and its ID, the Queue interface, the Publisher and the errors.
//
// A queue is a set of messages per type, sorted by ID. Publishing inserts, fetching reads a range, acknowledging deletes;
// no message carries a state, and nothing is claimed. Who may consume a type is decided elsewhere (a lock), and that
// a message is consumed once is decided by the consumer's own file, which refuses a second copy. What the queue
// guarantees in return is what Publisher documents.
package queue

import (
	"cmp"
	"context"
	"time"
)

// Limits of a message. A backend accepts every message within them.
const (
	// MaxPayload is the largest payload of one message, in bytes. With the largest headers there may be, and with what a dead letter has
	// besides, it fits into one document of MongoDB, which has at most 16 MiB.
	MaxPayload = 15 << 20
	// MaxHeaders bounds the sum of all header key and value lengths of one message, in bytes. A delayed message has 82 bytes less: it gets
	// a DelayedHeader when it is promoted.
	MaxHeaders = 64 << 10
	// MaxHeaderCount is how many headers a message has at most. A delayed message has one less, for the same reason.
	MaxHeaderCount = 256
	// MaxTypeLen is the longest type name, in bytes.
	MaxTypeLen = 64
)

// What a message takes in memory besides its bytes, in bytes, see Message.Size. Measured: a map of 8 to 256 headers takes 44 to 82 bytes for each besides
// long texts, and a file's record of it 32 more for a moment.
const (
	messageOverhead = 384 // with its ID, and a map with room for eight
	headerOverhead  = 100
)

// MaxSize is the largest Message.Size of a message that a publisher takes.
const MaxSize = MaxPayload + MaxHeaders + MaxHeaderCount*headerOverhead + messageOverhead

// KeyHeader is the header that holds a message's idempotency key, 1 to 255 bytes: of messages of a type with the same key that are
// published within the worker's dedupe window, one gets into the file. It is for programs that may publish the same thing
// twice, such as one that was restarted; a Publisher's own repetitions are recognised without.
const KeyHeader = "idempotency-key"

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 255

// Message is one message of a type. Backends own nothing of it after a call returns; a fetched message
// belongs to the caller.
type Message struct {
	Type    string
	ID      ID
	Payload []byte
	Headers map[string]string // nil when there are none

	// Due, if set, delays a message that is published: it becomes a normal one at that time, by the queue's clock, see
	// Publisher.PublishAt. It is set in delayed messages only, never in what Fetch returns.
	Due time.Time

	// Incomplete is set by Fetch when the backend cannot read a message whole: an earlier version or a foreign program wrote it in
	// another form, or somebody changed it. Payload is then empty. An incomplete message is treated as "not here yet", unless the consumer
	// knows its ID already: then it is acknowledged like any other. It becomes complete when it is repaired.
	Incomplete bool
	Why        string // what is wrong with an Incomplete message, as far as the backend knows: which field, what it is, what it should be
}

// Unfit says why a pending message cannot be appended or handled as it is; "" if nothing is wrong with it.
func (m *Message) Unfit() string {
	switch {
	case m.Incomplete:
		return cmp.Or(m.Why, "it cannot be read whole")
	case m.ID.N() == 0:
		return "its number is 0: publishers count from 1, so no publisher of ours sent it"
	}
	return ""
}

// Limit bounds one Fetch. At least one message is returned when there is one, however large.
type Limit struct {
	Messages int   // at most this many, > 0
	Bytes    int64 // stop after the message with which they have this Size together; 0 = no bound

	// Foreign, if set, is called by Fetch for each foreign key that it passes, see ForeignKeyStore. That costs nothing: Fetch reads them anyway.
	Foreign func(key string)
}

// Queue is what a backend provides. All methods are safe for concurrent use. Every method returns ctx's error when
// ctx ends; errors that need a person (no permission, wrong server) wrap a sentinel of this package and name the remedy.
type Queue interface {
	// Insert stores messages of one type, in order, durably (MongoDB: majority; SQLite: synced). It is idempotent by
	// ID: a message that is stored already counts as stored, so after an unclear answer the caller repeats the
	// same messages. The error, if any, is an *InsertError.
	//
	// The messages become visible in order: at no instant is one visible while an earlier one of the call has never been
	// stored. A consumer relies on it, also across repetitions and attempts that a server carries out late: were n+1
	// visible without n, and the publisher gone, the consumer would declare a gap and later refuse n.
	Insert(ctx context.Context, typ string, msgs []Message) error

	// Fetch returns pending messages with ID > after (the zero ID = from the start), in ID order. It neither claims nor
	// hides them: a message is pending until Ack. An empty result means nothing is pending behind after.
	Fetch(ctx context.Context, typ string, after ID, limit Limit) ([]Message, error)

	// Ack removes messages. IDs that are gone already are no error. It needs no durability: a lost Ack redelivers, and
	// the file refuses the copy.
	Ack(ctx context.Context, typ string, ids []ID) error

	// RegisterType makes typ known to Types; registering twice is no error.
	RegisterType(ctx context.Context, typ string) error

	// Types lists the registered types and those that merely have messages (a foreign publisher), dead letters or a file, sorted by name.
	// Its cost grows with the number of types, never with the number of messages. What is not ours is passed over, up to a bound: of types
	// behind that, only registered ones are listed, see Strays.
	Types(ctx context.Context) ([]string, error)

	// Depth tells how much is pending of a type without scanning more than max messages. Foreign keys are not pending.
	Depth(ctx context.Context, typ string, max int) (Depth, error)

	// RegistryEntry returns the registry entry of the type's file; ok is false when no file was registered yet.
	RegistryEntry(ctx context.Context, typ string) (f RegistryEntry, ok bool, err error)

	// RegisterFile records f as the file of the type if none is registered yet, durably, and returns the entry that is
	// now registered: the caller compares FileID with its own. Generation 0 counts as 1, here and in SucceedFile.
	RegisterFile(ctx context.Context, typ string, f RegistryEntry) (RegistryEntry, error)

	// UpdateFile raises Epoch and DurableIndex of the entry whose FileID is f.FileID; lower values change nothing.
	// updated is false when the registered entry has another FileID (or none is registered).
	UpdateFile(ctx context.Context, typ string, f RegistryEntry) (updated bool, err error)

	// AckFile removes messages whose records are in f below f.DurableIndex: it raises Epoch and DurableIndex as UpdateFile does, and then does
	// what Ack does. No failure, of the server or of a fail-over, keeps the removal and loses what was raised. ok is false, and nothing was changed,
	// when the registered entry has another FileID or a higher Epoch (or none is registered): another writer took over.
	AckFile(ctx context.Context, typ string, f RegistryEntry, ids []ID) (ok bool, err error)

	// SucceedFile replaces the entry of the type by f if its FileID is still old, durably, and returns the entry that is
	// registered now: f, or what somebody else put there; ok is false when there is none. A file that reached its size
	// limit, was compacted or repaired goes on in a successor with another identity. Epoch and DurableIndex of the entry
	// never go back by it. After an unclear answer it is repeated with the same arguments: what landed counts as done.
	SucceedFile(ctx context.Context, typ string, old [16]byte, f RegistryEntry) (now RegistryEntry, ok bool, err error)

	// Now is the backend's clock: the server's for MongoDB, this machine's for SQLite, as read at connect and with each Heartbeat and
	// Promote, and advanced by what has passed since. It may go back. It feeds ID times, which order messages of different producers loosely, and what
	// people read. What is due is decided by Promote, which does not believe a clock that is ahead of others.
	Now(ctx context.Context) (time.Time, error)

	// HolderNote returns what SetHolderNote has stored last for the type, nil if nothing. It is the holder's note to the next one.
	HolderNote(ctx context.Context, typ string) ([]byte, error)

	// SetHolderNote stores a few bytes of UTF-8 text for the type, durably.
	SetHolderNote(ctx context.Context, typ string, mark []byte) error

	DeadLetterStore
	SettingsStore
	MemberStore
	DelayedStore
	ForeignKeyStore

	Close() error
}

// Depth is the backlog of one type.
type Depth struct {
	Pending int  // number of pending messages, at most the max asked for
	Capped  bool // there are more than Pending
	Oldest  ID   // the first pending message; zero when Pending is 0
	Foreign int  // foreign keys that were seen on the way; there may be more, also when it is 0
}

// RegistryEntry is the entry of a type's file: which file is the one, and how much of it is known to be durable. It
// protects against a second volume mounted at the same path and against an old copy restored in place.
type RegistryEntry struct {
	FileID       [16]byte // changed by SucceedFile only
	Generation   uint64   // 1 for the first file, one more for each successor; an entry stored without it reads as 1
	Epoch        uint64   // highest epoch known to have opened the file or one before it
	DurableIndex uint64   // records below this index are durable in the file or one before it
}
