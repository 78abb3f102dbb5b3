package queue

import (
	"context"
	"io"
	"time"
)

// Queue is the interface of a backend: all roles together. All methods are safe for concurrent use.
// Every method returns ctx's error when ctx ends. Errors that need human intervention (no permission,
// wrong server) wrap a sentinel of this package and name the remedy.
//
// Code that uses a queue should require only the roles that it needs: see [PublisherStore],
// [DeadLetterReader], [Fetcher]. Package queuedriver says how to write a backend.
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
	// is idempotent by ID: a message that is already stored counts as stored. So after an unclear
	// answer the caller inserts the same messages again. The error, if any, is an *InsertError.
	//
	// The messages become visible in order: a message is never visible before all earlier ones of
	// the call have been stored. That must hold across retries, too, and for attempts that a server
	// executes late. Otherwise, if n+1 became visible without n and the publisher died, the
	// consumer would declare a gap.
	Insert(ctx context.Context, typ string, msgs []Message) error

	// Fetch returns pending messages with ID > after (the zero ID = from the start), in ID order.
	// It neither claims nor hides them: a message is pending until Ack. An empty result means that
	// no message with such an ID is pending.
	Fetch(ctx context.Context, typ string, after ID, limit Limit) ([]Message, error)

	// Ack removes messages. IDs that do not exist are no error. It need not be durable: if an Ack is
	// lost, the messages are delivered again, and the file refuses the copies.
	Ack(ctx context.Context, typ string, ids []ID) error

	// Depth counts the pending messages of a type, at most max of them. Foreign keys do not count.
	Depth(ctx context.Context, typ string, max int) (Depth, error)
}

// TypeRegistry lists the types.
type TypeRegistry interface {
	// RegisterType makes typ known to Types; registering twice is no error.
	RegisterType(ctx context.Context, typ string) error

	// Types lists, sorted by name, the registered types and those that are not registered but have
	// messages, dead letters or a file. Its cost grows with the number of types, not of messages. It
	// skips foreign keys up to a bound; of the types after that, it lists only registered ones, see
	// Strays.
	Types(ctx context.Context) ([]string, error)
}

// FileRegistry keeps one RegistryEntry per type: which file belongs to the type, and how much of it is
// durable.
type FileRegistry interface {
	// RegistryEntry returns the registry entry of the type's file; ok is false if no file is
	// registered.
	RegistryEntry(ctx context.Context, typ string) (f RegistryEntry, ok bool, err error)

	// RegisterFile records f as the file of the type if none is registered yet, durably, and
	// returns the entry that is now registered: the caller compares FileID with its own. Generation
	// 0 counts as 1, here and in SucceedFile.
	RegisterFile(ctx context.Context, typ string, f RegistryEntry) (RegistryEntry, error)

	// UpdateFile raises Epoch and DurableIndex of the entry, if its FileID is f.FileID, and sets
	// Place if f has one. Lower values change nothing. updated is false if the entry has another
	// FileID or there is none.
	UpdateFile(ctx context.Context, typ string, f RegistryEntry) (updated bool, err error)

	// AckFile removes messages whose records are in f below f.DurableIndex. It raises Epoch and
	// DurableIndex as UpdateFile does, then removes the messages as Ack does. No failure, not even a
	// failover, may keep the removal and lose the raised values. ok is false, and nothing was
	// changed, if the entry has another FileID or a higher Epoch, or there is none: another writer
	// took over.
	AckFile(ctx context.Context, typ string, f RegistryEntry, ids []ID) (ok bool, err error)

	// SucceedFile replaces the entry of the type by f if its FileID is still old, durably, and
	// returns the entry that is now registered: f, or one that another process registered; ok is
	// false if there is none. It is for a file that continues in a successor, because it reached
	// its size limit, was compacted or was repaired. Epoch and DurableIndex of the entry never
	// decrease, and it keeps its Place if f has none. It is idempotent: after an unclear answer
	// call it again with the same arguments.
	SucceedFile(ctx context.Context, typ string, old [16]byte, f RegistryEntry) (now RegistryEntry, ok bool, err error)
}

// HolderNotes keeps a short note per type, which one holder of the type leaves for the next.
type HolderNotes interface {
	// HolderNote returns what SetHolderNote last stored for the type, or nil.
	HolderNote(ctx context.Context, typ string) ([]byte, error)

	// SetHolderNote stores a few bytes of UTF-8 text for the type, durably.
	SetHolderNote(ctx context.Context, typ string, note []byte) error
}

// Clock is the clock of a queue.
type Clock interface {
	// Now is the backend's clock: the server's for MongoDB, this machine's for SQLite. It is read at
	// connect and with each Heartbeat and Promote, and advanced by the time elapsed since. It may go
	// backwards. It is used for ID times, which order messages of different producers loosely, and
	// for times that are displayed. Promote decides by a stricter clock, which is never ahead of
	// others.
	Now(ctx context.Context) (time.Time, error)
}

// Depth is the backlog of one type.
type Depth struct {
	Pending int  // number of pending messages, at most the requested max
	Capped  bool // there are more
	Oldest  ID   // the first pending message; zero when Pending is 0
	Foreign int  // foreign keys that the query met; there may be more, even if it is 0
}

// RegistryEntry says which file belongs to a type, and how much of it is known to be durable. So a
// worker notices if another volume is mounted at the same path, or an old copy of the file was
// restored.
type RegistryEntry struct {
	FileID       [16]byte // changed by SucceedFile only
	Generation   uint64   // 1 for the first file, one more for each successor; an entry stored without it reads as 1
	Epoch        uint64   // highest epoch known to have opened the file or a predecessor
	DurableIndex uint64   // records below this index are durable in the file or a predecessor
	Place        string   // where the file is: at most MaxPlace bytes of UTF-8, no secrets
}

// MaxPlace is the longest RegistryEntry.Place, in bytes.
const MaxPlace = 512
