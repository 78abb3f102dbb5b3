package storage

import (
	"encoding/binary"
	"errors"
	"time"
)

// Bodies of the anchor records: fence, open, checkpoint, seal. They are decoded as a whole, because all
// are small except a checkpoint's, which contains the caller's state. A later minor version may append
// fields to an open record and a seal; readers skip fields that they do not know.

var errBody = errors.New("its body does not decode")

// Holder describes the writer of a fence to operators: it is in the fence record and in the report of
// [Verify]. Every text is truncated to 255 bytes.
type Holder struct {
	ID      string // the lock's holder or the worker's instance
	Host    string
	PID     int
	Version string    // of the program
	Wall    time.Time // the host's wall clock at the fence; set by Open; no protocol depends on it
}

// Tags of the fence body. A tag that a reader does not know is skipped.
const (
	tagHolderID = 1
	tagHost     = 2
	tagPID      = 3 // u64
	tagVersion  = 4
	tagWall     = 5 // i64, nanoseconds since 1970
)

// encodeHolder encodes a fence's body as a list of tag, length and value, so that later versions can add tags.
func encodeHolder(h Holder) []byte {
	var b []byte
	text := func(tag byte, s string) {
		if s != "" {
			s = s[:min(len(s), 255)]
			b = append(append(b, tag, byte(len(s))), s...)
		}
	}
	number := func(tag byte, v uint64) { b = binary.LittleEndian.AppendUint64(append(b, tag, 8), v) }
	text(tagHolderID, h.ID)
	text(tagHost, h.Host)
	number(tagPID, uint64(h.PID))
	text(tagVersion, h.Version)
	number(tagWall, uint64(h.Wall.UnixNano()))
	return b
}

// decodeHolder decodes a fence's body. It skips unknown tags, and makes texts printable: they are displayed, and the file may be untrusted.
func decodeHolder(b []byte) (h Holder, err error) {
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+int(b[1]) {
			return h, errBody
		}
		tag, v := b[0], b[2:2+int(b[1])]
		b = b[2+len(v):]
		switch tag {
		case tagHolderID:
			h.ID = printable(string(v))
		case tagHost:
			h.Host = printable(string(v))
		case tagVersion:
			h.Version = printable(string(v))
		case tagPID, tagWall:
			if len(v) != 8 {
				return h, errBody
			}
			if tag == tagPID {
				h.PID = int(int64(le64(v)))
			} else {
				h.Wall = time.Unix(0, int64(le64(v))).UTC()
			}
		}
	}
	return h, nil
}

// openBody records the state of the file that a new writer found before its fence.
type openBody struct {
	acceptedEnd    int64 // end of the last record it accepted; everything from there to the fence is void
	fenceOff       int64 // offset of its own fence
	prevCheckpoint int64 // offset of the last checkpoint it accepted, 0 = none
	skipped        int64 // fenceOff - acceptedEnd: the number of void bytes
}

const openBodySize = 32

func (o openBody) encode() []byte {
	b := make([]byte, openBodySize)
	put64(b, uint64(o.acceptedEnd))
	put64(b[8:], uint64(o.fenceOff))
	put64(b[16:], uint64(o.prevCheckpoint))
	put64(b[24:], uint64(o.skipped))
	return b
}

// decodeOpen decodes the body of the open record at the offset at, which must be after its own fence.
func decodeOpen(at int64, b []byte) (openBody, error) {
	if len(b) < openBodySize { // a later minor version may append fields
		return openBody{}, errBody
	}
	o := openBody{int64(le64(b)), int64(le64(b[8:])), int64(le64(b[16:])), int64(le64(b[24:]))}
	if o.acceptedEnd < headerSize || o.fenceOff < o.acceptedEnd || o.prevCheckpoint < 0 || o.prevCheckpoint > o.fenceOff ||
		o.skipped != o.fenceOff-o.acceptedEnd || o.fenceOff >= at {
		return openBody{}, errBody
	}
	return o, nil
}

// mark is an entry of the sparse index: the batch at offset starts with the record index.
type mark struct {
	index  uint64
	offset int64
	time   int64 // base time of the batch, nanoseconds since 1970
}

// checkpointBody carries the caller's state and an index of the batches since the previous
// checkpoint.
type checkpointBody struct {
	prevCheckpoint int64  // offset, 0 = none
	marks          []byte // encoded, see FORMAT.md
	state          []byte // the caller's, opaque
}

func appendCheckpoint(b []byte, prev int64, marks []mark, state []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(prev))
	b = binary.AppendUvarint(b, uint64(len(marks)))
	var last mark
	for _, m := range marks {
		b = binary.AppendUvarint(b, m.index-last.index)
		b = binary.AppendUvarint(b, uint64(m.offset-last.offset))
		b = binary.AppendVarint(b, m.time-last.time)
		last = m
	}
	b = binary.AppendUvarint(b, uint64(len(state)))
	return append(b, state...)
}

// decodeCheckpoint decodes a checkpoint's body. The result points into b.
func decodeCheckpoint(b []byte) (checkpointBody, error) {
	var c checkpointBody
	if len(b) < 8 {
		return c, errBody
	}
	c.prevCheckpoint = int64(le64(b))
	if c.prevCheckpoint < 0 {
		return c, errBody
	}
	b = b[8:]
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)) { // an entry takes at least three bytes
		return c, errBody
	}
	b = b[k:]
	rest := b
	for range 3 * n {
		if rest = skipUvarint(rest); rest == nil {
			return c, errBody
		}
	}
	c.marks = b[:len(b)-len(rest)]
	n, k = binary.Uvarint(rest)
	if k <= 0 || n != uint64(len(rest)-k) || n > MaxState {
		return c, errBody
	}
	c.state = rest[k:]
	return c, nil
}

// lastMark returns the last of a checkpoint's marks whose batch starts at or before index, or the zero
// value if there is none.
func lastMark(marks []byte, index uint64) (last mark) {
	for m := (mark{}); len(marks) > 0; last = m {
		i, k := binary.Uvarint(marks)
		off, l := binary.Uvarint(marks[k:])
		t, n := binary.Varint(marks[k+l:])
		if m = (mark{m.index + i, m.offset + int64(off), m.time + t}); m.index > index {
			break
		}
		marks = marks[k+l+n:]
	}
	return last
}

// skipUvarint returns the bytes after the varint at the start of b, or nil if there is none.
func skipUvarint(b []byte) []byte {
	_, k := binary.Uvarint(b)
	if k <= 0 {
		return nil
	}
	return b[k:]
}

// sealBody closes a file permanently and names its successor.
type sealBody struct {
	successor  FileID
	generation uint64
	reason     string
}

func (s sealBody) encode() []byte {
	b := append([]byte(nil), s.successor[:]...)
	b = binary.LittleEndian.AppendUint64(b, s.generation)
	reason := s.reason[:min(len(s.reason), 255)]
	return append(append(b, byte(len(reason))), reason...)
}

func decodeSeal(b []byte) (s sealBody, err error) {
	if len(b) < 25 || len(b) < 25+int(b[24]) {
		return s, errBody
	}
	s.successor, s.generation, s.reason = FileID(b[:16]), le64(b[16:]), printable(string(b[25:25+int(b[24])]))
	return s, nil
}
