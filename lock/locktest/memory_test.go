package locktest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	locktest.Run(t, func(t testing.TB) locktest.Backend {
		m := locktest.NewMemory()
		t.Cleanup(m.Stop)
		return locktest.Backend{Open: m.Open, Delete: func(name string) error {
			m.Edit(name, func(*lock.Record) bool { return false })
			return nil
		}}
	})
}
