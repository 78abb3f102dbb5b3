package slots_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// wide is a store that reports a size of 60 MiB for all slots but the first. They are too large for a fence, so a removal does not read them.
type wide struct{ *slotstest.Tap }

const wideSlot = 60 << 20

func (s wide) widen(name string, size int64) int64 {
	if size == 1 && strings.HasPrefix(name, endFolder) {
		return wideSlot
	}
	return size
}

func (s wide) Size(ctx context.Context, name string) (int64, error) {
	n, err := s.Tap.Size(ctx, name)
	return s.widen(name, n), err
}

func (s wide) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	all, err := s.Tap.List(ctx, folder)
	for i := range all {
		all[i].Size = s.widen(all[i].Name, all[i].Size)
	}
	return all, err
}

// TestAnInterruptedRemovalOfALargeFile: however many slots an earlier removal has deleted, a later one completes the removal.
func TestAnInterruptedRemovalOfALargeFile(t *testing.T) {
	const count = 30
	slot := func(i int) string { return endSlot(4096 + int64(i)*wideSlot) }
	far, farther := endSlot(4096+count*wideSlot+2<<30), endSlot(4096+count*wideSlot+2<<30+wideSlot)
	for name, test := range map[string]struct{ others, left []string }{
		"the first slot and the seal stay":     {nil, []string{endSlot(0), slot(count - 1)}},
		"a slot far after the seal is no seal": {[]string{far, farther}, []string{endSlot(0), slot(count - 1), farther}},
	} {
		t.Run(name, func(t *testing.T) {
			mem, fail := slotstest.NewMem(64<<20), true
			mem.Set("orders/generations/00000001", []byte("0123456789abcdef"))
			mem.Set(endSlot(0), make([]byte, 4096))
			for i := range count {
				mem.Set(slot(i), []byte("x"))
			}
			for _, name := range test.others {
				mem.Set(name, []byte("x"))
			}
			tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
				if fail && c.Op == slotstest.OpDelete && c.Name >= slot(20) {
					return &slotstest.Fault{Err: &slots.RefusedError{}}
				}
				return nil
			}}
			remove := func() error { return slots.New(t.Context(), wide{tap}).Remove(endName) }
			if err := remove(); !errors.As(err, new(*slots.RefusedError)) {
				t.Fatal(err)
			}
			fail = false
			if err := remove(); err != nil {
				t.Fatal(err)
			}
			want := append(test.left, "orders/generations/00000001", "orders/generations/00000001-removed", "orders/generations/00000001-swept")
			if got := mem.Names(); !slices.Equal(got, want) {
				t.Errorf("left: %s", fmt.Sprint(got))
			}
		})
	}
}
