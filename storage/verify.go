package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"syscall"
	"time"
)

// Verification. Verify reads a whole file, and reports its contents and problems. It runs the same scan
// as every reader, from the first byte. In addition it decodes and counts every record, and continues
// after damage, so that one report covers all of it. It takes no lock and changes nothing: a file that is
// being written to is verified up to its current end.

// VerifyOptions are the options of Verify. The zero value checks everything except duplicate IDs.
type VerifyOptions struct {
	FS   FS     // defaults to OS()
	Type string // the type the file must hold; empty = any

	// Deep also looks for IDs that occur twice, at 8 bytes of memory per record.
	Deep bool

	// Device reads the file from its device: it syncs unwritten bytes, and drops the page cache of
	// the file, except pages that another program has mapped or locked.
	Device bool

	// Start is called with the state of a checkpoint that precedes any batch, as in a successor
	// file: the writer's state for the records below FirstIndex. Its error ends Verify.
	Start func(state []byte) error

	// Large, if not nil, is called once, before memory for a batch of more than 8 MiB is allocated.
	// It may wait, so that a caller that verifies several files concurrently holds such a batch of
	// only one of them in memory.
	Large func()

	// Visit is called for every record in order; its argument is valid during the call only. Its
	// error ends Verify.
	Visit func(Record) error

	// Progress, if not nil, is called periodically with the number of bytes checked so far, out of total.
	Progress func(done, total int64)
}

// Report is the result of Verify.
type Report struct {
	Path       string
	Type       string
	Schema     string
	FileID     FileID
	PrevFileID FileID // the file that it continues; zeros if none
	Generation uint64
	Created    time.Time

	FirstIndex uint64 // of the file; the first record's, if there is one
	NextIndex  uint64 // after the last record
	Messages   uint64 // records, of any kind, in batches that can be decoded
	Skipped    uint64 // of them: of KindSkipped
	Gaps       uint64 // of them: of KindAfterGap (declared gaps)
	Lost       uint64 // of them: of KindLost, given up by a repair
	GapList    []Gap  // the first declared gaps
	Batches    uint64

	Checkpoints uint64
	Regions     []Region // the first ones and the last
	RegionCount uint64   // number of all of them
	Size        int64    // of the file when Verify started, bytes
	DurableEnd  int64    // everything below this offset is known to be durable
	Duration    time.Duration

	// Harmless remains of crashes and takeovers, which no reader returns.
	Void      []Range // between two regions: torn writes, batches of fenced-off writers; the first ones
	VoidBytes int64   // of all of them
	Torn      Range   // at the end: a batch that was not completed, or is being written; empty if End is 0

	// Violations.
	Corrupt        []error     // *CorruptError, *RetractedError, *HoleError; the first ones
	CorruptCount   uint64      // number of all of them
	Duplicates     []Duplicate // with Deep: the first ones
	DuplicateCount uint64      // with Deep: number of all of them

	Sealed *SealedError // names the successor; nil if the file is not sealed
}

// Region is the part of a file that one writer wrote.
type Region struct {
	Epoch, Session uint64
	Holder         Holder
	First, Next    uint64 // indexes: [First, Next)
	Offset, End    int64  // bytes, from the fence to the last accepted record
	Opened         bool   // false: the writer appended a fence but no open record
}

// Range is a range of bytes: [Offset, End).
type Range struct{ Offset, End int64 }

// Gap is the record after a declared gap.
type Gap struct {
	Index uint64
	ID    []byte
}

// Duplicate is an ID of two records.
type Duplicate struct {
	ID            []byte
	First, Second uint64 // indexes
}

// Bounds of the lists in a report; the counts include all entries.
const (
	maxRegions    = 10_000
	maxVoid       = 10_000
	maxCorrupt    = 10_000
	maxDuplicates = 1000
	maxGaps       = 1000
)

// Err returns nil if the file is healthy, and otherwise an error of category ErrIntegrity that names
// the first violation.
func (r *Report) Err() error {
	n := r.CorruptCount + r.DuplicateCount
	switch {
	case n == 0:
		return nil
	case len(r.Corrupt) > 0:
		if n == 1 {
			return r.Corrupt[0]
		}
		return fmt.Errorf("%w (and %d more violations)", r.Corrupt[0], n-1)
	case len(r.Duplicates) == 0: // Verify ended before it compared them
		return fmt.Errorf("%w: %s: %d IDs occur twice: the writer's check for duplicates failed", ErrIntegrity, r.Path, r.DuplicateCount)
	default:
		d := r.Duplicates[0]
		return fmt.Errorf("%w: %s: ID %q is at index %d and again at %d (%d duplicates in all): the writer's check for duplicates failed",
			ErrIntegrity, r.Path, d.ID, d.First, d.Second, r.DuplicateCount)
	}
}

// Verify checks the whole file at path in its current state. It only reads; the file may be written to
// meanwhile.
//
// The report lists problems of the contents; see Report.Err. The error is the reason why Verify did
// not finish: an unusable header (ErrIntegrity or ErrRefused), a failure to open or read the file, ctx,
// or an error of Start or Visit. If the scan had begun, the report is not nil and says how far it got.
func Verify(ctx context.Context, path string, o VerifyOptions) (*Report, error) {
	o.FS = orOS(o.FS)
	f, err := o.FS.Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	defer f.Close()
	if o.Device {
		if err := dropCache(path, f); err != nil {
			return nil, err
		}
	}
	h, err := readFileHeader(path, f)
	if err != nil {
		return nil, err
	}
	if o.Type != "" && h.typ != o.Type {
		return nil, &WrongTypeError{Path: path, Want: o.Type, Found: h.typ}
	}
	info, err := f.Stat()
	if err != nil {
		return nil, ioError("stat", path, err)
	}
	v := &verifier{o: o, src: f, header: h, size: info.Size}
	v.bodies.large = v.tellLarge
	v.report = &Report{Path: path, Type: h.typ, Schema: h.schema, FileID: h.fileID, PrevFileID: h.prevFileID,
		Generation: h.generation,
		Created:    time.Unix(0, h.createdNs).UTC(), FirstIndex: h.firstIndex, Size: info.Size}
	if p, ok := f.(InPieces); ok {
		if hole := holeIn(path, p); hole != nil && hole.Offset >= info.Size { // a piece too far after the end to belong to the file
			v.report.Corrupt, v.report.CorruptCount = append(v.report.Corrupt, hole), 1
		}
	}
	start := time.Now()
	err = v.run(ctx)
	v.report.Duration = time.Since(start)
	return v.report, err
}

// dropCache makes the next reads of the file come from the device.
func dropCache(path string, f File) error {
	// Unwritten pages cannot be dropped. A read-only descriptor may sync, but does not support every
	// additional step of a sync everywhere, such as the probe of the journal on ext4.
	if err := f.Datasync(); err != nil && !errors.Is(err, syscall.EBADF) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EROFS) {
		return ioError("fdatasync", path, err)
	}
	return ioError("drop the page cache of", path, f.DropCache(0, 0))
}

// verifier is the state of one call of Verify.
type verifier struct {
	o      VerifyOptions
	src    io.ReaderAt
	header *fileHeader
	size   int64
	report *Report
	bodies bodyDecoder
	window []byte // memory of the first scanner's window, reused by the second

	seed   maphash.Seed
	hashes []uint64 // of all IDs, with Deep
}

const progressStep = 16 << 20 // bytes

func (v *verifier) scanner() *scanner {
	s := newScanner(v.report.Path, v.src, v.header, v.size)
	s.readsAhead, s.large, s.own = true, v.tellLarge, v.window
	return s
}

// tellLarge calls VerifyOptions.Large for the first large batch.
func (v *verifier) tellLarge() {
	if tell := v.o.Large; tell != nil {
		v.o.Large = nil
		tell()
	}
}

// run scans the whole file and fills in the report.
func (v *verifier) run(ctx context.Context) error {
	if v.o.Deep {
		v.seed = maphash.MakeSeed()
	}
	s := v.scanner()
	defer s.stopAhead()
	told := int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		it, err := s.step()
		if err == nil {
			err = v.note(it)
		}
		v.report.NextIndex, v.report.DurableEnd = s.view.next, s.view.durable
		if err != nil {
			return err
		}
		if v.o.Progress != nil && (s.pos-told >= progressStep || it.kind == itemEnd) {
			told = s.pos
			v.o.Progress(min(s.pos, v.size), v.size)
		}
		if it.kind == itemEnd {
			if s.view.end < v.size {
				v.report.Torn = Range{s.view.end, v.size}
			}
			v.window = s.own
			return v.findDuplicates(ctx)
		}
	}
}

// note adds an item to the report.
func (v *verifier) note(it *item) error {
	r := v.report
	switch it.kind {
	case itemVoid:
		if r.VoidBytes += it.end - it.off; len(r.Void) < maxVoid {
			r.Void = append(r.Void, Range{it.off, it.end})
		}
	case itemDamage:
		v.damage(it.err)
	case itemRecord:
		err := v.noteRecord(it)
		if damage, ok := err.(*CorruptError); ok {
			v.damage(damage)
			return nil
		}
		return err
	}
	return nil
}

// damage counts a violation, and keeps the first ones.
func (v *verifier) damage(err error) {
	v.report.Corrupt, v.report.CorruptCount = appendDamage(v.report.Corrupt, err), v.report.CorruptCount+1
}

// noteRecord adds an accepted record to the report, and decodes its body.
func (v *verifier) noteRecord(it *item) error {
	h := it.head
	if h.kind == kindFence {
		return v.noteFence(it)
	}
	g := v.region(h)
	g.End = h.end()
	switch h.kind {
	case kindOpen:
		g.Opened, g.First, g.Next = true, h.base, h.base
	case kindBatch:
		v.report.Batches++
		g.Next = h.base + uint64(h.count)
		return v.noteBatch(it)
	case kindCheckpoint:
		v.report.Checkpoints++
		c, err := decodeCheckpoint(it.body)
		if err != nil {
			return undecodable(v.report.Path, h)
		}
		if v.o.Start != nil && v.report.Batches == 0 {
			return v.o.Start(c.state)
		}
	case kindSeal:
		b, err := decodeSeal(it.body)
		if err != nil {
			return undecodable(v.report.Path, h)
		}
		v.report.Sealed = &SealedError{Path: v.report.Path, Successor: b.successor, Generation: b.generation}
	}
	return nil
}

// noteFence begins a region in the report, even if the fence's body does not decode.
func (v *verifier) noteFence(it *item) error {
	holder, err := decodeHolder(it.body)
	v.begin(Region{Epoch: it.head.epoch, Session: it.head.session, Holder: holder,
		First: v.report.NextIndex, Next: v.report.NextIndex, Offset: it.head.offset, End: it.head.end()})
	if err != nil {
		return undecodable(v.report.Path, it.head)
	}
	return nil
}

// begin adds a region to the report. If the list is full, it replaces the last one.
func (v *verifier) begin(g Region) {
	r := v.report
	if r.RegionCount++; len(r.Regions) == maxRegions {
		r.Regions = r.Regions[:maxRegions-1]
	}
	r.Regions = append(r.Regions, g)
}

// region returns the region that h belongs to. It is the last one, unless its fence was damaged.
func (v *verifier) region(h *recHeader) *Region {
	r := v.report
	if k := len(r.Regions); k == 0 || r.Regions[k-1].Epoch != h.epoch || r.Regions[k-1].Session != h.session {
		v.begin(Region{Epoch: h.epoch, Session: h.session, First: h.base, Next: h.base, Offset: h.offset, Opened: true})
	}
	return &r.Regions[len(r.Regions)-1]
}

// noteBatch counts and checks the records of a batch: all of them or, if one does not decode, none.
func (v *verifier) noteBatch(it *item) error {
	if err := v.bodies.begin(v.report.Path, it); err != nil {
		return err
	}
	v.report.Messages += uint64(it.head.count)
	for recs := v.bodies.next(); len(recs) > 0; recs = v.bodies.next() {
		for i := range recs {
			if err := v.noteMessage(&recs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteMessage counts a record of a batch, and passes it to VerifyOptions.Visit.
func (v *verifier) noteMessage(rec *Record) error {
	switch rec.Kind {
	case KindSkipped:
		v.report.Skipped++
	case KindLost:
		v.report.Lost++
	case KindAfterGap:
		v.report.Gaps++
		if len(v.report.GapList) < maxGaps {
			v.report.GapList = append(v.report.GapList, Gap{rec.Index, bytes.Clone(rec.ID)})
		}
	}
	if v.o.Deep && rec.Kind != KindLost {
		v.hashes = append(v.hashes, maphash.Bytes(v.seed, rec.ID))
	}
	if v.o.Visit == nil {
		return nil
	}
	return v.o.Visit(*rec)
}

// findDuplicates reports IDs that occur twice. Equal hashes are candidates; if there are any, a second
// pass over the file compares the IDs themselves.
func (v *verifier) findDuplicates(ctx context.Context) error {
	slices.Sort(v.hashes)
	suspect := map[uint64][]Duplicate{}
	for i := 1; i < len(v.hashes); i++ {
		switch _, known := suspect[v.hashes[i]]; {
		case v.hashes[i] != v.hashes[i-1]:
		case known || len(suspect) < maxDuplicates:
			suspect[v.hashes[i]] = nil
		default:
			v.report.DuplicateCount++ // counted without comparing the IDs: so many equal hashes are no accident
		}
	}
	v.hashes = nil
	if len(suspect) == 0 {
		return nil
	}
	s := v.scanner()
	defer s.stopAhead()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		it, err := s.step()
		switch {
		case err != nil:
			return err
		case it.kind == itemEnd:
			return nil
		case it.kind == itemRecord && it.head.kind == kindBatch:
			if v.bodies.begin(v.report.Path, it) != nil {
				continue
			}
			for recs := v.bodies.next(); len(recs) > 0; recs = v.bodies.next() {
				v.compare(recs, suspect)
			}
		}
	}
}

// compare looks for the IDs of a batch among earlier IDs with the same hash.
func (v *verifier) compare(recs []Record, suspect map[uint64][]Duplicate) {
	for i := range recs {
		rec := &recs[i]
		hash := maphash.Bytes(v.seed, rec.ID)
		seen, ok := suspect[hash]
		if !ok || rec.Kind == KindLost {
			continue
		}
		k := slices.IndexFunc(seen, func(d Duplicate) bool { return bytes.Equal(d.ID, rec.ID) })
		if k < 0 {
			suspect[hash] = append(seen, Duplicate{ID: bytes.Clone(rec.ID), First: rec.Index})
			continue
		}
		v.report.DuplicateCount++
		if len(v.report.Duplicates) < maxDuplicates {
			v.report.Duplicates = append(v.report.Duplicates, Duplicate{ID: seen[k].ID, First: seen[k].First, Second: rec.Index})
		}
	}
}
