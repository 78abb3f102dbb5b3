package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The side index of a file, described in FORMAT.md: where batches start, so that a Reader which is
// asked for an index or a time need not read what is before. It is derived and deletable, and
// nothing rests on it: an entry is used only if the batch that it names is there and is proved to
// be part of the view.

const (
	indexMagic      = "FPLIDX1\n"
	indexHeaderSize = 56
	indexEntrySize  = 48
	indexGap        = 64 << 10 // bytes between the starts of two entries' batches, at least
	maxPoints       = 64 << 10 // a writer syncs, or writes a checkpoint, after 4096 batches
)

// IndexName returns the path of the side index of the file at path.
func IndexName(path string) string { return path + ".idx" }

// indexEntry stands for one batch.
type indexEntry struct {
	index          uint64 // of its first record
	offset         int64
	epoch, session uint64
	maxTime        int64 // the highest time of any record before it, nanoseconds since 1970; MinInt64 when there is none
	chain          uint64
}

// indexPoint is the end of a record that is not a fence.
type indexPoint struct {
	end   int64
	next  uint64
	chain uint64
}

// IndexOptions of BuildIndex.
type IndexOptions struct {
	// Check compares the side index with the file, and writes nothing.
	Check bool
	// Progress is called now and then with the number of bytes read so far, out of total.
	Progress func(done, total int64)
}

// IndexState says what BuildIndex did.
type IndexState string

const (
	IndexFresh     IndexState = "fresh"     // there was none
	IndexExtended  IndexState = "extended"  // by what was appended to the file since
	IndexUnchanged IndexState = "unchanged" // it was complete
	IndexRebuilt   IndexState = "rebuilt"   // there was one that could not be used, see Reason
	IndexChecked   IndexState = "checked"   // with Check: it is right, as far as it goes
)

// IndexReport is what BuildIndex found and did.
type IndexReport struct {
	Path      string // of the file; IndexName tells the side index's
	State     IndexState
	Reason    string // why it was rebuilt
	Entries   int
	Covered   int64  // bytes of the file from its start that the index covers
	NextIndex uint64 // of the record behind them
	Size      int64  // of the file, bytes
	Duration  time.Duration
}

// IndexError says that a side index is damaged, or does not tell the truth about its file. No
// Reader is misled by it.
type IndexError struct {
	Path   string // of the side index
	Reason string
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("%s: %s; it is derived from the file beside it: remove it, or build it again", e.Path, e.Reason)
}

// File is the path of the file that the index is for.
func (e *IndexError) File() string { return strings.TrimSuffix(e.Path, IndexName("")) }

// Is makes the error ErrIntegrity.
func (e *IndexError) Is(target error) bool { return target == ErrIntegrity }

// BuildIndex writes the side index of the file at path, or brings it up to date. It only reads the
// file, which may be written to meanwhile, and covers what is known to be durable. A side index
// that is there is extended; one that is damaged, or belongs to another file, is built anew.
//
// Damage in the file is an error of category ErrIntegrity, and the side index stays as it is. With
// Check the error is an *IndexError if the side index is wrong, and matches fs.ErrNotExist if there
// is none.
func BuildIndex(ctx context.Context, path string, o IndexOptions) (*IndexReport, error) {
	start := time.Now()
	f, err := OS().Open(path, ModeRead)
	if err != nil {
		return nil, ioError("open", path, err)
	}
	defer f.Close()
	h, err := readFileHeader(path, f)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, ioError("stat", path, err)
	}
	b := &indexBuilder{ctx: ctx, o: o, scan: newScanner(path, f, h, info.Size), maxTime: math.MinInt64,
		covered: indexPoint{end: headerSize, next: h.firstIndex}}
	r := &IndexReport{Path: path, State: IndexFresh, Size: info.Size}
	if o.Check {
		r.State = IndexChecked
		err = b.check()
	} else {
		err = b.refresh(r)
	}
	r.Entries, r.Covered, r.NextIndex, r.Duration = len(b.entries), b.covered.end, b.covered.next, time.Since(start)
	return r, err
}

// refresh extends the side index, or builds it anew, and writes it.
func (b *indexBuilder) refresh(r *IndexReport) error {
	old, entries, err := loadIndex(b.scan)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		r.State, r.Reason = IndexRebuilt, err.Error()
		var damaged *IndexError
		if errors.As(err, &damaged) {
			r.Reason = damaged.Reason
		}
	case len(entries) > 0:
		last := &entries[len(entries)-1]
		ok, err := b.scan.startAtBatch(last)
		if err != nil {
			return err
		}
		if !ok {
			r.State, r.Reason = IndexRebuilt, "its last entry names a batch that is not in the file"
			break
		}
		r.State, b.entries, b.maxTime = IndexExtended, entries, last.maxTime
		b.covered = indexPoint{last.offset, last.index, last.chain}
	default:
		r.State = IndexExtended
	}
	if err := b.build(nil); err != nil {
		return err
	}
	if r.State == IndexExtended && b.covered == old && len(b.entries) == len(entries) {
		r.State = IndexUnchanged
		return nil
	}
	return writeIndex(b.scan.path, encodeIndex(b.scan.header, b.covered, b.entries))
}

// check compares the side index with what it would be.
func (b *indexBuilder) check() error {
	old, entries, err := loadIndex(b.scan)
	if err != nil {
		return err
	}
	met := old == b.covered
	if err := b.build(func(p indexPoint) { met = met || p == old }); err != nil {
		return err
	}
	met = met && old.end <= b.scan.view.durable
	wrong := &IndexError{Path: IndexName(b.scan.path)}
	for i, e := range entries {
		if i >= len(b.entries) || e != b.entries[i] {
			wrong.Reason = fmt.Sprintf("entry %d is wrong (index %d, byte %d)", i, e.index, e.offset)
			return wrong
		}
	}
	if !met {
		wrong.Reason = fmt.Sprintf("no record that is known to be durable ends at byte %d, where it says that it ends", old.end)
		return wrong
	}
	b.entries, b.covered = entries, old // what is there, not what could be
	return nil
}

// indexBuilder finds the entries of a file.
type indexBuilder struct {
	ctx  context.Context
	o    IndexOptions
	scan *scanner

	entries []indexEntry
	covered indexPoint
	maxTime int64
	pending []indexEntry // of the region that is being read, not proved to be durable yet
	points  []indexPoint // not known to be durable yet
	passed  func(indexPoint)
	bodies  bodyDecoder
}

// build scans to the end of the file. passed, if not nil, is called for the end of each record that
// is not a fence.
func (b *indexBuilder) build(passed func(indexPoint)) error {
	s := b.scan
	s.readsAhead, b.passed = true, passed
	defer s.stopAhead()
	for told := s.pos; ; {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		it, err := s.step()
		if err != nil {
			return err
		}
		if b.o.Progress != nil && (s.pos-told >= progressStep || it.kind == itemEnd) {
			told = s.pos
			b.o.Progress(min(s.pos, s.limit), s.limit)
		}
		switch it.kind {
		case itemEnd:
			return nil
		case itemDamage:
			return it.err
		case itemRecord:
			if err := b.note(&it); err != nil {
				return err
			}
		}
		for len(b.points) > 0 && b.points[0].end <= s.view.durable {
			b.covered, b.points = b.points[0], b.points[1:]
		}
	}
}

// note takes in an accepted record.
func (b *indexBuilder) note(it *item) error {
	h := &it.head
	if h.kind == kindFence {
		b.pending = b.pending[:0] // what its own region does not prove would not pass startAtBatch
		return nil
	}
	proved := 0
	for proved < len(b.pending) && b.pending[proved].offset < h.durableEnd {
		proved++
	}
	b.entries = append(b.entries, b.pending[:proved]...)
	b.pending = b.pending[proved:]
	b.point(indexPoint{b.scan.view.end, b.scan.view.next, b.scan.view.chain})
	if h.kind != kindBatch {
		return nil
	}
	if h.offset-b.last() >= indexGap {
		b.pending = append(b.pending, indexEntry{h.base, h.offset, h.epoch, h.session, b.maxTime, h.chain})
	}
	if err := b.bodies.begin(b.scan.path, it); err != nil {
		return err
	}
	for recs := b.bodies.next(); len(recs) > 0; recs = b.bodies.next() {
		for i := range recs {
			b.maxTime = max(b.maxTime, recs[i].Time)
		}
	}
	return nil
}

// point notes that a record ends at p.
func (b *indexBuilder) point(p indexPoint) {
	if b.passed != nil {
		b.passed(p)
	}
	if len(b.points) == maxPoints { // no writer leaves so many unproved: every second does, and the index covers a little less
		kept := b.points[:0]
		for i := 1; i < len(b.points); i += 2 {
			kept = append(kept, b.points[i])
		}
		b.points = kept
	}
	b.points = append(b.points, p)
}

// last returns where the last batch starts that has an entry, or is about to get one; 0 when there
// is none.
func (b *indexBuilder) last() int64 {
	for _, list := range [][]indexEntry{b.pending, b.entries} {
		if n := len(list); n > 0 {
			return list[n-1].offset
		}
	}
	return 0
}

func encodeIndex(h *fileHeader, covered indexPoint, entries []indexEntry) []byte {
	b := make([]byte, indexHeaderSize+len(entries)*indexEntrySize+4)
	copy(b, indexMagic)
	copy(b[8:], h.fileID[:])
	put64(b[24:], uint64(covered.end))
	put64(b[32:], covered.next)
	put64(b[40:], covered.chain)
	put64(b[48:], uint64(len(entries)))
	for i, e := range entries {
		p := b[indexHeaderSize+i*indexEntrySize:]
		for k, v := range [...]uint64{e.index, uint64(e.offset), e.epoch, e.session, uint64(e.maxTime), e.chain} {
			put64(p[8*k:], v)
		}
	}
	put32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
	return b
}

func decodeEntry(b []byte) indexEntry {
	return indexEntry{le64(b), int64(le64(b[8:])), le64(b[16:]), le64(b[24:]), int64(le64(b[32:])), le64(b[40:])}
}

// writeIndex replaces the side index of the file at path. The rename makes a reader see the old one
// or the new one.
func writeIndex(path string, content []byte) (err error) {
	name := IndexName(path)
	// Not os.CreateTemp, whose files are for their owner only: a change of mode later would not
	// heed the umask.
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(name)+"."+rand.Text()+".tmp")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return ioError("write", name, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		os.Remove(temp)
		return ioError("write", name, err)
	}
	return nil
}

// loadIndex reads the side index of the scanner's file.
func loadIndex(s *scanner) (covered indexPoint, entries []indexEntry, err error) {
	covered, err = readIndex(OS(), s, func(e indexEntry) { entries = append(entries, e) })
	return covered, entries, err
}

// readIndex reads the side index of the scanner's file and calls each for its entries, in order. It
// keeps nothing in memory, so each is called before the checksum is known: with an error nothing
// counts of what it was told.
func readIndex(fsys FS, s *scanner, each func(indexEntry)) (covered indexPoint, err error) {
	name := IndexName(s.path)
	wrong := func(format string, args ...any) (indexPoint, error) {
		return indexPoint{}, &IndexError{Path: name, Reason: fmt.Sprintf(format, args...)}
	}
	f, err := fsys.Open(name, ModeRead)
	if err != nil {
		return covered, ioError("open", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return covered, ioError("stat", name, err)
	}
	head := make([]byte, indexHeaderSize)
	if info.Size < indexHeaderSize+4 {
		return wrong("it is cut short: it has only %d bytes", info.Size)
	}
	if _, err := f.ReadAt(head, 0); err != nil {
		return covered, ioError("read", name, err)
	}
	covered = indexPoint{int64(le64(head[24:])), le64(head[32:]), le64(head[40:])}
	count := le64(head[48:])
	switch {
	case string(head[:8]) != indexMagic:
		return wrong("it is no side index: it starts with %s", hexBytes(head[:8]))
	case !bytes.Equal(head[8:24], s.header.fileID[:]):
		return wrong("it belongs to file %s, the file is %s", FileID(head[8:24]), s.header.fileID)
	case count > uint64(info.Size)/indexEntrySize || int64(count)*indexEntrySize+indexHeaderSize+4 != info.Size:
		return wrong("it is cut short or too long: %d bytes do not hold %d entries", info.Size, count)
	case covered.end < headerSize || covered.end > s.limit:
		return wrong("it covers %d bytes of a file that has %d", covered.end, s.limit)
	}
	crc := crc32.Update(0, castagnoli, head)
	buf := make([]byte, min(count, 4096)*indexEntrySize)
	last := indexEntry{maxTime: math.MinInt64}
	for n, p := count, int64(indexHeaderSize); n > 0; p += int64(len(buf)) {
		buf = buf[:min(n, 4096)*indexEntrySize]
		if _, err := f.ReadAt(buf, p); err != nil {
			return covered, ioError("read", name, err)
		}
		crc = crc32.Update(crc, castagnoli, buf)
		for b := buf; len(b) > 0; b = b[indexEntrySize:] {
			e := decodeEntry(b)
			if e.offset < max(headerSize, last.offset+recAlign) || e.offset >= covered.end || e.offset%recAlign != 0 || e.index < last.index || e.maxTime < last.maxTime {
				return wrong("its entries are out of order or out of range")
			}
			each(e)
			last, n = e, n-1
		}
	}
	var sum [4]byte
	if _, err := f.ReadAt(sum[:], info.Size-4); err != nil {
		return covered, ioError("read", name, err)
	}
	if le32(sum[:]) != crc {
		return wrong("its checksum is wrong")
	}
	return covered, nil
}
