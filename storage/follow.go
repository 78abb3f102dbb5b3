package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"time"
)

// FollowOptions of Follow. The zero value follows from the first record on.
type FollowOptions struct {
	FS   FS            // defaults to OS()
	From uint64        // index of the first record to return
	Poll time.Duration // how often to look for more; defaults to 100 ms

	// Unsynced also returns records that are not durable yet: sooner, and they may still be lost in a crash.
	Unsynced bool
}

const defaultPoll = 100 * time.Millisecond

// Follower returns the records of a type as they are appended: of the file it was given, and when that is sealed, of its
// successors. What it returns is durable and final, unless Unsynced was asked for. It is not safe for concurrent use.
type Follower struct {
	o    FollowOptions
	path string
	r    *Reader
}

// Follow opens the file at path; errors are those of OpenReader.
func Follow(path string, o FollowOptions) (*Follower, error) {
	if o.FS == nil {
		o.FS = OS()
	}
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

func (f *Follower) open(path string, from uint64) (*Reader, error) {
	return OpenReader(path, ReaderOptions{FS: f.o.FS, From: from, Durable: !f.o.Unsynced})
}

// Path returns the path of the file that is being read.
func (f *Follower) Path() string { return f.path }

// Next waits for the next batch and returns its records, which are valid until the next call. It fails with ctx's error, with
// the errors of Reader.NextBatch, and with a *ReplacedError when the path does not name the open file any more.
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
		if err := sleep(ctx, f.o.Poll); err != nil {
			return nil, err
		}
	}
}

// succeed goes on to the successor of a sealed file; false while there is none.
func (f *Follower) succeed() (bool, error) {
	seal := f.r.Sealed()
	if seal == nil {
		return false, f.checkName()
	}
	path := filepath.Join(filepath.Dir(f.path), GenerationName(f.r.Type(), seal.Generation))
	next, err := f.open(path, f.r.NextIndex())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its writer, or the next one, is about to make it
	}
	if err != nil {
		return false, err
	}
	if next.FileID() != seal.Successor {
		next.Close()
		return false, &ReplacedError{Path: path}
	}
	err = f.r.Close()
	f.path, f.r = path, next
	return true, err
}

// checkName finds out whether the path still names the open file. A file that was replaced never grows again.
func (f *Follower) checkName() error {
	open, err := f.r.file.Stat()
	if err != nil {
		return ioError("stat", f.path, err)
	}
	named, err := f.o.FS.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !named.same(open):
		return &ReplacedError{Path: f.path}
	case err != nil:
		return ioError("stat", f.path, err)
	}
	return nil
}

// Close closes the file.
func (f *Follower) Close() error { return f.r.Close() }
