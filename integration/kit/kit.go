// Package kit contains the shared parts of the suites that run the real programs: the programs, their environment, their output, and an
// operator's access to their database. Only tests and test programs import it.
package kit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Build builds worker, producer and fencepost into dir, with the race detector if race is set.
func Build(dir string, race bool) error {
	args, env := []string{"build", "-o", dir + string(filepath.Separator)}, os.Environ()
	if race {
		args = append(args, "-race")
	} else {
		env = append(env, "CGO_ENABLED=0") // as in the image: a Node has no C library
	}
	const cmd = "github.com/fencepost/fencepost/cmd/"
	build := exec.Command("go", append(args, cmd+"worker", cmd+"producer", cmd+"fencepost")...)
	build.Env = env
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// Env returns the environment of programs under test, without the settings of the user who runs the tests.
func Env() []string {
	// A program with the race detector sleeps for a second before it exits, to see races of goroutines that still run. With hundreds of
	// programs that would be most of the time.
	env := []string{"GORACE=atexit_sleep_ms=0"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "FENCEPOST_") && !strings.HasPrefix(e, "AWS_") {
			env = append(env, e)
		}
	}
	// The tests' temporary directory may be the writable layer of a container. Test stores accept any key.
	return append(env, "FENCEPOST_ALLOW_OVERLAY=true", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=/nonexistent", "AWS_SHARED_CREDENTIALS_FILE=/nonexistent")
}

// Python returns a Python that has pymongo. Debian's python3-pymongo is for /usr/bin/python3, which need not be the first in PATH. Without one
// the test is skipped, or fails if FENCEPOST_TEST_REQUIRE_PYTHON=1.
func Python(t testing.TB) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import pymongo").Run() == nil {
			return python
		}
	}
	const require, none = "FENCEPOST_TEST_REQUIRE_PYTHON", "there is no python3 with pymongo (Debian: python3-pymongo)"
	if os.Getenv(require) == "1" {
		t.Fatalf("%s, and %s=1", none, require)
	}
	t.Skip(none)
	return ""
}

// Buffer is the output of a program that runs alongside the test. It is safe for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
