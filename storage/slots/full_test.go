package slots_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
)

// TestFull: whatever error a full store returns, package storage reports the same as for a full disk: what is full, the remedy, and that
// nothing is lost.
func TestFull(t *testing.T) {
	const file = "orders.fpl: no room: the store is full"
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"as a store reports it":  {slots.Full("s3://b/p", errors.New("QuotaExceeded: no")), file + ": QuotaExceeded: no; free some space in the store, or raise its quota, nothing acknowledged is lost"},
		"the quota of a user":    {slots.Full("shared:/srv", syscall.EDQUOT), file + ": disk quota exceeded; raise the disk quota of this user, nothing acknowledged is lost"},
		"of a third-party store": {fmt.Errorf("theirs: %w", slots.ErrFull), "orders.fpl: no room: theirs: the store is full; free some space in the store, or raise its quota, nothing acknowledged is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			mem, full := slotstest.NewMem(1<<20), false
			tap := &slotstest.Tap{Store: mem, Before: func(c slotstest.Call) *slotstest.Fault {
				if full && c.Op == slotstest.OpCreate {
					return &slotstest.Fault{Err: test.err}
				}
				return nil
			}}
			o := storage.Options{FS: slots.New(t.Context(), tap)}
			w, err := storage.Open(t.Context(), "", "orders", 1, o)
			if err != nil {
				t.Fatal(err)
			}
			full = true
			_, syncErr := w.Sync()
			_, openErr := storage.Open(t.Context(), "", "orders", 2, o)
			for what, err := range map[string]error{"sync": syncErr, "open": openErr} {
				if !errors.Is(err, storage.ErrNoSpace) || !errors.Is(err, slots.ErrFull) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%s: %v; want %q", what, err, test.says)
				}
			}
			err = slots.Probe(t.Context(), tap)
			if !errors.Is(err, slots.ErrFull) {
				t.Errorf("the probe: %v", err)
			}
			full = false
			if _, err := storage.Open(t.Context(), "", "orders", 3, o); err != nil {
				t.Errorf("with space: %v", err)
			}
		})
	}
}
