package slots

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// Request is one request to a Store that was answered or given up.
type Request struct {
	Kind   string        // "create", "read", "size", "list" (all or a part of it), "folders" or "delete"
	Answer string        // "ok", "exists", "absent", "full", "refused", or "unclear" for all others
	Took   time.Duration // time until the answer
	Bytes  int           // size of the created or read value
}

// Observe returns s with an observer of its requests, for metrics. f is called from several
// goroutines and must be quick. f is not called for requests whose context was canceled.
func Observe(s Store, f func(Request)) Store { return observed{s, f} }

type observed struct {
	Store
	tell func(Request)
}

// Check calls the Check of the observed store, for Probe, if it has one.
func (o observed) Check(ctx context.Context) error { return check(ctx, o.Store) }

// Linger returns the Linger of the observed store.
func (o observed) Linger() time.Duration { return LingerOf(o.Store) }

// done reports a request that began at a time and got the answer err.
func (o observed) done(kind string, began time.Time, bytes int, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrUnordered) { // the latter takes no request
		return
	}
	r := Request{Kind: kind, Answer: "ok", Took: time.Since(began)}
	var refused *RefusedError
	switch {
	case err == nil:
		r.Bytes = bytes
	case errors.Is(err, fs.ErrExist):
		r.Answer = "exists"
	case errors.Is(err, fs.ErrNotExist):
		r.Answer = "absent"
	case errors.Is(err, ErrFull):
		r.Answer = "full"
	case errors.As(err, &refused):
		r.Answer = "refused"
	default:
		r.Answer = "unclear"
	}
	o.tell(r)
}

func (o observed) Create(ctx context.Context, name string, data []byte) error {
	began := time.Now()
	err := o.Store.Create(ctx, name, data)
	o.done("create", began, len(data), err)
	return err
}

func (o observed) Read(ctx context.Context, name string) ([]byte, error) {
	began := time.Now()
	b, err := o.Store.Read(ctx, name)
	o.done("read", began, len(b), err)
	return b, err
}

func (o observed) Size(ctx context.Context, name string) (int64, error) {
	began := time.Now()
	n, err := o.Store.Size(ctx, name)
	o.done("size", began, 0, err)
	return n, err
}

func (o observed) List(ctx context.Context, folder string) ([]Entry, error) {
	began := time.Now()
	entries, err := o.Store.List(ctx, folder)
	o.done("list", began, 0, err)
	return entries, err
}

// Count implements Ordered.
func (o observed) Count(ctx context.Context, folder string) (int, error) {
	began := time.Now()
	n, err := OrderedOf(o.Store).Count(ctx, folder)
	o.done("list", began, 0, err)
	return n, err
}

// Last implements Ordered.
func (o observed) Last(ctx context.Context, folder string) (Entry, error) {
	began := time.Now()
	e, err := OrderedOf(o.Store).Last(ctx, folder)
	o.done("list", began, 0, err)
	return e, err
}

// Between implements Ordered.
func (o observed) Between(ctx context.Context, folder, from, to string, n int) ([]Entry, error) {
	began := time.Now()
	entries, err := OrderedOf(o.Store).Between(ctx, folder, from, to, n)
	o.done("list", began, 0, err)
	return entries, err
}

func (o observed) Folders(ctx context.Context, folder string) ([]string, error) {
	began := time.Now()
	names, err := o.Store.Folders(ctx, folder)
	o.done("folders", began, 0, err)
	return names, err
}

func (o observed) Delete(ctx context.Context, name string) error {
	began := time.Now()
	err := o.Store.Delete(ctx, name)
	o.done("delete", began, 0, err)
	return err
}
