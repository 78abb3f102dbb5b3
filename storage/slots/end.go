package slots

import (
	"errors"
	"slices"
)

// The end of a file. There are servers that read all bytes of a file to list its slots, and a writer needs its end only. If the store is
// Ordered, a writer that opens a file of many slots lists the first and the last ones, and others when it reads them:
//
//	│ first slots │          later          │ last slots │ ──▶ asked for by their names, to where there is none
//	0             from                      to
//
// It finds the first slot and the end where those find them who list all slots. It does not look for slots that are missing in between: that
// is for readers, who list them all.

const (
	firstSlots = 32 // of which no part is left for later
	lastSlots  = 8
)

// later is what a file does not know of itself yet: the slots with the bytes [from, to). The zero value is nothing.
type later struct {
	from, to int64
	slots    int // about how many
}

// refreshEnd is refresh for a writer that opens the file.
func (f *file) refreshEnd() error {
	name := f.folder.String()
	first, err := f.fs.between(name, "", "", firstSlots)
	switch {
	case errors.Is(err, ErrUnordered):
		return f.refresh()
	case err != nil:
		return err
	case len(first) < firstSlots:
		return f.take(f.folder.offsets(first), later{})
	}
	last, err := f.fs.last(name, lastSlots)
	if err != nil {
		return err
	}
	head, tail := f.folder.offsets(first), f.folder.offsets(last)
	if len(head) == 0 || len(tail) == 0 { // of others, or older than the first ones
		return f.refresh()
	}
	// Up to mostMissing it does not matter for the end whether slots are missing. Behind that all are listed; see take.
	if from := mostMissing - int64(f.fs.mostSlot()); tail[0].off > from {
		entries, err := f.fs.between(name, f.folder.slot(from), f.folder.slot(tail[0].off), 0)
		if err != nil {
			return err
		}
		tail = append(f.folder.offsets(entries), tail...)
	}
	n, err := f.fs.count(name)
	if err != nil {
		return err
	}
	tail = slices.DeleteFunc(tail, func(p piece) bool { return p.off <= head[len(head)-1].off })
	if len(tail) == 0 {
		return f.refresh()
	}
	return f.take(append(head, tail...), later{to: tail[0].off, slots: max(n-len(head)-len(tail), 0)})
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
		f.later = later{l.from, pieces[0].off, max(l.slots-len(pieces), 0)}
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
	listed := append(d.offsets(entries), piece{off: l.to})
	at := l.from
	if from > l.from { // of the bytes before nothing is known
		at = listed[0].off
	}
	for _, p := range listed {
		// rule: what a part of a listing left out is asked for by its name, too.
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
