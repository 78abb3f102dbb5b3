package queuetest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	queuetest.Run(t, func(*testing.T) func(*testing.T) queue.Queue {
		q := queuetest.NewMemory()
		return func(*testing.T) queue.Queue { return q }
	})
}
