package slots

import (
	"errors"
	"slices"
)

// The end of a file. Some servers read all bytes of a file to list its slots, but a writer needs only its end. If the store is
// Ordered, a writer that opens a file of many slots lists the first and the last ones, and the others when it reads them:
//
//	│ first slots │          later          │ last slots │ ──▶ looked up by name, up to the first that does not exist
//	0             from                      to
//
// This finds the same first slot and end as a listing of all slots. It does not look for missing slots in between: readers do,
// because they list all slots.

const firstSlots = 32 // always listed; a file with fewer slots is listed as a whole

// later describes the slots of a file that are not listed yet. The zero value means none.
type later struct {
	from, to int64 // they are at offsets in [from, to)
	behind   int64 // where the slots before from end
	slots    int   // about how many
}

// refreshEnd is refresh for a writer that opens the file.
func (f *file) refreshEnd() error {
	d := f.folder
	first, err := f.fs.between(d.String(), "", "", firstSlots)
	switch {
	case errors.Is(err, ErrUnordered):
		return f.refresh()
	case err != nil:
		return err
	case len(first) < firstSlots:
		return f.take(f.fs.offsets(d, first), later{})
	}
	last, err := f.fs.last(d.String())
	if err != nil {
		return err
	}
	head, tail := f.fs.offsets(d, first), f.fs.offsets(d, []Entry{last})
	if len(head) == 0 || len(tail) == 0 { // foreign values
		return f.refresh()
	}
	next := head[len(head)-1].off + 1
	// rule: every slot that may end after the last one is listed: a slot put there by hand may overlap it.
	from := tail[0].off - int64(f.fs.store.MaxValue())
	// Nothing beyond about mostMissing is left for later, because take must know how many bytes are missing there.
	from = max(min(from, mostMissing-int64(f.fs.mostSlot())), next)
	entries, err := f.fs.between(d.String(), d.slot(from), "", 0)
	if err != nil {
		return err
	}
	tail = f.fs.offsets(d, entries)
	if from == next {
		return f.take(append(head, tail...), later{})
	}
	if len(tail) == 0 { // this listing is older than the one with the last slot
		return f.refresh()
	}
	n, err := f.fs.count(d.String())
	if err != nil {
		return err
	}
	return f.take(append(head, tail...), later{from: next, to: tail[0].off, slots: max(n-len(head)-len(tail), 0)})
}

// list lists the slots that have bytes in [off, end), unless they are known. reading is held.
func (f *file) list(off, end int64) error {
	f.mu.Lock()
	l, known := f.later, f.end-f.later.to
	f.mu.Unlock()
	if off >= l.to || end <= l.from {
		return nil
	}
	off = max(off, l.from)
	// As many bytes as are known already, so that few requests reach the beginning of the file.
	from := max(off-max(known, int64(f.fs.mostSlot())), l.from)
	pieces, hole, err := f.between(from, l)
	if err == nil && from > l.from && !slices.ContainsFunc(pieces, func(p piece) bool { return p.off <= off && off < p.end() }) {
		// The slot is longer than any that this package creates, or missing.
		from = l.from
		pieces, hole, err = f.between(from, l)
	}
	if err == nil && hole {
		// rule: slots that were removed with their file before they were listed are not damage either.
		err = f.whyMissing()
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.later != l { // all were listed meanwhile
		return nil
	}
	i, _ := slices.BinarySearchFunc(f.pieces, piece{off: l.to}, comparePieces)
	f.pieces = slices.Concat(f.pieces[:i], pieces, f.pieces[i:]) // a new slice: other goroutines may be reading the old one
	f.later = later{}
	if from > l.from {
		f.later = later{l.from, pieces[0].off, l.behind, max(l.slots-len(pieces), 0)}
	}
	return nil
}

// between lists the slots of l from an offset on, and reports whether one is missing between them.
func (f *file) between(from int64, l later) (pieces []piece, hole bool, err error) {
	d := f.folder
	entries, err := f.fs.between(d.String(), d.slot(from), d.slot(l.to), 0)
	if err != nil {
		return nil, false, err
	}
	listed := append(f.fs.offsets(d, entries), piece{off: l.to})
	at := l.behind
	if from > l.from { // the bytes before are unknown
		at = listed[0].off
	}
	for _, p := range listed {
		// rule: a slot that the listing of a part lacks is looked up by its name, too.
		for at < p.off {
			q, there, err := f.at(at)
			if err != nil {
				return nil, false, err
			}
			if !there {
				hole = true
				break
			}
			pieces, at = append(pieces, q), q.end()
		}
		if p.off < l.to {
			pieces, at = append(pieces, p), max(at, p.end())
		}
	}
	return pieces, hole, nil
}
