// Package example is what the example programs share: where their queues and locks are, and how they start themselves as further
// processes.
package example

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// EnvChild tells a test binary to be the example.
const EnvChild = "FENCEPOST_EXAMPLE"

// Main runs the example and exits, with 2 if the example was called wrongly, with [ExitHeld], or with 1. Errors are printed on
// stderr.
func Main(run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) { // which has been printed
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	}
	var usage usageError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &usage):
		os.Exit(2)
	case errors.Is(err, lock.ErrHeld), errors.Is(err, lock.ErrLost):
		os.Exit(ExitHeld)
	}
	os.Exit(1)
}

// ExitHeld is the exit code of an example whose lock somebody else holds.
const ExitHeld = 5

// usageError is an error about how the example was called.
type usageError struct{ error }

// Usagef returns an error about how the example was called.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Parse parses args; there must be nothing but flags.
func Parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return Usagef("%w", err)
	}
	if flags.NArg() > 0 {
		return Usagef("unknown argument %q", flags.Arg(0))
	}
	return nil
}

// URLFlag adds --url.
func URLFlag(flags *flag.FlagSet) *string {
	return flags.String("url", "", "where queue and locks are: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
}

// Workspace returns a temporary directory, and url or, if that is empty, a database in it.
func Workspace(url string) (dir, dbURL string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return "", "", nil, err
	}
	if url == "" {
		url = "sqlite://" + filepath.Join(dir, "locks.db")
	}
	return dir, url, func() { _ = os.RemoveAll(dir) }, nil
}

// Self is this program as another process. It is killed when ctx ends.
func Self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), EnvChild+"=1")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	return cmd, nil
}
