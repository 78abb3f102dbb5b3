package conform

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// Options configure the test of a publisher.
type Options struct {
	Command []string                 // the program
	Backend *fencepost.Backend       // a database that no other program uses
	Target  string                   // host and port of its server
	Through func(addr string) string // returns its URL through a proxy at addr
	Rounds  int                      // rounds of faults
	Seed    uint64                   // of the messages and the faults
	Timeout time.Duration            // how long the program may take to report outcomes, and to end
	Log     func(format string, args ...any)
}

// The types that are published.
const (
	typeA       = "conform-a"
	typeB       = "conform-b"
	typePaused  = "conform-paused"
	typeLimited = "conform-limited"

	limit     = 5                      // messages of typeLimited that may be pending
	overLimit = 12                     // messages of typeLimited that are published
	lookAgain = 500 * time.Millisecond // shortest time for which the limit is watched
)

// runner is one test.
type runner struct {
	Options
	*violations
	proxy  *proxy
	record *record
	rng    *rand.Rand

	run     int
	program *program
	lines   []*line // by number, from 1; guarded by mu

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the program prints a line
}

// errBroken ends a test early: the defect is among the violations, and nothing more can be tested.
var errBroken = errors.New("the program cannot be judged any further")

// errSlow ends the draining, usually because the server is too busy.
var errSlow = errors.New("the worker did not drain everything")

// Run tests a publisher. It returns the rules that it broke, and the number of violations. err says why the test could not be completed.
func Run(ctx context.Context, o Options) (broken []string, count int, err error) {
	r := &runner{Options: o, violations: &violations{}, rng: rand.New(rand.NewPCG(o.Seed, 0)), changed: make(chan struct{})}
	dir, err := os.MkdirTemp("", "fencepost-conform-")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(dir)
	r.record = newRecord(r.violations)
	if r.proxy, err = newProxy(o.Target, r.record); err != nil {
		return nil, 0, err
	}
	err = r.publish(ctx, dir)
	if r.program != nil {
		r.program.kill()
		<-r.program.done
	}
	r.proxy.close()
	if err == nil || errors.Is(err, errBroken) { // the files are checked in any case
		err = r.judge(ctx, dir)
	}
	if err != nil {
		return nil, 0, err
	}
	broken, count = r.all()
	return broken, count, nil
}

// publish lets the program publish, step by step.
func (r *runner) publish(ctx context.Context, dir string) error {
	for _, step := range []func(context.Context, string) error{r.values, r.faults, r.settings} {
		if err := step(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// start starts the program.
func (r *runner) start() error {
	r.run++
	r.record.began()
	run := r.run
	p, err := startProgram(r.Command, r.Through(r.proxy.addr()), func(text string) { r.said(run, text) })
	if err != nil {
		return err
	}
	r.program = p
	return nil
}

// said records a line that the program printed.
func (r *runner) said(run int, text string) {
	a, err := parseAnswer(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { close(r.changed); r.changed = make(chan struct{}) }()
	if err != nil {
		r.add("%v", err)
		return
	}
	if a.line < 1 || a.line > len(r.lines) || r.lines[a.line-1].run != run || r.lines[a.line-1].said != nothing {
		r.add("it printed %.80q, but no such line is waiting for its outcome", text)
		return
	}
	l := r.lines[a.line-1]
	l.said, l.id = a.status, a.id
	if a.status == ok && !r.record.isStored(l.typ, a.id) {
		r.add("%v was confirmed as %v before the server had confirmed that it is stored", l, a.id)
	}
}

// newLine adds a new line for the program.
func (r *runner) newLine(l line) *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.n, l.run = len(r.lines)+1, r.run
	l.headers = with(l.headers, lineHeader, fmt.Sprint(l.n))
	r.lines = append(r.lines, &l)
	return &l
}

// feed gives lines to the program.
func (r *runner) feed(lines ...*line) {
	for _, l := range lines {
		r.program.input <- l.input()
	}
}

// await waits until a condition holds, the program has ended, or r.Timeout has passed. until is called with r.mu held.
func (r *runner) await(ctx context.Context, until func() bool) (bool, error) {
	timeout := time.NewTimer(r.Timeout)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		holds, changed := until(), r.changed
		r.mu.Unlock()
		if holds {
			return true, nil
		}
		select {
		case <-changed:
		case <-r.program.done:
			r.mu.Lock()
			defer r.mu.Unlock()
			return until(), nil
		case <-timeout.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// answered waits for the outcomes of lines.
func (r *runner) answered(ctx context.Context, lines []*line) error {
	all, err := r.await(ctx, func() bool { return !slices.ContainsFunc(lines, func(l *line) bool { return l.said == nothing }) })
	if all || err != nil {
		return err
	}
	return r.silent(lines)
}

// silent adds the violation that the program reported no outcome.
func (r *runner) silent(lines []*line) error {
	how := fmt.Sprintf("within %v", r.Timeout)
	select {
	case <-r.program.done:
		how = fmt.Sprintf("and ended by itself (%v)", cause(r.program.ended))
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(lines, func(l *line) bool { return l.said == nothing })
	r.add("the program reported no outcome of %v %s; its last output on stderr: %q", lines[max(i, 0)], how, r.program.log.String())
	return errBroken
}

// end closes the program's input and waits for its end.
func (r *runner) end(ctx context.Context) error {
	r.program.closeInput()
	ended := time.NewTimer(r.Timeout)
	defer ended.Stop()
	select {
	case <-r.program.done:
	case <-ended.C:
		r.add("the program did not end within %v of the end of its input", r.Timeout)
		return errBroken
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.program.ended != nil {
		r.add("the program ended with %v after the end of its input, want exit code 0; its last output on stderr: %q", r.program.ended, r.program.log.String())
	}
	return nil
}

func cause(err error) any {
	if err == nil {
		return "exit status 0"
	}
	return err
}

// settings checks that the program obeys the settings of types.
func (r *runner) settings(ctx context.Context, dir string) error {
	most, paused := limit, true
	if _, err := r.Backend.Queue.PatchSettings(ctx, typeLimited, queue.SettingsPatch{MaxBacklog: &most}); err != nil {
		return err
	}
	if _, err := r.Backend.Queue.PatchSettings(ctx, typePaused, queue.SettingsPatch{PublishPaused: &paused, Why: "conform"}); err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	var refused, limited []*line
	for range 3 {
		refused = append(refused, r.newLine(line{typ: typePaused, payload: []byte("x")}))
	}
	r.feed(refused...)
	if err := r.answered(ctx, refused); err != nil {
		return err
	}
	unread := r.record.knows() == noAnswer // a busy server: a publisher continues without the settings
	if !unread {
		for _, l := range refused {
			l.refuse = "publishing was paused for its type before the program was started"
		}
	}
	for range overLimit {
		limited = append(limited, r.newLine(line{typ: typeLimited, payload: []byte("x")}))
	}
	r.feed(limited...)
	if !unread {
		if err := r.full(ctx, limited); err != nil {
			return err
		}
	}
	// From here on a worker makes room repeatedly.
	pool, err := r.pool(dir, false)
	if err != nil {
		return err
	}
	drained := make(chan error, 1)
	go func() { drained <- pool.Run(ctx) }()
	err = r.answered(ctx, limited)
	if err == nil {
		err = r.end(ctx)
	}
	pool.Stop()
	err = errors.Join(err, <-drained)
	if unread {
		r.Log("settings  not judged: the server did not answer in time when the program asked for them")
	} else {
		r.Log("settings  %d messages of a paused type, %d of a type with a backlog limit of %d", len(refused), overLimit, limit)
	}
	return err
}

// full waits until the backlog has reached the limit, and checks that no more messages are sent.
func (r *runner) full(ctx context.Context, lines []*line) error {
	timeout := time.NewTimer(r.Timeout)
	defer timeout.Stop()
	began := time.Now()
	for {
		n, changed := r.record.count(typeLimited)
		if n >= limit {
			break
		}
		select {
		case <-changed:
		case <-r.program.done:
			return r.silent(lines)
		case <-timeout.C:
			return r.silent(lines)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	_ = wait.For(ctx, max(lookAgain, 3*time.Since(began))) // a program that ignores the limit sends more in that time
	if n, _ := r.record.count(typeLimited); n > limit {
		r.add("%d messages of type %s were sent while its backlog limit was %d and nothing was drained", n, typeLimited, limit)
	}
	return nil
}

// pool returns a worker for all types.
func (r *runner) pool(dir string, untilEmpty bool) (*worker.Pool, error) {
	return worker.New(worker.Config{
		Queue: r.Backend.Queue, Locker: r.Backend.Locker, AllTypes: true, UntilEmpty: untilEmpty,
		To:      worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}}, // the files are needed only during the test
		OnError: worker.DeadLetter, MaxAttempts: 1, RetryMin: time.Millisecond,        // messages that the file refuses are reported and block nothing
		GapTimeout: 2 * time.Second, HandOver: -1, NoScheduler: true,
	})
}

// judge drains the remaining messages, and checks the files.
func (r *runner) judge(ctx context.Context, dir string) error {
	pool, err := r.pool(dir, true)
	if err != nil {
		return err
	}
	var unfit *worker.UnfitError
	draining, cancel := context.WithTimeoutCause(ctx, r.Timeout, errSlow)
	defer cancel()
	switch err := pool.Run(draining); {
	case errors.As(err, &unfit):
		r.add("the worker cannot append everything: %v", err)
	case context.Cause(draining) == errSlow:
		return fmt.Errorf("drain: %w within %v (--timeout)", errSlow, r.Timeout)
	case err != nil:
		return fmt.Errorf("drain: %w", err)
	}
	types, err := r.Backend.Queue.Types(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	files, messages := map[string][]entry{}, 0
	for _, typ := range types {
		letters, err := r.Backend.Queue.DeadLetters(ctx, typ, queue.ID{}, queue.Limit{Messages: 10})
		if err != nil {
			return err
		}
		for _, l := range letters {
			r.add("type %s: the message %v became a dead letter: %s", typ, l.ID, l.Reason)
		}
		entries, err := readFile(ctx, dir, typ, r.lines, r.violations)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		files[typ] = entries
		messages += len(entries)
	}
	judgeLines(r.lines, files, r.violations)
	r.Log("said      %s", totals(r.lines))
	r.Log("files     %d messages of %d types", messages, len(types))
	return nil
}
