package slots

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// Request is one request to a Store, answered or given up.
type Request struct {
	Kind   string        // "create", "read", "size", "list" (of a folder or a part of it), "folders" or "delete"
	Answer string        // "ok", "exists", "absent", "full", "refused", or "unclear" for everything else
	Took   time.Duration // time until the answer
	Bytes  int           // length of the created or read value
}

// Observe returns s with f as an observer of its requests, for metrics. f is called concurrently by several
// goroutines and must be quick. It is not called for requests whose context was canceled.
func Observe(s Store, f func(Request)) Store { return observed{s, f} }

type observed struct {
	Store
	tell func(Request)
}

// Check calls the Check method of the observed store, if it has one. Probe needs it.
func (o observed) Check(ctx context.Context) error { return check(ctx, o.Store) }

// Linger returns the Linger of the observed store.
func (o observed) Linger() time.Duration { return lingerOf(o.Store) }

// watch makes a request, and reports its answer.
func watch[T any](o observed, kind string, request func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := request()
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrUnordered) { // the latter sent no request
		return answer, err
	}
	r := Request{Kind: kind, Answer: "ok", Took: time.Since(began)}
	var refused *RefusedError
	switch {
	case err == nil:
		b, _ := any(answer).([]byte)
		r.Bytes = len(b)
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
	return answer, err
}

func (o observed) Create(ctx context.Context, name string, data []byte) error {
	_, err := watch(o, "create", func() ([]byte, error) { return data, o.Store.Create(ctx, name, data) })
	return err
}

func (o observed) Read(ctx context.Context, name string) ([]byte, error) {
	return watch(o, "read", func() ([]byte, error) { return o.Store.Read(ctx, name) })
}

func (o observed) Size(ctx context.Context, name string) (int64, error) {
	return watch(o, "size", func() (int64, error) { return o.Store.Size(ctx, name) })
}

func (o observed) List(ctx context.Context, folder string) ([]Entry, error) {
	return watch(o, "list", func() ([]Entry, error) { return o.Store.List(ctx, folder) })
}

// Count implements Ordered.
func (o observed) Count(ctx context.Context, folder string) (int, error) {
	return watch(o, "list", func() (int, error) { return OrderedOf(o.Store).Count(ctx, folder) })
}

// Last implements Ordered.
func (o observed) Last(ctx context.Context, folder string) (Entry, error) {
	return watch(o, "list", func() (Entry, error) { return OrderedOf(o.Store).Last(ctx, folder) })
}

// Between implements Ordered.
func (o observed) Between(ctx context.Context, folder, from, to string, n int) ([]Entry, error) {
	return watch(o, "list", func() ([]Entry, error) { return OrderedOf(o.Store).Between(ctx, folder, from, to, n) })
}

func (o observed) Folders(ctx context.Context, folder string) ([]string, error) {
	return watch(o, "folders", func() ([]string, error) { return o.Store.Folders(ctx, folder) })
}

func (o observed) Delete(ctx context.Context, name string) error {
	_, err := watch(o, "delete", func() (any, error) { return nil, o.Store.Delete(ctx, name) })
	return err
}
