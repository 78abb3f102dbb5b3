package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// After a signal.
const (
	// readerTimeout bounds the wait for a reader that was told to stop.
	readerTimeout = time.Second
	// flushTimeout is how long messages that were read are still sent.
	flushTimeout = time.Second
	// silenceTimeout is how long a server may be silent before messages sent to it are reported as unknown.
	silenceTimeout = 10 * time.Second
	// closeTimeout bounds the disconnect; nothing depends on it.
	closeTimeout = 500 * time.Millisecond
	// hurryTimeout bounds everything after a second signal.
	hurryTimeout = 5 * time.Second
)

type publishFlags struct {
	url      string
	typ      string
	format   *cli.OneOf
	messages []string
	headers  []string
	keyFrom  string
	rate     cli.Count
	count    cli.Count
	size     cli.Size
	seed     uint64
	dryRun   bool
	linger   time.Duration
	output   *cli.OneOf
	quiet    bool

	connectTimeout time.Duration

	backlogWait time.Duration
	resume      string
	delay       delay
}

func publishCommand() *cobra.Command {
	f := &publishFlags{
		format: cli.NewOneOf("lines", "ndjson", "len32", "raw"),
		output: cli.NewOneOf("text", "json"),
		size:   256,
	}
	cmd := &cobra.Command{
		Use:   "publish --type TYPE [FILE|-]…",
		Short: "Publish messages from files, standard input, arguments or a generator",
		Long: `Publish reads messages and publishes them to one type, in order. It waits until every message is stored durably,
and reports the outcome in its last line on stdout:

  published=… unknown=… rejected=… bytes=… elapsed=… rate=…/s

published: stored durably. unknown: the server never gave a clear answer; the messages may or may not be stored. rejected: not
stored, now or later; publish stops reading at the first one.

When the backlog of the type is limited (fencepost types limit) and full, publish waits until there is room, for up to
--backlog-wait without any progress. After that, and when publishing is paused (fencepost types pause), it ends with exit code 6.

On SIGTERM or SIGINT it stops reading, and for one more second sends the messages that it has read, unless the backlog is full. Then it waits
for the outcomes of the messages that it has sent, until the server has been silent for 10 seconds or a second signal arrives. Messages
without an outcome count as unknown. The exit code is 130.

With --delay or --at the messages are kept apart (fencepost scheduled ls) until they are due by the queue's clock. Then a worker appends them to
their type. Messages that are due at the same time keep their order.

Formats: lines (one message per line, without the newline), ndjson (the same, and every line must be JSON), len32 (each message is preceded
by its length, 32 bit big endian), raw (each FILE is one message, any bytes).

With --resume STATEFILE you can resume publishing one FILE after any interruption, including kill -9 and power loss: run the same command again,
and every message gets into the file once and in order. The state file records the progress; it is replaced before each batch is sent. Resume
within 12 hours: until then messages in flight are always recognised as duplicates.

Every flag can be given as environment variable: FENCEPOST_URL, FENCEPOST_TYPE, …
` + cli.ExitHelp,
		Example: `  producer publish --type words /usr/share/dict/words
  kubectl logs app | producer publish --type applog
  producer publish --type orders --format ndjson --header source=import orders.ndjson
  producer publish --type orders --format ndjson --key-from json:id orders.ndjson   # run it twice: each order gets into the file once
  producer publish --type orders --resume orders.state orders.txt   # after any crash: the same again
  producer publish --type images --format raw *.png
  producer publish --type hello --message 'hello, world'
  producer publish --type reminders --delay 24h --message 'order 4711 is still open'
  producer publish --type load --count 1e6 --size 256 --seed 7 --rate 50k/s`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return publish(cmd, f, args)
		},
	}
	fl := cmd.Flags()
	cli.URLVar(cmd, &f.url, fencepost.DefaultURL, cli.URLUsage)
	fl.StringVarP(&f.typ, "type", "t", "", "type of the messages (required)")
	fl.Var(f.format, "format", "how messages are read")
	fl.StringArrayVarP(&f.messages, "message", "m", nil, "publish this text; repeatable, instead of FILE")
	fl.StringArrayVar(&f.headers, "header", nil, "header key=value of every message; repeatable")
	fl.StringVar(&f.keyFrom, "key-from", "", "idempotency key of every message: payload (its SHA-256), or json:FIELD (a string or number in it, as in json:order.id)")
	fl.Var(&f.rate, "rate", "at most this many messages per second, as in 5k/s; 0 means no limit")
	fl.Var(&f.count, "count", "publish this many generated messages, instead of FILE")
	fl.Var(&f.size, "size", "payload size of a generated message")
	fl.Uint64Var(&f.seed, "seed", 1, "the same seed generates the same messages")
	fl.BoolVar(&f.dryRun, "dry-run", false, "read and check everything, publish nothing")
	fl.DurationVar(&f.linger, "linger", 0, "let a batch wait this long to fill up; 0 sends at once")
	fl.DurationVar(&f.backlogWait, "backlog-wait", queue.DefaultBacklogWait, "how long to wait when the backlog of the type is full; 0 means do not wait")
	fl.DurationVar(&f.connectTimeout, "connect-timeout", cli.ConnectTimeout, "at startup, wait this long for a usable server, for example while it restarts or elects a primary")
	fl.StringVar(&f.resume, "resume", "", "record the progress of publishing one FILE in this file, and resume from it")
	fl.Var(&f.delay, "delay", "deliver each message this long after it was published, as in 10m")
	fl.Var(&f.delay.at, "at", "deliver the messages at this time, as in 2026-01-31T15:04:05Z; a past time means at once")
	fl.VarP(f.output, "output", "o", "format of the last line")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
	return cmd
}

// input is one source of messages.
type input struct {
	name string
	size int64 // bytes; -1: unknown
	open func() (source, io.Closer, error)
}

// inputs checks the arguments before anything is published.
func (f *publishFlags) inputs(cmd *cobra.Command, args []string) ([]input, error) {
	kinds := 0
	for _, is := range []bool{len(args) > 0, len(f.messages) > 0, f.count > 0} {
		if is {
			kinds++
		}
	}
	given := func(flag string) bool { return cli.OnCommandLine(cmd.Flags().Lookup(flag)) }
	switch {
	case f.resume != "" && (len(args) != 1 || args[0] == "-" || f.format.Value == "raw" || f.dryRun):
		return nil, cli.Usagef("--resume is for one FILE of the formats lines, ndjson and len32, without --dry-run")
	case kinds > 1:
		return nil, cli.Usagef("files, --message and --count cannot be combined; use one of them")
	case given("count") && f.count == 0:
		return nil, cli.Usagef("--count 0: generate at least 1 message")
	case f.count == 0 && (given("size") || given("seed")):
		return nil, cli.Usagef("--size and --seed require --count: they apply to generated messages")
	case given("format") && (f.count > 0 || len(f.messages) > 0):
		return nil, cli.Usagef("--format applies to files and standard input; it cannot be combined with --message or --count")
	case len(f.messages) > 0:
		return []input{{"--message", -1, func() (source, io.Closer, error) { return &arguments{messages: f.messages}, io.NopCloser(nil), nil }}}, nil
	case f.count > 0:
		if f.size > queue.MaxPayload {
			return nil, cli.Usagef("--size: %w", &queue.SizeError{What: "payload", Size: int(f.size), Max: queue.MaxPayload})
		}
		g := func() (source, io.Closer, error) {
			return newGenerator(int64(f.count), int(f.size), f.seed), io.NopCloser(nil), nil
		}
		return []input{{"--count", int64(f.count) * int64(f.size), g}}, nil
	case len(args) == 0:
		if file, ok := cmd.InOrStdin().(*os.File); ok && cli.IsTerminal(file) {
			return nil, cli.Usagef("nothing to publish; name a FILE, or - for standard input, or give --message or --count")
		}
		args = []string{"-"}
	}
	var ins []input
	for _, name := range args {
		if name == "-" {
			ins = append(ins, input{"standard input", -1, func() (source, io.Closer, error) {
				return newSource(f.format.Value, cmd.InOrStdin()), io.NopCloser(nil), nil
			}})
			continue
		}
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return nil, cli.Usagef("cannot read the input: %w", err)
		case info.IsDir():
			return nil, cli.Usagef("%s is a directory; name the files in it", name)
		case f.resume != "" && !info.Mode().IsRegular():
			return nil, cli.Usagef("--resume: %s is not a regular file, so publish could not resume in the middle of it", name)
		case f.format.Value == "raw" && info.Size() > queue.MaxPayload:
			return nil, cli.Usagef("%s: %w", name, &queue.SizeError{What: "payload", Size: int(info.Size()), Max: queue.MaxPayload})
		}
		ins = append(ins, input{name, info.Size(), func() (source, io.Closer, error) {
			file, err := os.Open(name)
			if err != nil {
				return nil, nil, err
			}
			return newSource(f.format.Value, file), file, nil
		}})
	}
	return ins, nil
}

func (f *publishFlags) headerMap() (map[string]string, error) {
	if len(f.headers) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(f.headers))
	for _, h := range f.headers {
		k, v, ok := strings.Cut(h, "=")
		if !ok || k == "" {
			return nil, cli.Usagef("--header %q: write it as key=value", h)
		}
		if before, twice := m[k]; twice && before != v {
			return nil, cli.Usagef("--header %s: given twice, as %q and %q; a message has each header once", k, before, v)
		}
		m[k] = v
	}
	return m, nil
}

// job is everything to publish in one run.
type job struct {
	ins     []input
	headers map[string]string
	key     keyFunc
}

// job checks flags and arguments, before anything is published.
func (f *publishFlags) job(cmd *cobra.Command, args []string) (j job, err error) {
	if f.typ == "" {
		return j, cli.Usagef("no type; name it with --type")
	}
	if err := queue.ValidateType(f.typ); err != nil {
		return j, err
	}
	if j.headers, err = f.headerMap(); err != nil {
		return j, err
	}
	if j.key, err = keyFrom(f.keyFrom); err != nil {
		return j, err
	}
	if j.ins, err = f.inputs(cmd, args); err != nil {
		return j, err
	}
	if err := (&queue.Message{Type: f.typ, Headers: j.headers}).Validate(); err != nil {
		return j, cli.Usagef("%w", err)
	}
	if err := f.delay.check(f.resume); err != nil {
		return j, err
	}
	if f.backlogWait < 0 || f.backlogWait > queue.MaxBacklogWait {
		return j, cli.Usagef("--backlog-wait %v: use 0 to %v", f.backlogWait, queue.MaxBacklogWait)
	}
	if f.connectTimeout <= 0 {
		return j, cli.Usagef("--connect-timeout %v: a producer does not wait forever; give it a time, as in 30s or 10m", f.connectTimeout)
	}
	return j, nil
}

// resumed makes the job continue where the state of --resume says. done means that nothing is left to publish.
func (f *publishFlags) resumed(cmd *cobra.Command, j *job, state *journal) (done bool) {
	s := &state.state
	if s.Done {
		printable.Fprintf(cmd.ErrOrStderr(), "%s is already published, all of its %d messages; remove %s to publish it again\n", s.Input.Path, s.Messages, f.resume)
		return true
	}
	if s.Offset > 0 {
		printable.Fprintf(cmd.ErrOrStderr(), "resuming after line %d of %s\n", s.Line, s.Input.Path)
	}
	file := &j.ins[0]
	file.size -= s.Offset
	file.open = func() (source, io.Closer, error) { return state.openAt(file.name, f.format.Value) }
	return false
}

func publish(cmd *cobra.Command, f *publishFlags, args []string) error {
	j, err := f.job(cmd, args)
	if err != nil {
		return err
	}
	var state *journal // nil without --resume
	if f.resume != "" {
		if state, err = f.openJournal(j.ins, j.headers); err != nil {
			return err
		}
		defer state.unlock()
		if f.resumed(cmd, &j, state) {
			return f.printSummary(cmd.OutOrStdout(), &tally{}, 0)
		}
	}

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	patient, hurry := context.WithCancel(cmd.Context())
	defer hurry()
	defer cli.OnSignals(cancel, func() {
		hurry()
		time.AfterFunc(hurryTimeout, func() { os.Exit(cli.ExitStopped) }) // even if something still blocks
	})()

	reading, stop := context.WithCancel(ctx)
	defer stop()
	t := &tally{progress: f.progressBar(cmd, j.ins), stop: stop, journal: state, heard: time.Now()}
	to := dryRun()
	if !f.dryRun {
		if to, err = f.openQueue(ctx, patient, cmd.ErrOrStderr(), t); err != nil {
			return err
		}
	}

	start := time.Now()
	sent := make(chan error, 1)
	go func() { sent <- f.sendAll(reading, j, to, t) }()
	readErr := awaitReader(reading, sent)
	closeErr := to.finish()
	if state != nil {
		closeErr = errors.Join(closeErr, state.finish())
	}
	err = t.outcome(ctx, f.dryRun, readErr, closeErr)
	if t.progress != nil {
		if err == nil { // else the bar stays where it is
			t.progress.Finish()
		}
		printable.Fprintf(cmd.ErrOrStderr(), "\n")
	}
	return errors.Join(err, f.printSummary(cmd.OutOrStdout(), t, time.Since(start)))
}
