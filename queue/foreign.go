package queue

import (
	"context"
	"fmt"

	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// ForeignKeyStore is the part of a Queue that deals with foreign keys: keys among those of a type's
// messages that are no message's, as they hold no message ID. Another program, or a person, has
// stored something there. It can never be appended, so Fetch passes it over and Depth does not
// count it. It may be of value to somebody, so nothing but RemoveForeignKeys removes it.
type ForeignKeyStore interface {
	// ForeignKeys lists the foreign keys of a type behind a key ("" = from the start), in order, at
	// most so many. The server looks at the keys of everything that is pending: it is for people
	// who want to know, not for every second.
	ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error)

	// RemoveForeignKeys removes what is stored under foreign keys, durably, and tells how many
	// there were. A key that is not one of the type's foreign keys is an error, and nothing is
	// removed.
	RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error)

	// Strays tells what this Queue has passed over lately, in Types, NextDue and Promote. It asks
	// nobody.
	Strays() []Strays
}

// Strays are what others have stored in a collection or table of ours where no type is that it
// could be a foreign key of, or where it can never be promoted. Nothing serves it, and nothing but
// a person removes it; passing over it takes time.
type Strays struct {
	In      string // the collection or table
	What    string // what they are: "keys that are not a message's"
	Count   int    // how many were seen; there may be more
	Example string // one of them
	Remedy  string // what removes them
}

func (s Strays) String() string {
	return fmt.Sprintf("%s: at least %d %s, one is %q: nothing serves or removes them, and passing over them takes time; find out whose they are; %s",
		s.In, s.Count, s.What, shorten.Text(s.Example), s.Remedy)
}
