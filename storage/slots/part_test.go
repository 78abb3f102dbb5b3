package slots_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// halving is a store that answers the first read of each value with a part of it, and returns no error.
type halving struct {
	slots.Store
	mu   sync.Mutex
	read map[string]bool
}

func newHalving(s slots.Store) *halving { return &halving{Store: s, read: map[string]bool{}} }

func (h *halving) Read(ctx context.Context, name string) ([]byte, error) {
	b, err := h.Store.Read(ctx, name)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.read[name] {
		h.read[name] = true
		b = b[:len(b)/2]
	}
	return b, err
}

// TestAPartOfAValue: a part is not taken for the value, neither by a reader, nor by the removal of all slots but fences, nor by a writer whose
// create was answered late.
func TestAPartOfAValue(t *testing.T) {
	mem, content := newEndFile(rand.New(rand.NewPCG(9, 11)), 200, 100)
	var fences []string
	for _, name := range mem.Names() {
		if b, err := mem.Read(t.Context(), name); err == nil && len(b) >= 27 && len(b) < 40 && name > endSlot(4096) && name < endSlot(int64(len(content)-100)) {
			fence(t, mem, content, name)
			fences = append(fences, name)
		}
	}
	if len(fences) < 5 {
		t.Fatal("too few fences")
	}

	f := openIn(t, newHalving(mem), storage.ModeRead)
	got := make([]byte, len(content))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Errorf("a reader gets other bytes, %v", err)
	}

	lost := false
	tap := &slotstest.Tap{Store: newHalving(mem), Before: func(c slotstest.Call) *slotstest.Fault {
		if c.Op == slotstest.OpCreate && !lost {
			lost = true
			return &slotstest.Fault{Applied: true}
		}
		return nil
	}}
	w := openIn(t, tap, storage.ModeAppend)
	if _, _, err := w.Append([]byte("next")); err != nil {
		t.Fatal(err)
	}
	if err := w.Datasync(); err != nil {
		t.Errorf("a writer whose slot was created: %v", err)
	}

	if err := slots.New(t.Context(), newHalving(mem)).Remove(endName); err != nil {
		t.Fatal(err)
	}
	for _, name := range fences {
		if !slices.Contains(mem.Names(), name) {
			t.Errorf("%s, which begins with a fence, was removed", name)
		}
	}
}

// TestAValueThatWasReplaced: if another value replaced a listed slot, a reader gets its bytes, up to the next slot, and zeros
// after them. No reader waits for the bytes of the old value.
func TestAValueThatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{10, 100, 1000} {
			mem := slotstest.NewMem(1 << 20)
			mem.Set("orders/generations/00000001", []byte("0123456789abcdef"))
			for i := range int64(3) {
				mem.Set(endSlot(100*i), bytes.Repeat([]byte("a"), 100))
			}
			f := openIn(t, mem, storage.ModeRead)
			mem.Set(endSlot(100), bytes.Repeat([]byte("b"), size))
			want := slices.Concat(bytes.Repeat([]byte("a"), 100), bytes.Repeat([]byte("b"), min(size, 100)), make([]byte, 100-min(size, 100)), bytes.Repeat([]byte("a"), 100))
			got, began := make([]byte, 300), time.Now()
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) || time.Since(began) > 0 {
				t.Errorf("%d bytes: after %v %q, %v", size, time.Since(began), got, err)
			}
			f.Close()
		}
	})
}
