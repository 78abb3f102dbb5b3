// Package exampletest runs the example programs in tests: as functions, or as child processes that run the test binary.
package exampletest

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// Main is for TestMain: it runs the tests or, in a process that the example started, the example.
func Main(m *testing.M, main func()) {
	const child = "FENCEPOST_EXAMPLE"
	if os.Getenv(child) == "1" {
		main()
		return
	}
	os.Setenv(child, "1")
	goleak.VerifyTestMain(m)
}

// Backends runs f with the embedded backend and, if the environment names a server, with MongoDB. Both run in parallel, because the examples
// mostly wait.
func Backends(t *testing.T, f func(t *testing.T, url string)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		f(t, "sqlite://"+filepath.Join(t.TempDir(), "locks.db"))
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		if os.Getenv(mongotest.EnvURI) == "" {
			t.Skip(mongotest.EnvURI + " names no server")
		}
		url, _ := mongotest.Fresh(t)
		f(t, url)
	})
}

// Output runs the example as a function and returns what it prints.
func Output(t *testing.T, run func(context.Context, []string, io.Writer) error, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, args, &out)
	t.Logf("%v\n%s", args, out.String())
	return out.String(), err
}
