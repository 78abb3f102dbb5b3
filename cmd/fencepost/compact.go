package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/cli"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

// rewriteFlags are those that compact and repair share.
type rewriteFlags struct {
	url      *string
	wait     time.Duration
	lease    time.Duration
	batch    cli.Size
	compress bool
	overlay  bool
	quiet    bool
	typ, dir string
	path     string
}

func (f *rewriteFlags) add(cmd *cobra.Command) {
	f.url = cli.URLFlag(cmd)
	f.batch = 1 << 20
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "wait this long for the type, whose holder is asked to give it back; 0 does not wait")
	cmd.Flags().DurationVar(&f.lease, "lease", worker.DefaultLease, "how long the type stays locked if this program dies")
	cmd.Flags().Var(&f.batch, "batch-bytes", "size of the new batches, uncompressed")
	cmd.Flags().BoolVar(&f.compress, "compress", false, "store batches compressed (zstd) where that saves a tenth or more")
	cmd.Flags().BoolVar(&f.overlay, "allow-overlay", false, "accept a directory on an overlay file system")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
}

// parse takes the one argument of both: a file that tells directory and type.
func (f *rewriteFlags) parse(cmd *cobra.Command, args []string) error {
	if err := cli.FromEnv(cmd); err != nil {
		return err
	}
	if len(args) != 1 {
		return cli.Usagef("%s takes one file, as in fencepost %s data/orders.fpl", cmd.Name(), cmd.Name())
	}
	var ok bool
	f.path, f.dir = args[0], filepath.Dir(args[0])
	if f.typ, _, ok = storage.ParseName(filepath.Base(args[0])); !ok {
		return cli.Usagef("%s is not the name of a type's file; use one such as data/orders.fpl", args[0])
	}
	if f.lease < lock.MinLease || f.wait < 0 || f.batch < 1 || f.batch > storage.MaxBatchBytes {
		return cli.Usagef("use a --lease of at least %v, a --wait that is not negative, and a --batch-bytes from 1B to 64MiB", lock.MinLease)
	}
	// Nothing may be created by a mistyped name.
	r, err := storage.OpenReader(args[0], storage.ReaderOptions{})
	if err != nil {
		return err
	}
	return r.Close()
}

// run does the work under the type's lock.
func (f *rewriteFlags) run(cmd *cobra.Command, o worker.RewriteOptions) (report *storage.CompactReport, err error) {
	o.Wait = f.wait
	o.Compact.BatchBytes = int(f.batch)
	if !f.quiet && cli.IsTerminal(cmd.ErrOrStderr()) {
		p := newByteProgress(cmd.ErrOrStderr(), cmd.Name(), []string{f.path})
		o.Compact.Progress = p.file(f.path)
		defer p.clear()
	}
	err = withBackend(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error {
		cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Dir: f.dir, Lease: f.lease,
			Storage: storage.Options{Compress: f.compress, AllowOverlay: f.overlay}}
		report, err = worker.Rewrite(ctx, cfg, f.typ, o)
		if errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("%w; stop the workers of type %s, or ask them to give it back with --wait 1m", err, f.typ)
		}
		return err
	})
	return report, err
}

func compactCommand() *cobra.Command {
	var f rewriteFlags
	cmd := &cobra.Command{
		Use:   "compact FILE",
		Short: "Write a type's file anew, beside the old one: larger batches, compressed if they were or --compress is given, no traces of crashes",
		Long: `Compact copies all messages of a type's newest file into a new one, "orders@0002.fpl" and so on, under the type's lock, so that
workers stand by meanwhile. Indexes stay as they are. The old file is sealed, and says which file goes on; it is not removed:
do that when the new one has been verified and copied to where backups are.

` + cli.ExitHelp,
		Example: `  fencepost compact --compress data/orders.fpl
  fencepost verify data && rm data/orders.fpl`,
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		r, err := f.run(cmd, worker.RewriteOptions{})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s  %s records  index %d..%d  %s to %s batches  %s to %s\n", r.Path, humanize.Comma(int64(r.Records)),
			r.FirstIndex, max(r.NextIndex, 1)-1, humanize.Comma(int64(r.Batches)), humanize.Comma(int64(r.NewBatches)),
			humanize.IBytes(uint64(r.Size)), humanize.IBytes(uint64(r.NewSize)))
		return nil
	}
	return cmd
}

func repairCommand() *cobra.Command {
	var f rewriteFlags
	var acceptLoss, dryRun bool
	cmd := &cobra.Command{
		Use:   "repair FILE",
		Short: "Save what can be read of a damaged file into a new one beside it",
		Long: `Repair copies every message of a type's newest file that can still be read into a new one, under the type's lock. Each message keeps
its index; entries of kind "lost" stand in for those that cannot be read, and every reader reports them. The damaged file is
sealed and otherwise left as it is, and workers go on in the new one.

First try to restore the damaged bytes from a copy: what is repaired here stays lost. Messages that are gone from the end of
the file, although they were durable once, are given up only with --accept-loss. Where an older file is missing, cut, renamed or a
copy there is nothing to repair: it exits 3 and says what to restore.

It exits 4 when nothing is wrong with the file, and 7 when messages were lost.
` + cli.ExitHelp,
		Example: `  fencepost repair --dry-run data/orders.fpl
  fencepost repair data/orders.fpl`,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "give up messages that are gone from the end of the file, or open an old copy of it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what is wrong")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		files, err := storage.ReadChain(f.dir, f.typ)
		if err != nil {
			return err
		}
		if wrong := files.Check(); len(wrong) > 0 {
			return fmt.Errorf("%w; repair writes the newest file anew, and can do nothing about that", wrong[0])
		}
		found, err := storage.Verify(cmd.Context(), args[0], storage.VerifyOptions{})
		if err != nil {
			return err
		}
		if found.Sealed != nil {
			return fmt.Errorf("%w: %v; only the newest file of a type can be repaired. To read what is left of this one use fencepost cat --salvage %s",
				storage.ErrRefused, found.Sealed, args[0])
		}
		for _, c := range found.Corrupt {
			fmt.Fprintf(out, "%v\n", c)
		}
		if len(found.Corrupt) == 0 && !acceptLoss {
			return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s: nothing is damaged; if workers refuse it because messages are missing at its end, "+
				"restore the newest copy, or give them up with --accept-loss", args[0])}
		}
		if dryRun {
			return found.Err()
		}
		r, err := f.run(cmd, worker.RewriteOptions{Repair: true, AcceptLoss: acceptLoss})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s  %s records saved, %s lost, index %d..%d\n", r.Path, humanize.Comma(int64(r.Records-r.Lost)), humanize.Comma(int64(r.Lost)),
			r.FirstIndex, max(r.NextIndex, 1)-1)
		if r.Lost > 0 {
			return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d records could not be saved; %s is kept for an expert to look at", r.Lost, args[0])}
		}
		return nil
	}
	return cmd
}
