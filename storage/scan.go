package storage

import (
	"cmp"
	"errors"
	"io"
)

// The scan decides which records a file has: the view. It is a pure function of the bytes, and the only
// code that decides this: Writer, Reader and Verify all run it.
//
// A log is a sequence of regions, each begun by the fence of one writer and its open record, and
// continued by that writer's batches and checkpoints. At each position exactly one record fits:
//
//	closed ──fence, epoch above all before──▶ fenced ──its open record──▶ open ─┬─batch, checkpoint─▶ open
//	  ▲                                                                         └─seal──────────────▶ closed permanently
//	  └──────────────────── anything else (also a higher fence: straight to fenced)
//
// The first bytes that do not fit end the region. From there the scanner searches for the next fence;
// the bytes in between are void. In a healthy file they are a torn write, or a batch that landed after
// another writer's fence. They are damage if a later record proves that they had been good, by a
// durable end or an accepted end above them.

// phase says which record may come next.
type phase uint8

const (
	closed phase = iota // only a fence
	fenced              // the open record of the last fence
	opened              // a batch, a checkpoint or a seal of the region
)

// view is the state of the scan: the part of the content before a position that decides what fits there.
type view struct {
	phase      phase
	sealed     bool   // no further region can be opened
	epoch      uint64 // of the last accepted fence: the highest
	session    uint64
	next       uint64 // index of the next record
	chain      uint64 // link of the last accepted record that is not a fence
	end        int64  // of that record: the accepted end
	fenceOff   int64  // of the last accepted fence
	anchor     int64  // last accepted open or checkpoint, 0 = none
	checkpoint int64  // last accepted checkpoint, 0 = none
	durable    int64  // highest durable end in an accepted record
}

// item is one step of the scanner: an accepted record, a void range before one, or an error in
// between. It, and the memory it points to, is valid until the next step.
type item struct {
	kind itemKind
	head *recHeader // itemRecord
	body []byte     // itemRecord: the stored body
	off  int64      // itemVoid: the range
	end  int64
	err  error // itemDamage: *CorruptError or *RetractedError
}

type itemKind uint8

const (
	itemEnd    itemKind = iota // nothing more up to the limit
	itemRecord                 // accepted
	itemVoid                   // bytes that a later open record confirms to be void
	itemDamage                 // integrity violation; the scan continues after it
)

// verdict classifies the bytes at a position by themselves, without any context.
type verdict uint8

const (
	notRecord  verdict = iota
	incomplete         // a good header, or the start of one, and then the limit
	headOnly           // a good header, and a body that does not match it
	whole
)

const (
	scanWindow = 256 << 10 // bytes read at once: fits into the second-level cache, from which the checksum then reads it
)

// scanner runs over a log from pos up to limit.
type scanner struct {
	path   string
	src    io.ReaderAt
	header *fileHeader
	limit  int64 // bytes from here on do not exist for the scanner
	view   view
	pos    int64 // of the next record expected

	head recHeader // of the last examined record; not copied: for batches of one record that would take as long as the checksums
	it   item      // the result of the last step

	buf    []byte // window of the file at bufOff
	bufOff int64
	own    []byte // memory of buf for a large record; kept, as more of them may follow
	large  func() // if not nil: called before the window becomes larger than largeBatch

	readsAhead bool // let another goroutine read; stopAhead must be called at the end
	ahead      *readAhead
	chunk      []byte // the buffer that the window is in, if it came from ahead
	direct     int64  // below this offset nothing is read ahead

	judged  int64         // offset of the last open record that was judged
	hunting bool          // the region ended at pos
	huntPos int64         // where the hunt continues
	stop    int64         // where the first hunt after the last accepted record that is not a fence began, 0 = no hunt
	proof   *CorruptError // proven damage that was not returned yet, except for told
	told    *CorruptError // the damage already returned, before a record to continue with was accepted
	budget  int64         // bytes of candidates that hunts may still read

	walking    bool  // back from the end, or from checkpoint to checkpoint
	walkBudget int64 // separate from budget: the result of a hunt must not depend on where the scan began
}

// newScanner returns a scanner at the first record.
func newScanner(path string, src io.ReaderAt, h *fileHeader, limit int64) *scanner {
	s := &scanner{path: path, src: src, header: h, pos: headerSize}
	s.view = view{next: h.firstIndex, end: headerSize, durable: headerSize}
	s.setLimit(limit)
	return s
}

// setLimit moves the limit, which only grows, and raises the budgets with it.
func (s *scanner) setLimit(limit int64) {
	more := 4 * (limit - s.limit)
	s.budget += more
	s.walkBudget += more
	s.limit = limit
}

// startAt moves the scanner to the checkpoint at off, with the view that it implies. It reports false if
// there is no checkpoint at off.
func (s *scanner) startAt(off int64) (bool, error) {
	h, _, v, err := s.recordAt(off)
	if err != nil || v != whole || h.kind != kindCheckpoint {
		return false, err
	}
	s.adopt(h)
	return true, nil
}

// startAtBatch moves the scanner to the batch that a checkpoint's mark m names, if exactly that batch is
// present and proven to be part of the view.
func (s *scanner) startAtBatch(m *mark) error {
	first, _, v, err := s.recordAt(m.offset)
	h := *first
	if err != nil || v != whole || h.kind != kindBatch || h.base != m.index || h.baseTime != m.time {
		return err
	}
	// rule: whole is not enough. After a batch torn by a power failure, a whole batch may be void. If the batch counts, a later
	// record of its writer's chain says that it was durable, at the latest a checkpoint.
	for r := h; ; {
		next, _, err := s.headAt(r.end())
		if err != nil || next.kind == kindNone || next.kind == kindFence || next.epoch != h.epoch || next.session != h.session || next.chain != r.link() {
			return err
		}
		if next.durableEnd > h.offset {
			s.adopt(&h)
			return nil
		}
		r = *next
	}
}

// adopt makes the record h the next one that fits, regardless of the records before it.
func (s *scanner) adopt(h *recHeader) {
	s.view.phase, s.view.sealed = opened, false
	s.view.epoch, s.view.session = h.epoch, h.session
	s.view.next, s.view.chain = h.base, h.chain
	s.view.end = h.offset
	s.view.anchor = h.anchorOff
	s.pos = h.offset
	s.hunting, s.proof, s.told, s.stop = false, nil, nil, 0
}

// step returns the next item. An error is a read error. After itemEnd the scan can continue once the
// limit was moved.
func (s *scanner) step() (*item, error) {
	for {
		if s.hunting {
			var done bool
			var err error
			if s.it, done, err = s.hunt(); done || err != nil {
				return &s.it, err
			}
		}
		h, body, v, err := s.recordAt(s.pos)
		if err != nil {
			return nil, err
		}
		if v != whole || !s.fits(h, body) {
			s.hunting, s.huntPos, s.stop = true, align8(max(s.pos, s.huntPos)), cmp.Or(s.stop, s.pos)
			continue
		}
		if h.kind == kindOpen && s.judged != h.offset {
			s.judged = h.offset
			if it, ok := s.judge(h, body); ok {
				s.it = it
				return &s.it, nil
			}
		}
		if h.kind == kindOpen && s.proof != nil && s.told == nil { // a retraction came before it
			s.it = s.tell()
			return &s.it, nil
		}
		s.accept(h)
		// Only what belongs to a record, field by field: a whole item is built on the stack and then copied, which takes as long as the checksum of a header.
		s.it.kind, s.it.head, s.it.body = itemRecord, h, body
		return &s.it, nil
	}
}

// fits reports whether the whole record h continues the view.
func (s *scanner) fits(h *recHeader, body []byte) bool {
	w := &s.view
	if h.kind == kindFence {
		// rule: epochs of accepted fences strictly increase.
		return h.epoch > w.epoch
	}
	if h.epoch != w.epoch || h.session != w.session {
		return false
	}
	if h.kind == kindOpen {
		o, err := decodeOpen(h.offset, body)
		return w.phase == fenced && !w.sealed && err == nil && o.fenceOff == w.fenceOff
	}
	return w.phase == opened && h.base == w.next && h.chain == w.chain
}

// accept moves the view past h.
func (s *scanner) accept(h *recHeader) {
	w := &s.view
	s.pos, s.huntPos = h.end(), 0
	if h.kind != kindFence {
		s.proof, s.told, s.stop = nil, nil, 0
	}
	w.durable = max(w.durable, h.durableEnd)
	switch h.kind {
	case kindFence:
		w.phase, w.epoch, w.session, w.fenceOff = fenced, h.epoch, h.session, h.offset
		return // the open record says which records before the fence count; the chain bypasses the fence
	case kindOpen:
		w.phase, w.anchor, w.next = opened, h.offset, h.base
	case kindBatch:
		w.next += uint64(h.count)
	case kindCheckpoint:
		w.anchor, w.checkpoint = h.offset, h.offset
	case kindSeal:
		w.phase, w.sealed = closed, true
	}
	w.chain, w.end = h.link(), h.end()
}

var errShrunk = errors.New("the file became shorter than it was")
