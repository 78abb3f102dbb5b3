package slots

import (
	"errors"
	"slices"
)

// The end of a file. Some servers read all bytes of a file to list its slots, and a writer needs only its end. If the store is
// Ordered, a writer that opens a file of many slots lists the first and the last ones, and others when it reads them:
//
//	│ first slots │          later          │ last slots │ ──▶ asked for by their names, to where there is none
//	0             from                      to
//
// It finds the same first slot and end as a listing of all slots. It does not look for slots that are missing in between: readers do,
// because they list them all.

const firstSlots = 32 // of which no part is left for later

// later is what a file does not know of itself yet. The zero value is nothing.
type later struct {
	from, to int64 // the slots at these offsets
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
	if len(head) == 0 || len(tail) == 0 { // values of others
		return f.refresh()
	}
	next := head[len(head)-1].off + 1
	// rule: all slots are listed that may end behind the last one: somebody may have put one there.
	from := tail[0].off - int64(f.fs.store.MaxValue())
	// Of what is more, take has to know how much is missing.
	from = max(min(from, mostMissing-int64(f.fs.mostSlot())), next)
	entries, err := f.fs.between(d.String(), d.slot(from), "", 0)
	if err != nil {
		return err
	}
	tail = f.fs.offsets(d, entries)
	if from == next {
		return f.take(append(head, tail...), later{})
	}
	if len(tail) == 0 { // a listing that is older than the last one
		return f.refresh()
	}
	n, err := f.fs.count(d.String())
	if err != nil {
		return err
	}
	return f.take(append(head, tail...), later{from: next, to: tail[0].off, slots: max(n-len(head)-len(tail), 0)})
}

// list makes the slots that have bytes in [off, end) known. reading is held.
func (f *file) list(off, end int64) error {
	f.mu.Lock()
	l, known := f.later, f.end-f.later.to
	f.mu.Unlock()
	if off >= l.to || end <= l.from {
		return nil
	}
	off = max(off, l.from)
	// As much as is known already, so that it takes few requests to come to the beginning.
	from := max(off-max(known, int64(f.fs.mostSlot())), l.from)
	pieces, hole, err := f.between(from, l)
	if err == nil && from > l.from && !slices.ContainsFunc(pieces, func(p piece) bool { return p.off <= off && off < p.end() }) {
		// The slot begins earlier than one of ours, or is missing.
		from = l.from
		pieces, hole, err = f.between(from, l)
	}
	if err == nil && hole {
		// rule: slots that were removed with their file, before they were listed, are no damage either.
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
	f.pieces = slices.Concat(f.pieces[:i], pieces, f.pieces[i:]) // a new slice: others read the old one
	f.later = later{}
	if from > l.from {
		f.later = later{l.from, pieces[0].off, l.behind, max(l.slots-len(pieces), 0)}
	}
	return nil
}

// between lists the slots of later from an offset on, and tells whether one is missing between them.
func (f *file) between(from int64, l later) (pieces []piece, hole bool, err error) {
	d := f.folder
	entries, err := f.fs.between(d.String(), d.slot(from), d.slot(l.to), 0)
	if err != nil {
		return nil, false, err
	}
	listed := append(f.fs.offsets(d, entries), piece{off: l.to})
	at := l.behind
	if from > l.from { // nothing is known of the bytes before
		at = listed[0].off
	}
	for _, p := range listed {
		// rule: what the listing of a part left out is asked for by its name, too.
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
