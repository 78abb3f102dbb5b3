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
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(conformPublisherCommand())
	return cmd
}

func conformPublisherCommand() *cobra.Command {
	var c conformPublisher
	cmd := &cobra.Command{
		Use: "publisher --url mongodb://HOST [flags] -- COMMAND [ARGUMENT]…",

		DisableFlagsInUseLine: true,
		Short:                 "Break everything around a publisher, and check that it loses and doubles nothing",
		Long: `Conform publisher starts COMMAND, a publisher written in any language. COMMAND publishes what it reads on stdin to the database of
FENCEPOST_URL in its environment, and prints what became of it on stdout:

  {"line":17,"type":"orders","payload":"BASE64","headers":{"k":"v"},"key":"order-4711"}   one message per line; key may be missing
  ok LINE ID               it is stored, under this ID
  unknown LINE ID          it may be stored or not
  rejected LINE REASON     it is not stored, and never will be

At the end of stdin COMMAND settles what it has read, and ends with exit code 0. One publisher of COMMAND publishes all messages of a type,
in the order of the lines. Answers may come in any order.

FENCEPOST_URL goes through a proxy, which loses answers and requests, delivers requests late, stalls and cuts connections. COMMAND itself is
killed and started again. A type is paused, and the backlog of another one is limited. Then a worker drains everything, and the files are
judged: each confirmed message is there once, those of a run in the order of their lines; no rejected one is there; none is there twice. What
COMMAND sends is judged as well: IDs and their numbers, write concerns, one batch in flight, pauses. docs/protocol.md has the rules.

The server is one for tests, without TLS, named by one host. Conform makes a database of its own there, and drops it. The same --seed
publishes the same messages and plans the same faults.

Exit code 0: COMMAND conforms. 3: it does not, and each broken rule is printed. 1: it could not be judged.

` + cli.ExitHelp,
		Example: `  fencepost conform publisher --url mongodb://127.0.0.1:27017 -- python3 clients/python/conform_adapter.py
  fencepost conform publisher --url mongodb://127.0.0.1:27017 --rounds 100 --seed 7 -- ./my-publisher --quiet`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no COMMAND; name the publisher behind --, as in -- python3 clients/python/conform_adapter.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.FromEnv(cmd); err != nil {
				return err
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			defer cli.OnSignals(func() { cancel(cli.Stoppedf("stopped before the verdict")) }, func() { os.Exit(cli.ExitStopped) })()
			return c.run(ctx, cmd, args)
		},
	}
	cli.URLVar(cmd, &c.url, "", "server for tests: mongodb://host:port, without a database")
	cmd.Flags().IntVar(&c.rounds, "rounds", 14, "rounds of faults; there are 7 kinds")
	cmd.Flags().Uint64Var(&c.seed, "seed", 1, "seed of the messages and of the faults")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 2*time.Minute, "how long COMMAND may take for its answers, and for its end")
	return cmd
}

// conformPublisher is one judgement of a publisher.
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
	u, err := oneServer(c.url)
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
	defer func() { err = errors.Join(err, drop()) }()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, b.Close(closing))
	}()
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

// oneServer is the URL of a server that a proxy can stand in front of.
func oneServer(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, cli.Usagef("no server; name one for tests with --url mongodb://host:port")
	}
	options, _, err := mongourl.Parse(raw)
	if err != nil {
		return nil, cli.Usagef("--url %w", err)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "mongodb" || len(options.Hosts) != 1 || options.TLSConfig != nil {
		return nil, cli.Usagef("--url %s: a proxy has to stand in front of the server, so name one server by one host, as in mongodb://127.0.0.1:27017, without TLS",
			fencepost.Redact(raw))
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "27017")
	}
	q := u.Query()
	q.Del("replicaSet") // its members would be asked past the proxy
	q.Set("directConnection", "true")
	u.RawQuery = q.Encode()
	return u, nil
}

// throughProxy is the URL for what goes through a proxy.
func throughProxy(raw, addr string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err) // oneServer has parsed it
	}
	u.Host = addr
	return u.String()
}
