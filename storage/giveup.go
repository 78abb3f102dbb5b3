package storage

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
)

// Giving up a lost file. If an operator requests it (AcceptLoss), a missing registered file is treated
// like one of which a repair could read nothing: Open creates its successor, which has records of
// KindLost in place of the lost content, and continues at the durable index in the registry. If the
// lost file turns up later, no writer uses or changes it.
//
//	present                           the new file begins with
//	a sealed earlier generation       that one's next index and its state
//	a sealed one that is damaged      that one's first index and all its records, as the file that repaired it is lost, too
//	an earlier one, not sealed        that one's first index and all its records (Compact creates it)
//	nothing, generation 1 is lost     index 0
//	nothing, a later one is lost      the durable index: which records were in it, and which in archived files, is unknown

// GivenUp describes the records given up with a lost file: those with indexes in [First, Next), which
// are now of KindLost.
type GivenUp struct {
	First, Next uint64
	All         bool // no file of the type is left, and the first index of the lost ones is unknown
}

// GivenUp returns the records given up if Open created this file in place of a lost one; the file is
// then complete and needs no Compact. Otherwise ok is false.
func (w *Writer) GivenUp() (g GivenUp, ok bool) {
	if w.given == nil {
		return GivenUp{}, false
	}
	return *w.given, true
}

// givesUp reports whether Open should give up a missing registered file.
func (w *Writer) givesUp() bool { return w.opts.Salvage && w.opts.AcceptLoss }

// giveUp creates the file that replaces the registered one. w's file, of an earlier generation, is
// sealed, ends before next, and may be damaged.
func (w *Writer) giveUp(ctx context.Context, v *view, next uint64, damaged bool) (*Writer, error) {
	state, err := w.stateAt(v.checkpoint, next)
	if err != nil {
		return nil, err
	}
	g := GivenUp{First: next, Next: max(next, w.instead.DurableIndex)}
	if !damaged {
		return w.takePlace(ctx, state, g, g.First, w.header.schema, startAfter(state))
	}
	// rule: a damaged file was replaced by its repair. That replacement is lost, so this file's records are copied once more.
	return w.takePlace(ctx, state, g, w.header.firstIndex, w.header.schema, func(c *compaction) error {
		c.w = w
		return c.copy(ctx, source{w.path, w.file, w.header}, w.fenceOff)
	})
}

// startAfter begins a file that continues kept ones, with their state: a check of the file by itself
// needs it.
func startAfter(state []byte) func(*compaction) error {
	return func(c *compaction) error {
		if c.to.NextIndex() == 0 {
			return nil
		}
		return c.to.Checkpoint(state)
	}
}

// giveUpAll creates the file that replaces the registered one if the directory has no file of the type.
func (w *Writer) giveUpAll(ctx context.Context, temps []string) (*Writer, error) {
	// The directory itself is not created: a mistyped name or an unmounted volume is not a loss.
	if err := w.syncParents(); err != nil {
		return nil, err
	}
	if err := w.removeTemps(temps); err != nil {
		return nil, err
	}
	g := GivenUp{Next: w.instead.DurableIndex}
	if w.instead.Generation > 1 {
		// rule: archived records are not marked as lost.
		g.First, g.All = g.Next, true
	}
	return w.takePlace(ctx, w.opts.Empty, g, g.First, w.opts.Schema, startAfter(w.opts.Empty))
}

// takePlace creates the successor of the registered file, which is lost. The successor has the records
// from index first on that fill writes, and then those given up; state is the state of all of them.
func (w *Writer) takePlace(ctx context.Context, state []byte, g GivenUp, first uint64, schema string, fill func(*compaction) error) (*Writer, error) {
	lost := &Writer{typ: w.typ, dir: w.dir, fs: w.fs, slots: w.slots, opts: w.opts, epoch: w.epoch,
		header: &fileHeader{fileID: w.instead.FileID, generation: w.instead.Generation, schema: schema}}
	lost.path = filepath.Join(w.dir, GenerationName(w.typ, w.instead.Generation))
	seal := sealBody{generation: w.instead.Generation + 1}
	if _, err := rand.Read(seal.successor[:]); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	next, err := lost.build(ctx, seal, first, state, func(n *Writer) error {
		c := &compaction{w: lost, to: n, o: CompactOptions{BatchBytes: defaultCompactBatch}, report: &CompactReport{FirstIndex: first}}
		compress := n.opts.Compress
		if err := fill(c); err != nil {
			return err
		}
		n.opts.Compress = true // the records of KindLost are all alike
		if err := c.fill(lost.path, g.Next); err != nil {
			return err
		}
		err := c.flush()
		n.opts.Compress = compress
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := next.publish(ctx, w.instead.FileID); err != nil {
		next.abandon()
		return nil, err
	}
	next.given = &g
	return next, nil
}
