package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/rs/zerolog"
)

// envHandler makes this test binary a worker program with its own handler: URL|file that it writes to|poison.
const envHandler = "FENCEPOST_TEST_HANDLER"

func init() {
	if job := os.Getenv(envHandler); job != "" {
		if err := handlerProgram(strings.Split(job, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// handlerProgram is a program as a user would write it: it appends the payload of every message to a file, and dies at the poison.
func handlerProgram(job []string) error {
	ctx := context.Background()
	b, err := fencepost.Open(ctx, job[0])
	if err != nil {
		return err
	}
	defer b.Close(ctx)
	out, err := os.OpenFile(job[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	log := zerolog.New(os.Stderr)
	pool, err := worker.New(worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{"t"}, UntilEmpty: true, Lease: 5 * time.Second, Batch: 50,
		OnError: worker.DeadLetter, Logger: &log,
		To: worker.Handling{Handler: worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
			if string(m.Payload) == job[2] {
				os.Exit(3)
			}
			time.Sleep(200 * time.Microsecond)
			_, err := fmt.Fprintf(out, "%s\n", m.Payload)
			return err
		})}})
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; pool.Stop() }()
	return pool.Run(ctx)
}

func startHandler(t *testing.T, b backend, out, poison string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0]), name: "handler program", done: make(chan struct{})}
	p.Env = append(kit.Env(), envHandler+"="+strings.Join([]string{b.url, out, poison}, "|"))
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.Wait(); close(p.done) }()
	t.Cleanup(func() { p.Process.Kill(); <-p.done })
	return p
}

// TestHandlerProgram: a program with a handler is stopped and killed at any moment, and one message kills it. All messages are
// handled, in order, except that one, which becomes a dead letter.
func TestHandlerProgram(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		const n, poison = 2000, "line 1234"
		var lines strings.Builder
		for i := range n {
			fmt.Fprintf(&lines, "line %d\n", i)
		}
		mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "t")
		out := t.TempDir() + "/out"
		killed := 0
		for round := range 30 {
			p := startHandler(t, b, out, poison)
			if round < 6 {
				select {
				case <-p.done:
				case <-time.After(time.Duration(30+20*round) * time.Millisecond):
					p.signal(t, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[round%2])
				}
			}
			code := p.wait(t, runTimeout)
			if code == 3 {
				killed++
			}
			if code == 0 && pending(t, b)["t"] == 0 {
				break
			}
		}
		written, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		seen := map[string]bool{}
		for line := range bytes.Lines(written) {
			if l := strings.TrimSuffix(string(line), "\n"); !seen[l] {
				got = append(got, l)
				seen[l] = true
			}
		}
		for i := range n {
			if l := fmt.Sprintf("line %d", i); l != poison {
				want = append(want, l)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d different lines were handled, want %d in order", len(got), len(want))
		}
		rows := deadRows(t, b)
		if len(rows) != 1 || !strings.Contains(rows[0].Reason, "process ended") || killed < 2 || killed > 8 {
			t.Fatalf("the program was killed %d times, dead letters: %+v", killed, rows)
		}
		if r := mustRun(t, nil, "fencepost", "dead", "show", "--url", b.url, "-o", "raw", rows[0].ID); r.stdout != poison {
			t.Errorf("show: %v", r)
		}
	})
}
