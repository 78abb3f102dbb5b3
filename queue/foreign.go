package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ForeignKeyStore is the part of a Queue that deals with foreign keys: keys among those of a type's messages that are no message's, as they hold
// no message ID. Another program, or a person, has stored something there. It can never be appended, so Fetch passes it over and Depth does not
// count it. It may be of value to somebody, so nothing but RemoveForeignKeys removes it.
type ForeignKeyStore interface {
	// ForeignKeys lists the foreign keys of a type behind a key ("" = from the start), in order, at most so many. The server looks at the keys
	// of everything that is pending: it is for people who want to know, not for every second.
	ForeignKeys(ctx context.Context, typ, after string, most int) ([]string, error)

	// RemoveForeignKeys removes what is stored under foreign keys, durably, and tells how many there were. A key that is not one of
	// the type's foreign keys is an error, and nothing is removed.
	RemoveForeignKeys(ctx context.Context, typ string, keys []string) (removed int, err error)

	// Strays tells what this Queue has passed over lately, in Types, NextDue and Promote. It asks nobody.
	Strays() []Strays
}

// Strays are what others have stored in a collection or table of ours where no type is that it could be a foreign key of, or where it can never be
// promoted. Nothing serves it, and nothing but a person removes it; passing over it takes time.
type Strays struct {
	In      string // the collection or table
	What    string // what they are: "keys that are no message's"
	Count   int    // how many were seen; there may be more
	Example string // one of them
	Remedy  string // what removes them
}

func (s Strays) String() string {
	return fmt.Sprintf("%s: at least %d %s, one is %q: nothing serves or removes them, and passing over them takes time; find out whose they are; %s",
		s.In, s.Count, s.What, clip(s.Example), s.Remedy)
}

// Add counts a key.
func (s *Strays) Add(key string) {
	if s.Count++; s.Count == 1 {
		s.Example = clip(key)
	}
}

// StrayBook keeps what a Queue has passed over last, for its Strays. Its zero value is empty. It is safe for concurrent use.
type StrayBook struct {
	mu  sync.Mutex
	all map[string]Strays // by where and what they are
}

// Note replaces what is known of strays of this kind in this place. A count of 0 removes it.
func (b *StrayBook) Note(s Strays) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := s.In + s.What
	if s.Count == 0 {
		delete(b.all, key)
		return
	}
	if b.all == nil {
		b.all = map[string]Strays{}
	}
	b.all[key] = s
}

// All returns what is known, sorted.
func (b *StrayBook) All() []Strays {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]Strays, 0, len(b.all))
	for _, key := range slices.Sorted(maps.Keys(b.all)) {
		all = append(all, b.all[key])
	}
	return all
}

// CheckForeign is what every backend calls first in Foreign.
func CheckForeign(typ string, most int) error {
	if most < 1 {
		return fmt.Errorf("foreign keys: at most %d are asked for, want 1 or more", most)
	}
	return ValidateType(typ)
}

// NotForeign is the error of RemoveForeignKeys for a key that is a message's, or of another type.
func NotForeign(typ, key string) error {
	return fmt.Errorf("%q is not one of the foreign keys of type %s: nothing was removed", clip(key), typ)
}
