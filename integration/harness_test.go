package integration

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
)

// bin is the directory of the programs under test.
var bin string

func TestMain(m *testing.M) {
	if backend := os.Getenv(envLocks); backend != "" {
		if err := lockProcess(backend); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if file := os.Getenv(envPeak); file != "" {
		os.Exit(peakProcess(file))
	}
	if lie := os.Getenv(envLiar); lie != "" {
		if err := liarProcess(lie); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "fencepost-integration-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := kit.Build(dir, race.Enabled); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// backend is the database that a test's programs connect to, and the directory of their files.
type backend struct {
	url    string
	dir    string
	db     kit.Database      // nil if the test manages the server itself
	server *mongotest.Server // nil for the embedded backend and for a shared server
}

// onEachBackend runs f once on the embedded backend and once on a MongoDB-compatible server, concurrently, and only after its
// caller has returned.
func onEachBackend(t *testing.T, f func(t *testing.T, b backend)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		f(t, embedded(t))
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		f(t, backend{url: uri, db: kit.Server{Database: db}, dir: filepath.Join(t.TempDir(), "data")})
	})
}

func embedded(t *testing.T) backend {
	dir := t.TempDir()
	path := filepath.Join(dir, "queue.db")
	return backend{url: "sqlite://" + path, db: kit.Embedded{Path: path}, dir: filepath.Join(dir, "data")}
}

// result is the exit code and output of a program.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
}

const runTimeout = 6 * time.Minute // only for programs that hang: at a load of 32 on two processors the demo in MongoDB took more than three

// run runs a program to its end.
func run(t *testing.T, stdin io.Reader, program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Env = kit.Env()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", program, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%s %q did not end within %v\nstderr: %s", program, args, runTimeout, stderr.String())
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// mustRun is run that expects exit code 0.
func mustRun(t *testing.T, stdin io.Reader, program string, args ...string) result {
	t.Helper()
	r := run(t, stdin, program, args...)
	if r.code != 0 {
		t.Fatalf("%s %q: %v", program, args, r)
	}
	return r
}

// process is a program that runs alongside the test.
type process struct {
	*exec.Cmd
	name   string
	stdout kit.Buffer
	stderr kit.Buffer
	done   chan struct{} // closed when it has ended
}

// start starts a program; it is killed at the end of the test if it is still running.
func start(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	return startWith(t, (*exec.Cmd).Start, name, filepath.Join(bin, program), args...)
}

// startWith is start with another way to start the program at a path.
func startWith(t *testing.T, start func(*exec.Cmd) error, name, path string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(path, args...), name: name, done: make(chan struct{})}
	p.Env = kit.Env()
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := start(p.Cmd); err != nil {
		t.Fatal(err)
	}
	go func() { p.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("log of %s (pid %d):\n%s", name, p.Process.Pid, tail(p.stderr.String(), 60))
		}
	})
	return p
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatalf("signal %v to %s: %v", s, p.name, err)
	}
}

// wait waits for the end of the process and returns its exit code.
func (p *process) wait(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("%s did not end within %v; its log:\n%s", p.name, within, tail(p.stderr.String(), 30))
		return -1
	}
}

func tail(s string, lines int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}

// eventually polls until f is true. The pause between two polls grows with the time that one takes. Otherwise, on a busy machine, the polling
// programs would take all the time from the programs they observe.
func eventually(t *testing.T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		began := time.Now()
		if f() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(min(max(20*time.Millisecond, 8*time.Since(began)), 3*time.Second))
	}
}

// open opens a backend in the test's own process. Starting a program for a query would take up to 60 ms of processor time.
func open(t *testing.T, b backend) (be *fencepost.Backend, closeIt func()) {
	t.Helper()
	be, err := fencepost.Open(t.Context(), b.url)
	if err != nil {
		t.Fatal(err)
	}
	return be, func() { be.Close(context.Background()) }
}

// heldLock is a lock that is held, with the process of its first holder.
type heldLock struct {
	Name string
	PID  int
}

// heldLocks returns the held locks, or none while the server does not answer.
func heldLocks(t *testing.T, b backend) (locks []heldLock) {
	t.Helper()
	be, err := fencepost.Open(t.Context(), b.url)
	if err != nil {
		return nil
	}
	defer be.Close(context.Background())
	records, err := be.Locker.List(t.Context())
	if err != nil {
		return nil
	}
	for _, r := range records {
		if r.Held() {
			locks = append(locks, heldLock{r.Name, r.Holds()[0].Owner.PID})
		}
	}
	return locks
}

// pending returns the backlog of every type.
func pending(t *testing.T, b backend) map[string]int {
	t.Helper()
	be, closeIt := open(t, b)
	defer closeIt()
	types, err := be.Queue.Types(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]int)
	for _, typ := range types {
		depth, err := be.Queue.Depth(t.Context(), typ, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		m[typ] = depth.Pending
	}
	return m
}

// payloads reads all messages of a type's file.
func payloads(t *testing.T, b backend, typ string) [][]byte {
	t.Helper()
	r, err := storage.OpenReader(filepath.Join(b.dir, storage.FileName(typ)), storage.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all [][]byte
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("type %s, after %d messages: %v", typ, len(all), err)
		}
		all = append(all, bytes.Clone(rec.Payload))
	}
}

// says checks the exit code of a program, and that its output contains each of parts.
func says(t testing.TB, r result, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("want exit code %d: %v", code, r)
	}
	for _, part := range parts {
		if !strings.Contains(r.stdout+r.stderr, part) {
			t.Errorf("it does not say %q: %v", part, r)
		}
	}
}
