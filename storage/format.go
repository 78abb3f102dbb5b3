package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
)

// The bytes of headers. All records have the same 96-byte header. In an anchor (fence, open,
// checkpoint, seal) the file's marker precedes it, so that a search from any offset finds the anchor:
//
//	batch    header │ body │ zeros to a multiple of 8
//	anchor   marker │ header │ body │ zeros to a multiple of 8
//
//	header   kind, lengths, flags │ epoch │ session │ base index │ offset │ durable end │ chain │ … │ two CRCs
//
// The CRCs continue CRC32C(file ID), so a record of another file is never valid in this one. A record
// also contains its own offset, so a record that was copied to another offset is not valid there.

// The format's constants; FORMAT.md explains them.
const (
	fileMagic = "\x89FPL\r\n\x1a\n" // like PNG's: catches 7-bit and text-mode transfers

	majorVersion = 1
	minorVersion = 0

	headerSize    = 4096 // of the file
	recHeaderSize = 96
	markerSize    = 16
	recAlign      = 8

	magicBatch      = "FPB1"
	magicFence      = "FPF1"
	magicOpen       = "FPO1"
	magicCheckpoint = "FPC1"
	magicSeal       = "FPS1"

	flagCodecMask = 0b0111
	flagHeaders   = 0b1000

	knownIncompat = 0
	knownROCompat = 0

	maxSmallBody = 64 << 10 // of fence, open and seal records, in bytes
	maxPairs     = MaxHeaders + 1
	maxRecord    = markerSize + 64<<10 + MaxBatchBytes // bytes of a whole record: the marker, the longest header, the largest body
)

// Limits of the format. Append refuses records that exceed them; readers treat such records as damage.
const (
	MaxType         = 64       // bytes of a type name
	MaxSchema       = 1024     // bytes of a schema name
	MaxID           = 255      // bytes of a record's ID; at least 1
	MaxPayload      = 16 << 20 // bytes of one payload
	MaxHeaders      = 64 << 10 // bytes of all header keys and values of one record
	MaxBatchBytes   = 64 << 20 // bytes of one encoded batch body: the sum of RecordSize
	MaxBatchRecords = 1 << 20  // records of one batch
	MaxState        = 32 << 20 // bytes of a checkpoint's state
)

// FileID identifies a file permanently: 16 random bytes, generated when the file is created.
type FileID [16]byte

func (id FileID) String() string { return hex.EncodeToString(id[:]) }

// validType reports whether typ is a type name: [a-z0-9][a-z0-9._-]{0,63}.
func validType(typ string) bool {
	for i := range len(typ) {
		c := typ[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return len(typ) >= 1 && len(typ) <= MaxType
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crcSeed is CRC32C(file_id). Every checksum of a file continues from it, so that bytes of another
// file never match.
func crcSeed(id FileID) uint32 { return crc32.Checksum(id[:], castagnoli) }

func le16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func put16(b []byte, v uint16) { binary.LittleEndian.PutUint16(b, v) }
func put32(b []byte, v uint32) { binary.LittleEndian.PutUint32(b, v) }
func put64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

func align8(n int64) int64 { return (n + recAlign - 1) &^ (recAlign - 1) }

// fileHeader is the first page of a file.
type fileHeader struct {
	major, minor uint16
	fileID       FileID
	marker       [markerSize]byte
	generation   uint64
	firstIndex   uint64
	prevFileID   FileID
	createdNs    int64
	incompat     uint32
	roCompat     uint32
	compat       uint32
	typ          string
	schema       string

	seed               uint32               // crcSeed(fileID)
	headSeeds          [kindSeal + 1]uint32 // by record kind: seed, continued with the kind's magic
	markerLo, markerHi uint64
}

func (h *fileHeader) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, fileMagic)
	put16(b[8:], h.major)
	put16(b[10:], h.minor)
	put32(b[12:], headerSize)
	copy(b[16:], h.fileID[:])
	copy(b[32:], h.marker[:])
	put64(b[48:], h.generation)
	put64(b[56:], h.firstIndex)
	copy(b[64:], h.prevFileID[:])
	put64(b[80:], uint64(h.createdNs))
	put32(b[88:], h.incompat)
	put32(b[92:], h.roCompat)
	put32(b[96:], h.compat)
	put16(b[100:], uint16(len(h.typ)))
	put16(b[102:], uint16(len(h.schema)))
	copy(b[104:], h.typ)
	copy(b[104+len(h.typ):], h.schema)
	put32(b[headerSize-4:], headerCRC(b, h.fileID))
	return b
}

func headerCRC(b []byte, id FileID) uint32 {
	return crc32.Update(crcSeed(id), castagnoli, b[:headerSize-4])
}

// decodeFileHeader decodes the first page b of the file at path; b is shorter than a page if the file
// is.
func decodeFileHeader(path string, b []byte) (*fileHeader, error) {
	damaged := func(format string, args ...any) error {
		return &HeaderError{Path: path, Reason: fmt.Sprintf(format, args...), Cut: len(b) < headerSize}
	}
	// rule: the magic is tested before the version, the version before any field whose place may depend on it.
	if len(b) < 8 || string(b[:8]) != fileMagic {
		if repaired := append([]byte(fileMagic), b[min(8, len(b)):]...); len(b) == headerSize && headerCRCGood(repaired) {
			return nil, damaged("its first 8 bytes are %x (was it transferred as text?)", b[:8])
		}
		if len(b) >= 4 && string(b[:4]) == fileMagic[:4] {
			return nil, damaged("its first bytes are %x (was it transferred as text, or cut?)", b[:min(8, len(b))])
		}
		return nil, &ForeignFileError{Path: path, Found: bytes.Clone(b[:min(8, len(b))])}
	}
	if len(b) < headerSize {
		return nil, damaged("the file has only %d bytes", len(b))
	}
	h := &fileHeader{major: le16(b[8:]), minor: le16(b[10:]), fileID: FileID(b[16:32]), marker: [markerSize]byte(b[32:48])}
	if h.major > majorVersion {
		return nil, &VersionError{Path: path, Major: h.major, Minor: h.minor}
	}
	if !headerCRCGood(b) {
		return nil, damaged("its checksum is wrong")
	}
	h.generation, h.firstIndex, h.prevFileID = le64(b[48:]), le64(b[56:]), FileID(b[64:80])
	h.createdNs = int64(le64(b[80:]))
	h.incompat, h.roCompat, h.compat = le32(b[88:]), le32(b[92:]), le32(b[96:])
	if unknown := h.incompat &^ knownIncompat; unknown != 0 {
		return nil, &VersionError{Path: path, Major: h.major, Minor: h.minor, Incompat: unknown}
	}
	typeLen, schemaLen := int(le16(b[100:])), int(le16(b[102:]))
	if h.major == 0 || le32(b[12:]) != headerSize || typeLen > MaxType || schemaLen > MaxSchema || h.generation == 0 || h.generation == 1 && h.firstIndex > 0 {
		return nil, damaged("its fields are out of range")
	}
	h.typ = string(b[104 : 104+typeLen])
	h.schema = string(b[104+typeLen : 104+typeLen+schemaLen])
	if !validType(h.typ) {
		return nil, damaged("it names no valid type")
	}
	h.derive()
	return h, nil
}

func headerCRCGood(b []byte) bool {
	return le32(b[headerSize-4:]) == headerCRC(b, FileID(b[16:32]))
}

func (h *fileHeader) derive() {
	h.seed = crcSeed(h.fileID)
	for k := range h.headSeeds {
		h.headSeeds[k] = crc32.Update(h.seed, castagnoli, []byte(recKind(k).magic()))
	}
	h.markerLo, h.markerHi = le64(h.marker[:]), le64(h.marker[8:])
}

// Kinds of records.
type recKind uint8

const (
	kindNone recKind = iota
	kindBatch
	kindFence
	kindOpen
	kindCheckpoint
	kindSeal
)

func (k recKind) String() string {
	return [...]string{"no", "batch", "fence", "open", "checkpoint", "seal"}[k]
}

func (k recKind) magic() string {
	return [...]string{"", magicBatch, magicFence, magicOpen, magicCheckpoint, magicSeal}[k]
}

func (k recKind) maxBody() uint32 {
	if k == kindBatch || k == kindCheckpoint {
		return MaxBatchBytes
	}
	return maxSmallBody
}

// recHeader is the header of a record. offset is that of the record's first byte, which in an anchor
// is the first byte of the sync marker.
type recHeader struct {
	kind       recKind
	offset     int64
	epoch      uint64
	base       uint64
	count      uint32
	flags      uint16
	headerLen  uint16
	storedLen  uint32
	rawLen     uint32
	durableEnd int64
	anchorOff  int64
	session    uint64
	chain      uint64
	baseTime   int64 // of a checkpoint: the highest time of all records before it, noTime or timeUnknown
	bodyCRC    uint32
	headCRC    uint32
	schemaID   uint32
}

// Values of a checkpoint's baseTime other than the highest time of the records before it.
const (
	noTime      = math.MinInt64 // no records precede it
	timeUnknown = 0             // an earlier version wrote the checkpoint, or one before it
)

// lead is the length of the marker before the header, in bytes.
func (h *recHeader) lead() int64 {
	if h.kind == kindBatch {
		return 0
	}
	return markerSize
}

// size is the length of the whole record in the file, in bytes.
func (h *recHeader) size() int64 {
	return h.lead() + align8(int64(h.headerLen)+int64(h.storedLen))
}

func (h *recHeader) end() int64 { return h.offset + h.size() }

// link is the chain value of the record that follows h.
func (h *recHeader) link() uint64 { return uint64(h.bodyCRC)<<32 | uint64(h.headCRC) }

func (h *recHeader) codec() uint16 { return h.flags & flagCodecMask }

// kindAt returns the kind of record that may start with b, judging by its first bytes alone, and b
// without a leading marker.
func (fh *fileHeader) kindAt(b []byte) (recKind, []byte) {
	if len(b) < recHeaderSize {
		return kindNone, nil
	}
	if le64(b) == fh.markerLo && le64(b[8:]) == fh.markerHi {
		b = b[markerSize:]
		for k := kindFence; k <= kindSeal; k++ {
			if string(b[:4]) == k.magic() {
				return k, b
			}
		}
		return kindNone, nil
	}
	if string(b[:4]) == magicBatch {
		return kindBatch, b
	}
	return kindNone, nil
}

// headCRC returns the checksum of the whole header b of kind k except the checksum itself. It covers
// the magic too, so that no bit error turns one kind of record into another.
func (fh *fileHeader) headCRC(k recKind, b []byte) uint32 {
	return crc32.Update(fh.headSeeds[k], castagnoli, b[8:recHeaderSize])
}

// decode decodes the 96 bytes b as a header of kind k. It validates nothing.
func (h *recHeader) decode(k recKind, b []byte) {
	_ = b[recHeaderSize-1]
	// Field by field: a composite literal is built on the stack and then copied, which takes three times as long.
	h.kind, h.headCRC = k, le32(b[4:])
	h.offset, h.epoch, h.base, h.count = int64(le64(b[8:])), le64(b[16:]), le64(b[24:]), le32(b[32:])
	h.flags, h.headerLen, h.storedLen, h.rawLen = le16(b[36:]), le16(b[38:]), le32(b[40:]), le32(b[44:])
	h.durableEnd, h.anchorOff, h.chain, h.session = int64(le64(b[48:])), int64(le64(b[56:])), le64(b[64:]), le64(b[72:])
	h.baseTime, h.bodyCRC, h.schemaID = int64(le64(b[80:])), le32(b[88:]), le32(b[92:])
}

// encode writes the marker and the header into the record b, whose body is already in place. It sets
// both CRCs in h.
func (h *recHeader) encode(fh *fileHeader, b []byte) {
	if h.kind != kindBatch {
		copy(b, fh.marker[:])
		b = b[markerSize:]
	}
	h.bodyCRC = crc32.Update(fh.seed, castagnoli, b[recHeaderSize:])
	copy(b, h.kind.magic())
	put64(b[8:], uint64(h.offset))
	put64(b[16:], h.epoch)
	put64(b[24:], h.base)
	put32(b[32:], h.count)
	put16(b[36:], h.flags)
	put16(b[38:], h.headerLen)
	put32(b[40:], h.storedLen)
	put32(b[44:], h.rawLen)
	put64(b[48:], uint64(h.durableEnd))
	put64(b[56:], uint64(h.anchorOff))
	put64(b[64:], h.chain)
	put64(b[72:], h.session)
	put64(b[80:], uint64(h.baseTime))
	put32(b[88:], h.bodyCRC)
	put32(b[92:], h.schemaID)
	h.headCRC = fh.headCRC(h.kind, b)
	put32(b[4:], h.headCRC)
}

// inRange reports whether the header's numbers are within the format's limits.
func (h *recHeader) inRange() bool {
	return h.headerLen >= recHeaderSize && h.headerLen%recAlign == 0 && h.storedLen <= h.kind.maxBody() && h.rawLen <= h.kind.maxBody() &&
		h.count <= MaxBatchRecords && (h.kind == kindBatch) == (h.count > 0) && h.offset >= headerSize &&
		h.durableEnd >= headerSize && h.durableEnd <= h.offset && h.anchorOff >= 0 && h.anchorOff < h.offset &&
		h.base <= 1<<63 && (h.codec() != 0 || h.rawLen == h.storedLen)
}

// encodeAnchor returns a whole anchor record with the given body.
func encodeAnchor(fh *fileHeader, h *recHeader, body []byte) []byte {
	h.headerLen = recHeaderSize
	h.storedLen, h.rawLen = uint32(len(body)), uint32(len(body))
	b := make([]byte, h.size())
	copy(b[markerSize+recHeaderSize:], body)
	h.encode(fh, b)
	return b
}

// printable makes text from a file safe for a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
