package queue

import (
	"context"
	"fmt"

	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// ForeignKeyStore is the role of a Queue for foreign keys: keys among those of a type's messages that
// are not message IDs, because another program or a person has stored something there. A foreign entry
// cannot be appended, so Fetch skips it and Depth does not count it. It may be valuable to its owner,
// so only RemoveForeignKeys removes it.
type ForeignKeyStore interface {
	// ForeignKeys lists up to most foreign keys of a type after a key ("" = from the start), in
	// order. The server scans the keys of all pending messages: do not call it often.
	ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error)

	// RemoveForeignKeys removes the entries with foreign keys, durably, and returns how many there
	// were. If one of keys is not a foreign key of the type, that is an error, and nothing is
	// removed.
	RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error)

	// Strays returns what this Queue recently skipped in Types, NextDue and Promote. It does not
	// query the server.
	Strays() []Strays
}

// Strays describes entries that others stored in one of our collections or tables, and that belong to
// no type or can never be promoted. They are neither served nor removed, and skipping them takes time;
// an operator should remove them.
type Strays struct {
	In      string // the collection or table
	What    string // what they are, for example "invalid type names"
	Count   int    // how many were seen, at least
	Example string // one of them
	Remedy  string // how to remove them
}

func (s Strays) String() string {
	return fmt.Sprintf("%s: at least %d %s, one is %q: they are neither served nor removed, and skipping them takes time; find out whose they are; %s",
		s.In, s.Count, s.What, shorten.Text(s.Example), s.Remedy)
}
