package locks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// workerEnv holds the workerConfig of a process that is a worker.
const workerEnv = "FENCEPOST_BENCH_LOCK_WORKER"

// workerConfig is the configuration of a worker process.
type workerConfig struct {
	URI, Database string
	Referee       string // a file that the holder locks, so that the kernel notices two holders
	Contenders    []string
	Terms         terms
}

// Worker reports whether this process was started as a worker of this suite. If so, it has run as one, and must exit with
// code.
func Worker() (code int, ok bool) {
	text := os.Getenv(workerEnv)
	if text == "" {
		return 0, false
	}
	if err := work(context.Background(), text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, "error", strings.ReplaceAll(err.Error(), "\n", " "))
		return 1, true
	}
	return 0, true
}

// worker executes commands, line by line, until its input ends:
//
//	acquire <lock> <contender>   → granted <time> <token> | cancelled
//	cancel
//	release                      → released <time of the call>
//	count                        → count <commands sent to the server>
//
// Times are those of CLOCK_MONOTONIC, which is the same for all processes.
type worker struct {
	lockers map[string]locker
	sent    []*server.Sent
	referee *os.File

	mu     sync.Mutex // for the fields below, and for out
	out    io.Writer
	held   held
	cancel context.CancelFunc
}

func work(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var c workerConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	w := &worker{lockers: map[string]locker{}, out: out}
	var err error
	if w.referee, err = os.OpenFile(c.Referee, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	for _, name := range c.Contenders {
		client, sent, err := server.Dial(c.URI)
		if err != nil {
			return err
		}
		if w.lockers[name], err = openLocker(ctx, name, client.Database(c.Database), c.Terms); err != nil {
			return err
		}
		w.sent = append(w.sent, sent)
	}
	w.say("ready")
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "acquire":
			name, contender, _ := strings.Cut(rest, " ")
			sub, cancel := context.WithCancel(ctx)
			w.mu.Lock()
			w.cancel = cancel
			w.mu.Unlock()
			go w.acquire(sub, w.lockers[contender], name)
		case "cancel":
			w.mu.Lock()
			w.cancel()
			w.mu.Unlock()
		case "release":
			go w.release(ctx)
		case "count":
			var n int64
			for _, s := range w.sent {
				n += s.Load()
			}
			w.say("count %d", n)
		default:
			return fmt.Errorf("unknown command %q", verb)
		}
	}
	return nil
}

func (w *worker) acquire(ctx context.Context, l locker, name string) {
	h, err := l.acquire(ctx, name)
	now := monotonic()
	switch {
	case err != nil && ctx.Err() != nil:
		w.say("cancelled")
		return
	case err != nil:
		w.say("error %s", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	if err := unix.Flock(int(w.referee.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		w.say("error two holders at the same time (%v)", err)
		return
	}
	w.mu.Lock()
	w.held = h
	w.mu.Unlock()
	w.say("granted %d %d", now, h.token())
}

func (w *worker) release(ctx context.Context) {
	w.mu.Lock()
	h := w.held
	w.held = nil
	w.mu.Unlock()
	if err := unix.Flock(int(w.referee.Fd()), unix.LOCK_UN); err != nil {
		w.say("error %v", err)
		return
	}
	now := monotonic()
	if err := h.release(ctx); err != nil {
		w.say("error %s", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	w.say("released %d", now)
}

func (w *worker) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format+"\n", args...)
}

// monotonic returns the clock that is the same for all processes, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail with these arguments
	return t.Nano()
}
