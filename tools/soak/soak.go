// Program soak runs one worker per backend with many types for a long time, and fails if anything grows: memory, goroutines,
// open files, connections, documents of the server.
//
//	go run ./tools/soak --duration 30m --url mongodb://host/?directConnection=true
//
// The load is small and varied: every second a few types get a burst, and a quarter of the types, a different one every minute,
// gets nothing for long enough to be released, so that sessions end and begin all the time. At the end everything must be
// drained, and every file is verified. The worker is the real program, in its own process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

const (
	idleTimeout  = 30 * time.Second // of the worker
	dedupeWindow = time.Minute      // of the worker: how long it remembers idempotency keys
	drainWithin  = 3 * time.Minute
	burst        = 20 // messages
	keyed        = 5  // this many of them have an idempotency key
)

// soakOptions configures a run against one backend.
type soakOptions struct {
	worker   string // the program
	url      string
	dir      string
	types    int
	rate     int // messages per second, of all types together
	size     int // of a payload, in bytes
	duration time.Duration
	every    time.Duration // between samples
	rest     time.Duration // how long the same types get nothing
	out      io.Writer
}

// outcome of a run.
type outcome struct {
	samples   []sample
	published int
	verified  uint64 // messages in the files
	sessions  string // of the worker
}

// soak runs the load against one backend to its end. It does not decide whether anything grew: see growth.
func soak(ctx context.Context, o soakOptions) (out *outcome, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b, err := fencepost.Open(ctx, o.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	w, err := startWorker(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	go func() {
		select {
		case <-w.ended:
			cancel(fmt.Errorf("the worker ended: %w; its log is %s", w.err, w.log))
		case <-w.told:
		}
	}()

	count, closeCounter, err := counter(b, o.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeCounter()) }()
	out = &outcome{}
	var wg sync.WaitGroup
	loadCtx, stop := context.WithTimeout(ctx, o.duration)
	defer stop()
	wg.Go(func() {
		if perr := o.load(loadCtx, ctx, p, &out.published); perr != nil {
			cancel(perr)
		}
	})
	o.watch(loadCtx, func() {
		s, serr := w.sample(ctx, count)
		if serr != nil {
			fmt.Fprintf(o.out, "%s: no sample: %v\n", b.Name, serr)
			return
		}
		out.samples = append(out.samples, s)
	})
	wg.Wait()
	if err := p.Close(ctx); err != nil {
		return out, errors.Join(context.Cause(ctx), err)
	}
	if err := o.drained(ctx, b.Queue); err != nil {
		return out, err
	}
	if out.sessions, err = w.metricSum(ctx, "fencepost_sessions_total"); err != nil {
		return out, err
	}
	if err := w.stop(); err != nil {
		return out, err
	}
	out.verified, err = o.verify(ctx)
	return out, err
}

func (o *soakOptions) typeName(i int) string { return fmt.Sprintf("soak-%03d", i) }

// load publishes until ctx ends. Messages in flight are finished, with the context life.
func (o *soakOptions) load(ctx, life context.Context, p *queue.Publisher, published *int) error {
	start := time.Now()
	tick := time.NewTicker(burst * time.Second / time.Duration(o.rate))
	defer tick.Stop()
	payload := make([]byte, o.size)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// One quarter of the types is idle.
		typ, resting := i%o.types, int(time.Since(start)/o.rest)%4
		if typ*4/o.types == resting {
			continue
		}
		msgs := make([]queue.Message, burst)
		for j := range msgs {
			for k := range payload {
				payload[k] = byte(rand.Uint32())
			}
			msgs[j] = queue.Message{Type: o.typeName(typ), Payload: slices.Clone(payload)}
			if j < keyed {
				msgs[j].Headers = map[string]string{queue.KeyHeader: fmt.Sprintf("%d-%d", i, j)}
			}
		}
		for _, r := range p.PublishAll(life, msgs) {
			if r.Err != nil {
				return fmt.Errorf("publish: %w", r.Err)
			}
			*published++
		}
	}
}

func (o *soakOptions) watch(ctx context.Context, look func()) {
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			look()
		}
	}
}

// drained waits until nothing is pending.
func (o *soakOptions) drained(ctx context.Context, q queue.Queue) error {
	for end := time.Now().Add(drainWithin); ; {
		pending := 0
		for i := range o.types {
			d, err := q.Depth(ctx, o.typeName(i), 1000)
			if err != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			pending += d.Pending
		}
		if pending == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d messages were not drained within %v", pending, drainWithin)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// verify checks every file and counts its messages.
func (o *soakOptions) verify(ctx context.Context) (messages uint64, err error) {
	for i := range o.types {
		path := filepath.Join(o.dir, storage.FileName(o.typeName(i)))
		r, err := storage.Verify(ctx, path, storage.VerifyOptions{})
		if errors.Is(err, os.ErrNotExist) {
			continue // a short run does not reach all types
		}
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return 0, fmt.Errorf("verify %s: %w", path, err)
		}
		messages += r.Messages
	}
	return messages, nil
}

// workerProcess is a process of the worker program.
type workerProcess struct {
	cmd   *exec.Cmd
	log   string
	addr  string
	told  chan struct{} // closed when it is told to stop
	ended chan struct{}
	err   error // set when ended is closed
}

// buildWorker builds the worker program into dir.
func buildWorker(dir string) (string, error) {
	path := filepath.Join(dir, "worker")
	cmd := exec.Command("go", "build", "-o", path, "github.com/fencepost/fencepost/cmd/worker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the worker: %w\n%s", err, out)
	}
	return path, nil
}

var listensAt = regexp.MustCompile(`"addr":"([^"]+)"`)

func startWorker(ctx context.Context, o soakOptions) (*workerProcess, error) {
	if err := os.MkdirAll(o.dir, 0o750); err != nil {
		return nil, err
	}
	w := &workerProcess{log: filepath.Join(o.dir, "worker.log"), told: make(chan struct{}), ended: make(chan struct{})}
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	w.cmd = exec.Command(o.worker, "--type", "soak-*", "--dir", o.dir, "--listen", "127.0.0.1:0",
		"--idle-timeout", idleTimeout.String(), "--dedupe-window", dedupeWindow.String(), "--allow-overlay", "--log-format", "json")
	w.cmd.Env = append(os.Environ(), "FENCEPOST_URL="+o.url) // the URL may have a password, which ps must not show
	w.cmd.Stdout, w.cmd.Stderr = log, log
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		w.err = w.cmd.Wait()
		close(w.ended)
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(w.log)
		if m := listensAt.FindSubmatch(text); m != nil {
			w.addr = string(m[1])
			return w, nil
		}
		if err != nil || ctx.Err() != nil || time.Now().After(end) {
			w.kill()
			return nil, errors.Join(fmt.Errorf("the worker does not listen; its log:\n%s", text), err, context.Cause(ctx))
		}
	}
}

func (w *workerProcess) kill() {
	w.cmd.Process.Kill()
	<-w.ended
}

// stop stops the worker as an operator would.
func (w *workerProcess) stop() error {
	close(w.told)
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-w.ended
	if w.err != nil {
		return fmt.Errorf("the worker's end: %w; its log is %s", w.err, w.log)
	}
	return nil
}

// metrics returns the worker's metrics.
func (w *workerProcess) metrics(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// metricSum adds up a counter over all types.
func (w *workerProcess) metricSum(ctx context.Context, name string) (string, error) {
	text, err := w.metrics(ctx)
	if err != nil {
		return "", err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") {
			v, err := value(line)
			if err != nil {
				return "", err
			}
			sum += v
		}
	}
	return fmt.Sprint(int64(sum)), nil
}

// machine describes the machine of a run.
func machine() string {
	return fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.Version())
}
