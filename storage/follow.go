package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
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
	r    *Reader
	next uint64 // index after the last returned record
	last bool   // this file will not grow any more, and what it has is read a last time
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
	f := &Follower{o: o}
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

// Path returns the path of the file that is being read, which has the records that Next returned last. A program that stores it
// with the next index can continue there, even if older files are removed.
func (f *Follower) Path() string { return f.r.path }

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
		if err == nil {
			f.next = recs[len(recs)-1].Index + 1
			return recs, nil
		}
		again, err := f.proceed(err)
		if err == nil && !again {
			err = wait.For(ctx, f.o.Poll)
		}
		if err != nil {
			return nil, err
		}
	}
}

// proceed decides what to do after NextBatch has failed: to read again at once, in this file or a later one; to read again after a pause; or to
// give up with an error.
func (f *Follower) proceed(err error) (again bool, _ error) {
	this := f.r.link()
	switch {
	case errors.Is(err, io.EOF) && this.Sealed != nil:
		return f.succeed(&this)
	case errors.Is(err, io.EOF):
		return f.await(&this)
	case !this.named():
	case errors.Is(err, fs.ErrNotExist): // in a store, where the rest of a removed file cannot be read
		return f.leave(&this, err)
	case errors.As(err, new(*CorruptError)):
		// A repair may have replaced this file with one that begins where this one does. Then the damage does not matter: see FORMAT.md, section 7.
		later, _ := f.later(&this)
		if at := later.At(this.First); at >= 0 && len(later.Check()) == 0 {
			return f.moveOn(f.open(later[at].Path, f.nextIndex()))
		}
	}
	return false, err
}

// succeed moves on to the successor of a sealed file, if it exists yet.
func (f *Follower) succeed(this *Link) (moved bool, err error) {
	next, err := f.open(this.sibling(this.Type, this.Sealed.Generation), f.nextIndex())
	if errors.Is(err, fs.ErrNotExist) {
		var later Chain
		if later, err = f.later(this); err != nil || len(later) == 0 {
			return false, err // its writer, or the next one, has yet to create it
		}
		next, err = f.open(later[0].Path, f.nextIndex()) // a compaction may have replaced the successor, which was then removed
	}
	if err != nil {
		return false, err
	}
	if err := this.continuedBy(next.link()); err != nil {
		next.Close()
		return false, err
	}
	return f.moveOn(next, nil)
}

// await decides what to do at the end of a file without a seal: to wait for more, unless the file was removed or replaced, or has a successor.
func (f *Follower) await(this *Link) (again bool, err error) {
	err = cmp.Or(f.checkCut(this), f.checkName())
	if err == nil {
		f.last = false
		return false, nil
	}
	// rule: the seal was durable before the successor had a name, so read what was appended until then first.
	if !f.last {
		f.last = true // also if it was removed: on a file system the rest can still be read
		return true, nil
	}
	if this.named() && f.removed() {
		return f.leave(this, err)
	}
	return false, err
}

// leave continues in a later file after this one was removed before it was read to its end. It returns err if there is no later file.
func (f *Follower) leave(this *Link, err error) (moved bool, _ error) {
	later, listErr := f.later(this)
	switch wrong := later.Check(); {
	case errors.Is(listErr, fs.ErrNotExist): // its directory was renamed
		return false, err
	case listErr != nil:
		return false, listErr
	case len(later) == 0:
		return false, err
	case len(wrong) > 0:
		return false, wrong[0]
	}
	if at := later.At(f.nextIndex()); at >= 0 {
		return f.moveOn(f.open(later[at].Path, f.nextIndex()))
	}
	return false, &ChainError{Path: this.Path, Type: this.Type, Generation: this.Generation, LostFirst: f.nextIndex(), LostNext: later[0].First,
		Reason: fmt.Sprintf("generation %d (%s) was removed before it was read to its end", this.Generation, this.Path),
		Remedy: "continue with the first message that is left; keep old files for longer than readers need"}
}

// moveOn continues in the file that open has returned.
func (f *Follower) moveOn(next *Reader, err error) (moved bool, _ error) {
	if err != nil {
		return false, err
	}
	err = f.r.Close()
	f.r, f.last = next, false
	return true, err
}

// nextIndex returns the index of the next record to return.
func (f *Follower) nextIndex() uint64 {
	// The reader's index is lower if records were retracted, and higher if a batch could not be read.
	return max(f.o.From, min(f.next, f.r.NextIndex()))
}

// later returns the files after this one.
func (f *Follower) later(this *Link) (Chain, error) {
	return readChain(f.o.FS, filepath.Dir(this.Path), this.Type, this.Generation+1)
}

// removed reports whether the file was removed. Stat does not tell: in a store the name of a removed file stays.
func (f *Follower) removed() bool {
	file, err := f.o.FS.Open(f.r.path, ModeRead)
	if err == nil {
		file.Close()
	}
	return errors.Is(err, fs.ErrNotExist)
}

// checkCut returns an error if a successor has a name although this file has no seal.
func (f *Follower) checkCut(this *Link) error {
	path := this.sibling(this.Type, this.Generation+1)
	if _, err := f.o.FS.Stat(path); !this.named() || errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return ioError("stat", path, err)
	}
	next := ReadLink(f.o.FS, path)
	return cmp.Or(this.continuedBy(next), next.Err)
}

// checkName returns an error if the path no longer names the open file. A file that was replaced never grows again.
func (f *Follower) checkName() error {
	open, err := f.r.file.Stat()
	if err != nil {
		return ioError("stat", f.r.path, err)
	}
	return checkNamed(f.o.FS, f.r.path, open)
}

// Close closes the file.
func (f *Follower) Close() error { return f.r.Close() }
