package slots_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// failing is a store whose requests fail.
type failing struct {
	slots.Store
	err error
}

func (f failing) Create(context.Context, string, []byte) error { return f.err }

// TestObserve: an observed store behaves like the store, and reports every answer.
func TestObserve(t *testing.T) {
	var told []string
	tell := func(r slots.Request) {
		if r.Took < 0 {
			t.Errorf("%s took %v", r.Kind, r.Took)
		}
		told = append(told, fmt.Sprint(r.Kind, " ", r.Answer, " ", r.Bytes))
	}
	ctx, mem := t.Context(), slotstest.NewMem(1<<10)
	s := slots.Observe(mem, tell)
	for _, err := range []error{s.Create(ctx, "a/1", []byte("xyz")), s.Create(ctx, "a/1", []byte("xyz")), second(s.Read(ctx, "a/1")), second(s.Read(ctx, "a/2")),
		second(s.Size(ctx, "a/1")), second(s.List(ctx, "a")), second(s.Folders(ctx, "")), s.Delete(ctx, "a/1")} {
		_ = err
	}
	for _, store := range []slots.Store{mem, failing{mem, nil}} { // the latter is not Ordered, and gets no request
		o := slots.OrderedOf(slots.Observe(store, tell))
		for _, err := range []error{second(o.Count(ctx, "a")), second(o.Last(ctx, "a")), second(o.Between(ctx, "a", "", "", 0))} {
			if errors.Is(err, slots.ErrUnordered) != (store != slots.Store(mem)) {
				t.Errorf("%T: %v", store, err)
			}
		}
	}
	for _, err := range []error{fmt.Errorf("x: %w", slots.ErrFull), fmt.Errorf("x: %w", &slots.RefusedError{}), errors.New("reset"), context.DeadlineExceeded, context.Canceled} {
		if got := slots.Observe(failing{mem, err}, tell).Create(ctx, "a/3", []byte("xyz")); got != err {
			t.Errorf("the error is %v, want %v", got, err)
		}
	}
	want := []string{"create ok 3", "create exists 0", "read ok 3", "read absent 0", "size ok 0", "list ok 0", "folders ok 0", "delete ok 0",
		"list ok 0", "list ok 0", "list ok 0",
		"create full 0", "create refused 0", "create unclear 0", "create unclear 0"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if s.String() != mem.String() || s.MaxValue() != mem.MaxValue() {
		t.Errorf("%s, %d", s, s.MaxValue())
	}
}

func second[T any](_ T, err error) error { return err }

// checked is a store with a Check of its own.
type checked struct {
	slots.Store
	err error
}

func (c checked) Check(context.Context) error { return c.err }

// TestProbeOfAnObservedStore: the probe also calls the Check of an observed store.
func TestProbeOfAnObservedStore(t *testing.T) {
	refused, mem := &slots.RefusedError{Reason: "its values expire"}, slotstest.NewMem(1<<10)
	for _, want := range []error{refused, nil} {
		s := slots.Store(checked{mem, nil})
		if want != nil {
			s = checked{mem, want}
		}
		for range 2 { // even if it is observed twice
			s = slots.Observe(s, func(slots.Request) {})
			if err := slots.Probe(t.Context(), s); !errors.Is(err, want) {
				t.Errorf("the probe says %v, want %v", err, want)
			}
		}
	}
	if err := slots.Probe(t.Context(), slots.Observe(mem, func(slots.Request) {})); err != nil {
		t.Error(err)
	}
}
