package queue

import (
	"context"
	"io"
	"time"
)

// Queue is what a backend provides: all roles together. All methods are safe for concurrent use.
// Every method returns ctx's error when ctx ends; errors that need a person (no permission, wrong
// server) wrap a sentinel of this package and name the remedy.
//
// Whoever uses a queue asks for the roles that it needs, not for all of it: see PublisherStore,
// DeadLetterReader, Fetcher. How to write a backend is in package queuedriver.
type Queue interface {
	MessageStore
	TypeRegistry
	FileRegistry
	HolderNotes
	Clock
	DelayedStore
	DeadLetterStore
	ForeignKeyStore
	SettingsStore
	MemberStore
	NotificationStore
	io.Closer
}

// MessageStore keeps the pending messages.
type MessageStore interface {
	// Insert stores messages of one type, in order, durably (MongoDB: majority; SQLite: synced). It
	// is idempotent by ID: a message that is stored already counts as stored, so after an unclear
	// answer the caller repeats the same messages. The error, if any, is an *InsertError.
	//
	// The messages become visible in order: at no instant is one visible while an earlier one of
	// the call has never been stored. A consumer relies on it, also across repetitions and attempts
	// that a server carries out late: were n+1 visible without n, and the publisher gone, the
	// consumer would declare a gap and later refuse n.
	Insert(ctx context.Context, typ string, msgs []Message) error

	// Fetch returns pending messages with ID > after (the zero ID = from the start), in ID order.
	// It neither claims nor hides them: a message is pending until Ack. An empty result means
	// nothing is pending behind after.
	Fetch(ctx context.Context, typ string, after ID, limit Limit) ([]Message, error)

	// Ack removes messages. IDs that are gone already are no error. It needs no durability: a lost
	// Ack redelivers, and the file refuses the copy.
	Ack(ctx context.Context, typ string, ids []ID) error

	// Depth tells how much is pending of a type without scanning more than max messages. Foreign
	// keys are not pending.
	Depth(ctx context.Context, typ string, max int) (Depth, error)
}

// TypeRegistry knows the types.
type TypeRegistry interface {
	// RegisterType makes typ known to Types; registering twice is no error.
	RegisterType(ctx context.Context, typ string) error

	// Types lists the registered types and those that merely have messages (a foreign publisher),
	// dead letters or a file, sorted by name. Its cost grows with the number of types, never with
	// the number of messages. What is not ours is passed over, up to a bound: of types behind that,
	// only registered ones are listed, see Strays.
	Types(ctx context.Context) ([]string, error)
}

// FileRegistry keeps one RegistryEntry per type: which file is the type's, and how much of it is
// durable.
type FileRegistry interface {
	// RegistryEntry returns the registry entry of the type's file; ok is false when no file was
	// registered yet.
	RegistryEntry(ctx context.Context, typ string) (f RegistryEntry, ok bool, err error)

	// RegisterFile records f as the file of the type if none is registered yet, durably, and
	// returns the entry that is now registered: the caller compares FileID with its own. Generation
	// 0 counts as 1, here and in SucceedFile.
	RegisterFile(ctx context.Context, typ string, f RegistryEntry) (RegistryEntry, error)

	// UpdateFile raises Epoch and DurableIndex of the entry whose FileID is f.FileID, lower values
	// change nothing, and sets Place unless f has none. updated is false when the registered entry has another FileID (or none is
	// registered).
	UpdateFile(ctx context.Context, typ string, f RegistryEntry) (updated bool, err error)

	// AckFile removes messages whose records are in f below f.DurableIndex: it raises Epoch and
	// DurableIndex as UpdateFile does, and then does what Ack does. No failure, of the server or of
	// a fail-over, keeps the removal and loses what was raised. ok is false, and nothing was
	// changed, when the registered entry has another FileID or a higher Epoch (or none is
	// registered): another writer took over.
	AckFile(ctx context.Context, typ string, f RegistryEntry, ids []ID) (ok bool, err error)

	// SucceedFile replaces the entry of the type by f if its FileID is still old, durably, and
	// returns the entry that is registered now: f, or what somebody else put there; ok is false
	// when there is none. A file that reached its size limit, was compacted or repaired goes on in
	// a successor with another identity. Epoch and DurableIndex of the entry never go back by it, and
	// it keeps its Place if f has none.
	// After an unclear answer it is repeated with the same arguments: what landed counts as done.
	SucceedFile(ctx context.Context, typ string, old [16]byte, f RegistryEntry) (now RegistryEntry, ok bool, err error)
}

// HolderNotes keeps a short note per type, which the holder of the type leaves for the next one.
type HolderNotes interface {
	// HolderNote returns what SetHolderNote has stored last for the type, nil if nothing.
	HolderNote(ctx context.Context, typ string) ([]byte, error)

	// SetHolderNote stores a few bytes of UTF-8 text for the type, durably.
	SetHolderNote(ctx context.Context, typ string, mark []byte) error
}

// Clock is the clock of a queue.
type Clock interface {
	// Now is the backend's clock: the server's for MongoDB, this machine's for SQLite, as read at
	// connect and with each Heartbeat and Promote, and advanced by what has passed since. It may go
	// back. It feeds ID times, which order messages of different producers loosely, and what people
	// read. What is due is decided by Promote, which does not believe a clock that is ahead of
	// others.
	Now(ctx context.Context) (time.Time, error)
}

// Depth is the backlog of one type.
type Depth struct {
	Pending int  // number of pending messages, at most the max asked for
	Capped  bool // there are more than Pending
	Oldest  ID   // the first pending message; zero when Pending is 0
	Foreign int  // foreign keys that were seen on the way; there may be more, also when it is 0
}

// RegistryEntry is the entry of a type's file: which file is the one, and how much of it is known
// to be durable. It protects against a second volume mounted at the same path and against an old
// copy restored in place.
type RegistryEntry struct {
	FileID       [16]byte // changed by SucceedFile only
	Generation   uint64   // 1 for the first file, one more for each successor; an entry stored without it reads as 1
	Epoch        uint64   // highest epoch known to have opened the file or one before it
	DurableIndex uint64   // records below this index are durable in the file or one before it
	Place        string   // where the file is, for people who look for it: at most MaxPlace bytes of UTF-8, no secrets
}

// MaxPlace is the most bytes that RegistryEntry.Place may have.
const MaxPlace = 512
