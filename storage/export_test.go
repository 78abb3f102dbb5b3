package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// NewHeaderBytes returns the header of a new file.
func NewHeaderBytes(typ string, id FileID, marker [16]byte) []byte {
	h := fileHeader{major: majorVersion, minor: minorVersion, fileID: id, marker: marker, generation: 1,
		createdNs: time.Unix(1_700_000_000, 0).UnixNano(), typ: typ, schema: "text"}
	return h.encode()
}

// Generation returns the file's generation, from 1 on.
func (w *Writer) Generation() uint64 { return w.header.generation }

// Mark adds n marks to those of the next checkpoint, as if that many batches had been appended far from one another.
func (w *Writer) Mark(n int) {
	for i := range n {
		w.marks = append(w.marks, mark{index: math.MaxUint64 >> (i & 1), offset: math.MaxInt64 >> (i & 1), time: math.MinInt64 >> (i & 1)})
	}
}

// RecordSpec describes a record that BuildRecord encodes.
type RecordSpec struct {
	Magic              string
	Offset             int64
	Epoch, Base        uint64
	Count              uint32
	Flags              uint16
	DurableEnd, Anchor int64
	Chain, Session     uint64
	BaseTime           int64
	Body               []byte
	RawLen             uint32 // defaults to the length of Body
}

// BuildRecord encodes a record of the file with the given header page, and returns the chain value of the next one.
func BuildRecord(header []byte, s RecordSpec) (record []byte, link uint64) {
	fh, err := decodeFileHeader("", header)
	if err != nil {
		panic(err)
	}
	h := recHeader{offset: s.Offset, epoch: s.Epoch, base: s.Base, count: s.Count, flags: s.Flags, headerLen: recHeaderSize,
		storedLen: uint32(len(s.Body)), rawLen: uint32(len(s.Body)), durableEnd: s.DurableEnd, anchorOff: s.Anchor, session: s.Session,
		chain: s.Chain, baseTime: s.BaseTime}
	if s.RawLen != 0 {
		h.rawLen = s.RawLen
	}
	for k := kindBatch; k <= kindSeal; k++ {
		if k.magic() == s.Magic {
			h.kind = k
		}
	}
	b := make([]byte, h.size())
	copy(b[h.lead()+recHeaderSize:], s.Body)
	h.encode(fh, b)
	return b, h.link()
}

// Encoders of bodies, for FORMAT.md's example and for building files by hand.
func BatchBody(recs []Record) []byte {
	size, headers, err := checkRecords(recs)
	if err != nil {
		panic(err)
	}
	b := make([]byte, size)
	return b[:encodeRecords(b, recs, recs[0].Time, headers)]
}

// Compress compresses the body of a batch.
func Compress(body []byte) []byte {
	b, _ := new(packer).pack(body)
	return b
}

func OpenBody(acceptedEnd, fenceOff, prevCheckpoint int64) []byte {
	return openBody{acceptedEnd, fenceOff, prevCheckpoint, fenceOff - acceptedEnd}.encode()
}

func FenceBody(h Holder) []byte { return encodeHolder(h) }

func SealBody(successor FileID, generation uint64, reason string) []byte {
	return sealBody{successor, generation, reason}.encode()
}

func CheckpointBody(prev int64, state []byte) []byte { return appendCheckpoint(nil, prev, nil, state) }

// MarkedCheckpointBody names one batch.
func MarkedCheckpointBody(prev int64, index uint64, offset, time int64) []byte {
	return appendCheckpoint(nil, prev, []mark{{index, offset, time}}, nil)
}

// VerifyBytes runs Verify on bytes in memory.
func VerifyBytes(b []byte, o VerifyOptions) (*Report, error) {
	return Verify(context.Background(), "fuzz.fpl", withFS(o, bytesFS(b)))
}

func withFS(o VerifyOptions, f FS) VerifyOptions {
	o.FS = f
	return o
}

// BytesFS is a file system whose only file has the given content.
func BytesFS(b []byte) FS { return bytesFS(b) }

type bytesFS []byte

func (b bytesFS) Open(string, Mode) (File, error)       { return bytesFile(b), nil }
func (b bytesFS) Link(string, string) error             { panic("not for reading") }
func (b bytesFS) Remove(string) error                   { panic("not for reading") }
func (b bytesFS) Mkdir(string) error                    { panic("not for reading") }
func (b bytesFS) SyncDir(string) error                  { panic("not for reading") }
func (b bytesFS) List(string, string) ([]string, error) { panic("not for reading") }
func (b bytesFS) Stat(string) (Info, error)             { panic("not for reading") }
func (b bytesFS) Type(string) (FSType, error)           { panic("not for reading") }

type bytesFile []byte

func (b bytesFile) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
func (b bytesFile) Append([]byte) (int, int64, error) { panic("not for reading") }
func (b bytesFile) Datasync() error                   { panic("not for reading") }
func (b bytesFile) Allocate(int64, int64) error       { panic("not for reading") }
func (b bytesFile) DropCache(int64, int64) error      { panic("not for reading") }
func (b bytesFile) Stat() (Info, error)               { return Info{Size: int64(len(b)), Nlink: 1}, nil }
func (b bytesFile) Close() error                      { return nil }

// IsGeneration reports whether name is the name of a file of the type.
func IsGeneration(name, typ string) bool {
	t, _, ok := ParseName(name)
	return ok && t == typ
}

// DecodeFileHeader decodes a header page.
func DecodeFileHeader(b []byte) error {
	_, err := decodeFileHeader("fuzz.fpl", b)
	return err
}

// DecodeAnchors runs the decoders of all anchor bodies over b. It returns an error for a result that changes when it is encoded and decoded again.
func DecodeAnchors(b []byte) error {
	if h, err := decodeHolder(b); err == nil && !h.Wall.IsZero() && max(len(h.ID), len(h.Host), len(h.Version)) <= 255 {
		if again, err := decodeHolder(encodeHolder(h)); err != nil || again != h {
			return fmt.Errorf("holder %+v became %+v, %v", h, again, err)
		}
	}
	if o, err := decodeOpen(math.MaxInt64, b); err == nil && !bytes.Equal(o.encode(), b[:openBodySize]) {
		return fmt.Errorf("open body %+v", o)
	}
	if c, err := decodeCheckpoint(b); err == nil {
		n, rest := uint64(0), c.marks
		for ; len(rest) > 0; n++ {
			rest = skipUvarint(rest)
		}
		again := binary.AppendUvarint(binary.LittleEndian.AppendUint64(nil, uint64(c.prevCheckpoint)), n/3)
		again = append(binary.AppendUvarint(append(again, c.marks...), uint64(len(c.state))), c.state...)
		if d, err := decodeCheckpoint(again); err != nil || d.prevCheckpoint != c.prevCheckpoint || !bytes.Equal(d.marks, c.marks) || !bytes.Equal(d.state, c.state) || n%3 != 0 {
			return fmt.Errorf("checkpoint body %+v became %+v, %v", c, d, err)
		}
	}
	if s, err := decodeSeal(b); err == nil && len(s.reason) <= 255 {
		if again, err := decodeSeal(s.encode()); err != nil || again != s {
			return fmt.Errorf("seal %+v became %+v, %v", s, again, err)
		}
	}
	return nil
}

// DecodeBodies runs the decoder of batches over b.
func DecodeBodies(b []byte, count uint32, flags uint16) ([]Record, error) {
	var (
		d    bodyDecoder
		recs []Record
	)
	err := d.begin("fuzz.fpl", &item{head: &recHeader{kind: kindBatch, count: count, flags: flags &^ flagCodecMask}, body: b})
	for piece := d.next(); len(piece) > 0; piece = d.next() {
		recs = append(recs, slices.Clone(piece)...)
	}
	return recs, err
}

// Pos returns the offset of the next record that the reader examines.
func (r *Reader) Pos() int64 { return r.scan.pos }

// DurableEnd returns the offset below which everything is durable.
func (w *Writer) DurableEnd() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.durableEnd
}

// KeptBuffers returns the size of the buffers that a writer keeps, in bytes.
func (w *Writer) KeptBuffers() int { return cap(w.buf) + cap(w.packer.buf) }

// Retraction is an entry of the list of retractions that salvage keeps.
type Retraction struct {
	Offset int64
	First  uint64
}

// Retracted adds retractions in order. It returns how many are kept, and a function that reports whether a batch was retracted.
func Retracted(all []Retraction) (kept int, batch func(offset int64, base uint64) bool) {
	var rs retractions
	for _, r := range all {
		rs.add(retraction{r.Offset, r.First})
	}
	return len(rs), func(offset int64, base uint64) bool {
		return rs.cover(&recHeader{kind: kindBatch, offset: offset, base: base})
	}
}
