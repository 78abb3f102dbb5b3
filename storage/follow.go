package storage

import (
	"cmp"
	"context"
	"errors"
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
	late bool // a successor has a name although the last look at the current file found no seal
}

// Follow opens the file at path; errors are those of OpenReader.
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
// is missing although later ones exist.
func (f *Follower) Next(ctx context.Context) ([]Record, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		recs, err := f.r.NextBatch()
		if !errors.Is(err, io.EOF) {
			return recs, err
		}
		more, err := f.succeed()
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
		if again, err := f.checkCut(&this); again || err != nil {
			return again, err
		}
		return false, f.checkName()
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
	err = f.r.Close()
	f.path, f.r, f.late = path, next, false
	return true, err
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
