package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/api"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
)

const (
	serveShutdown = time.Second            // for responses still being sent after all requests are settled
	serveMemory   = 512 << 20              // bytes, see memoryLimit: a server has many clients
	serveGarbage  = 400                    // percent of the live heap, see debug.SetGCPercent: it is small, and each request leaves garbage
	tailOfDir     = 200 * time.Millisecond // poll interval of a tail
	tailOfStore   = time.Second            // the same in a store, where each poll is a request
	tailHeartbeat = 5 * time.Second
)

// serveFlags are the flags of fencepost serve.
type serveFlags struct {
	url, dir, store     *string
	listen              string
	hosts               []string
	tokenFile           string
	cert, key, clientCA string
	wait, client, stop  time.Duration
	connectTimeout      time.Duration
	mostConnections     int
	mostUp              cli.Count
	log                 *cli.LogFlags
	access              api.Access
	open                bool // whether it listens to other machines
}

func serveCommand() *cobra.Command { return new(serveFlags).command() }

func (f *serveFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Publish and read messages over HTTP",
		Long: `Serve lets programs in any language publish messages, read the messages in the files, and follow them as they are appended, over HTTP. It prints
its address. docs/http.md in the repository shows how to use it, docs/openapi.yaml describes every request.

A publish request is answered when the message is stored durably or refused. If the outcome is unknown, the answer is 504. It is then safe to
repeat the request with the same Idempotency-Key.

By default it answers this machine only and requires no token. To be reachable from other machines it needs --token-file or --client-ca.

It reads the files in --dir on this machine, or in --store.

On SIGTERM or SIGINT it finishes the requests in progress, for up to --stop-timeout, answers new ones with 503, and ends. A second signal ends it
at once; clients then do not know the outcome of requests in progress.

Token and certificate files are read again after they change.`,
		Example: `  fencepost serve
  fencepost serve token shop --allow publish --types 'orders,invoices.*' >>tokens
  fencepost serve --url mongodb://localhost/shop --store mongodb: --listen :8080
  fencepost serve --listen 0.0.0.0:9096 --token-file tokens --tls-cert tls.crt --tls-key tls.key`,
		Args: cli.NoArgs,
	}
	f.url = cli.URLFlag(cmd)
	f.dir = cmd.Flags().String("dir", "data", "directory of the files")
	f.store = store.Flag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:9096", "address to answer at; port 0 takes a free one")
	fl.StringSliceVar(&f.hosts, "listen-host", nil, "host name accepted in requests, in addition to the machine's own and names without a dot; repeatable")
	fl.StringVar(&f.tokenFile, "token-file", "", "file of tokens, one of which each request must present: lines printed by fencepost serve token")
	fl.StringVar(&f.cert, "tls-cert", "", "certificate of the server, followed by any intermediate certificates, as PEM")
	fl.StringVar(&f.key, "tls-key", "", "key of --tls-cert, as PEM")
	fl.StringVar(&f.clientCA, "client-ca", "", "certificates of authorities, as PEM: each client needs a certificate signed by one of them, except for /livez and /readyz")
	fl.DurationVar(&f.wait, "timeout", 30*time.Second, "how long a publish waits for its outcome")
	fl.DurationVar(&f.client, "client-timeout", 30*time.Second, "how long a client may keep the server waiting while it sends a request or receives a response")
	fl.DurationVar(&f.stop, "stop-timeout", 30*time.Second, "how long to wait for requests in progress when stopping")
	fl.DurationVar(&f.connectTimeout, "connect-timeout", cli.ConnectTimeout, "at startup, wait this long for a usable server, for example while it restarts or elects a primary")
	fl.IntVar(&f.mostConnections, "max-connections", 256, "requests in progress at a time; a few more connections are reserved for probes")
	f.mostUp = backlog.DefaultMax
	fl.Var(&f.mostUp, "count-up-to", "count at most this many messages of a type")
	f.log = cli.AddLogFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(cmd); err != nil {
			return err
		}
		return f.run(cmd)
	}
	cmd.AddCommand(serveTokenCommand())
	return cmd
}

func (f *serveFlags) check(cmd *cobra.Command) error {
	switch {
	case f.mostUp < 1:
		return cli.Usagef("--count-up-to %d: count at least 1", f.mostUp)
	case f.mostConnections < 1:
		return cli.Usagef("--max-connections %d: allow at least 1", f.mostConnections)
	case f.wait < 3*time.Second || f.wait > 10*time.Minute:
		return cli.Usagef("--timeout %v: use 3s to 10m", f.wait)
	case f.client < time.Second:
		return cli.Usagef("--client-timeout %v: use at least 1s", f.client)
	case f.connectTimeout <= 0:
		return cli.Usagef("--connect-timeout %v: give it a time, as in 30s or 10m", f.connectTimeout)
	case (f.cert == "") != (f.key == ""):
		return cli.Usagef("--tls-cert and --tls-key go together: name both files")
	case f.clientCA != "" && f.cert == "":
		return cli.Usagef("--client-ca needs TLS: name the server's own certificate with --tls-cert and --tls-key")
	}
	if err := cmp.Or(ops.CheckHosts(f.hosts), store.CheckFlags(cmd, *f.store, *f.url)); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(f.listen)
	f.open = err == nil && !cli.Loopback(host) // ops.Open reports an error
	// rule: a server that other machines can reach requires credentials. Without them, anyone could publish, and read every message.
	if f.open && f.tokenFile == "" && f.clientCA == "" {
		return cli.Sourced(cmd.Flags().Lookup("listen"), cli.Usagef("--listen %s is reachable from other machines, where anyone could publish and read; "+
			"require tokens with --token-file, or certificates with --client-ca, or listen on 127.0.0.1", f.listen))
	}
	return f.load()
}

// load reads the credential files.
func (f *serveFlags) load() (err error) {
	if f.tokenFile != "" {
		if f.access.Tokens, err = api.LoadTokens(f.tokenFile); err != nil {
			return cli.Usagef("--token-file: %w; fencepost serve token NAME makes a line", err)
		}
	}
	if f.cert != "" {
		if f.access.TLS, err = api.LoadTLS(f.cert, f.key, f.clientCA); err != nil {
			return cli.Usagef("--tls-cert, --tls-key, --client-ca: %w", err)
		}
	}
	return nil
}

// run answers probes, connects, and serves until a signal.
func (f *serveFlags) run(cmd *cobra.Command) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(serveMemory)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(serveGarbage)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	patient, hurry := context.WithCancel(context.Background())
	defer hurry()
	defer cli.OnSignals(cancel, hurry)()
	log := f.log.Logger(cmd.ErrOrStderr())
	poll := tailOfDir
	if *f.store != "" {
		poll = tailOfStore
	}
	s := api.New(api.Options{Poll: poll, Access: f.access, Hosts: f.hosts, Wait: f.wait, ClientTimeout: f.client, Heartbeat: tailHeartbeat,
		MaxConnections: f.mostConnections, CountUpTo: int(f.mostUp), Log: log}, "connecting to "+fencepost.Redact(*f.url))
	l, host, err := ops.Open(f.listen)
	if err != nil {
		return cli.Sourced(cmd.Flags().Lookup("listen"), err)
	}
	if f.open && f.access.TLS == nil {
		log.Warn().Msg("tokens and messages cross the network unencrypted; use --tls-cert, or let only a proxy with TLS reach this address")
	}
	server, scheme := s.HTTP(host), "http"
	served := make(chan error, 1)
	if f.access.TLS != nil {
		scheme = "https"
		go func() { served <- server.ServeTLS(l, "", "") }()
	} else {
		go func() { served <- server.Serve(l) }()
	}
	log.Info().Str("addr", l.Addr().String()).Msg("answering probes: /livez, /readyz")
	disconnect, err := f.connect(ctx, patient, s, log)
	defer disconnect()
	if err != nil {
		return errors.Join(err, shutDown(server))
	}
	printable.Fprintf(cmd.OutOrStdout(), "%s://%s/\n", scheme, shownAddress(host, l.Addr()))
	select {
	case <-ctx.Done():
		log.Info().Msg("stopping: requests in progress are finished, new ones are refused")
	case err = <-served:
		err = fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	stopCtx, cancelStop := context.WithTimeout(patient, f.stop)
	defer cancelStop()
	err = errors.Join(err, s.Close(stopCtx))
	return errors.Join(err, shutDown(server))
}

// connect starts s with the queue and the files. Requests to a store end with patient.
func (f *serveFlags) connect(ctx, patient context.Context, s *api.Server, log zerolog.Logger) (disconnect func(), err error) {
	waiting := func(url string) func(reason string) {
		return func(reason string) {
			s.Waiting(fmt.Sprintf("waiting for a usable server at %s: %s", url, reason))
			log.Warn().Str("url", url).Str("reason", reason).Msg("waiting for a usable server")
		}
	}
	b, err := cli.Connect(ctx, *f.url, f.connectTimeout, waiting(fencepost.Redact(*f.url)))
	if err != nil {
		return func() {}, err
	}
	disconnect = func() { closeBackend(b) }
	var place *store.Place
	if *f.store != "" {
		name := cli.StoreName(*f.store)
		place, err = cli.Await(ctx, name, f.connectTimeout, waiting(name), func(ctx context.Context) (*store.Place, error) { return store.Open(ctx, *f.store, *f.url) })
		if err != nil {
			return disconnect, err
		}
		place.FS = place.FS.Until(patient)
		disconnect = func() { place.Close(); closeBackend(b) }
	}
	return disconnect, s.Start(ctx, b, store.FilesOf(place, *f.dir))
}

// shutDown closes the port and all connections.
func shutDown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), serveShutdown)
	defer cancel()
	if server.Shutdown(ctx) == nil {
		return nil
	}
	return server.Close()
}

func serveTokenCommand() *cobra.Command {
	allow := []string{"publish"}
	var types []string
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Create a token for a client, and its line for --token-file",
		Long: `Token creates a new random token. It prints the token for the client on stderr, and on stdout the line for the file that --token-file names. The
line contains only a hash, so the token cannot be shown again. To revoke a token, remove its line.`,
		Example: `  fencepost serve token shop >>tokens
  fencepost serve token billing --allow publish,read --types 'orders,invoices.*' >>tokens`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("name one client, as in fencepost serve token shop")
			}
			if f := cmd.Flags().Lookup("types"); f.Changed && len(types) == 0 {
				return cli.Usagef("%s names no type; name some, or leave it out for a token of all types", cli.Where(f))
			}
			secret, line, err := api.NewToken(args[0], allow, types)
			if err != nil {
				return cli.Usagef("%w", err)
			}
			// The line comes first: the server would refuse a token whose line is not in the file.
			if _, err := printable.Fprintf(cmd.OutOrStdout(), "%s\n", line); err != nil {
				return fmt.Errorf("the line of the token was not written completely, so the token is not shown; remove the incomplete line and run this again: %w", err)
			}
			_, err = printable.Fprintf(cmd.ErrOrStderr(), "the token of %s, shown only once: %s\n", args[0], secret)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&allow, "allow", allow, "what the client may do: publish, read")
	cmd.Flags().StringSliceVar(&types, "types", nil, "types that the client may use, as names or globs such as 'orders.*'; without, all")
	return cmd
}
