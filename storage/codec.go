package storage

import (
	"fmt"
	"unsafe"

	"github.com/klauspost/compress/zstd"
)

// A batch's body is stored compressed or as it is; each batch decides for itself (Options.Compress):
//
//	records ──encodeRecords──▶ body ──zstd, if it saves enough──▶ stored body ──CRC──▶ file
//
// The checksum covers the stored body, so a batch can be verified without decompression; only readers
// of its records pay for that. A file may be untrusted, so no length in a header decides how much is
// allocated: memory grows with the bytes that are present, and records are returned in pieces of
// bounded size.

// Codecs of a batch's body, in the low bits of a record's flags.
const (
	codecNone = 0
	codecZstd = 1
)

const (
	minCompress  = 1 << 10 // bytes; compressing a smaller body gains nothing
	minGainParts = 10      // compression must save at least one part in this many to justify a reader's time
)

// packer compresses bodies of batches. It creates its parts on first use, as few files need them,
// and keeps them, so that it allocates nothing per batch.
type packer struct {
	zstd *zstd.Encoder
	buf  []byte
}

// pack returns the compressed body, valid until the next call. If compression saves too little, ok is
// false, and the body should be stored as it is.
func (p *packer) pack(body []byte) (stored []byte, ok bool) {
	if len(body) < minCompress {
		return nil, false
	}
	if p.zstd == nil {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)) // body_crc is enough
		if err != nil {
			panic(err) // only for wrong options
		}
		p.zstd = e
	}
	p.buf = p.zstd.EncodeAll(body, p.buf[:0])
	return p.buf, len(p.buf) <= len(body)-len(body)/minGainParts
}

// checkCodec returns a *VersionError if this version cannot decode the body of the batch h.
func checkCodec(path string, h *recHeader) error {
	unknown := h.flags &^ (flagCodecMask | flagHeaders)
	if unknown == 0 && h.codec() <= codecZstd {
		return nil
	}
	feature := fmt.Sprintf("batch codec %d", h.codec())
	if unknown != 0 {
		feature = fmt.Sprintf("batch flags %#x", unknown)
	}
	return &VersionError{Path: path, Major: majorVersion, Minor: minorVersion, Feature: feature}
}

// bodyDecoder decodes batches, one after the other, in bounded memory for any content: 64 MiB for a
// compressed body, and pieceBytes and one record's headers for its decoded part.
type bodyDecoder struct {
	zstd  *zstd.Decoder
	raw   []byte
	large func() // if not nil: called before raw becomes larger than largeBatch

	head    recHeader // of the batch
	at      uint32    // number within the batch of the record at the start of rest
	rest    []byte
	recs    []Record // the piece that next returns next
	headers []Header // of recs
	text    int      // length of those headers as they are stored, bytes
}

const (
	// pieceBytes bounds the memory of the records of one piece, beyond the body that they point to.
	// Nearly all batches are one piece: 80,000 records without headers fit.
	pieceBytes  = 8 << 20
	largeBatch  = 8 << 20 // see VerifyOptions.Large
	recordBytes = int(unsafe.Sizeof(Record{}))
	pairBytes   = int(unsafe.Sizeof(Header{}))

	zstdMostPerByte = 128 << 10 / 4 // decoded bytes per compressed byte: the shortest block has 4 bytes, and a block decodes to at most 128 KiB
)

// begin starts decoding the accepted batch it; next returns its records. If one of them does not
// decode, begin returns a *CorruptError, and next returns none.
func (d *bodyDecoder) begin(path string, it *item) error {
	d.head, d.at, d.rest, d.recs = *it.head, it.head.count, nil, d.recs[:0]
	body, err := d.body(path, it)
	if err != nil {
		return err
	}
	d.at, d.rest = 0, body
	// rule: all of a batch decodes before any of it is returned.
	if !d.piece() || !d.restDecodes() {
		d.at, d.recs = it.head.count, d.recs[:0]
		return undecodable(path, it.head)
	}
	return nil
}

// next returns the next records of the batch, or none after the last. They are valid until the next
// call, begin, or the scanner's next step.
func (d *bodyDecoder) next() []Record {
	if len(d.recs) == 0 && d.at < d.head.count {
		d.piece()
	}
	recs := d.recs
	d.recs = d.recs[:0]
	return recs
}

// piece decodes the next records, as many as fit into a piece.
//
// rule: each record and each header pair counts towards the size of a piece, so that no body takes far more memory than its own size. Without
// that, a body of 64 MiB could decode to a million records, in 100 MiB of memory, or to 33 million pairs, in 1 GiB.
func (d *bodyDecoder) piece() bool {
	d.recs, d.headers, d.text = d.recs[:0], d.headers[:0], 0
	for d.at < d.head.count && len(d.recs)*recordBytes+len(d.headers)*pairBytes+d.text < pieceBytes {
		if len(d.recs) < cap(d.recs) {
			d.recs = d.recs[:len(d.recs)+1]
		} else {
			d.recs = append(d.recs, Record{})
		}
		r := &d.recs[len(d.recs)-1]
		hs, rest, ok := decodeRecord(r, &d.head, d.at, d.rest)
		if !ok {
			return false
		}
		if hs.n > 0 {
			first := len(d.headers)
			d.headers = hs.appendTo(d.headers)
			r.Headers = d.headers[first:len(d.headers):len(d.headers)]
			d.text += len(hs.b)
		}
		d.at, d.rest = d.at+1, rest
	}
	return true
}

// restDecodes checks that the records after the current piece decode, without keeping them.
func (d *bodyDecoder) restDecodes() bool {
	var r Record
	var ok bool
	rest := d.rest
	for i := d.at; i < d.head.count; i++ {
		if _, rest, ok = decodeRecord(&r, &d.head, i, rest); !ok {
			return false
		}
	}
	return len(rest) == 0
}

// body returns the body of the accepted batch it as its writer encoded it, valid until the next
// call or the scanner's next step.
func (d *bodyDecoder) body(path string, it *item) ([]byte, error) {
	if err := checkCodec(path, it.head); err != nil {
		return nil, err
	}
	if it.head.codec() == codecNone {
		return it.body, nil
	}
	n := int(it.head.rawLen)
	// rule: a claimed length alone allocates nothing. (The product overflows a 32-bit int.)
	if uint64(n) > uint64(len(it.body))*zstdMostPerByte {
		return nil, undecodable(path, it.head)
	}
	if cap(d.raw) < n {
		if n > largeBatch && d.large != nil {
			d.large()
		}
		d.raw = nil // frees it before the larger one is allocated
		d.raw = make([]byte, 0, roomFor(n))
	}
	if d.zstd == nil {
		// The capacity of the given buffer, the record's raw_len, bounds the output. Later blocks
		// refer to output already in it, so a frame's window takes no memory of its own, however
		// large it claims to be.
		z, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(MaxBatchBytes), zstd.WithDecoderMaxMemory(MaxBatchBytes),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1))
		if err != nil {
			panic(err) // only for wrong options
		}
		d.zstd = z
	}
	out, err := d.zstd.DecodeAll(it.body, d.raw[:0:n])
	if err != nil || len(out) != n {
		return nil, undecodable(path, it.head)
	}
	return out, nil
}
