package queue

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/queue/internal/shorten"
)

// IDLen is the length of an ID in its text form, in characters.
const IDLen = 32

// MaxN is the largest counter an ID can carry.
const MaxN = 1<<48 - 1

// ID identifies a message of a type. It is 20 bytes, big endian:
//
//	 0            6                   14           20
//	┌────────────┬───────────────────┬────────────┐
//	│ time 48 bit│  producer 64 bit  │  n 48 bit  │
//	└────────────┴───────────────────┴────────────┘
//
// time is milliseconds since 1970 by the queue's clock, producer is a random number, and n counts 1,
// 2, 3 … without a gap within one (producer number, type); a loose message, see LooseHeader, has a
// producer number of its own, and n is 0. IDs compare bytewise; the text form (32 characters of
// base32hex in lower case) sorts in the same order. Within a producer number time never decreases, so
// n order is ID order.
//
// The zero ID is smaller than every message's ID and means "from the start".
type ID [20]byte

// idEncoding is base32hex in lower case: its text sorts like the bytes.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// NewID builds an ID. A time before 1970 or beyond 48 bits of milliseconds becomes the nearest bound.
// NewID panics if n exceeds MaxN, because any other number would make it another message's ID.
func NewID(t time.Time, producer, n uint64) ID {
	if n > MaxN {
		panic(fmt.Sprintf("queue: message counter %d exceeds 48 bits", n))
	}
	ms := min(max(t.UnixMilli(), 0), 1<<48-1)
	var id ID
	binary.BigEndian.PutUint64(id[0:8], uint64(ms)<<16)
	binary.BigEndian.PutUint64(id[6:14], producer)
	binary.BigEndian.PutUint16(id[14:16], uint16(n>>32))
	binary.BigEndian.PutUint32(id[16:20], uint32(n))
	return id
}

// ParseID reads the text form. Exactly the strings that String returns are accepted.
func ParseID(s string) (ID, error) {
	var id ID
	return id, id.UnmarshalText([]byte(s))
}

// Time is when the message was published, by the queue's clock, to the millisecond. It orders messages
// of different producers loosely; do not use it to measure real time.
func (id ID) Time() time.Time { return time.UnixMilli(int64(binary.BigEndian.Uint64(id[0:8]) >> 16)) }

// Producer is the producer number, which identifies one stream: of one publisher, for one type, until
// its first failure.
func (id ID) Producer() uint64 { return binary.BigEndian.Uint64(id[6:14]) }

// N is the position within the producer number's stream, counted from 1.
func (id ID) N() uint64 {
	return uint64(binary.BigEndian.Uint16(id[14:16]))<<32 | uint64(binary.BigEndian.Uint32(id[16:20]))
}

// IsZero reports whether id is the zero ID, which no message has.
func (id ID) IsZero() bool { return id == ID{} }

// Compare is negative if id sorts before other, positive if after it, 0 if they are equal.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// Prev is the ID right before id, so a read after id.Prev() begins with id. The zero ID has no
// predecessor.
func (id ID) Prev() ID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != 0xff {
			break
		}
	}
	return id
}

// String is the text form: 32 characters that sort like the bytes.
func (id ID) String() string { return idEncoding.EncodeToString(id[:]) }

// AppendText appends the text form to b.
func (id ID) AppendText(b []byte) ([]byte, error) { return idEncoding.AppendEncode(b, id[:]), nil }

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler. id is unchanged if it fails.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != IDLen {
		return fmt.Errorf("%w %q: it has %d characters, want %d of 0-9 and a-v", ErrInvalidID, shorten.Text(string(text)), len(text), IDLen)
	}
	var out ID
	// 32 characters of 5 bits are exactly 20 bytes: there are no spare bits, so every ID has one
	// text form only. The decoder skips line breaks, hence the comparison of the decoded length.
	if n, err := idEncoding.Decode(out[:], text); err != nil || n != len(out) {
		return fmt.Errorf("%w %q: want %d characters of 0-9 and a-v, lower case", ErrInvalidID, shorten.Text(string(text)), IDLen)
	}
	*id = out
	return nil
}

// newProducerNumber draws a random producer number.
func newProducerNumber() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.BigEndian.Uint64(b[:])
}
