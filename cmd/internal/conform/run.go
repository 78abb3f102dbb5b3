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
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// Options say how a publisher is judged.
type Options struct {
	Command []string                 // the program
	Backend *fencepost.Backend       // a database that nobody else uses
	Target  string                   // host and port of its server
	Through func(addr string) string // its URL for a program that goes through a proxy at addr
	Rounds  int                      // of faults
	Seed    uint64                   // of what is published, and of the faults
	Timeout time.Duration            // how long the program may take for its answers, and for its end
	Log     func(format string, args ...any)
}

// The types that are published.
const (
	typeA       = "conform-a"
	typeB       = "conform-b"
	typePaused  = "conform-paused"
	typeLimited = "conform-limited"

	limit     = 5                      // messages of typeLimited that may be pending
	overLimit = 12                     // that are published
	lookAgain = 500 * time.Millisecond // so long, at least, it is watched whether the limit holds
)

// runner is one judgement.
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
	changed chan struct{} // closed and renewed when the program said something
}

// errBroken ends a judgement early: what is wrong is among the violations, and nothing more can be learned.
var errBroken = errors.New("the program cannot be judged any further")

// errSlow ends the draining: a server that is too busy, as a rule.
var errSlow = errors.New("the worker did not drain everything")

// Run judges a publisher. It returns the rules that it broke, and how many times it broke one; err is about what kept Run from judging.
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
	if err == nil || errors.Is(err, errBroken) { // what is in the files is worth a look all the same
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

// said notes what the program printed.
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
		r.add("it printed %.80q, and no such line waits for its answer", text)
		return
	}
	l := r.lines[a.line-1]
	l.said, l.id = a.status, a.id
	if a.status == ok && !r.record.isStored(l.typ, a.id) {
		r.add("%v was confirmed as %v before the server had confirmed that it is stored", l, a.id)
	}
}

// newLine is a new line for the program.
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

// await waits until a condition holds, the program has ended, or time is up; r.mu is held while it is asked.
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

// answered waits for the answers to lines.
func (r *runner) answered(ctx context.Context, lines []*line) error {
	all, err := r.await(ctx, func() bool { return !slices.ContainsFunc(lines, func(l *line) bool { return l.said == nothing }) })
	if all || err != nil {
		return err
	}
	return r.silent(lines)
}

// silent says that the program did not answer.
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
	r.add("the program did not answer %v %s; its last words on stderr: %q", lines[max(i, 0)], how, r.program.log.String())
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
		r.add("the program ended with %v behind the end of its input, want exit code 0; its last words on stderr: %q", r.program.ended, r.program.log.String())
	}
	return nil
}

func cause(err error) any {
	if err == nil {
		return "exit status 0"
	}
	return err
}

// settings checks that the program obeys what operators say about types.
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
	unread := r.record.knows() == noAnswer // a busy server: a publisher goes on without
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
	// Now there is room, again and again.
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

// full waits until as many messages are pending as the limit allows, and checks that no more are sent.
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
	sleep(max(lookAgain, 3*time.Since(began)), ctx.Done()) // a program that does not stop sends more in that time
	if n, _ := r.record.count(typeLimited); n > limit {
		r.add("%d messages of type %s were sent while its backlog limit was %d and nothing was drained", n, typeLimited, limit)
	}
	return nil
}

// pool is a worker for all types.
func (r *runner) pool(dir string, untilEmpty bool) (*worker.Pool, error) {
	return worker.New(worker.Config{
		Queue: r.Backend.Queue, Locker: r.Backend.Locker, AllTypes: true, UntilEmpty: untilEmpty,
		To:      worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}}, // the files live as long as the judgement
		OnError: worker.DeadLetter, MaxAttempts: 1, RetryMin: time.Millisecond,        // what the file cannot take is reported and holds nothing up
		GapTimeout: 2 * time.Second, HandOver: -1, NoScheduler: true,
	})
}

// judge drains what is left, and judges the files.
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
