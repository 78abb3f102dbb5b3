// Package mongowire reads MongoDB's wire protocol, as far as a proxy or a fake server needs it:
// https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/
package mongowire

import (
	"encoding/binary"
	"errors"
	"io"
)

// A message begins with 16 bytes: its length, its number, the number of the message that it answers, and its operation.
const (
	HeaderSize = 16
	MaxMessage = 48_000_000 // bytes

	OpReply      = 1
	OpQuery      = 2004
	OpCompressed = 2012
	OpMsg        = 2013
)

var errNotMongo = errors.New("not a message of MongoDB's wire protocol")

// Read reads one message, with its header, of at most MaxMessage bytes.
func Read(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n < HeaderSize || n > MaxMessage {
		return nil, errNotMongo
	}
	m := make([]byte, n)
	copy(m, length[:])
	_, err := io.ReadFull(r, m[4:])
	return m, err
}

// Op returns the operation of a message.
func Op(message []byte) uint32 { return binary.LittleEndian.Uint32(message[12:]) }
