// Package workercmd is the worker program: cmd/worker runs it, and the demo starts it as child processes.
package workercmd

import (
	"cmp"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/metrics"
	"github.com/spf13/cobra"
)

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
<dir>/<type>.fpl, and stands by for the types that another replica holds. Start as many as you like on the machine of the directory; no
type ever has two writers.

At startup it tests whether it may write to the directory, or create it.

With --store the files are in a store that every machine can reach: start replicas on any machine, and any of them can continue any type. At
startup the worker tests the store: of 32 simultaneous attempts to create the same value, exactly one must succeed.

With --ui the address of --listen also serves read-only pages about the queue and the files.

At startup it waits up to --connect-timeout for a usable server, for example while the server restarts or its replica set elects a primary.

On SIGTERM or SIGINT it finishes the messages that it has fetched, releases its locks and exits with 0; with 1 if --grace ends first, with 3
if a type was refused. A second signal exits at once (130). None of this loses a message.

Every flag can be given as environment variable: FENCEPOST_URL, FENCEPOST_TYPE=orders,audit, FENCEPOST_BATCH_BYTES, …, or in a
file (--config, FENCEPOST_CONFIG). 'worker config' prints the effective settings and their sources.
` + cli.ExitHelp,
		Example: `  worker --type orders                                   # embedded: ./data/fencepost.db and ./data/orders.fpl
  worker --url mongodb://db1,db2,db3/shop --dir /srv/logs --type orders --type 'audit-*'    # the files are on this machine
  worker --url mongodb://db1,db2,db3/shop --store mongodb: --type orders      # the files are in the database, for any machine
  worker --all-types --until-empty                       # drain everything, then exit`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q; types are given as --type %s", args[0], args[0])
			}
			return nil
		},
	}
	p := &program{batchBytes: worker.DefaultBatchBytes, onError: cli.NewOneOf("block", "dead"), metricsTypes: ops.NewMetricsTypes()}
	p.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(cmd); err != nil {
			return err
		}
		p.settle(cmd)
		return p.run(cmd.Context(), ops.Options{Addr: p.listen, Hosts: p.listenHosts, Pprof: p.profile, Pages: p.pages.on,
			Metrics: []metrics.Option{p.metricsTypes.Option()}, URL: fencepost.Redact(*p.url), Store: cli.StoreName(*p.address),
			Settings: cli.Effective(cmd), Secrets: []string{redact.Userinfo(*p.url), redact.Userinfo(*p.address)}})
	}
	return cmd
}

// program is a worker with its flags. cfg and files hold the flags that the pool uses directly.
type program struct {
	cfg            worker.Config
	files          worker.Files
	url, address   *string // of the queue and of the store
	batchBytes     cli.Size
	maxFile        cli.Size
	onError        *cli.OneOf
	grace          time.Duration
	connectTimeout time.Duration
	logs           *cli.LogFlags

	listen       string
	listenHosts  []string
	profile      bool
	metricsTypes *ops.MetricsTypes
	pages        pagesFlags
}

func (p *program) addFlags(cmd *cobra.Command) {
	p.url = cli.URLFlag(cmd)
	p.logs = cli.AddLogFlags(cmd)
	f := cmd.Flags()
	cfg, files := &p.cfg, &p.files
	f.StringSliceVarP(&cfg.Types, "type", "t", nil, "type to serve, or a glob such as 'audit-*'; repeatable")
	f.BoolVar(&cfg.AllTypes, "all-types", false, "serve every type")
	f.StringVar(&files.Dir, "dir", "data", "directory of the files; created if missing")
	p.address = store.Flag(cmd)
	f.IntVar(&cfg.MaxTypes, "max-types", 0, "hold at most this many types at once; 0 means no limit")
	f.DurationVar(&cfg.Lease, "lease", worker.DefaultLease, "how long a type stays locked after its holder died")
	f.IntVar(&cfg.Batch, "batch", worker.DefaultBatch, "at most this many messages per batch")
	f.Var(&p.batchBytes, "batch-bytes", "at most this many payload bytes per batch (a single message may be larger)")
	f.IntVar(&cfg.Prefetch, "prefetch", worker.DefaultPrefetch, "batches read ahead per type")
	f.DurationVar(&cfg.Linger, "linger", worker.DefaultLinger, "when a fetch returned less than a batch, wait this long for more. If not set: 20ms with --store, 1s with --store s3:, where each write request costs money")
	f.DurationVar(&cfg.GapTimeout, "gap-timeout", worker.DefaultGapTimeout, "how long to wait for a missing message of a producer before declaring a gap and appending the next ones")
	f.DurationVar(&cfg.IdleTimeout, "idle-timeout", worker.DefaultIdleTimeout, "release a type after this long without messages")
	f.DurationVar(&files.DedupeWindow, "dedupe-window", worker.DefaultDedupe, "append only one of the messages published with the same idempotency key within this time")
	f.Var(&p.maxFile, "max-file-size", "seal a file that has reached this size, and continue in a new one; 0 means no limit, or 1 GiB in a store")
	f.BoolVar(&files.Storage.Compress, "compress", false, "compress batches (zstd) where that saves a tenth or more")
	f.Var(p.onError, "on-error", "a message that the file refuses blocks its type (block), or becomes a dead letter (dead; see fencepost dead ls)")
	f.BoolVar(&cfg.NoScheduler, "no-scheduler", false, "do not promote delayed messages, of any type; if no worker does, they stay delayed")
	f.BoolVar(&cfg.UntilEmpty, "until-empty", false, "exit after all types are drained: with 0, or with 7 if messages remain that cannot be appended")
	f.BoolVar(&files.Storage.AllowOverlay, "allow-overlay", false, "accept a directory on an overlay file system (a container's own layer, which is lost with the container)")
	f.DurationVar(&p.grace, "grace", 20*time.Second, "after a signal, finish within this long")
	f.DurationVar(&p.connectTimeout, "connect-timeout", cli.ConnectTimeout, "at startup, wait this long for a usable server, for example while it restarts or elects a primary; 0 means forever")
	f.StringVar(&p.listen, "listen", "", "serve HTTP here: /metrics, /livez, /readyz, /statusz, and pages with --ui. :9090 answers this machine only, 0.0.0.0:9090 any. Only the pages require a password: do not use it on open networks")
	f.StringSliceVar(&p.listenHosts, "listen-host", nil, "with --listen: a host name with a dot that clients use, as in worker.example.com; repeatable. Not needed for IP addresses, names without a dot and this machine's name")
	p.pages.add(cmd)
	f.BoolVar(&p.profile, "pprof", false, "with --listen: profiles at /debug/pprof/")
	f.Var(p.metricsTypes, "metrics-types", "with --listen: types that have their own series in /metrics: all, none, or N of them as topN; the others are added up as type=\"_other\"")
}

// check refuses wrong flags, before run waits for anything.
func (p *program) check(cmd *cobra.Command) error {
	if p.maxFile != 0 && p.maxFile < 1<<20 {
		return cli.Usagef("--max-file-size %s is too small; use at least 1MiB, or 0 for no bound", p.maxFile.String())
	}
	types := p.cfg.Types
	switch {
	case len(types) == 0 && !p.cfg.AllTypes:
		return cli.Usagef("no type to serve; name at least one with --type, or give --all-types")
	case len(types) > 0 && p.cfg.AllTypes:
		return cli.Usagef("--type and --all-types cannot be combined; leave out --all-types to serve only %s", strings.Join(types, ", "))
	}
	if err := p.checkNumbers(cmd); err != nil {
		return err
	}
	if err := worker.ValidateTypes(types); err != nil {
		return err
	}
	if err := store.CheckFlags(cmd, *p.address, *p.url); err != nil {
		return err
	}
	if *p.address == "" && p.files.Dir == "" {
		return cli.Usagef("--dir is empty; name the directory of the files, as in --dir data")
	}
	return p.checkListen(cmd)
}

// checkNumbers refuses numbers out of range. A zero in worker.Config means the default; a zero on the command line is a mistake.
func (p *program) checkNumbers(cmd *cobra.Command) error {
	return cmp.Or(
		cli.Between(cmd, "batch", p.cfg.Batch, 1, worker.MaxBatch, "1 to 100000 messages"),
		cli.Between(cmd, "batch-bytes", p.batchBytes, 1, worker.MaxBatchBytes, "1 B to 32 MiB"),
		cli.Between(cmd, "prefetch", p.cfg.Prefetch, 1, worker.MaxPrefetch, "1 to 64 batches"),
		cli.Between(cmd, "lease", p.cfg.Lease, lock.MinLease, lock.MaxLease, "1s to 24h"),
		cli.Between(cmd, "linger", p.cfg.Linger, 1, 0, "more than 0"),
		cli.Between(cmd, "gap-timeout", p.cfg.GapTimeout, 1, 0, "more than 0"),
		cli.Between(cmd, "idle-timeout", p.cfg.IdleTimeout, 1, 0, "more than 0"),
		cli.Between(cmd, "dedupe-window", p.files.DedupeWindow, 1, 0, "more than 0"),
		cli.Between(cmd, "grace", p.grace, 1, 0, "more than 0"),
	)
}

// checkListen checks --listen, and the flags that need it.
func (p *program) checkListen(cmd *cobra.Command) error {
	if p.profile && p.listen == "" {
		return cli.Usagef("--pprof needs --listen, as in --listen 127.0.0.1:9090")
	}
	if len(p.listenHosts) > 0 && p.listen == "" {
		return cli.Usagef("--listen-host needs --listen, as in --listen 0.0.0.0:9090")
	}
	if flag := cmd.Flags().Lookup("metrics-types"); flag.Changed && p.listen == "" {
		return cli.Usagef("%s needs --listen, as in --listen 127.0.0.1:9090", cli.Where(flag))
	}
	if err := ops.CheckHosts(p.listenHosts); err != nil {
		return err
	}
	return p.pages.check(cmd, p.listen)
}

// settle completes cfg and files from the flags that need conversion.
func (p *program) settle(cmd *cobra.Command) {
	p.cfg.BatchBytes, p.files.MaxBytes = int64(p.batchBytes), int64(p.maxFile)
	if p.onError.Value == "dead" {
		p.cfg.OnError = worker.DeadLetter
	}
	settleLinger(cmd)
	log := p.logs.Logger(cmd.ErrOrStderr())
	p.cfg.Logger = &log
}

// settleLinger sets the default of --linger to that of the store, if there is one. The flag still counts as not set.
func settleLinger(cmd *cobra.Command) {
	address := cmd.Flags().Lookup("store").Value.String()
	if linger := cmd.Flags().Lookup("linger"); address != "" && !linger.Changed {
		_ = linger.Value.Set(store.Linger(address).String()) // a duration is valid
	}
}
