// Bench measures Fencepost against the minimal work that any program must do, and against similar systems, and writes
// RESULTS.md. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/bench/locks"
	"github.com/fencepost/fencepost/bench/queues"
	"github.com/fencepost/fencepost/bench/storage"
	"github.com/fencepost/fencepost/bench/stores"
	"github.com/fencepost/fencepost/bench/types"
	"github.com/fencepost/fencepost/internal/mongotest"
)

// A suite added here gets its own section of RESULTS.md.
var suites = []struct {
	name, title string
	run         func(context.Context, suite.Options) (*suite.Result, error)
}{
	{"storage", "Storage", storage.Run},
	{"lock", "Lock", locks.Run},
	{"queue", "Queue", queues.Run},
	{"stores", "Stores", stores.Run},
	{"types", "Types", types.Run},
}

func main() {
	for _, worker := range []func() (int, bool){locks.Worker, types.Worker} {
		if code, ok := worker(); ok {
			os.Exit(code)
		}
	}
	// Only the first signal counts: mounted file systems must be unmounted.
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const (
	exitFailed  = 1
	exitUsage   = 2
	exitStopped = 130
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := bench(ctx, args, stdout, stderr)
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "bench: %v; try: go run . %s --help\n", err, suites[0].name)
		return exitUsage
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "bench: stopped; nothing was written")
		return exitStopped
	default:
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitFailed
	}
}

type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func bench(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	known := "known: " + strings.Join(names, ", ")
	if len(args) == 0 {
		return &usageError{"which suite? " + known}
	}
	i := slices.Index(names, args[0])
	if i < 0 {
		return &usageError{fmt.Sprintf("unknown suite %q; %s", args[0], known)}
	}
	flags := flag.NewFlagSet("go run . "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", os.TempDir(), "where the files are written that are measured; removed afterwards")
	out := flags.String("out", "", `where RESULTS.md and plots/ are written (default ".", with --quick stdout only)`)
	o := suite.Options{Logf: func(format string, args ...any) {
		fmt.Fprintf(stderr, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
	}}
	flags.IntVar(&o.Rounds, "rounds", 21, "rounds of each measurement")
	flags.BoolVar(&o.Quick, "quick", false, "sizes that show that everything works, and measure nothing")
	flags.BoolVar(&o.Large, "large", true, "also measure with large files: of 10 GiB, if the disk has room; stores: of 1 GiB")
	flags.StringVar(&o.MongoDB, "mongodb", "", "lock, queue, stores, types: URI of the server (default $"+mongotest.EnvURI+"; without either one is started, if possible)")
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		flags.Usage()
		return err
	case err != nil:
		return &usageError{err.Error()}
	case flags.NArg() > 0:
		return &usageError{fmt.Sprintf("unexpected argument %q", flags.Arg(0))}
	case o.Rounds < 1 || o.Rounds > 1000:
		return &usageError{"--rounds must be between 1 and 1000"}
	}
	if o.MongoDB == "" {
		o.MongoDB = os.Getenv(mongotest.EnvURI)
	}
	if *out == "" && !o.Quick {
		*out = "."
	}
	if *out != "" { // notice a typing error now, not after all the measurements
		if info, err := os.Stat(*out); err != nil || !info.IsDir() {
			return fmt.Errorf("--out: no such directory: %s", *out)
		}
	}
	if o.Dir, err = os.MkdirTemp(*dir, "fencepost-bench-"); err != nil {
		return fmt.Errorf("cannot write to --dir: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	result, err := suites[i].run(ctx, o)
	if err != nil {
		return err
	}
	section := fmt.Sprintf("## %s\n\n%s, `%s`.\n", suites[i].title, time.Now().UTC().Format("2006-01-02 15:04 UTC"), command(args[0], flags))
	if o.Quick {
		section += "**A quick run: the numbers mean nothing.**\n"
	}
	section += result.Markdown
	if *out == "" {
		_, err = io.WriteString(stdout, section)
		return err
	}
	return write(*out, suites[i].name, section, result.Plots)
}

// command returns the command line without what it reveals about this machine.
func command(name string, flags *flag.FlagSet) string {
	c := "go run . " + name
	flags.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		if slices.Contains([]string{"dir", "out", "mongodb"}, f.Name) {
			value = "…"
		}
		c += " --" + f.Name + "=" + value
	})
	return c
}

const newDocument = `# Results

Written by the command in each section; [README.md](README.md) tells what is measured and how. Anything between two markers is
replaced by the next run of that suite.
`

func write(out, name, section string, plots map[string]string) error {
	path := filepath.Join(out, "RESULTS.md")
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		doc, err = []byte(newDocument), nil
	}
	if err != nil {
		return err
	}
	text, err := report.ReplaceSection(string(doc), name, section)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Join(out, "plots"), 0o755); err != nil {
		return err
	}
	for file, svg := range plots {
		if err := os.WriteFile(filepath.Join(out, "plots", file), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
