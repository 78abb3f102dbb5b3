package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Every log stores records of an ID, a time and a payload. Fencepost takes the three separately; the other logs get
// them in one piece, assembled in advance, so that none of them pays for that.
const (
	idSize      = 20
	timeSize    = 8
	payloadSize = 256
	entrySize   = idSize + timeSize + payloadSize

	baseTime = 1_700_000_000_000_000_000 // nanoseconds since 1970
)

// source creates records. Number i is always the same, so that the output of a log can be checked.
type source struct {
	first   uint64   // number of the first record below
	entries [][]byte // id | time | payload
	expect  []byte   // scratch of check
}

func newSource(records int) *source {
	s := &source{entries: make([][]byte, records), expect: make([]byte, entrySize)}
	all := make([]byte, records*entrySize)
	for i := range s.entries {
		s.entries[i] = all[i*entrySize : (i+1)*entrySize : (i+1)*entrySize]
		fill(s.entries[i], 0)
	}
	return s
}

// fill makes e record number i.
func fill(e []byte, i uint64) {
	number(e, i)
	for p := idSize + timeSize + 8; p < len(e); p++ {
		e[p] = byte(p * 7)
	}
}

// number writes the parts of e that depend on i.
func number(e []byte, i uint64) {
	n := i
	for p := idSize - 1; p >= 0; p-- {
		e[p] = '0' + byte(n%10)
		n /= 10
	}
	binary.LittleEndian.PutUint64(e[idSize:], baseTime+i)
	binary.LittleEndian.PutUint64(e[idSize+timeSize:], i)
}

// set makes the entries the records beginning with number first.
func (s *source) set(first uint64) {
	s.first = first
	for i, e := range s.entries {
		number(e, first+uint64(i))
	}
}

// check reports whether e is record number i.
func (s *source) check(i uint64, e []byte) error {
	fill(s.expect, i)
	if !bytes.Equal(e, s.expect) {
		return fmt.Errorf("record %d is not what was written: %d bytes, id %q", i, len(e), e[:min(len(e), idSize)])
	}
	return nil
}
