package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"net/http"
	"slices"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/storage"
)

// files are the files of a type.
type files struct {
	storage.Chain
	durable uint64 // lower bound of their records, from the registry
}

// chain returns the files of a type. It fails if the registered file is not among them, or if they do not fit together.
func (s *Server) chain(ctx context.Context, typ string) (c files, err error) {
	entry, registered, err := s.backend.Queue.RegistryEntry(ctx, typ)
	if err != nil {
		return c, err
	}
	if !registered {
		if err := s.known(ctx, typ); err != nil {
			return c, err
		}
		return c, noFile
	}
	here := s.files
	all, err := storage.ReadChain(here.FS(ctx), here.Dir, typ)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	registeredHere := slices.ContainsFunc(all, func(l storage.Link) bool { return l.FileID == storage.FileID(entry.FileID) })
	switch {
	// rule: only the registered file is served, the one that workers write, never another one of the same name.
	case !registeredHere && entry.Place != "" && entry.Place != here.Place:
		return c, notFound("elsewhere", "ask a server that reads that place", "the file of type %s is at %s, and this server reads %s", typ, entry.Place, here.Place)
	case !registeredHere:
		return c, notFound("elsewhere", "tell the operator of this server: fencepost doctor says more", "the registered file of type %s is not in %s", typ, here.Place)
	}
	if wrong := all.Check(); len(wrong) > 0 {
		return c, wrong[0]
	}
	return files{all, entry.DurableIndex}, nil
}

// noFile is the error for a known type without a registered file.
var noFile = notFound("no_file", "start a worker for the type, or wait until it has appended something", "no file of the type is registered yet")

// open opens the files at a record.
func (s *Server) open(ctx context.Context, f files, o storage.ReaderOptions) (*chain.Reader, error) {
	o.FS, o.Durable = s.files.FS(ctx), true // rule: only durable, final records are served
	return chain.Open(f.Chain, o)
}

// each calls do with durable records in order, beginning where o says, until do returns false. end: there are no more. It skips dead letters
// and records lost in a repair, which have an index too.
func (s *Server) each(ctx context.Context, f files, o storage.ReaderOptions, do func(*storage.Record) bool) (end bool, err error) {
	r, err := s.open(ctx, f, o)
	if err != nil {
		return false, err
	}
	defer r.Close()
	for {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		rec, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			err := f.whole(r)
			return err == nil, err
		case err != nil:
			return false, err
		case !rec.Kind.IsMessage():
		case !do(&rec):
			return false, nil
		}
	}
}

// end returns the index after the last durable record.
func (s *Server) end(ctx context.Context, f files) (uint64, error) {
	r, err := s.open(ctx, f, storage.ReaderOptions{From: math.MaxUint64})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	if _, err = r.Next(); !errors.Is(err, io.EOF) {
		return 0, err
	}
	return r.NextIndex(), f.whole(r)
}

// whole returns an error if a reader has reached the end too early.
func (f files) whole(r *chain.Reader) error {
	// rule: an end before the last durable record is damage, not the end: a client would wait there forever.
	if next := r.NextIndex(); next < f.durable {
		return newProblem(http.StatusInternalServerError, "damaged", "tell the operator of this server: fencepost verify and fencepost doctor say more",
			"the files end at %d, and the registry knows of %d durable records", next, f.durable)
	}
	return nil
}

// locate takes a place among the readers, which leave returns, and finds a record in the files of a type.
func (s *Server) locate(ctx context.Context, typ string, at cli.Place) (f files, index uint64, leave func(), err error) {
	if leave, err = s.place(ctx, s.readers, "too many readers at a time"); err != nil {
		return f, 0, nil, err
	}
	if f, err = s.chain(ctx, typ); err == nil {
		index, err = s.find(ctx, f, at)
	}
	if err != nil {
		leave()
	}
	return f, index, leave, err
}

// find returns the index of a place: of the record with the ID, or of the first record at or after the time. If all records are earlier than
// the time, it returns the end of the file.
func (s *Server) find(ctx context.Context, f files, p cli.Place) (uint64, error) {
	if p.IsIndex {
		return p.Index, nil
	}
	tooLong := newProblem(http.StatusServiceUnavailable, "search_too_long", "ask for a later time, or for an index", "the file is too long to be searched at once").after(1)
	ctx, cancel := context.WithTimeoutCause(ctx, findTime, tooLong)
	defer cancel()
	found, ok := uint64(0), false
	_, err := s.each(ctx, f, storage.ReaderOptions{From: f.Chain[0].First, Since: p.Since}, func(rec *storage.Record) bool {
		found = rec.Index
		ok = p.IDs == nil || slices.Contains(p.IDs, string(rec.ID))
		return !ok
	})
	switch {
	case err != nil:
		return 0, err
	case ok:
		return found, nil
	case p.IDs != nil:
		return 0, notFound("no_such_message", "it may be pending still, be a dead letter, or be in a file that was removed", "no durable message has this ID")
	}
	return s.end(ctx, f)
}
