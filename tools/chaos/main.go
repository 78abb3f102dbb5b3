//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/spf13/cobra"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

func main() {
	tclog.SetDefault(tclog.NewNoopLogger())
	os.Exit(execute(context.Background(), root()))
}

const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitStopped = 130
)

// usageError is an error in how the command was called.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// execute runs the command, prints its error, and returns the exit code.
func execute(ctx context.Context, cmd *cobra.Command) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	err := cmd.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		return exitStopped
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "error:", err)
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

func root() *cobra.Command {
	s := &session{counts: map[string]int{}, missing: map[string]bool{}, built: map[string]programs{}, nodes: sync.OnceValue(kit.CanHaveNodes)}
	var list bool
	var report string
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Break everything around Fencepost, and check every message",
		Long: `Chaos starts workers and producers as real processes against a real server, kills, freezes, disconnects and starves them, lets all of it
heal, and then checks every promise: each confirmed message once in its file, none that was refused, order per producer, no gap, growing
epochs, the same bytes for an independent reader, all drained in time, clean exits.

A run takes a few seconds. Its seed determines the faults and their times; the machine's timing determines what they hit: the same seed gives
the same plan, not the same history. Without --runs and --duration every scenario is run once on each backend, nodes once with each store. The
server is the one that FENCEPOST_TEST_MONGODB_URI names, or a container, or one in a chroot; scenarios that harm the server have their own.
Scenarios that this machine does not support are reported and skipped.

Exit codes: 0 every guarantee held in every run · 1 one was violated, or nothing could be run · 2 usage · 130 stopped`,
		Example: `  make chaos
  make chaos ARGS='--duration 10m'
  make chaos ARGS='--scenario kill --backend mongodb --seed 7 --runs 1'   # as printed for a violation
  make chaos ARGS='--without contiguity --scenario locks'                 # must fail
  make chaos ARGS='--runs 100 --record results.jsonl'
  make chaos ARGS='--report results.jsonl'                                # what was recorded, as a page`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown argument %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.out = cmd.OutOrStdout()
			switch {
			case list:
				for _, sc := range scenarios {
					fmt.Fprintf(s.out, "%-8s %s\n", sc.name, sc.text)
				}
				return nil
			case report != "":
				return writeReport(s.out, report)
			case !cmd.Flags().Changed("seed"):
				s.seed = uint64(time.Now().Unix())
			}
			return s.main(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&s.scenarios, "scenario", nil, "only these (--list)")
	f.StringSliceVar(&s.backends, "backend", backends, "only these: mongodb, sqlite")
	f.StringSliceVar(&s.stores, "store", nil, "with files in these: mongodb, s3, shared (default a directory, and each of them for nodes)")
	f.Uint64Var(&s.seed, "seed", 0, "seed of the first run; each further run adds one (default the time)")
	f.IntVar(&s.runs, "runs", 0, "number of runs")
	f.DurationVar(&s.duration, "duration", 0, "no new run after this time")
	f.IntVar(&s.parallel, "parallel", runtime.NumCPU(), "concurrent runs")
	f.DurationVar(&s.lease, "lease", 2*time.Second, "lease of the workers; faults last up to three leases")
	f.StringVar(&s.record, "record", "", "add a line for each run to this file")
	f.StringVar(&s.keep, "keep", "", "keep the files of all runs below this directory")
	f.StringVar(&s.without, "without", "", "build the product without this safety rule, whose loss must be noticed: "+strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
	f.StringVar(&report, "report", "", "run nothing; print a page about the runs recorded in this file")
	f.BoolVar(&list, "list", false, "run nothing; list the scenarios")
	cmd.AddCommand(producerCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}
