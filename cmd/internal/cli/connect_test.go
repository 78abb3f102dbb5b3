package cli

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
)

// At startup a program waits for room in a store as it waits for a server.
func TestAwaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room atomic.Bool
		said := ""
		await := func() error {
			_, err := Await(t.Context(), "s3://b", 30*time.Second, func(reason string) { said = reason }, func(context.Context) (bool, error) {
				if !room.Load() {
					return false, slots.Full("s3://b", errors.New("QuotaExceeded: no"))
				}
				return true, nil
			})
			return err
		}
		began := time.Now()
		err := await()
		if !errors.Is(err, storage.ErrNoSpace) || time.Since(began) < 29*time.Second || !strings.Contains(said, "no room") {
			t.Errorf("%v after %v, and said %q", err, time.Since(began), said)
		}
		for _, says := range []string{"within 30s (--connect-timeout)", "the store is full", "raise its quota"} {
			if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "host and port") {
				t.Errorf("it does not say %q: %v", says, err)
			}
		}
		time.AfterFunc(10*time.Second, func() { room.Store(true) })
		if err := await(); err != nil {
			t.Errorf("when there is room: %v", err)
		}
	})
}
