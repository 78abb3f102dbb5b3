package workercmd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// closeTimeout bounds the closing of the backend, unless more of the grace period is left; hurryTimeout bounds it after the grace period, or
// after a second signal.
const (
	closeTimeout = 5 * time.Second
	hurryTimeout = time.Second
)

// errGrace is the cancellation cause of sessions that are still busy at the end of the grace period.
var errGrace = errors.New("stopped before everything fetched was appended; the next worker continues from there")

// replica is a running worker.
type replica struct {
	*program
	stop      chan struct{} // closed by the first signal
	stoppedAt atomic.Pointer[time.Time]
	answers   *ops.Server // nil without --listen
	waited    bool        // whether it had to wait for a usable server
}

// run checks the directory, opens the HTTP server, the queue with its locks, the store and the pages, in this order, runs the pool, and closes them in reverse
// order.
func (p *program) run(ctx context.Context, o ops.Options) (err error) {
	defer limitMemory()()
	if *p.address == "" {
		// Otherwise it would be ready until the first message. Whether there is room is not checked: that changes while it runs.
		if err := storage.CheckWritable(p.files.Dir, p.files.Storage); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &replica{program: p, stop: make(chan struct{})}
	done := cli.OnSignals(r.askedToStop, func() { cancel(context.Canceled) })
	defer done()
	if o.Addr != "" {
		if err := r.answer(o); err != nil {
			return err
		}
		defer r.answers.Close()
	}
	b, place, err := r.open(ctx)
	if b != nil {
		defer func() { err = r.close(ctx, b, err) }()
	}
	if place != nil {
		defer place.Close()
	}
	if err != nil {
		return r.unopened(ctx, err)
	}
	if place != nil {
		p.files.Storage.FS, p.files.Dir = place.Until(ctx), place.Dir
		if r.answers != nil {
			p.files.Storage.FS = place.Observed(ctx, r.answers.ObserveStore())
		}
	}
	if r.answers != nil {
		defer r.answers.Close() // before the queue is closed
	}
	if p.pages.on {
		defer p.pages.open(r.answers, b, p.files.Dir, place, *p.cfg.Logger)() // closed before answers, which would wait for open pages
	}
	return r.work(ctx, cancel, b)
}

func (r *replica) askedToStop() {
	r.stoppedAt.Store(new(time.Now()))
	close(r.stop)
}

// answer starts the HTTP server.
func (r *replica) answer(o ops.Options) (err error) {
	if r.answers, err = ops.Listen(o); err != nil {
		return err
	}
	r.cfg.Observe = r.answers.Observe
	r.cfg.Logger.Info().Str("addr", r.answers.Addr()).Bool("pprof", o.Pprof).Bool("ui", o.Pages).Msg("answering HTTP: /metrics, /livez, /readyz, /statusz")
	return nil
}

// open waits for a usable server and, with --store, for a usable store, until the first signal.
func (r *replica) open(ctx context.Context) (b *fencepost.Backend, place *store.Place, err error) {
	ctx, opened := context.WithCancel(ctx)
	defer opened()
	go func() {
		select {
		case <-r.stop:
			opened()
		case <-ctx.Done():
		}
	}()
	b, err = cli.Connect(ctx, *r.url, r.connectTimeout, func(reason string) { r.waiting(fencepost.Redact(*r.url), reason) })
	if err != nil || *r.address == "" {
		return b, nil, err
	}
	name := cli.StoreName(*r.address)
	place, err = cli.Await(ctx, name, r.connectTimeout, func(reason string) { r.waiting(name, reason) },
		func(ctx context.Context) (*store.Place, error) { return openStore(ctx, *r.address, *r.url) })
	return b, place, err
}

// waiting reports that the server or the store at address is not usable yet.
func (r *replica) waiting(address, reason string) {
	r.waited = true
	if r.answers != nil {
		r.answers.Waiting(address, reason)
	}
	r.cfg.Logger.Warn().Str("url", address).Str("reason", reason).Stringer("connect_timeout", r.connectTimeout).Msg("waiting for a usable server")
}

// unopened returns the program's error after open has failed with err. It is nil if the worker was asked to stop before there was anything to
// stop.
func (r *replica) unopened(ctx context.Context, err error) error {
	select {
	case <-r.stop:
		if !r.cfg.UntilEmpty && ctx.Err() == nil {
			return nil
		}
		return &cli.Error{Code: cli.ExitStopped, Err: context.Canceled}
	default:
		return err
	}
}

// close closes the queue and the locks. It returns err, or the error of closing if the program must exit with that one.
func (r *replica) close(ctx context.Context, b *fencepost.Backend, err error) error {
	closing, cancel := context.WithDeadline(context.Background(), closeBy(r.stoppedAt.Load(), r.grace))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(hurryTimeout, cancel) })()
	ask := func(ctx context.Context) error {
		_, err := b.Queue.AllSettings(ctx)
		return err
	}
	if cerr := closeBackend(closing, b.Close, ask); cerr != nil && err == nil {
		r.cfg.Logger.Warn().Err(cerr).Msg("not closed cleanly; a lock that was not released will expire")
		if ctx.Err() != nil { // a second signal
			return &cli.Error{Code: cli.ExitStopped, Err: context.Canceled}
		}
	}
	return err
}

// work runs the pool until it ends or is stopped.
func (r *replica) work(ctx context.Context, cancel context.CancelCauseFunc, b *fencepost.Backend) error {
	r.cfg.Queue, r.cfg.Locker, r.cfg.To = b.Queue, b.Locker, r.files
	r.cfg.HandOver = min(worker.DefaultHandOver, r.grace/4)
	pool, err := worker.New(r.cfg)
	if err != nil {
		return err
	}
	if r.answers != nil {
		r.answers.Attach(pool, r.cfg)
	}
	r.tellStart(b)
	ended := make(chan struct{})
	defer close(ended)
	go r.stopPool(pool, cancel, ended)
	err = pool.Run(ctx)
	r.tellEnd(pool.Stats())
	if _, ok := errors.AsType[*storage.NoSpaceError](err); ok {
		return fmt.Errorf("%w; messages that are not in the file are still in the queue", err)
	}
	return err
}

// stopPool stops the pool after the first signal, and cancels the sessions still running at the end of the grace period. It returns after the
// pool has ended, or after that cancellation.
func (r *replica) stopPool(pool *worker.Pool, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	select {
	case <-r.stop:
	case <-ended:
		return
	}
	r.cfg.Logger.Info().Dur("grace", r.grace).Msg("stopping: finishing the fetched messages")
	if r.answers != nil {
		r.answers.Stopping()
	}
	pool.Stop()
	t := time.NewTimer(r.grace)
	defer t.Stop()
	select {
	case <-t.C:
		cancel(errGrace)
	case <-ended:
	}
}

func (r *replica) tellStart(b *fencepost.Backend) {
	log := r.cfg.Logger
	if r.waited {
		log.Info().Msg("the server is usable now")
	}
	where := "dir"
	if *r.address != "" {
		where = "store"
	}
	log.Info().Str("url", b.Name).Str(where, r.files.Dir).Strs("types", r.cfg.Types).Bool("all_types", r.cfg.AllTypes).
		Str("version", worker.Version()).Msg("worker started; SIGTERM or SIGINT: finish and exit, again: exit at once")
}

func (r *replica) tellEnd(s worker.Stats) {
	r.cfg.Logger.Info().Int("types", s.Types).Uint64("sessions", s.Sessions).Uint64("appended", s.Appended).Uint64("bytes", s.Bytes).
		Uint64("duplicates", s.Duplicates).Uint64("repeated", s.Repeated).Uint64("gaps", s.Gaps).Uint64("dead", s.Dead).Uint64("lost", s.Lost).Msg("worker done")
}
