package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
)

// Names of the stores, as they are shown.
const (
	nameLocal  = "local disk"
	nameMongo  = "MongoDB slots"
	nameS3     = "S3 (versitygw)"
	nameShared = "shared directory"
)

// kind is a kind of store.
type kind struct {
	name string
	bare string // what the bare loop does with a batch
	open func(ctx context.Context, p *messages.Place) (slots.Store, error)
	why  error // not nil: the reason why it is not measured
}

// kinds returns all kinds of stores; the local disk, which is no store, opens nothing.
func (b *bench) kinds(ctx context.Context) (_ []*kind, err error) {
	s3 := &kind{name: nameS3, bare: "find, one PUT, deleteMany"}
	switch b.gateway, err = startGateway(ctx, b.o); {
	case errors.Is(err, errNone) && ctx.Err() == nil:
		s3.why = err
	case err != nil:
		return nil, err
	default:
		s3.open = func(ctx context.Context, p *messages.Place) (slots.Store, error) {
			return s3slots.Open(ctx, b.gateway.address(filepath.Base(p.Dir)))
		}
	}
	return []*kind{
		{name: nameLocal, bare: "find, write, fdatasync, deleteMany"},
		{name: nameMongo, bare: "find, insert of one document, deleteMany", open: func(ctx context.Context, p *messages.Place) (slots.Store, error) {
			return mongoslots.Open(ctx, p.URI, mongoslots.Options{})
		}},
		s3,
		{name: nameShared, bare: "find, temporary file, fsync, link, deleteMany", open: func(_ context.Context, p *messages.Place) (slots.Store, error) {
			dir := filepath.Join(p.Dir, "shared")
			if err := os.MkdirAll(dir, 0o750); err != nil {
				return nil, err
			}
			return dirslots.Open(dir)
		}},
	}, nil
}

// sink puts each batch of a bare loop into its own value.
type sink struct {
	ctx   context.Context
	store slots.Store
	n     int
}

func (s *sink) name(n int) string { return fmt.Sprintf("bare/%020d", n) }

// Append creates a value.
func (s *sink) Append(p []byte) error {
	s.n++
	return s.store.Create(s.ctx, s.name(s.n), p)
}

// Check reads all values.
func (s *sink) Check(n int) error {
	next := 0
	for i := range s.n {
		b, err := s.store.Read(s.ctx, s.name(i+1))
		if err == nil {
			err = messages.Each(b, messages.InOrder(&next))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(i+1), err)
		}
	}
	return messages.Complete("the bare loop's store", next, n)
}

// counted counts the requests of a store.
type counted struct {
	mu sync.Mutex
	n  map[string]int // by kind
}

func (c *counted) observe(r slots.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[r.Kind]++
}

// take returns the counts since the last call.
func (c *counted) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = map[string]int{}
	return n
}

// bare makes a place for a bare loop.
func (b *bench) bare(ctx context.Context, k *kind, name string) (*messages.Place, error) {
	p, err := b.server.NewPlace(name)
	if err != nil || k.open == nil {
		return p, err
	}
	s, err := k.open(ctx, p)
	if err != nil {
		return nil, err
	}
	b.opened(s)
	p.Sink = &sink{ctx: ctx, store: s}
	return p, nil
}

// fencepost makes a place for Fencepost, and counts the requests to its store.
func (b *bench) fencepost(ctx context.Context, k *kind, name string) (*messages.Place, *counted, error) {
	p, err := b.server.NewBackend(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	requests, err := b.files(ctx, k, p)
	return p, requests, err
}

// files puts the files of a place into a store, and counts the requests to it.
func (b *bench) files(ctx context.Context, k *kind, p *messages.Place) (*counted, error) {
	c := &counted{n: map[string]int{}}
	if k.open == nil {
		return c, nil
	}
	s, err := k.open(ctx, p)
	if err != nil {
		return nil, err
	}
	b.opened(s)
	f := slots.New(ctx, slots.Observe(s, c.observe))
	p.FS, p.Dir = f, f.Dir()
	return c, nil
}
