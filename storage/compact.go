package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Compaction copies the records of a file, and on request those of the sealed files before it, into a
// successor. Records keep their indexes. The voids, fences and small batches that crashes, takeovers
// and slow producers left behind are not copied. Repair is a compaction of a damaged file: a record of
// KindLost replaces each unreadable record. The old file is not changed, and is sealed only when the
// successor is complete. A crash in between leaves a temporary file and nothing else.

// CompactOptions are the options of Compact. The zero value is valid.
type CompactOptions struct {
	BatchBytes int                     // size of the new batches, uncompressed; defaults to 1 MiB, at most MaxPayload
	From       uint64                  // also copies the sealed files of the type in the directory, from this generation on; 0 = none. Not with Salvage
	Progress   func(done, total int64) // called periodically with the number of bytes of the old files copied so far, and of all; may be nil
}

// CompactReport says what Compact did.
type CompactReport struct {
	Path        string // of the successor
	Records     uint64 // records copied, of any kind
	Lost        uint64 // records of KindLost in place of unreadable ones, old and new
	Files       int    // files copied: 1, and with From the earlier ones that had not been replaced
	Batches     uint64 // in the old files
	NewBatches  uint64
	Size        int64 // of the old files, bytes
	NewSize     int64
	Damage      []error // with Salvage: the damage of the old file; a bounded number, the first ones
	DamageCount uint64  // number of all of them
	FirstIndex  uint64
	NextIndex   uint64
}

const (
	defaultCompactBatch = 1 << 20
	compactMemory       = 16 << 20 // for the records and headers of one batch, beyond their bytes
	compactSyncBytes    = 64 << 20 // written between two syncs, so that the last sync is short
	compactSyncPieces   = 8 << 20  // the same for a file that buffers unsynced bytes in memory
	lostPerBatch        = 1 << 16  // records of KindLost in one batch
)

// lostID is the ID of records of KindLost.
var lostID = []byte{0}

// Compact writes all records of the file into a successor, in batches of BatchBytes, compressed if
// Options.Compress is set or they were compressed before, without the traces of crashes and takeovers.
// Indexes do not change. The old file is sealed and no longer needed; Compact does not remove it.
// state is as for Checkpoint, and the errors are those of Rotate.
//
// With From, one file replaces several: the new file begins with the first record of the earliest. All
// of them must be present, and follow one another.
//
// A damaged file is refused (ErrIntegrity) unless the writer was opened with Salvage. With Salvage,
// Compact repairs the file: records of KindLost replace the unreadable ones, and the report lists the
// damage.
func (w *Writer) Compact(ctx context.Context, state []byte, o CompactOptions) (*Writer, *CompactReport, error) {
	if o.BatchBytes <= 0 {
		o.BatchBytes = defaultCompactBatch
	}
	o.BatchBytes = min(o.BatchBytes, MaxPayload) // a larger record gets a batch of its own
	reason := "compaction"
	if w.opts.Salvage {
		reason = "repair"
	}
	c := &compaction{w: w, o: o, report: &CompactReport{Files: 1, Damage: w.damage, DamageCount: w.damaged, FirstIndex: w.header.firstIndex}}
	if err := c.addEarlier(); err != nil {
		return nil, nil, err
	}
	next, err := w.succeed(ctx, state, reason, func() uint64 { return c.report.FirstIndex }, func(n *Writer) error {
		// succeed holds w's appendMu and has written the checkpoint that precedes the seal: the file
		// gets no further records.
		size := w.Size()
		c.to, c.report.Size = n, c.report.Size+size
		for _, l := range c.earlier {
			if err := c.copySealed(ctx, l); err != nil {
				return err
			}
		}
		if err := c.copy(ctx, source{w.path, w.file, w.header}, size); err != nil {
			return err
		}
		return c.finish()
	})
	if err != nil {
		return nil, nil, w.overtaken(ctx, err)
	}
	c.report.Path, c.report.NewSize, c.report.NextIndex = next.path, next.Size(), next.NextIndex()
	return next, c.report, nil
}

// compaction copies the records of w's file and of earlier files into the file of to.
type compaction struct {
	w, to   *Writer
	o       CompactOptions
	report  *CompactReport
	earlier Chain // earlier files to copy, oldest first
	done    int64 // bytes of the files copied so far

	bodies  bodyDecoder
	out     []Record // the pending batch
	size    int      // of out, as RecordSize counts
	arena   []byte   // holds the IDs and payloads of out …
	headers []Header // … and these are its headers
	synced  int64
}

// source is a file that is copied.
type source struct {
	path   string
	file   File
	header *fileHeader
}

// addEarlier finds the earlier files to copy.
func (c *compaction) addEarlier() error {
	if c.o.From == 0 {
		return nil
	}
	if c.w.opts.Salvage {
		return fmt.Errorf("%w: a repair rewrites one file only", ErrRefused)
	}
	all, err := ReadChain(c.w.fs, c.w.dir, c.w.typ)
	if err != nil {
		return err
	}
	chain := slices.DeleteFunc(all.From(c.o.From), func(l Link) bool { return l.nameSays() > c.w.header.generation })
	// rule: missing, cut and foreign files are not skipped: the new file would replace them all.
	if wrong := chain.Check(); len(wrong) > 0 {
		return wrong[0]
	}
	replaced := chain.Replaced()
	for _, l := range chain {
		switch {
		case l.FileID == c.w.header.fileID:
			continue
		case replaced[l.Path]: // rule: records that a compaction has copied to a later file are not copied twice.
			continue
		case l.Err != nil:
			return l.Err
		case l.Missing != nil:
			return l.Missing
		}
		c.earlier = append(c.earlier, l)
		c.report.Files++
		c.report.Size += l.Size
	}
	if len(c.earlier) > 0 {
		c.report.FirstIndex = c.earlier[0].First
	}
	return nil
}

// copySealed copies the records of an earlier file.
func (c *compaction) copySealed(ctx context.Context, l Link) error {
	f, err := c.w.fs.Open(l.Path, ModeRead)
	if err != nil {
		return ioError("open", l.Path, err)
	}
	defer f.Close()
	h, err := readFileHeader(l.Path, f)
	if err != nil {
		return err
	}
	err = c.copy(ctx, source{l.Path, f, h}, l.Size)
	c.done += l.Size
	return err
}

// copy copies the records of a file below the offset limit.
func (c *compaction) copy(ctx context.Context, src source, limit int64) error {
	s := newScanner(src.path, src.file, src.header, limit)
	s.readsAhead = true
	defer s.stopAhead()
	for told := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		it, err := s.step()
		if err != nil {
			return err
		}
		if c.o.Progress != nil && (s.pos-told >= progressStep || it.kind == itemEnd) {
			told = s.pos
			c.o.Progress(c.done+min(told, limit), c.report.Size)
		}
		switch {
		case it.kind == itemEnd:
			return nil
		case it.kind == itemDamage && !c.w.opts.Salvage:
			return it.err
		case it.kind != itemRecord || c.w.retracted(it.head):
		case it.head.kind == kindCheckpoint && it.head.base == c.report.FirstIndex && it.head.base > 0 && c.next() == it.head.base:
			err = c.state(src.path, it)
		case it.head.kind == kindBatch:
			err = c.batch(src.path, it)
		}
		if err != nil {
			return err
		}
	}
}

// state copies the state at the end of a predecessor, with which a successor begins.
func (c *compaction) state(path string, it *item) error {
	k, err := decodeCheckpoint(it.body)
	switch {
	case err != nil && c.w.opts.Salvage:
		return nil // Open has noted that
	case err != nil:
		return undecodable(path, it.head)
	}
	return c.to.Checkpoint(k.state)
}

// batch copies the records of one batch.
func (c *compaction) batch(path string, it *item) error {
	c.report.Batches++
	err := c.bodies.begin(path, it)
	if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) && c.w.opts.Salvage {
		if !c.w.decoded {
			c.report.Damage, c.report.DamageCount = appendDamage(c.report.Damage, err), c.report.DamageCount+1
		}
		return nil // fill replaces its records before the next batch is copied, or at the end
	}
	if err != nil {
		return err
	}
	if err := c.fill(path, it.head.base); err != nil {
		return err
	}
	c.to.opts.Compress = c.w.opts.Compress || it.head.codec() != codecNone
	for recs := c.bodies.next(); len(recs) > 0; recs = c.bodies.next() {
		for i := range recs {
			if recs[i].Index < c.next() { // only with Salvage: indexes after damage may repeat earlier ones
				continue
			}
			if err := c.add(&recs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// next returns the index of the next record to be added.
func (c *compaction) next() uint64 { return c.to.NextIndex() + uint64(len(c.out)) }

// fill adds records of KindLost in place of missing ones, up to index.
func (c *compaction) fill(path string, index uint64) error {
	next := c.next()
	if next != index && !c.w.opts.Salvage {
		return fmt.Errorf("%w: %s: records %d and %d follow each other", ErrIntegrity, path, next, index)
	}
	for ; next < index; next++ {
		if len(c.out) >= lostPerBatch {
			if err := c.flush(); err != nil {
				return err
			}
		}
		if err := c.add(&Record{Kind: KindLost, ID: lostID}); err != nil {
			return err
		}
	}
	return nil
}

// add copies one record into the pending batch, and writes that batch first if the record does not fit.
func (c *compaction) add(r *Record) error {
	n := RecordSize(r)
	if len(c.out) > 0 && (c.size+n > c.o.BatchBytes || len(c.out)*recordBytes+len(c.headers)*pairBytes > compactMemory) {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if r.Kind == KindLost {
		c.report.Lost++
	}
	c.report.Records++
	c.size += n
	kept := *r
	kept.ID, kept.Payload = c.keep(r.ID), c.keep(r.Payload)
	first := len(c.headers)
	c.headers = append(c.headers, r.Headers...)
	kept.Headers = c.headers[first:len(c.headers):len(c.headers)]
	c.out = append(c.out, kept)
	return nil
}

// keep copies b into the arena: the memory that a record points to is valid only until the scanner's
// next step. Slices that keep returned earlier remain valid when the arena grows into new memory.
func (c *compaction) keep(b []byte) []byte {
	c.arena = append(c.arena, b...)
	n := len(c.arena)
	return c.arena[n-len(b) : n : n]
}

// flush writes the pending batch. It syncs periodically, to keep the final sync short and, in a store, to bound memory.
func (c *compaction) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	if err := c.to.append(c.out); err != nil {
		return err
	}
	c.report.NewBatches++
	c.out, c.size, c.arena, c.headers = c.out[:0], 0, c.arena[:0], c.headers[:0]
	limit := int64(compactSyncBytes)
	if _, ok := c.to.file.(InPieces); ok {
		limit = compactSyncPieces
	}
	if c.to.Size()-c.synced < limit {
		return nil
	}
	c.synced = c.to.Size()
	_, err := c.to.Sync()
	return err
}

// finish completes the copy: the successor must have the same next index as the old file.
func (c *compaction) finish() error {
	if err := c.fill(c.w.path, c.w.NextIndex()); err != nil {
		return err
	}
	err := c.flush()
	c.to.opts.Compress = c.w.opts.Compress
	return err
}

// retraction says that for a later writer the records before the offset off, from the index first on,
// did not exist.
type retraction struct {
	off   int64
	first uint64
}

// retractions are in file order with increasing indexes, so that the first retraction after a record decides about it. There may be as
// many as regions.
type retractions []retraction

// add adds a retraction that is after all others. It supersedes those that begin at the same or a later index.
func (all *retractions) add(r retraction) {
	kept := *all
	for len(kept) > 0 && kept[len(kept)-1].first >= r.first {
		kept = kept[:len(kept)-1]
	}
	*all = append(kept, r)
}

// cover reports whether the record h was retracted.
func (all retractions) cover(h *recHeader) bool {
	i, _ := slices.BinarySearchFunc(all, h.offset+1, func(r retraction, off int64) int { return cmp.Compare(r.off, off) })
	return i < len(all) && (h.base > all[i].first || h.base == all[i].first && h.kind == kindBatch)
}

// retracted reports whether the accepted record h, a batch or a checkpoint, was retracted later.
func (w *Writer) retracted(h *recHeader) bool { return w.retractions.cover(h) }

// noteDamage records damage that the scan has found, and returns an error if its claim is implausible (see checkClaim). It keeps as many
// errors as Verify does, because a file may be full of damage.
func (w *Writer) noteDamage(err error) error {
	w.damage, w.damaged = appendDamage(w.damage, err), w.damaged+1
	return w.checkClaim(err)
}

// appendDamage appends err to a list of at most maxCorrupt errors.
func appendDamage(list []error, err error) []error {
	if len(list) < maxCorrupt {
		list = append(list, err)
	}
	return list
}

// salvage is scan for a damaged file: it starts at the beginning, and continues after damage. Which
// records were retracted is known only at the end, so salvage reads the file a second time to pass the
// records to the caller.
func (w *Writer) salvage(ctx context.Context, limit int64) (view, error) {
	if err := w.reread(0, 0); err != nil {
		return view{}, err
	}
	v, err := w.eachItem(ctx, limit, func(it *item) error {
		if it.kind != itemDamage {
			return nil
		}
		if r := (*RetractedError)(nil); errors.As(it.err, &r) {
			w.retractions.add(retraction{r.Offset, r.First})
		}
		return w.noteDamage(it.err)
	})
	if err != nil {
		return view{}, err
	}
	w.decoded, w.stateless = w.opts.Replay != nil, true
	_, err = w.eachItem(ctx, limit, func(it *item) (err error) {
		switch {
		case it.kind != itemRecord || w.retracted(it.head):
		case it.head.kind == kindBatch:
			err = w.replay(it)
		case it.head.kind == kindCheckpoint:
			w.restored = false
			if err = w.restore(it); err == nil {
				err = w.noteState(it)
			}
		case it.head.kind == kindSeal:
			if w.sealed, err = decodeSeal(it.body); err != nil {
				err = undecodable(w.path, it.head)
			}
		}
		if c := (*CorruptError)(nil); errors.As(err, &c) {
			err = w.noteDamage(err)
		}
		return err
	})
	return v, err
}

// noteState notes whether a checkpoint decodes, even if the caller does not restore its state.
func (w *Writer) noteState(it *item) error {
	if _, err := decodeCheckpoint(it.body); err != nil {
		return undecodable(w.path, it.head)
	}
	w.stateless = false
	return nil
}

// checkClaim refuses to repair damage that claims an implausible number of lost records. A repair writes a record for each lost one, and
// the record after the damage determines their number. The checksum of that record is good, but anybody with write access to the file can
// forge such a record.
//
// rule: no more records are marked as lost than the damaged bytes can have held, or than the registry knows to be durable.
func (w *Writer) checkClaim(err error) error {
	var c *CorruptError
	if !errors.As(err, &c) || c.LostNext <= w.registered {
		return nil
	}
	batches := uint64(c.End-c.Offset)/recHeaderSize + 2 // damage may be reported in parts, and a batch at each end may extend into another part
	if lost := c.LostNext - c.LostFirst; lost > batches*MaxBatchRecords {
		return fmt.Errorf("%w: %s: the record after byte %d says that %d records are lost in %d bytes, which cannot have held that many: no Fencepost program wrote it. "+
			"Restore the file from a copy; if there is none, move it away, and give up the records that the registry knows", ErrIntegrity, c.Path, c.End, lost, c.End-c.Offset)
	}
	return nil
}

// eachItem scans w's file below limit from its start, and calls f for each item. It returns the final view.
func (w *Writer) eachItem(ctx context.Context, limit int64, f func(*item) error) (view, error) {
	s := newScanner(w.path, w.file, w.header, limit)
	s.readsAhead = true
	defer s.stopAhead()
	for {
		if err := ctx.Err(); err != nil {
			return view{}, err
		}
		it, err := s.step()
		if err == nil {
			err = f(it)
		}
		if err != nil || it.kind == itemEnd {
			return s.view, err
		}
	}
}
