package slotstest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/storage/slots"
)

// Op names a request.
type Op string

// The requests that a Tap sees.
const (
	OpCreate  Op = "create"
	OpRead    Op = "read"
	OpSize    Op = "size"
	OpList    Op = "list" // of a folder or a part of it, or a count
	OpFolders Op = "folders"
	OpDelete  Op = "delete"
)

// Call is one request.
type Call struct {
	N    int // its number, from 0, among all requests through the tap
	Op   Op
	Name string
	Data []byte // OpCreate: the value to create; must not be kept or changed
}

// ErrLost is the unclear answer of requests whose Fault specifies no other answer.
var ErrLost = errors.New("slotstest: the answer was lost")

// Fault is what happens instead of an answer.
type Fault struct {
	Err     error                  // the answer; ErrLost if it is nil, except with Leave
	Applied bool                   // the request is made before the answer is lost
	Late    bool                   // OpCreate: the request is made when Deliver is called
	Leave   func(slots.Entry) bool // OpList: the request is made, and a stale answer leaves out these entries
}

// Tap is a store around another one. Before and After, if set, are called before every request and after it was made, in the
// caller's goroutine and without any lock held: they may use the store and let other clients run to any point.
type Tap struct {
	slots.Store
	Before func(Call) *Fault
	After  func(Call)

	mu   sync.Mutex
	n    int
	late []Call
}

// Calls returns how many requests went through the tap.
func (t *Tap) Calls() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// Late returns how many requests are pending.
func (t *Tap) Late() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.late)
}

// Pending returns the pending requests.
func (t *Tap) Pending() []Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.late)
}

// Deliver makes pending request i.
func (t *Tap) Deliver(i int) {
	t.mu.Lock()
	c := t.late[i]
	t.late = slices.Delete(t.late, i, i+1)
	t.mu.Unlock()
	_ = t.Store.Create(context.Background(), c.Name, c.Data) // its caller no longer waits for the answer
}

// call makes a request, unless Before returns a Fault to inject.
func (t *Tap) call(c Call, request func() error) (*Fault, error) {
	t.mu.Lock()
	c.N = t.n
	t.n++
	t.mu.Unlock()
	var f *Fault
	if t.Before != nil {
		f = t.Before(c)
	}
	if f == nil || f.Leave != nil || f.Applied {
		err := request()
		if t.After != nil {
			t.After(c)
		}
		if f == nil || f.Leave != nil {
			return f, err
		} // otherwise its answer is lost
	}
	if f.Late && c.Op == OpCreate {
		c.Data = slices.Clone(c.Data)
		t.mu.Lock()
		t.late = append(t.late, c)
		t.mu.Unlock()
	}
	if f.Err != nil {
		return f, f.Err
	}
	return f, ErrLost
}

// Create implements slots.Store.
func (t *Tap) Create(ctx context.Context, name string, data []byte) error {
	_, err := t.call(Call{Op: OpCreate, Name: name, Data: data}, func() error { return t.Store.Create(ctx, name, data) })
	return err
}

// Read implements slots.Store.
func (t *Tap) Read(ctx context.Context, name string) (b []byte, err error) {
	_, err = t.call(Call{Op: OpRead, Name: name}, func() (err error) {
		b, err = t.Store.Read(ctx, name)
		return err
	})
	return b, err
}

// Size implements slots.Store.
func (t *Tap) Size(ctx context.Context, name string) (n int64, err error) {
	_, err = t.call(Call{Op: OpSize, Name: name}, func() (err error) {
		n, err = t.Store.Size(ctx, name)
		return err
	})
	return n, err
}

// List implements slots.Store.
func (t *Tap) List(ctx context.Context, folder string) (all []slots.Entry, err error) {
	f, err := t.call(Call{Op: OpList, Name: folder}, func() (err error) {
		all, err = t.Store.List(ctx, folder)
		return err
	})
	if f != nil && f.Leave != nil {
		all = slices.DeleteFunc(all, f.Leave)
	}
	return all, err
}

// Count implements slots.Ordered.
func (t *Tap) Count(ctx context.Context, folder string) (n int, err error) {
	f, err := t.call(Call{Op: OpList, Name: folder}, func() (err error) {
		n, err = slots.OrderedOf(t.Store).Count(ctx, folder)
		return err
	})
	if f == nil || f.Leave == nil || err != nil {
		return n, err
	}
	all, err := t.Store.List(ctx, folder)
	return len(slices.DeleteFunc(all, f.Leave)), err
}

// Last implements slots.Ordered.
func (t *Tap) Last(ctx context.Context, folder string) (e slots.Entry, err error) {
	f, err := t.call(Call{Op: OpList, Name: folder}, func() (err error) {
		e, err = slots.OrderedOf(t.Store).Last(ctx, folder)
		return err
	})
	if f == nil || f.Leave == nil || err != nil {
		return e, err
	}
	all, err := t.Store.List(ctx, folder)
	if all = slices.DeleteFunc(all, f.Leave); len(all) == 0 {
		return slots.Entry{}, err
	}
	return all[len(all)-1], err
}

// Between implements slots.Ordered.
func (t *Tap) Between(ctx context.Context, folder, from, to string, n int) (part []slots.Entry, err error) {
	f, err := t.call(Call{Op: OpList, Name: folder}, func() (err error) {
		part, err = slots.OrderedOf(t.Store).Between(ctx, folder, from, to, n)
		return err
	})
	if f == nil || f.Leave == nil || err != nil {
		return part, err
	}
	part, err = slots.OrderedOf(t.Store).Between(ctx, folder, from, to, 0)
	part = slices.DeleteFunc(part, f.Leave)
	return part[:min(len(part), cmp.Or(n, len(part)))], err
}

// Folders implements slots.Store.
func (t *Tap) Folders(ctx context.Context, folder string) (names []string, err error) {
	_, err = t.call(Call{Op: OpFolders, Name: folder}, func() (err error) {
		names, err = t.Store.Folders(ctx, folder)
		return err
	})
	return names, err
}

// Delete implements slots.Store.
func (t *Tap) Delete(ctx context.Context, name string) error {
	_, err := t.call(Call{Op: OpDelete, Name: name}, func() error { return t.Store.Delete(ctx, name) })
	return err
}
