package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// Following. A Follower reads indefinitely: at the end of the file it waits for more records, and after
// a seal it opens the successor, whose name and identity are in the seal.

// FollowOptions are the options of Follow. The zero value follows from the first record on.
type FollowOptions struct {
	FS   FS            // defaults to OS()
	From uint64        // index of the first record to return; it may be in a successor, or not exist yet
	Poll time.Duration // interval between two polls; defaults to 100 ms

	// Unsynced also returns records that are not durable yet: they arrive sooner, and may still be
	// lost in a crash.
	Unsynced bool
}

const defaultPoll = 100 * time.Millisecond

// Follower returns the records of a type as they are appended: from the given file and, once that is
// sealed, from its successors. The records are durable and final, unless Unsynced is set. A Follower
// is not safe for concurrent use.
type Follower struct {
	o    FollowOptions
	path string
	r    *Reader
	next uint64 // index after the last returned record
	late bool   // a successor has a name, or the file was removed, although the last look at the file found no seal
}

// Follow opens the file at path; errors are those of OpenReader.
//
// To resume, save the index of the last record that was processed, and set From to the next one. path may be any file of the type that begins
// at or before From. If files are removed, choose one with ReadChain and Chain.At. If all of them begin later, the records in between were removed.
func Follow(path string, o FollowOptions) (*Follower, error) {
	o.FS = orOS(o.FS)
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	f := &Follower{o: o, path: path}
	var err error
	f.r, err = f.open(path, o.From)
	if err != nil {
		return nil, err
	}
	f.next = max(o.From, f.r.FirstIndex())
	return f, nil
}

// open opens a file with the options of the Follower.
func (f *Follower) open(path string, from uint64) (*Reader, error) {
	return OpenReader(path, ReaderOptions{FS: f.o.FS, From: from, Durable: !f.o.Unsynced})
}

// Path returns the path of the file that is being read.
func (f *Follower) Path() string { return f.path }

// Next waits for the next batch and returns its records, which are valid until the next call. It
// fails with ctx's error, with the errors of Reader.NextBatch, with a *ReplacedError if the path no
// longer names the open file, and with a *ChainError if the next file does not continue this one, or
// is missing although later ones exist, or if records were removed with old files before they were read.
// Damage in a file that a repair has replaced is no error: Next continues in the later file.
func (f *Follower) Next(ctx context.Context) ([]Record, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		recs, err := f.r.NextBatch()
		more := false
		switch {
		case err == nil:
			f.next = recs[len(recs)-1].Index + 1
			return recs, nil
		case errors.Is(err, io.EOF):
			more, err = f.succeed()
		case errors.Is(err, fs.ErrNotExist): // in a store, where the rest of a removed file cannot be read
			more, err = f.skipRemoved(err)
		case errors.As(err, new(*CorruptError)):
			// A repair may have replaced this file with one that begins where this one does. Then the damage does not matter: see FORMAT.md, section 7.
			more, _, _ = f.skip(f.r.FirstIndex())
			if more {
				err = nil
			}
		}
		if err != nil {
			return nil, err
		}
		if more {
			continue
		}
		if err := wait.For(ctx, f.o.Poll); err != nil {
			return nil, err
		}
	}
}

// succeed moves on to the successor of a sealed file. It returns false if the file is not sealed, or
// if the successor does not exist yet. It also returns true if the file must be read once more.
func (f *Follower) succeed() (bool, error) {
	this := f.r.link()
	if this.Sealed == nil {
		again, err := f.checkCut(&this)
		if !again && err == nil {
			err = f.checkName()
		}
		if again || err == nil || !f.removed() {
			return again, err
		}
		if f.late {
			return f.skipRemoved(err)
		}
		f.late = true // it was removed after it was sealed: on a file system the seal can still be read
		return true, nil
	}
	path, from := this.sibling(this.Type, this.Sealed.Generation), max(f.o.From, this.Next)
	next, err := f.open(path, from)
	if errors.Is(err, fs.ErrNotExist) {
		if path, err = f.behindMissing(&this); path == "" || err != nil {
			return false, err // its writer, or the next one, has yet to create it
		}
		next, err = f.open(path, from)
	}
	if err != nil {
		return false, err
	}
	if err := this.continuedBy(next.link()); err != nil {
		next.Close()
		return false, err
	}
	return true, f.moveOn(path, next)
}

// moveOn continues in another file.
func (f *Follower) moveOn(path string, next *Reader) error {
	err := f.r.Close()
	f.path, f.r, f.late = path, next, false
	return err
}

// removed reports whether the file was removed. Stat does not tell: in a store the name of a removed file stays.
func (f *Follower) removed() bool {
	file, err := f.o.FS.Open(f.path, ModeRead)
	if err == nil {
		file.Close()
	}
	return errors.Is(err, fs.ErrNotExist)
}

// skipRemoved continues in a later file after this one was removed before it was read to its end. It returns err if there is no later file.
func (f *Follower) skipRemoved(err error) (bool, error) {
	skipped, later, skipErr := f.skip(f.nextIndex())
	switch {
	case errors.As(err, new(*ReplacedError)) && errors.Is(skipErr, fs.ErrNotExist): // its directory was renamed
		return false, err
	case skipped || skipErr != nil:
		return skipped, skipErr
	case len(later) == 0:
		return false, err
	}
	this := f.r.link()
	return false, &ChainError{Path: f.path, Type: this.Type, Generation: this.Generation, LostFirst: f.nextIndex(), LostNext: later[0].First,
		Reason: fmt.Sprintf("generation %d (%s) was removed before it was read to its end", this.Generation, f.path),
		Remedy: "continue with the first message that is left; keep old files for longer than readers need"}
}

// nextIndex returns the index of the next record to return.
func (f *Follower) nextIndex() uint64 {
	// The reader's index is lower if records were retracted, and higher if a batch could not be read.
	return max(f.o.From, min(f.next, f.r.NextIndex()))
}

// skip continues in the newest file that begins at an index or earlier, unless that is this file. It also returns the later files.
func (f *Follower) skip(index uint64) (skipped bool, later Chain, err error) {
	this := f.r.link()
	if !this.named() {
		return false, nil, nil
	}
	c, err := ReadChain(f.o.FS, filepath.Dir(f.path), this.Type)
	if err != nil {
		return false, nil, err
	}
	later = c.From(this.Generation + 1)
	if wrong := later.Check(); len(wrong) > 0 {
		return false, later, wrong[0]
	}
	at := later.At(index)
	if at < 0 {
		return false, later, nil
	}
	next, err := f.open(later[at].Path, f.nextIndex())
	if err != nil {
		return false, later, err
	}
	return true, later, f.moveOn(later[at].Path, next)
}

// checkCut checks whether a successor has a name although this file has no seal. again is true if the
// file must be read once more to decide that.
func (f *Follower) checkCut(this *Link) (again bool, err error) {
	path := this.sibling(this.Type, this.Generation+1)
	if _, err := f.o.FS.Stat(path); errors.Is(err, fs.ErrNotExist) || !this.named() {
		return false, nil
	} else if err != nil {
		return false, ioError("stat", path, err)
	}
	// rule: the seal was durable before the successor had a name, so read what was appended until then first.
	if !f.late {
		f.late = true
		return true, nil
	}
	next := ReadLink(f.o.FS, path)
	return false, cmp.Or(this.continuedBy(next), next.Err)
}

// behindMissing returns the path of the next existing file if the successor does not exist: a
// compaction replaced the successor, which was then removed. It returns "" if there is no later file,
// and an error if messages are missing.
func (f *Follower) behindMissing(this *Link) (string, error) {
	dir := filepath.Dir(f.path)
	names, err := f.o.FS.List(dir, this.Type)
	if err != nil {
		return "", ioError("list directory", dir, err)
	}
	if !slices.ContainsFunc(names, func(name string) bool {
		typ, g, ok := ParseName(name)
		return ok && typ == this.Type && g > this.Generation
	}) {
		return "", nil
	}
	c, err := ReadChain(f.o.FS, dir, this.Type)
	if err != nil {
		return "", err
	}
	if wrong := c.From(this.Generation).Check(); len(wrong) > 0 {
		return "", wrong[0]
	}
	if later := c.From(this.Generation + 1); len(later) > 0 {
		return later[0].Path, nil
	}
	return "", nil
}

// checkName checks whether the path still names the open file. A file that was replaced never grows
// again.
func (f *Follower) checkName() error {
	open, err := f.r.file.Stat()
	if err != nil {
		return ioError("stat", f.path, err)
	}
	return checkNamed(f.o.FS, f.path, open)
}

// Close closes the file.
func (f *Follower) Close() error { return f.r.Close() }
