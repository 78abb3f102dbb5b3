// Package workercmd is the worker program: cmd/worker runs it, and the demo starts it as child processes.
package workercmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/metrics"
	"github.com/spf13/cobra"
)

// closeTimeout bounds the closing of the backend, unless more of the grace is left; hurryTimeout bounds it once the grace is over, or after
// a second signal.
const (
	closeTimeout = 5 * time.Second
	hurryTimeout = time.Second
)

// errGrace is the cause of a session that was still busy when the grace was over.
var errGrace = errors.New("stopped before everything fetched was appended; the next worker continues from there")

// New returns the worker command.
func New() *cobra.Command {
	cmd := newCommand()
	cmd.AddCommand(configCommand())
	return cmd
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "worker --type TYPE [--type TYPE]…",
		Short: "Run a worker replica: append the messages of some types to their files",
		Long: `Worker is one replica of a Fencepost worker pool. It takes the lock of each of its types, appends that type's messages to
<dir>/<type>.fpl, and stands by for the types that another replica holds. Start as many as you like, on as many
machines as share the directory's storage; no type ever has two writers.

With --store the files are in a store that every machine reaches, so any replica goes on with any type on any machine. At startup it
tries whether the store keeps its word: of 32 that create the same value one must succeed.

With --ui the worker's --listen also serves pages about the queue and the files, read-only.

At startup it waits up to --connect-timeout for a usable server, for example while the server restarts or its replica set elects a primary.

On SIGTERM or SIGINT it finishes what it has fetched, releases its locks and exits with 0. A second signal exits at once (130).
Neither loses anything.

Every flag can be given as environment variable: FENCEPOST_URL, FENCEPOST_TYPE=orders,audit, FENCEPOST_BATCH_BYTES, …, or in a
file (--config, FENCEPOST_CONFIG). 'worker config' prints what is in force, and where it comes from.
` + cli.ExitHelp,
		Example: `  worker --type orders                                   # embedded: ./data/fencepost.db and ./data/orders.fpl
  worker --url mongodb://db1,db2,db3/shop --dir /srv/logs --type orders --type 'audit-*'
  worker --url mongodb://db1,db2,db3/shop --store mongodb: --type orders      # the files are in the database, too
  worker --all-types --until-empty                       # drain everything there is, then exit`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q; types are given as --type %s", args[0], args[0])
			}
			return nil
		},
	}
	var cfg worker.Config
	var files worker.Files
	batchBytes := cli.Size(worker.DefaultBatchBytes)
	var maxFile cli.Size
	url := cli.URLFlag(cmd)
	logs := cli.AddLogFlags(cmd)
	f := cmd.Flags()
	f.StringSliceVarP(&cfg.Types, "type", "t", nil, "type to serve, or a glob such as 'audit-*'; repeatable")
	f.BoolVar(&cfg.AllTypes, "all-types", false, "serve every type there is")
	f.StringVar(&files.Dir, "dir", "data", "directory of the files; created if missing")
	address := store.Flag(cmd)
	f.IntVar(&cfg.MaxTypes, "max-types", 0, "hold at most this many types at once; 0 means no limit")
	f.DurationVar(&cfg.Lease, "lease", worker.DefaultLease, "how long a type stays locked after its holder died")
	f.IntVar(&cfg.Batch, "batch", worker.DefaultBatch, "messages per batch, at most")
	f.Var(&batchBytes, "batch-bytes", "payload bytes per batch, at most (one message may be larger)")
	f.IntVar(&cfg.Prefetch, "prefetch", worker.DefaultPrefetch, "batches read ahead per type")
	f.DurationVar(&cfg.Linger, "linger", worker.DefaultLinger, "when a fetch brought less than a batch, wait this long for more. If not set: 20ms with --store, 1s with --store s3:, where each write is a request that is paid for")
	f.DurationVar(&cfg.GapTimeout, "gap-timeout", worker.DefaultGapTimeout, "how long to wait for a missing message of a producer before declaring a gap and appending the next ones")
	f.DurationVar(&cfg.IdleTimeout, "idle-timeout", worker.DefaultIdleTimeout, "release a type after this long without messages")
	f.DurationVar(&files.DedupeWindow, "dedupe-window", worker.DefaultDedupe, "append only one of the messages that are published with the same idempotency key within this time")
	f.Var(&maxFile, "max-file-size", "seal a file that has reached this size, and continue in a new one; 0 means no limit, or 1 GiB in a store")
	f.BoolVar(&files.Storage.Compress, "compress", false, "compress batches (zstd) where that saves a tenth or more")
	onError := cli.NewOneOf("block", "dead")
	f.Var(onError, "on-error", "a message that the file cannot take blocks its type (block), or becomes a dead letter (dead; see fencepost dead ls)")
	f.BoolVar(&cfg.NoScheduler, "no-scheduler", false, "do not promote delayed messages, of any type; if no worker does, they stay delayed")
	f.BoolVar(&cfg.UntilEmpty, "until-empty", false, "exit when all types are drained: with 0, or with 7 if messages remain that cannot be appended")
	f.BoolVar(&files.Storage.AllowOverlay, "allow-overlay", false, "accept a directory on an overlay file system (a container's own layer, which is lost with the container)")
	grace := f.Duration("grace", 20*time.Second, "after a signal, finish within this long")
	connectTimeout := f.Duration("connect-timeout", cli.ConnectTimeout, "at startup, wait this long for a usable server, for example while it restarts or elects a primary; 0 means forever")
	listen := f.String("listen", "", "serve HTTP here: /metrics, /livez, /readyz, /statusz, and pages with --ui. :9090 answers this machine only, 0.0.0.0:9090 any. There is no password but for the pages: not for open networks")
	listenHosts := f.StringSlice("listen-host", nil, "with --listen: a host name with a dot that clients use, as in worker.example.com; repeatable. Not needed for IP addresses, names without a dot and this machine's name")
	var pages pagesFlags
	pages.add(cmd)
	profile := f.Bool("pprof", false, "with --listen: profiles at /debug/pprof/")
	metricsTypes := ops.NewMetricsTypes()
	f.Var(metricsTypes, "metrics-types", "with --listen: types with series of their own in /metrics: all, none, or N of them as topN; the others are added up as type=\"_other\"")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.FromEnv(cmd); err != nil {
			return err
		}
		cfg.BatchBytes, files.MaxBytes = int64(batchBytes), int64(maxFile)
		if maxFile != 0 && maxFile < 1<<20 {
			return cli.Usagef("--max-file-size %s is too small; use at least 1MiB, or 0 for no bound", maxFile.String())
		}
		switch {
		case len(cfg.Types) == 0 && !cfg.AllTypes:
			return cli.Usagef("no type to serve; name at least one with --type, or give --all-types")
		case len(cfg.Types) > 0 && cfg.AllTypes:
			return cli.Usagef("--type and --all-types cannot be combined; leave out --all-types to serve only %s", strings.Join(cfg.Types, ", "))
		}
		// A zero in worker.Config means the default; a zero on the command line is a mistake. All is checked before anything is waited for.
		for _, err := range []error{
			cli.Between(cmd, "batch", cfg.Batch, 1, worker.MaxBatch, "1 to 100000 messages"),
			cli.Between(cmd, "batch-bytes", batchBytes, 1, worker.MaxBatchBytes, "1 B to 32 MiB"),
			cli.Between(cmd, "prefetch", cfg.Prefetch, 1, worker.MaxPrefetch, "1 to 64 batches"),
			cli.Between(cmd, "lease", cfg.Lease, lock.MinLease, lock.MaxLease, "1s to 24h"),
			cli.Between(cmd, "linger", cfg.Linger, 1, 0, "more than 0"),
			cli.Between(cmd, "gap-timeout", cfg.GapTimeout, 1, 0, "more than 0"),
			cli.Between(cmd, "idle-timeout", cfg.IdleTimeout, 1, 0, "more than 0"),
			cli.Between(cmd, "dedupe-window", files.DedupeWindow, 1, 0, "more than 0"),
			cli.Between(cmd, "grace", *grace, 1, 0, "more than 0"),
		} {
			if err != nil {
				return err
			}
		}
		if err := worker.ValidateTypes(cfg.Types); err != nil {
			return err
		}
		if err := store.CheckFlags(cmd, *address, *url); err != nil {
			return err
		}
		if *address == "" && files.Dir == "" {
			return cli.Usagef("--dir is empty; name the directory of the files, as in --dir data")
		}
		if *profile && *listen == "" {
			return cli.Usagef("--pprof needs --listen, as in --listen 127.0.0.1:9090")
		}
		if len(*listenHosts) > 0 && *listen == "" {
			return cli.Usagef("--listen-host needs --listen, as in --listen 0.0.0.0:9090")
		}
		if flag := f.Lookup("metrics-types"); flag.Changed && *listen == "" {
			return cli.Usagef("%s needs --listen, as in --listen 127.0.0.1:9090", cli.Where(flag))
		}
		for _, name := range *listenHosts {
			if name == "" || strings.ContainsAny(name, ":/*, ") {
				return cli.Usagef("--listen-host %q is not a host name; write it without port, as in --listen-host worker.example.com", name)
			}
		}
		if err := pages.check(cmd, *listen); err != nil {
			return err
		}
		if onError.Value == "dead" {
			cfg.OnError = worker.DeadLetter
		}
		settleLinger(cmd)
		log := logs.Logger(cmd.ErrOrStderr())
		cfg.Logger = &log
		return run(cmd.Context(), *url, *address, cfg, files, &pages, *grace, *connectTimeout, ops.Options{Addr: *listen, Hosts: *listenHosts, Pprof: *profile, Pages: pages.on,
			Metrics: []metrics.Option{metricsTypes.Option()}, URL: fencepost.Redact(*url), Store: cli.StoreName(*address),
			Settings: cli.Effective(cmd), Secrets: []string{redact.Userinfo(*url), redact.Userinfo(*address)}})
	}
	return cmd
}

// settleLinger makes the default of --linger that of the store, if there is one. It stays a default.
func settleLinger(cmd *cobra.Command) {
	address := cmd.Flags().Lookup("store").Value.String()
	if linger := cmd.Flags().Lookup("linger"); address != "" && !linger.Changed {
		_ = linger.Value.Set(store.Linger(address).String()) // a duration is valid
	}
}

func run(ctx context.Context, url, address string, cfg worker.Config, files worker.Files, pages *pagesFlags, grace, connectTimeout time.Duration, o ops.Options) (err error) {
	defer limitMemory()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Until the pool runs, the first signal already ends the program.
	var pool *worker.Pool
	stop := make(chan struct{})
	var stoppedAt atomic.Pointer[time.Time]
	done := cli.OnSignals(func() { stoppedAt.Store(new(time.Now())); close(stop) }, func() { cancel(context.Canceled) })
	defer done()

	var answers *ops.Server // nil: nobody asked for it
	if o.Addr != "" {
		if answers, err = ops.Listen(o); err != nil {
			return err
		}
		defer answers.Close()
		cfg.Observe = answers.Observe
		cfg.Logger.Info().Str("addr", answers.Addr()).Bool("pprof", o.Pprof).Bool("ui", o.Pages).Msg("answering HTTP: /metrics, /livez, /readyz, /statusz")
	}
	openCtx, opened := context.WithCancel(ctx)
	go func() {
		select {
		case <-stop:
			opened()
		case <-openCtx.Done():
		}
	}()
	defer opened()
	unopened := func(err error) error {
		select {
		case <-stop: // asked to stop before there was anything to stop
			if !cfg.UntilEmpty && ctx.Err() == nil {
				return nil
			}
			return &cli.Error{Code: cli.ExitStopped, Err: context.Canceled}
		default:
			return err
		}
	}
	waited := false
	waiting := func(name, reason string) {
		waited = true
		if answers != nil {
			answers.Waiting(name, reason)
		}
		cfg.Logger.Warn().Str("url", name).Str("reason", reason).Stringer("connect_timeout", connectTimeout).Msg("waiting for a usable server")
	}
	b, err := cli.Connect(openCtx, url, connectTimeout, func(reason string) { waiting(fencepost.Redact(url), reason) })
	if err != nil {
		return unopened(err)
	}
	defer func() {
		closing, cancel := context.WithDeadline(context.Background(), closeBy(stoppedAt.Load(), grace))
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(hurryTimeout, cancel) })()
		ask := func(ctx context.Context) error {
			_, err := b.Queue.AllSettings(ctx)
			return err
		}
		if cerr := closeBackend(closing, b.Close, ask); cerr != nil && err == nil {
			if ctx.Err() != nil { // a second signal
				err = &cli.Error{Code: cli.ExitStopped, Err: context.Canceled}
			}
			cfg.Logger.Warn().Err(cerr).Msg("not closed cleanly; a lock that was not released expires by itself")
		}
	}()
	var place *store.Place
	if address != "" {
		name := cli.StoreName(address)
		place, err = cli.Await(openCtx, name, connectTimeout, func(reason string) { waiting(name, reason) },
			func(ctx context.Context) (*store.Place, error) { return openStore(ctx, address, url) })
		if err != nil {
			return unopened(err)
		}
		defer place.Close()
		files.Storage.FS, files.Dir = place.Until(ctx), place.Dir
		if answers != nil {
			files.Storage.FS = place.Observed(ctx, answers.ObserveStore())
		}
	}
	if pages.on {
		defer pages.open(answers, b, files.Dir, place, *cfg.Logger)() // before the backend is closed
	}
	opened()
	cfg.Queue, cfg.Locker, cfg.To = b.Queue, b.Locker, files
	cfg.HandOver = min(worker.DefaultHandOver, grace/4)
	if pool, err = worker.New(cfg); err != nil {
		return err
	}
	if answers != nil {
		answers.Attach(pool, cfg)
	}
	log := *cfg.Logger
	if waited {
		log.Info().Msg("the server is usable now")
	}
	where := "dir"
	if address != "" {
		where = "store"
	}
	log.Info().Str("url", b.Name).Str(where, files.Dir).Strs("types", cfg.Types).Bool("all_types", cfg.AllTypes).
		Str("version", worker.Version()).Msg("worker started; SIGTERM or SIGINT: finish and exit, again: exit at once")
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-stop:
		case <-stopped:
			return
		}
		log.Info().Dur("grace", grace).Msg("stopping: finishing what was fetched")
		if answers != nil {
			answers.Stopping()
		}
		pool.Stop()
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(errGrace)
		case <-stopped:
		}
	}()
	err = pool.Run(ctx)
	if answers != nil {
		answers.Close() // before the queue is closed
	}
	s := pool.Stats()
	log.Info().Int("types", s.Types).Uint64("sessions", s.Sessions).Uint64("appended", s.Appended).Uint64("bytes", s.Bytes).
		Uint64("duplicates", s.Duplicates).Uint64("repeated", s.Repeated).Uint64("gaps", s.Gaps).Uint64("dead", s.Dead).Uint64("lost", s.Lost).Msg("worker done")
	var needSpace *storage.NoSpaceError
	if errors.As(err, &needSpace) {
		return fmt.Errorf("%w (nothing is lost: what is not in the file is still in the queue)", err)
	}
	return err
}
