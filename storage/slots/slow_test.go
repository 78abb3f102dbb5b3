package slots_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// TestSlow: a program learns after a few seconds that a request has no answer, and why the last attempt had none, but not of the requests
// that are answered.
func TestSlow(t *testing.T) {
	away := errors.New("connection refused")
	for _, test := range []struct {
		name   string
		before func(slotstest.Call) *slotstest.Fault
		want   []error
	}{
		{"quick", func(slotstest.Call) *slotstest.Fault { time.Sleep(2 * time.Second); return nil }, nil},
		{"no answer yet", func(slotstest.Call) *slotstest.Fault { time.Sleep(4 * time.Second); return nil }, []error{nil}},
		{"refused", func(slotstest.Call) *slotstest.Fault { return &slotstest.Fault{Err: away} }, []error{away}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told []error
				fsys := slots.New(context.Background(), &slotstest.Tap{Store: slotstest.NewMem(100), Before: test.before}).Slow(func(within time.Duration, err error) {
					if within != 30*time.Second {
						t.Errorf("within %v", within)
					}
					told = append(told, err)
				})
				if _, err := fsys.Until(t.Context()).Stat("orders.fpl"); err == nil {
					t.Error("it exists")
				}
				if !slices.Equal(told, test.want) {
					t.Errorf("told %v, want %v", told, test.want)
				}
			})
		})
	}
}

// silent is a store whose Check gets no answer.
type silent struct{ slots.Store }

func (silent) Check(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestProbeEndsWithoutAnAnswer: a probe of a store that accepts connections and never answers ends.
func TestProbeEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := slots.Probe(context.Background(), silent{slotstest.NewMem(100)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the probe says %v", err)
		}
	})
}
