package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/conform"
	"github.com/fencepost/fencepost/internal/mongourl"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/spf13/cobra"
)

func conformCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Test whether a program follows the Fencepost protocol",
		Long:  "Conform tests programs that speak the protocol of docs/protocol.md: publishers in any language.",
		Args:  cli.NoArgs,
		Run:   cli.Help,
	}
	cmd.AddCommand(conformPublisherCommand())
	return cmd
}

func conformPublisherCommand() *cobra.Command {
	var c conformPublisher
	cmd := &cobra.Command{
		Use: "publisher --url mongodb://HOST [flags] -- COMMAND [ARGUMENT]…",

		DisableFlagsInUseLine: true,
		Short:                 "Inject faults around a publisher, and check that it loses and duplicates nothing",
		Long: `Conform publisher starts COMMAND, a publisher written in any language. COMMAND publishes the messages that it reads on stdin to the
database of FENCEPOST_URL in its environment, and prints their outcomes on stdout:

  {"line":17,"type":"orders","payload":"BASE64","headers":{"k":"v"},"key":"order-4711"}   one message per line; key may be missing
  ok LINE ID               it is stored, under this ID
  unknown LINE ID          it may be stored or not
  rejected LINE REASON     it is not stored, and never will be

At the end of stdin COMMAND waits for the outcomes of all messages, and ends with exit code 0. One publisher in COMMAND publishes all
messages of a type, in the order of the lines. Outcomes may be printed in any order.

FENCEPOST_URL goes through a proxy, which loses responses and requests, delivers requests late, stalls and cuts connections. COMMAND itself
is killed and restarted. One type is paused, and the backlog of another is limited. Then a worker drains everything, and conform checks the
files: each confirmed message is there once, and those of one run are in the order of their lines; no rejected message is there; none is
there twice. The requests of COMMAND are checked as well: IDs and their numbers, write concerns, one batch in flight, pauses.
docs/protocol.md has the rules.

Use a test server without TLS, named by one host. Conform creates its own database there, and drops it at the end. The same --seed publishes
the same messages and plans the same faults.

Exit code 0: COMMAND conforms. 3: it does not, and each broken rule is printed. 1: it could not be judged.

` + cli.ExitHelp,
		Example: `  fencepost conform publisher --url mongodb://127.0.0.1:27017 -- python3 clients/python/conform_adapter.py
  fencepost conform publisher --url mongodb://127.0.0.1:27017 --rounds 100 --seed 7 -- ./my-publisher --quiet`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no COMMAND; name the publisher after --, as in -- python3 clients/python/conform_adapter.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			defer cli.OnSignals(func() { cancel(cli.Stoppedf("stopped before the verdict")) }, func() { os.Exit(cli.ExitStopped) })()
			return c.run(ctx, cmd, args)
		},
	}
	cli.URLVar(cmd, &c.url, "", "test server: mongodb://host:port, without a database")
	cmd.Flags().IntVar(&c.rounds, "rounds", 14, "rounds of faults; there are 7 kinds")
	cmd.Flags().Uint64Var(&c.seed, "seed", 1, "seed of the messages and of the faults")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 2*time.Minute, "how long COMMAND may take to report outcomes, and to end")
	return cmd
}

// conformPublisher is one test of a publisher.
type conformPublisher struct {
	url     string
	rounds  int
	seed    uint64
	timeout time.Duration
}

func (c *conformPublisher) run(ctx context.Context, cmd *cobra.Command, command []string) (err error) {
	if c.rounds < 1 || c.timeout <= 0 {
		return cli.Usagef("--rounds and --timeout must be greater than 0")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return cli.Usagef("COMMAND: %w", err)
	}
	u, err := oneServer(ctx, c.url)
	if err != nil {
		return err
	}
	own, drop, err := ownDatabase("conform", "--url", u.String())
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { printable.Fprintf(cmd.OutOrStdout(), format+"\n", args...) }
	say("server    %s, seed %d", fencepost.Redact(own), c.seed)
	b, err := fencepost.Open(ctx, own)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBackend(b), drop()) }()
	broken, count, err := conform.Run(ctx, conform.Options{
		Command: command, Backend: b, Target: u.Host, Through: func(addr string) string { return throughProxy(own, addr) },
		Rounds: c.rounds, Seed: c.seed, Timeout: c.timeout, Log: say,
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	if count == 0 {
		say("verdict   the publisher conforms")
		return nil
	}
	for i, text := range broken {
		say("%4d  %s", i+1, text)
	}
	return &cli.Error{Code: cli.ExitIntegrity, Err: fmt.Errorf("the publisher does not conform: rules were broken %d times; docs/protocol.md has them", count)}
}

// oneServer returns the URL of a single server, in front of which a proxy can be placed.
func oneServer(ctx context.Context, raw string) (*url.URL, error) {
	if raw == "" {
		return nil, cli.Usagef("no server; name a test server with --url mongodb://host:port")
	}
	options, _, err := mongourl.Parse(ctx, raw)
	if err != nil {
		return nil, cli.Usagef("--url %w", err)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "mongodb" || len(options.Hosts) != 1 || options.TLSConfig != nil {
		return nil, cli.Usagef("--url %s: conform puts a proxy in front of the server, so name one server by one host, as in mongodb://127.0.0.1:27017, without TLS",
			fencepost.Redact(raw))
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "27017")
	}
	q := u.Query()
	q.Del("replicaSet") // the client would connect to its members directly, bypassing the proxy
	q.Set("directConnection", "true")
	u.RawQuery = q.Encode()
	return u, nil
}

// throughProxy returns the URL of the server through a proxy at addr.
func throughProxy(raw, addr string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err) // oneServer has parsed it
	}
	u.Host = addr
	return u.String()
}
