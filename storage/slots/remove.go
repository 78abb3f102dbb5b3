package slots

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/storage"
)

// Removing a named file. The slots of a file stop a paused writer from appending to it: such a writer creates a slot
// at the end that it knows, and fails because that slot exists. So some slots must stay:
//
//	orders/generations/00000001            stays: no writer makes this generation again
//	orders/generations/00000001-removed    created first: from now on the file is neither opened nor listed
//	orders/00000001/3f2a9c0d11e4b7a6/…     deleted, except the first slot, slots that begin with a fence, and the slot with the seal
//	orders/generations/00000001-swept      created last: nothing is left to delete
//
// A writer with its fence in the file may find the slot that it creates taken. That slot is then its own, or begins with another
// writer's fence: slots are only created at the end, and after its own fence a writer knows everything before the end. A writer that
// is about to fence reads the registry again after its fence, and by then the registry names another file.

const (
	removedSuffix = "-removed"
	sweptSuffix   = "-swept"

	markerOffset = 32 // offset of the sync marker in the file header, see FORMAT.md
	markerSize   = 16
	fenceMagic   = "FPF1"
	alignment    = 8
	largestFence = 70 << 10 // bytes; no fence is larger
)

// errRemoved means that a file was removed. It matches fs.ErrNotExist.
var errRemoved = fmt.Errorf("it was removed as an old one; read the files of its type that are left (%w)", fs.ErrNotExist)

// isRemoved reports whether a generation was removed, or is being removed.
func (f *FS) isRemoved(typ string, generation uint64) (bool, error) {
	_, err := f.size(generationSlot(typ, generation) + removedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// mark creates a value that marks a generation, as removed or as swept.
func (f *FS) mark(typ string, generation uint64, suffix string) error {
	return f.create(generationSlot(typ, generation)+suffix, []byte(strings.TrimPrefix(suffix, "-")))
}

// removeGeneration removes a named file. It may be called again if it fails.
func (f *FS) removeGeneration(typ string, generation uint64) error {
	nonce, err := f.nonce(typ, generation)
	if err != nil {
		return err
	}
	// rule: the file is marked as removed first: readers would take a half-removed file for damage.
	if err := f.mark(typ, generation, removedSuffix); err != nil {
		return err
	}
	if err := f.sweep(folder{typ, generation, nonce}); err != nil {
		return err
	}
	return f.mark(typ, generation, sweptSuffix)
}

// sweep deletes the slots of a removed file that are not needed to stop old writers.
func (f *FS) sweep(d folder) error {
	all := &file{fs: f, name: storage.GenerationName(d.typ, d.generation), folder: d, removed: true}
	if err := all.refresh(); err != nil {
		return err
	}
	if len(all.pieces) == 0 {
		return nil
	}
	first := all.pieces[0]
	head, err := f.readWhole(d.slot(0), first.size)
	switch {
	case first.off > 0, errors.Is(err, fs.ErrNotExist): // an error of its own, not fs.ErrNotExist: the other slots exist
		return d.unswept("is missing")
	case err != nil:
		return err
	case len(head) < markerOffset+markerSize:
		return d.unswept(fmt.Sprintf("has only %d bytes", len(head)))
	}
	fence := append(bytes.Clone(head[markerOffset:markerOffset+markerSize]), fenceMagic...)

	goes := make([]bool, len(all.pieces))
	var g errgroup.Group
	g.SetLimit(requests)
	for i, p := range all.pieces[1:] { // the first one stays
		g.Go(func() (err error) {
			goes[i+1], err = f.mayGo(d, p, fence)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	last, end := 0, int64(0) // of the slots so far, the last one to be deleted, and where they end
	for i, p := range all.pieces {
		// rule: the slot with the seal also stays if slots were put far after it by hand.
		if p.off-end > mostMissing {
			goes[last] = false
		}
		if end = max(end, p.end()); goes[i] {
			last = i
		}
	}
	goes[last] = false // it has the seal, as in docs/model/slots.pml
	for i, p := range all.pieces {
		if goes[i] {
			g.Go(func() error { return f.delete(d.slot(p.off)) })
		}
	}
	return g.Wait()
}

// mayGo reports whether a slot of a removed file exists and is not needed to stop old writers.
func (f *FS) mayGo(d folder, p piece, fence []byte) (bool, error) {
	// rule: no slot that begins with a fence is deleted: it tells earlier writers that they were overtaken.
	if p.size > largestFence {
		return true, nil
	}
	b, err := f.readWhole(d.slot(p.off), p.size)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return !bytes.HasPrefix(b[min(-p.off&(alignment-1), int64(len(b))):], fence), nil // after the zeros that align it
}

// unswept returns the error of a removed file whose first slot is unusable. The remedy deletes none of the others, because it is unknown which of
// them stop old writers.
func (d folder) unswept(what string) error {
	return fmt.Errorf("%w: %s: the first slot of this removed file %s, and without it nothing tells which of the others are still needed; "+
		"restore it from a backup, or create the value %s: then they all stay", storage.ErrIntegrity, d, what, generationSlot(d.typ, d.generation)+sweptSuffix)
}

// HalfRemoved implements storage.HalfRemover.
func (f *FS) HalfRemoved(typ string) ([]string, error) {
	entries, err := f.list(typ + "/" + generationsFolder)
	if err != nil {
		return nil, err
	}
	removed, swept := marked(entries, removedSuffix), marked(entries, sweptSuffix)
	var names []string
	for _, e := range entries {
		if g, ok := generationOf(typ, e.Name); ok && removed[e.Name] && !swept[e.Name] {
			names = append(names, storage.GenerationName(typ, g))
		}
	}
	return names, nil
}

// marked returns the names of the generations in a listing that have a mark.
func marked(entries []Entry, suffix string) map[string]bool {
	names := map[string]bool{}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name, suffix); ok {
			names[name] = true
		}
	}
	return names
}

// generationOf returns the generation of the generation slot with this name.
func generationOf(typ, name string) (generation uint64, ok bool) {
	generation, err := strconv.ParseUint(path.Base(name), 10, 64)
	if err != nil || name != generationSlot(typ, generation) {
		return 0, false
	}
	_, _, ok = storage.ParseName(storage.GenerationName(typ, generation))
	return generation, ok
}
