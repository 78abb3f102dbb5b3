package slotstest

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// Backend returns the backend of files in a store for storagetest.Run, which disturbs the requests as well as the calls of the file
// system. open opens the store; it may return the same store each time, because each test writes below a folder of its own.
func Backend(open func(t *testing.T) slots.Store) storagetest.Backend {
	var n atomic.Int64
	return storagetest.Backend{New: func(t *testing.T) storagetest.Place {
		s := below{open(t), fmt.Sprintf("place-%d/", n.Add(1))}
		return storagetest.Place{
			Dir: s.String(),
			FS:  func(ctx context.Context) storage.FS { return slots.New(ctx, s) },
			Requests: func(ctx context.Context, h storagetest.Hooks) storagetest.Disturbed {
				tap := &Tap{Store: s}
				tap.Before = func(c Call) *Fault { return faultOf(c, h.Before(c.operation())) }
				tap.After = func(c Call) { h.After(c.operation()) }
				return storagetest.Disturbed{FS: slots.New(ctx, tap), Operations: tap}
			},
		}
	}}
}

// operation describes a request. Deletions run concurrently.
func (c Call) operation() storagetest.Operation {
	return storagetest.Operation{N: c.N, Name: string(c.Op), Changes: c.Op == OpCreate || c.Op == OpDelete, Lists: c.Op == OpList,
		Reads: c.Op == OpRead || c.Op == OpDelete}
}

func faultOf(c Call, f storagetest.Fate) *Fault {
	switch {
	case f == storagetest.Lost:
		return &Fault{}
	case f == storagetest.Unanswered:
		return &Fault{Applied: true}
	case f == storagetest.Late:
		return &Fault{Late: true}
	case f == storagetest.Full && c.Op == OpCreate:
		return &Fault{Err: slots.ErrFull}
	case f == storagetest.Old && c.Op == OpList:
		return &Fault{Leave: older(c)}
	}
	return nil
}

// older returns the entries that a stale listing leaves out: the newest generations of a type, or any slots of a file.
func older(c Call) func(slots.Entry) bool {
	if strings.HasSuffix(c.Name, "/generations") {
		left := c.N % 4
		return func(slots.Entry) bool { left--; return left < 0 }
	}
	return func(e slots.Entry) bool {
		h := fnv.New32a()
		fmt.Fprintf(h, "%d %s", c.N, e.Name)
		return c.N%3 == 0 || h.Sum32()%2 == 0
	}
}

// below is the part of a store whose names begin with a prefix.
type below struct {
	slots.Store
	prefix string
}

func (b below) Create(ctx context.Context, name string, data []byte) error {
	return b.Store.Create(ctx, b.prefix+name, data)
}

func (b below) Read(ctx context.Context, name string) ([]byte, error) {
	return b.Store.Read(ctx, b.prefix+name)
}

func (b below) Size(ctx context.Context, name string) (int64, error) {
	return b.Store.Size(ctx, b.prefix+name)
}

func (b below) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	all, err := b.Store.List(ctx, b.prefix+folder)
	return b.cut(all), err
}

func (b below) Count(ctx context.Context, folder string) (int, error) {
	return slots.OrderedOf(b.Store).Count(ctx, b.prefix+folder)
}

func (b below) Last(ctx context.Context, folder string) (slots.Entry, error) {
	e, err := slots.OrderedOf(b.Store).Last(ctx, b.prefix+folder)
	e.Name = strings.TrimPrefix(e.Name, b.prefix)
	return e, err
}

func (b below) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	if to != "" {
		to = b.prefix + to
	}
	part, err := slots.OrderedOf(b.Store).Between(ctx, b.prefix+folder, b.prefix+from, to, n)
	return b.cut(part), err
}

// cut removes the prefix from the names of entries.
func (b below) cut(all []slots.Entry) []slots.Entry {
	for i := range all {
		all[i].Name = strings.TrimPrefix(all[i].Name, b.prefix)
	}
	return all
}

func (b below) Folders(ctx context.Context, folder string) ([]string, error) {
	return b.Store.Folders(ctx, strings.TrimSuffix(b.prefix+folder, "/"))
}

func (b below) Delete(ctx context.Context, name string) error {
	return b.Store.Delete(ctx, b.prefix+name)
}
