// Package slotstest has test tools for slots: a store in memory, a tap that injects faults into any store, and a
// conformance suite that every store must pass.
//
//	slots.FS ──▶ Tap ──▶ Mem
//	              │ the request is lost · it is applied, and its answer is lost · it is applied later · a listing is old · full
package slotstest

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

// Mem is a store in memory. It is safe for concurrent use and never blocks.
type Mem struct {
	mu     sync.Mutex
	values map[string][]byte
	max    int
}

var (
	_ slots.Store   = (*Mem)(nil)
	_ slots.Ordered = (*Mem)(nil)
)

// NewMem returns an empty store whose values have at most the given number of bytes.
func NewMem(maxValue int) *Mem { return &Mem{values: map[string][]byte{}, max: maxValue} }

// Clone returns a store with the same values.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Mem{values: maps.Clone(m.values), max: m.max}
}

// Names returns the names of all values, sorted.
func (m *Mem) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.values))
}

// Set stores a value and replaces an existing one. No client of a store can do that; operators can.
func (m *Mem) Set(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[name] = slices.Clone(data)
}

// pathError returns an error about a name in the form of package fs.
func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// Create implements slots.Store.
func (m *Mem) Create(ctx context.Context, name string, data []byte) error {
	if err := slotname.Check(m, name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.values[name]; ok {
		return pathError("create", name, fs.ErrExist)
	}
	if len(data) > m.max {
		return fmt.Errorf("a value of %d bytes; the maximum is %d", len(data), m.max)
	}
	m.values[name] = slices.Clone(data)
	return nil
}

// Read implements slots.Store.
func (m *Mem) Read(ctx context.Context, name string) ([]byte, error) {
	if err := slotname.Check(m, name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.values[name]
	if !ok {
		return nil, pathError("read", name, fs.ErrNotExist)
	}
	return slices.Clone(b), nil
}

// Size implements slots.Store.
func (m *Mem) Size(ctx context.Context, name string) (int64, error) {
	b, err := m.Read(ctx, name)
	return int64(len(b)), err
}

// List implements slots.Store.
func (m *Mem) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []slots.Entry
	for _, name := range slices.Sorted(maps.Keys(m.values)) {
		if rest, ok := strings.CutPrefix(name, folder+"/"); ok && !strings.Contains(rest, "/") {
			all = append(all, slots.Entry{Name: name, Size: int64(len(m.values[name]))})
		}
	}
	return all, nil
}

// Count implements slots.Ordered.
func (m *Mem) Count(ctx context.Context, folder string) (int, error) {
	all, err := m.List(ctx, folder)
	return len(all), err
}

// Last implements slots.Ordered.
func (m *Mem) Last(ctx context.Context, folder string) (e slots.Entry, err error) {
	all, err := m.List(ctx, folder)
	if len(all) > 0 {
		e = all[len(all)-1]
	}
	return e, err
}

// Between implements slots.Ordered.
func (m *Mem) Between(ctx context.Context, folder, from, to string, n int) ([]slots.Entry, error) {
	all, err := m.List(ctx, folder)
	all = slices.DeleteFunc(all, func(e slots.Entry) bool { return e.Name < from || to != "" && e.Name >= to })
	return all[:min(len(all), cmp.Or(n, len(all)))], err
}

// Folders implements slots.Store.
func (m *Mem) Folders(ctx context.Context, folder string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	prefix := folder + "/"
	if folder == "" {
		prefix = ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[string]bool{}
	for name := range m.values {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			if first, _, deeper := strings.Cut(rest, "/"); deeper {
				found[first] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Delete implements slots.Store.
func (m *Mem) Delete(ctx context.Context, name string) error {
	if err := slotname.Check(m, name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, name)
	return nil
}

// MaxValue implements slots.Store.
func (m *Mem) MaxValue() int { return m.max }

// String implements slots.Store.
func (m *Mem) String() string { return "memory:" }
