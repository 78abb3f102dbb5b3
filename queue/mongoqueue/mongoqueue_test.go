package mongoqueue_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func open(t testing.TB, uri string, opt mongoqueue.Options) *mongoqueue.Queue {
	t.Helper()
	q, err := mongoqueue.Open(t.Context(), uri, opt)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return q
}

func TestMongoDBConforms(t *testing.T) {
	queuetest.Run(t, func(t *testing.T) func(*testing.T) queue.Queue {
		uri, _ := mongotest.Fresh(t)
		return func(t *testing.T) queue.Queue { return open(t, uri, mongoqueue.Options{}) }
	})
}
