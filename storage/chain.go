package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// Chain is a sequence of files of one type, each of which continues the one before it. The files
// themselves record the order: a seal names the next file; a header names the previous file, its
// own generation and the index it begins with. So a Chain can prove that a file is missing,
// truncated, renamed or a copy, and which messages are missing as a result.
//
// A Chain may begin with any generation: older files may be archived or removed.
type Chain []Link

// Link is a file of a Chain, described by its header and its end.
type Link struct {
	Path       string
	Type       string // "" if the header cannot be read
	FileID     FileID
	PrevFileID FileID // the file that it continues; zeros if none
	Generation uint64
	First      uint64       // index of its first message
	Next       uint64       // index after its last message
	Epoch      uint64       // the highest epoch that has opened it; 0 if unknown
	Sealed     *SealedError // names its successor; nil if it is not sealed
	Err        error        // why its header or its end cannot be read; fields left unknown are not checked
	Missing    error        // a *HoleError if a piece of it is missing, see InPieces; else nil
	Created    time.Time    // from its header, by the clock of its creator; zero if unknown
	Size       int64        // bytes
	end        int64        // offset after its last record that is not a fence; after its seal if it is sealed
}

// ReadChain reads the files of a type in a directory, oldest first: their headers, and their ends
// from the last checkpoint on. A nil fsys stands for OS().
func ReadChain(fsys FS, dir, typ string) (Chain, error) { return readChain(orOS(fsys), dir, typ, 0) }

// readChain is ReadChain for the given and later generations, going by their names.
func readChain(fsys FS, dir, typ string, generation uint64) (c Chain, err error) {
	gone := true
	for try := 0; gone && try < 3; try++ { // files may be archived meanwhile: list again
		names, err := fsys.List(dir, typ)
		if err != nil {
			return nil, ioError("list directory", dir, err)
		}
		c, gone = nil, false
		for _, name := range names {
			if t, g, ok := ParseName(name); !ok || t != typ || g < generation {
				continue
			}
			if l := ReadLink(fsys, filepath.Join(dir, name)); errors.Is(l.Err, fs.ErrNotExist) {
				gone = true
			} else {
				c = append(c, l)
			}
		}
	}
	slices.SortFunc(c, func(a, b Link) int { return cmp.Compare(a.nameSays(), b.nameSays()) })
	return c, nil
}

// From returns the files of the given and later generations, going by their names.
func (c Chain) From(generation uint64) Chain {
	return slices.DeleteFunc(slices.Clone(c), func(l Link) bool { return l.nameSays() < generation })
}

// At returns the position of the newest file that begins at an index or earlier: the file that has this index, or may get it. It returns -1 if
// all files begin later. If several files have the index, as after a compaction, the newest one counts.
func (c Chain) At(index uint64) int {
	at := -1
	for i, l := range c {
		if l.Type != "" && l.First <= index {
			at = i
		}
	}
	return at
}

// ReadLink describes the file at path: it reads the header, and the end from the last checkpoint on. A
// nil fsys stands for OS().
func ReadLink(fsys FS, path string) (l Link) {
	l.Path = path
	f, err := orOS(fsys).Open(path, ModeRead)
	if err != nil {
		l.Err = ioError("open", path, err)
		return l
	}
	defer f.Close()
	h, err := readFileHeader(path, f)
	if err != nil {
		l.Err = err
		return l
	}
	l = linkOf(path, h)
	if p, ok := f.(InPieces); ok {
		if hole := holeIn(path, p); hole != nil {
			l.Missing = hole
		}
	}
	info, err := f.Stat()
	if err != nil {
		l.Err = ioError("stat", path, err)
		return l
	}
	l.Size = info.Size
	l.Err = l.readEnd(f, h, info.Size)
	return l
}

// linkOf describes the file at path as far as its header allows.
func linkOf(path string, h *fileHeader) Link {
	return Link{Path: path, Type: h.typ, FileID: h.fileID, PrevFileID: h.prevFileID, Generation: h.generation, First: h.firstIndex, Created: time.Unix(0, h.createdNs)}
}

// readEnd sets the fields that depend on the end of the file, at limit.
func (l *Link) readEnd(f File, h *fileHeader, limit int64) error {
	s := newScanner(l.Path, f, h, limit)
	if err := s.startBefore(math.MaxUint64, noTime); err != nil {
		return err
	}
	for {
		it, err := s.step()
		switch {
		case err != nil:
			return err
		case it.kind == itemDamage:
			return it.err
		case it.kind == itemEnd:
			l.Next, l.Epoch, l.end = s.view.next, s.view.epoch, s.view.end
			return nil
		case it.kind == itemRecord && it.head.kind == kindSeal:
			b, err := decodeSeal(it.body)
			if err != nil {
				return undecodable(l.Path, it.head)
			}
			l.Sealed = &SealedError{Path: l.Path, Successor: b.successor, Generation: b.generation}
		}
	}
}

// Link returns the file's description for a Chain.
func (r *Report) Link() Link {
	return Link{Path: r.Path, Type: r.Type, FileID: r.FileID, PrevFileID: r.PrevFileID, Generation: r.Generation, First: r.FirstIndex,
		Next: r.NextIndex, Sealed: r.Sealed, Size: r.Size}
}

// nameSays returns the generation in the file's name.
func (l *Link) nameSays() uint64 {
	_, g, _ := ParseName(filepath.Base(l.Path))
	return g
}

// named reports whether the file has the name of its type and generation.
func (l *Link) named() bool { return filepath.Base(l.Path) == GenerationName(l.Type, l.Generation) }

// continuedBy returns the problem between the file and the one with the name of its successor, if any.
func (l *Link) continuedBy(next Link) error {
	k := &chainCheck{typ: l.Type}
	if l.named() {
		k.wrong = Chain{*l, next}.Check()
	} else {
		k.follows(l, &next) // whatever l's name is
	}
	if len(k.wrong) > 0 {
		return k.wrong[0]
	}
	return nil
}

// sibling returns the path of another generation beside the file.
func (l *Link) sibling(typ string, generation uint64) string {
	return filepath.Join(filepath.Dir(l.Path), GenerationName(typ, generation))
}

// ChainError says that the files of a type do not follow one another: one is missing, truncated,
// renamed, a copy or another file. The messages with indexes in [LostFirst, LostNext) are missing;
// LostNext equals LostFirst if none is known to be missing, and is math.MaxUint64 if their number is
// unknown.
type ChainError struct {
	Path                string // of the file that shows the problem: the one after the missing files, or the wrong one
	Type                string
	Generation          uint64 // the first that is missing or wrong
	LostFirst, LostNext uint64
	Unknown             bool // which messages are missing is unknown
	Reason              string
	Remedy              string
}

func (e *ChainError) Error() string {
	lost := "no message is missing"
	switch {
	case e.Unknown:
		lost = "it is not known which messages are missing"
	case e.LostNext == math.MaxUint64:
		lost = fmt.Sprintf("messages from %d on are not here", e.LostFirst)
	case e.LostNext == e.LostFirst+1:
		lost = fmt.Sprintf("message %d is missing", e.LostFirst)
	case e.LostNext > e.LostFirst:
		lost = fmt.Sprintf("messages %d to %d are missing", e.LostFirst, e.LostNext-1)
	}
	return fmt.Sprintf("%s: %s: %s; %s", e.Type, e.Reason, lost, e.Remedy)
}

// Is makes the error ErrIntegrity.
func (e *ChainError) Is(target error) bool { return target == ErrIntegrity }

// Check returns the problems between the files, in the order of generations. All files must have
// names of one type, see ParseName. CheckEnd checks whether the newest file's successor is missing. A
// single file under the name of another type, such as orders-old.fpl, is a kept copy, and is not
// checked.
func (c Chain) Check() []*ChainError {
	k := c.place()
	if len(c) == 1 && c[0].Type != k.typ && c[0].nameSays() == 1 {
		return nil
	}
	for i := 1; i < len(k.files); i++ {
		k.follows(&k.files[i-1], &k.files[i])
	}
	k.misnamed()
	slices.SortStableFunc(k.wrong, func(a, b *ChainError) int { return cmp.Compare(a.Generation, b.Generation) })
	return k.wrong
}

// chainCheck is the state of Check.
type chainCheck struct {
	typ    string
	files  []Link            // by the generation in their headers or, if that is unknown, in their names
	wrong  []*ChainError     // found so far
	other  map[uint64]*Link  // files whose header contradicts their name, by the generation in the name
	copies map[FileID]string // path of the file that counts as the original of that ID; others with it are copies
}

// place sorts the files by the generation in their headers, and finds copies and misnamed files.
func (c Chain) place() *chainCheck {
	k := &chainCheck{other: map[uint64]*Link{}, copies: map[FileID]string{}}
	if len(c) > 0 {
		k.typ, _, _ = ParseName(filepath.Base(c[0].Path))
	}
	here := map[uint64]bool{}
	for i := range c {
		l := c[i]
		switch {
		case l.Type == "":
			l.Generation = l.nameSays()
		case l.Type != k.typ || !l.named():
			// rule: the header identifies a file; its name may be wrong.
			k.other[l.nameSays()] = &c[i]
			continue
		}
		here[l.Generation] = true
		k.copies[l.FileID] = l.Path
		k.files = append(k.files, l)
	}
	for _, g := range slices.Sorted(maps.Keys(k.other)) {
		if l := k.other[g]; l.Type == k.typ && !here[l.Generation] {
			here[l.Generation] = true
			k.copies[l.FileID] = l.Path
			k.files = append(k.files, *l)
		}
	}
	slices.SortFunc(k.files, func(a, b Link) int { return cmp.Compare(a.Generation, b.Generation) })
	return k
}

// add adds a problem to the result.
func (k *chainCheck) add(e *ChainError) {
	e.Type = k.typ
	k.wrong = append(k.wrong, e)
}

// follows checks that b continues a, the file before it among those that are present.
func (k *chainCheck) follows(a, b *Link) {
	known := a.Type != "" && b.Type != ""
	ended := known && a.Err == nil
	// rule: generations between two files are skipped only if the seal names the second: a repair has given up the ones between.
	skipped := ended && a.Sealed != nil && a.Sealed.Successor == b.FileID && a.Sealed.Generation == b.Generation
	if b.Generation > a.Generation+1 && !skipped {
		k.gap(a, b, ended)
		return
	}
	e := &ChainError{Path: b.Path, Generation: b.Generation, LostFirst: a.Next, LostNext: a.Next}
	switch {
	case !known:
		return
	// rule: a file that has a successor is sealed: the seal was durable before the successor had a name.
	case ended && a.Sealed == nil:
		*e = ChainError{Path: a.Path, Generation: a.Generation, LostFirst: a.Next, LostNext: max(a.Next, b.First),
			Reason: fmt.Sprintf("generation %d (%s) is cut: it continues in %s, but its end with its seal is missing", a.Generation, a.Path, filepath.Base(b.Path)),
			Remedy: restoreIt}
	// rule: the successor is the file that the seal names.
	case ended && (a.Sealed.Successor != b.FileID || a.Sealed.Generation != b.Generation):
		*e = ChainError{Path: b.Path, Generation: b.Generation, LostFirst: a.Next, LostNext: math.MaxUint64,
			Reason: fmt.Sprintf("generation %d (%s) is another file than its predecessor names: it is file %s, the seal of %s names generation %d, file %s", b.Generation, b.Path,
				b.FileID, filepath.Base(a.Path), a.Sealed.Generation, a.Sealed.Successor),
			Remedy: "move it away and restore the file that is named"}
	// rule: the successor names the file that it continues.
	case b.PrevFileID != a.FileID:
		e.Unknown = true
		e.Reason = fmt.Sprintf("generation %d (%s) continues file %s, and generation %d (%s) is file %s", b.Generation, b.Path, b.PrevFileID, a.Generation, a.Path, a.FileID)
		e.Remedy = "move the one that does not belong here away and restore the right one from a copy"
	// rule: the successor begins where its predecessor ends or, after a compaction or repair, where the predecessor or an earlier file begins.
	case ended && b.First != a.Next && b.First > a.First:
		e.LostNext = max(a.Next, b.First)
		e.Reason = fmt.Sprintf("generation %d (%s) begins at index %d instead of %d, where generation %d (%s) ends", b.Generation, b.Path, b.First, a.Next, a.Generation, a.Path)
		e.Remedy = "restore the right files from a copy"
	default:
		return
	}
	k.add(e)
}

// gap reports the absent generations between a and b, unless they are allowed to be missing.
func (k *chainCheck) gap(a, b *Link, ended bool) {
	from, to := a.Generation+1, b.Generation-1
	name := func(g uint64) string { return b.sibling(k.typ, g) }
	what := fmt.Sprintf("generation %d (%s) is missing", from, name(from))
	if to > from {
		what = fmt.Sprintf("generations %d to %d (%s to %s) are missing", from, to, name(from), filepath.Base(name(to)))
	}
	e := &ChainError{Path: b.Path, Generation: from, LostFirst: a.Next, LostNext: b.First, Remedy: restoreIt}
	switch {
	case ended && a.Sealed == nil:
		what += fmt.Sprintf(", and so is the end of generation %d (%s) with its seal", a.Generation, a.Path)
		e.LostNext = max(a.Next, b.First)
	case !ended || b.Type == "":
		e.LostNext, e.Unknown = e.LostFirst, true
	case a.Next < b.First:
	// rule: only a file that a compaction or repair replaced may be missing between others: its successor has all its messages.
	case to == from && a.Sealed.Successor != b.PrevFileID:
		e.LostNext, e.Unknown = e.LostFirst, true
		what += fmt.Sprintf(", and %s does not continue the file that the seal of %s names", filepath.Base(b.Path), filepath.Base(a.Path))
	default:
		return
	}
	e.Reason = what
	for g := from; g <= to; g++ {
		if l := k.other[g]; l != nil {
			e.Reason += ", " + k.isInstead(l)
			delete(k.other, g)
		}
	}
	k.add(e)
}

// isInstead describes a file that has the name of another one.
func (k *chainCheck) isInstead(l *Link) string {
	name := filepath.Base(l.Path)
	switch original := k.copies[l.FileID]; {
	case l.Type != k.typ:
		return fmt.Sprintf("%s holds generation %d of type %s", name, l.Generation, l.Type)
	case original != "" && original != l.Path:
		return fmt.Sprintf("%s is a copy of %s", name, filepath.Base(original))
	default:
		return fmt.Sprintf("%s holds generation %d", name, l.Generation)
	}
}

// misnamed reports the files with the name of another file, except those that gap has reported with a
// missing generation.
func (k *chainCheck) misnamed() {
	var last uint64
	if len(k.files) > 0 {
		last = k.files[len(k.files)-1].Generation
	}
	for _, g := range slices.Sorted(maps.Keys(k.other)) {
		l := k.other[g]
		e := &ChainError{Path: l.Path, Generation: g}
		right := GenerationName(l.Type, l.Generation)
		switch other := k.other[l.Generation]; {
		case l.Type == k.typ && other != nil && other.Type == k.typ && other.Generation == g:
			if g > l.Generation {
				continue // reported with the other file
			}
			e.Reason = fmt.Sprintf("%s and %s have swapped names: they hold generations %d and %d", l.Path, filepath.Base(other.Path), l.Generation, g)
			e.Remedy = "swap their names"
		case l.Type == k.typ && k.copies[l.FileID] == l.Path:
			e.Reason = fmt.Sprintf("%s holds generation %d: it was renamed", l.Path, l.Generation)
			e.Remedy = "rename it to " + right
		default:
			e.Reason = fmt.Sprintf("%s is not generation %d: %s", l.Path, g, k.isInstead(l))
			e.Remedy = "move it away and restore the right file from a copy"
			if g == last+1 && last > 0 {
				e.LostFirst, e.LostNext = k.files[len(k.files)-1].Next, math.MaxUint64
			}
		}
		k.add(e)
	}
}

const restoreIt = "restore the file from a copy; if it is lost for good, move the older generations to an archive"

// successorPatience is how long CheckEnd waits for the successor of a sealed file: a writer that
// continues in a new file first syncs the seal and then names the successor.
const (
	successorPatience = 3 * time.Second
	successorPoll     = 50 * time.Millisecond
)

// CheckEnd returns a *ChainError if the newest file is sealed and its successor is missing. The chain
// must contain all files of the type in its directory. A writer may be about to name the successor, so
// CheckEnd retries for some seconds. The error is a *ChainError, ctx's error, or nil; Check reports
// problems between the files. A nil fsys stands for OS().
func (c Chain) CheckEnd(ctx context.Context, fsys FS) error {
	k := c.place()
	if len(k.files) == 0 {
		return nil
	}
	last := &k.files[len(k.files)-1]
	if last.Sealed == nil || k.other[last.Sealed.Generation] != nil { // Check reports the latter
		return nil
	}
	// rule: look again before reporting a missing successor.
	for waited := time.Duration(0); ; waited += successorPoll {
		next := ReadLink(fsys, last.sibling(k.typ, last.Sealed.Generation))
		if !errors.Is(next.Err, fs.ErrNotExist) {
			return last.continuedBy(next)
		}
		if waited >= successorPatience {
			return &ChainError{Path: last.Path, Type: k.typ, Generation: last.Sealed.Generation, LostFirst: last.Next, LostNext: math.MaxUint64,
				Reason: fmt.Sprintf("%s is sealed, but its successor, generation %d (%s), is not here", last.Path, last.Sealed.Generation, next.Path),
				Remedy: "mount or restore that file; if it was never here, because a worker or a copy was interrupted, nothing is lost: a worker for this type creates it with the next message"}
		}
		if err := wait.For(ctx, successorPoll); err != nil {
			return err
		}
	}
}

// Starts returns for each file of a chain without problems (see Check) the index at which a later
// file takes over. After a compaction or repair, later files also contain the file's messages from
// that index on. The index is math.MaxUint64 for the newest file.
func (c Chain) Starts() map[string]uint64 {
	starts, from := map[string]uint64{}, uint64(math.MaxUint64)
	k := c.place()
	for _, l := range slices.Backward(k.files) {
		starts[l.Path] = from
		if l.Type != "" {
			from = min(from, l.First)
		}
	}
	return starts
}

// Replaced returns the paths of the files of a chain without problems (see Check) that are no longer
// needed: a compaction or repair copied all their records to a later file, in which unreadable records
// are marked as lost. So damage in the replaced files does not matter.
func (c Chain) Replaced() map[string]bool {
	starts, paths := c.Starts(), map[string]bool{}
	for _, l := range c {
		if start, ok := starts[l.Path]; ok && l.Type != "" && start <= l.First { // a kept copy has no start
			paths[l.Path] = true
		}
	}
	return paths
}
