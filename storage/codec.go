package storage

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Codecs of a batch's body, in the low bits of a record's flags.
const (
	codecNone = 0
	codecZstd = 1
)

const (
	minCompress  = 1 << 10 // a smaller body gains nothing, bytes
	minGainParts = 10      // compression that saves less than one part in so many is not worth a reader's time
)

// packer compresses bodies of batches. Its parts are made on first use, as few files need them, and kept, so that nothing is
// allocated per batch.
type packer struct {
	zstd *zstd.Encoder
	buf  []byte
}

// pack returns the compressed body, valid until the next call; ok is false when storing it as it is costs about as little.
func (p *packer) pack(body []byte) (stored []byte, ok bool) {
	if len(body) < minCompress {
		return nil, false
	}
	if p.zstd == nil {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)) // body_crc is enough
		if err != nil {
			panic(err) // wrong options only
		}
		p.zstd = e
	}
	p.buf = p.zstd.EncodeAll(body, p.buf[:0])
	return p.buf, len(p.buf) <= len(body)-len(body)/minGainParts
}

// checkCodec tells whether this version can decode the body of the batch h.
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

// bodyDecoder decompresses bodies of batches, as packer compresses them.
type bodyDecoder struct {
	zstd *zstd.Decoder
	raw  []byte
}

// body returns the body of the accepted batch it as its writer encoded it, valid until the next call or the scanner's next step.
func (d *bodyDecoder) body(path string, it *item) ([]byte, error) {
	if err := checkCodec(path, &it.head); err != nil {
		return nil, err
	}
	if it.head.codec() == codecNone {
		return it.body, nil
	}
	n := int(it.head.rawLen)
	if cap(d.raw) < n {
		d.raw = make([]byte, n, n+n/4)
	}
	if d.zstd == nil {
		// The output is bounded by the capacity of the buffer it is given: the record's raw_len.
		z, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(MaxBatchBytes), zstd.WithDecoderConcurrency(1))
		if err != nil {
			panic(err) // wrong options only
		}
		d.zstd = z
	}
	out, err := d.zstd.DecodeAll(it.body, d.raw[:0:n])
	if err != nil || len(out) != n {
		return nil, undecodable(path, &it.head)
	}
	return out, nil
}

// decode appends the records of an accepted batch to recs. They are valid as long as body's result is.
func (d *bodyDecoder) decode(recs []Record, path string, it *item) ([]Record, error) {
	body, err := d.body(path, it)
	if err != nil {
		return recs, err
	}
	recs, err = decodeRecords(recs, &it.head, body)
	if err != nil {
		return recs, undecodable(path, &it.head)
	}
	return recs, nil
}
