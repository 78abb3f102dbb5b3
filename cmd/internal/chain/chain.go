// Package chain reads the files of a type as if they were one.
package chain

import (
	"errors"
	"io"
	"slices"

	"github.com/fencepost/fencepost/storage"
)

// Needed returns the files of a chain without problems that a compaction or repair did not replace. The others may be damaged.
func Needed(c storage.Chain) storage.Chain {
	replaced := c.Replaced()
	return slices.DeleteFunc(slices.Clone(c), func(l storage.Link) bool { return replaced[l.Path] })
}

// Reader reads the records of a chain in order. It embeds the reader of its current file.
type Reader struct {
	*storage.Reader
	rest    storage.Chain // the files after the current one
	options storage.ReaderOptions
}

// Open opens a chain at the record From, or at the first record after it. The chain has at least one file.
func Open(c storage.Chain, o storage.ReaderOptions) (*Reader, error) {
	if len(c.Check()) == 0 {
		c = Needed(c)
	}
	at := max(c.At(o.From), 0)
	r, err := storage.OpenReader(c[at].Path, o)
	return &Reader{r, c[at+1:], o}, err
}

// Next returns the next record, and io.EOF after the last one of the last file.
func (r *Reader) Next() (storage.Record, error) {
	for {
		rec, err := r.Reader.Next()
		if !errors.Is(err, io.EOF) || r.Sealed() == nil || len(r.rest) == 0 {
			return rec, err
		}
		r.options.From = max(r.options.From, r.NextIndex())
		next, err := storage.OpenReader(r.rest[0].Path, r.options)
		if err != nil {
			return storage.Record{}, err
		}
		r.Close()
		r.Reader, r.rest = next, r.rest[1:]
	}
}

// Close closes the current file.
func (r *Reader) Close() error { return r.Reader.Close() }
