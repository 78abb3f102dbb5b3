package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// TestDeadActionIsAboutWhatWasThere: what dies while letters are requeued is not requeued, or one that dies each time would be for ever.
func TestDeadActionIsAboutWhatWasThere(t *testing.T) {
	const letters = 1200 // some portions
	mem := queuetest.NewMemory()
	bury := func(n int) {
		t.Helper()
		l := queue.Letter{Message: queue.Message{ID: queue.NewID(time.UnixMilli(1000), 1, uint64(n)), Payload: fmt.Append(nil, n)}}
		if err := mem.Bury(t.Context(), "orders", []queue.Letter{l}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range letters {
		bury(n + 1)
	}
	a, done := deadAction{all: true}, 0
	err := a.run(t.Context(), &cobra.Command{}, &fencepost.Backend{Queue: mem}, func(portion []queue.Letter) error {
		for _, l := range portion {
			if done++; l.ID.N() > letters {
				t.Errorf("letter %d was not there in the beginning", l.ID.N())
			}
		}
		bury(letters + done)
		return nil
	})
	if err != nil || done != letters {
		t.Errorf("%d letters, %v; want %d", done, err, letters)
	}
}
