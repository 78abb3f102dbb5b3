package storage

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// A record in the body of a batch:
//
//	kind u8 │ id_len u8 │ id │ Δtime varint │ payload_len uvarint │ payload │ headers
//	                           │                                            └ if any record of the batch has one:
//	                           └ to the batch's base time                     n uvarint, n × (len, key, len, value)
//
// It has no checksum and no index of its own: the batch has one checksum for all of its records, and
// the index of the first. So after a crash, too, a batch is present as a whole or not at all.

// Kind says what a record is.
type Kind uint8

const (
	KindMessage  Kind = 0 // a message
	KindSkipped  Kind = 1 // a message that became a dead letter or has a repeated idempotency key; its ID counts, its payload gives the reason
	KindAfterGap Kind = 2 // a message appended after a missing one: a declared gap
	KindLost     Kind = 3 // replaces a record that a repair could not read; not for Append

	kindCount = 4
)

func (k Kind) String() string {
	if k < kindCount {
		return [...]string{"message", "skipped", "after-gap", "lost"}[k]
	}
	return "unknown"
}

// IsMessage reports whether the record is a message. The others keep the index of a message that became a dead letter, or that was lost.
func (k Kind) IsMessage() bool { return k == KindMessage || k == KindAfterGap }

// Header is a key with a value, stored with a record. Keys may repeat; order is kept.
type Header struct{ Key, Value string }

// Record is one entry of a file.
type Record struct {
	Kind    Kind
	ID      []byte // 1 to MaxID bytes
	Time    int64  // nanoseconds since 1970, see When
	Payload []byte // up to MaxPayload bytes
	Headers []Header

	Index uint64 // its number in the sequence of its type, not relative to the file; set by readers
	Epoch uint64 // of the writer that appended it; set by readers
}

// When returns Time as a time.Time in UTC.
func (r *Record) When() time.Time { return time.Unix(0, r.Time).UTC() }

// RecordSize returns an upper bound of a record's bytes in a batch, at most 24 bytes too high.
// Append never refuses a batch for its size if the sum of RecordSize is within MaxBatchBytes.
func RecordSize(r *Record) int {
	n := 2 + len(r.ID) + binary.MaxVarintLen64 + uvarintLen(uint64(len(r.Payload))) + len(r.Payload) + 1
	if len(r.Headers) > 0 {
		n += headersSize(r.Headers)
	}
	return n
}

func headersSize(hs []Header) int {
	n := uvarintLen(uint64(len(hs)))
	for i := range hs {
		n += uvarintLen(uint64(len(hs[i].Key))) + len(hs[i].Key) + uvarintLen(uint64(len(hs[i].Value))) + len(hs[i].Value)
	}
	return n
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// checkRecords validates recs against the limits and returns an upper bound of the body's size and
// whether any record has headers.
func checkRecords(recs []Record) (size int, headers bool, err error) {
	if len(recs) > MaxBatchRecords {
		return 0, false, &LimitError{What: "number of records in a batch", Got: int64(len(recs)), Max: MaxBatchRecords, Record: -1}
	}
	for i := range recs {
		r := &recs[i]
		switch {
		case len(r.ID) < 1 || len(r.ID) > MaxID:
			return 0, false, &LimitError{What: "ID length in bytes", Got: int64(len(r.ID)), Max: MaxID, Record: i}
		case len(r.Payload) > MaxPayload:
			return 0, false, &LimitError{What: "payload length in bytes", Got: int64(len(r.Payload)), Max: MaxPayload, Record: i}
		case r.Kind >= kindCount:
			return 0, false, &LimitError{What: "kind", Got: int64(r.Kind), Max: kindCount - 1, Record: i}
		}
		size += RecordSize(r)
		if len(r.Headers) > 0 {
			headers = true
			total := 0
			for j := range r.Headers {
				total += len(r.Headers[j].Key) + len(r.Headers[j].Value)
			}
			if total > MaxHeaders {
				return 0, false, &LimitError{What: "length of all headers in bytes", Got: int64(total), Max: MaxHeaders, Record: i}
			}
			// The sum above bounds the number of distinct keys, but not that of repeated empty ones.
			if len(r.Headers) > maxPairs {
				return 0, false, &LimitError{What: "number of headers", Got: int64(len(r.Headers)), Max: maxPairs, Record: i}
			}
		}
		if size > MaxBatchBytes {
			return 0, false, &LimitError{What: "size of a batch in bytes", Got: int64(size), Max: MaxBatchBytes, Record: -1}
		}
	}
	return size, headers, nil
}

// encodeRecords writes the body of a batch into b, which must have at least the size that
// checkRecords returned, and returns the body's length.
func encodeRecords(b []byte, recs []Record, baseTime int64, headers bool) int {
	p := 0
	for i := range recs {
		r := &recs[i]
		b[p] = byte(r.Kind)
		b[p+1] = byte(len(r.ID))
		p += 2
		p += copy(b[p:], r.ID)
		p += binary.PutVarint(b[p:], r.Time-baseTime)
		p += binary.PutUvarint(b[p:], uint64(len(r.Payload)))
		p += copy(b[p:], r.Payload)
		if headers {
			p += putHeaders(b[p:], r.Headers)
		}
	}
	return p
}

func putHeaders(b []byte, hs []Header) int {
	p := binary.PutUvarint(b, uint64(len(hs)))
	for i := range hs {
		p += binary.PutUvarint(b[p:], uint64(len(hs[i].Key)))
		p += copy(b[p:], hs[i].Key)
		p += binary.PutUvarint(b[p:], uint64(len(hs[i].Value)))
		p += copy(b[p:], hs[i].Value)
	}
	return p
}

// packedHeaders are a record's headers in stored form: n validated pairs in b.
type packedHeaders struct {
	n uint64
	b []byte
}

// decodeRecord decodes record i of the batch h, at the start of b, into r, except for its headers. It
// returns those in stored form, and the bytes after the record.
func decodeRecord(r *Record, h *recHeader, i uint32, b []byte) (hs packedHeaders, rest []byte, ok bool) {
	if len(b) < 2 || b[0] >= kindCount || b[1] == 0 || len(b) < 2+int(b[1]) {
		return hs, nil, false
	}
	r.Kind, r.Index, r.Epoch, r.Headers = Kind(b[0]), h.base+uint64(i), h.epoch, nil
	p := 2 + int(b[1])
	r.ID = b[2:p:p]
	dt, p := uvarint(b, p)
	if p < 0 {
		return hs, nil, false
	}
	r.Time = h.baseTime + (int64(dt>>1) ^ -int64(dt&1)) // zigzag
	n, p := uvarint(b, p)
	if p < 0 || n > MaxPayload || n > uint64(len(b)-p) {
		return hs, nil, false
	}
	end := p + int(n)
	r.Payload = b[p:end:end]
	if h.flags&flagHeaders != 0 {
		return checkHeaders(b[end:])
	}
	return hs, b[end:], true
}

// uvarint decodes the number at b[p:] and returns the position after it, -1 if there is none. The
// most frequent lengths, one and two bytes, take a fast path.
func uvarint(b []byte, p int) (uint64, int) {
	if p+1 < len(b) {
		if b[p] < 0x80 {
			return uint64(b[p]), p + 1
		}
		if b[p+1] < 0x80 {
			return uint64(b[p]&0x7f) | uint64(b[p+1])<<7, p + 2
		}
	}
	v, k := binary.Uvarint(b[p:])
	if k <= 0 {
		return 0, -1
	}
	return v, p + k
}

// checkHeaders validates the headers at the start of b and returns them, and the bytes after them.
func checkHeaders(b []byte) (hs packedHeaders, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > maxPairs {
		return hs, nil, false
	}
	b = b[k:]
	end, ok := headersEnd(b, n)
	if !ok {
		return hs, nil, false
	}
	return packedHeaders{n, b[:end]}, b[end:], true
}

// appendTo appends the headers to dst. All their texts share one allocation.
func (hs packedHeaders) appendTo(dst []Header) []Header {
	all, p := string(hs.b), 0
	text := func() string {
		l, k := binary.Uvarint(hs.b[p:])
		s := all[p+k : p+k+int(l)]
		p += k + int(l)
		return s
	}
	for range hs.n {
		key := text()
		dst = append(dst, Header{Key: key, Value: text()})
	}
	return dst
}

// headersEnd checks that b starts with n pairs of texts within the limits, and returns their length.
func headersEnd(b []byte, n uint64) (int, bool) {
	p, total := 0, uint64(0)
	for range 2 * n {
		l, k := binary.Uvarint(b[p:])
		if k <= 0 || l > MaxHeaders || l > uint64(len(b)-p-k) {
			return 0, false
		}
		if total += l; total > MaxHeaders {
			return 0, false
		}
		p += k + int(l)
	}
	return p, true
}
