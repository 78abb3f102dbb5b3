// Command withserver runs a command with a MongoDB server for its tests:
//
//	go run ./internal/mongotest/withserver -- go test ./...
//
// It starts one server for the whole run instead of one per test binary. It follows the rules of package mongotest,
// builds a server if there is no other way, and passes it to the command in FENCEPOST_TEST_MONGODB_URI (which is left
// unchanged if it is already set). The server ends with the command, and the exit code is the command's.
//
// When no server is available, withserver says in one line which suites will not run and still runs the command; with
// FENCEPOST_TEST_REQUIRE_MONGODB=1 it fails instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/fencepost/fencepost/internal/mongotest"
)

const (
	startTimeout = 20 * time.Minute // building included
	stopTimeout  = time.Minute
	listTimeout  = time.Minute
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: withserver -- command [argument…]")
		os.Exit(2)
	}
	tclog.SetDefault(tclog.NewNoopLogger()) // its banner is irrelevant to the tests
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "withserver:", err)
	}
	os.Exit(code)
}

// run returns the exit code and, if it is not the command's, an error to print.
func run(args []string) (code int, err error) {
	// From here on a signal interrupts the start of the server, or is forwarded to the command; it never ends this
	// process before the server is gone.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	env := os.Environ()
	if os.Getenv(mongotest.EnvURI) == "" {
		server, err := start(signals)
		switch {
		case errors.Is(err, errInterrupted):
			return 130, err
		case err != nil && !errors.Is(err, mongotest.ErrNone):
			return 1, err
		case err != nil && os.Getenv(mongotest.EnvRequire) == "1":
			return 1, fmt.Errorf("%s=1, but no MongoDB is available: %w", mongotest.EnvRequire, err)
		case err != nil:
			fmt.Fprintln(os.Stderr, mongotest.NotRun(suites(), err))
			env = append(env, mongotest.EnvUnavailable+"="+err.Error()) // otherwise each test binary would try again
		default:
			defer stop(server)
			env = append(env, mongotest.EnvURI+"="+server.URI())
		}
	}
	return runChild(args, env, signals)
}

var errInterrupted = errors.New("interrupted")

// start starts a server unless a signal arrives first.
func start(signals <-chan os.Signal) (*mongotest.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	type result struct {
		server *mongotest.Server
		err    error
	}
	started := make(chan result, 1)
	go func() {
		server, err := mongotest.Start(ctx, mongotest.Options{Build: true, Log: os.Stderr})
		started <- result{server, err}
	}()
	select {
	case r := <-started:
		return r.server, r.err
	case <-signals:
		cancel()
		if r := <-started; r.err == nil {
			stop(r.server)
		}
		return nil, errInterrupted
	}
}

func stop(server *mongotest.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := server.Terminate(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "withserver:", err)
	}
}

// runChild runs the command, forwards signals, and waits for it without a limit.
func runChild(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			_ = cmd.Process.Signal(sig) // gone meanwhile is fine
		case err := <-done:
			return exitCode(cmd.ProcessState, err)
		}
	}
}

func exitCode(state *os.ProcessState, err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 1, err
	case state.ExitCode() >= 0:
		return state.ExitCode(), nil
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), fmt.Errorf("the command ended by a signal: %w", err) // as a shell reports it
	}
	return 1, err
}

// suites names the packages whose tests use a MongoDB server.
func suites() string {
	const (
		helper   = "github.com/fencepost/fencepost/internal/mongotest"
		template = `{{$p := .ImportPath}}{{$p}} {{$p}}{{"\n"}}{{range .TestImports}}{{.}} {{$p}}{{"\n"}}{{end}}{{range .XTestImports}}{{.}} {{$p}}{{"\n"}}{{end}}`
	)
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "list", "-e", "-f", template, "./...").Output()
	if err != nil {
		return "all packages that import " + helper
	}
	var names []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		imported, pkg, _ := strings.Cut(strings.TrimSpace(line), " ")
		if imported == helper && !seen[pkg] {
			seen[pkg] = true
			names = append(names, "."+strings.TrimPrefix(pkg, "github.com/fencepost/fencepost"))
		}
	}
	if len(names) == 0 {
		return "all packages that import " + helper
	}
	return strings.Join(names, " ")
}
