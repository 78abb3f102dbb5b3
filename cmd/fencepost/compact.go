package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

// rewriteFlags are the flags that compact and repair share.
type rewriteFlags struct {
	url      *string
	files    fileFlags
	wait     time.Duration
	lease    time.Duration
	batch    cli.Size
	compress bool
	overlay  bool
	quiet    bool
	typ, dir string
	path     string

	maybeLost bool // the file need not exist
}

func (f *rewriteFlags) add(cmd *cobra.Command) {
	f.url = cli.URLFlag(cmd)
	f.files.add(cmd, f.url)
	f.batch = 1 << 20
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "ask the holder to release the type, and wait this long for it; 0 means do not wait")
	cmd.Flags().DurationVar(&f.lease, "lease", worker.DefaultLease, "how long the type stays locked if this program dies")
	cmd.Flags().Var(&f.batch, "batch-bytes", "size of the new batches, uncompressed, at most 16MiB")
	cmd.Flags().BoolVar(&f.compress, "compress", false, "compress batches (zstd) where that saves a tenth or more")
	cmd.Flags().BoolVar(&f.overlay, "allow-overlay", false, "accept a directory on an overlay file system")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "no progress bar")
}

// parse reads the one argument: a file, which implies directory and type, or in a store a type. If it returns nil, close f.files.
func (f *rewriteFlags) parse(cmd *cobra.Command, args []string) (err error) {
	if len(args) != 1 {
		return cli.Usagef("%s takes one file, as in fencepost %s data/orders.fpl", cmd.Name(), cmd.Name())
	}
	if f.lease < lock.MinLease || f.wait < 0 || f.batch < 1 || f.batch > storage.MaxPayload {
		return cli.Usagef("use a --lease of at least %v, a --wait that is not negative, and a --batch-bytes from 1B to 16MiB", lock.MinLease)
	}
	if err := f.files.open(cmd.Context()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.files.close()
		}
	}()
	if err := f.locate(cmd.Name(), args[0]); err != nil {
		return err
	}
	// A mistyped name must not create anything.
	r, err := storage.OpenReader(f.path, storage.ReaderOptions{FS: f.files.fs()})
	if errors.Is(err, fs.ErrNotExist) && f.maybeLost {
		return f.checkDir() // a type that the database does not know is refused later
	}
	if err != nil {
		return err
	}
	return r.Close()
}

// locate finds the file that the argument names, and its directory and type.
func (f *rewriteFlags) locate(command, arg string) (err error) {
	f.path, err = f.files.one(command, arg, newest)
	if lost := (*missingError)(nil); errors.As(err, &lost) {
		switch {
		case f.maybeLost:
			err = nil
		case command == "repair" && len(lost.later) == 0:
			err = cli.Usagef("%w; if the file is lost permanently, --accept-loss gives up its messages", err)
		}
	}
	if f.maybeLost && f.files.place != nil && cli.Code(err) == cli.ExitNothing { // a type whose files are all lost
		f.path, err = filepath.Join(f.files.place.Dir, storage.FileName(arg)), nil
	}
	if err != nil {
		return err
	}
	f.dir = filepath.Dir(f.path)
	if f.files.place != nil {
		f.dir = f.files.place.Dir
	}
	var ok bool
	if f.typ, _, ok = storage.ParseName(filepath.Base(f.path)); !ok {
		return cli.Usagef("%s is not the name of a type's file; use one such as data/orders.fpl", arg)
	}
	return nil
}

// checkDir reports a directory that does not exist.
func (f *rewriteFlags) checkDir() error {
	if f.files.place != nil {
		return nil
	}
	_, err := os.Stat(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory %s does not exist; check the path, and that its volume is mounted; if it is lost with all files, create the directory and run "+
			"this again", f.dir)
	}
	return err
}

// run does the work under the type's lock.
func (f *rewriteFlags) run(cmd *cobra.Command, o worker.RewriteOptions) (report *storage.CompactReport, err error) {
	o.Wait = f.wait
	o.Compact.BatchBytes = int(f.batch)
	if !f.quiet && cli.IsTerminal(cmd.ErrOrStderr()) {
		p := newByteProgress(cmd.ErrOrStderr(), cmd.Name(), []string{f.path}, f.files.size)
		o.Compact.Progress = p.file(f.path)
		defer p.clear()
	}
	err = withBackend(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error {
		files := worker.Files{Dir: f.dir, Storage: storage.Options{Compress: f.compress, AllowOverlay: f.overlay}}
		if f.files.place != nil {
			// rule: nothing is written to a store before a probe has shown that it lets only one of several creates succeed.
			if err := f.files.place.Probe(ctx); err != nil {
				return err
			}
			files.Storage.FS = f.files.place.Until(ctx)
		}
		cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, To: files, Lease: f.lease}
		report, err = worker.Rewrite(ctx, cfg, f.typ, o)
		if errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("%w; stop the workers of type %s, or ask them to release it with --wait 1m", err, f.typ)
		}
		return err
	})
	return report, err
}

func compactCommand() *cobra.Command {
	var f rewriteFlags
	var from uint64
	cmd := &cobra.Command{
		Use:   "compact FILE | --store ADDRESS TYPE|FILE",
		Short: "Rewrite a type's file beside the old one: larger batches, compressed if they were or --compress is given, no traces of crashes",
		Long: `Compact copies all messages of a type's newest file into a new one, "orders@0002.fpl" and so on. It holds the type's lock, so
workers stand by meanwhile. Indexes do not change. The old file is sealed, and names its successor. It is not removed: remove it by hand
or with keep --replaced after the new one has been verified and backed up. FILE may be any file of the type, or an earlier one that was
removed.

With --from one new file replaces several: it also contains the messages of the files from that generation on, which must all be
present. That turns the many small objects that workers write into a store into few large ones.

` + cli.ExitHelp,
		Example: `  fencepost compact --compress data/orders.fpl
  fencepost compact --store mongodb: --url mongodb://db1,db2,db3/shop orders
  fencepost compact --from 1 data/orders.fpl && fencepost keep --replaced --yes data/orders.fpl`,
	}
	f.add(cmd)
	cmd.Flags().Uint64Var(&from, "from", 0, "also copy the files before the newest, from this generation on (orders@0003.fpl is generation 3, orders.fpl 1)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		defer f.files.close()
		o := worker.RewriteOptions{}
		o.Compact.From = from
		r, err := f.run(cmd, o)
		if err != nil {
			return err
		}
		of := ""
		if r.Files > 1 {
			of = fmt.Sprintf("  of %d files", r.Files)
		}
		printable.Fprintf(f.files.out(cmd.OutOrStdout()), "%s  %s records%s  %s  %s to %s batches  %s to %s\n", r.Path, humanize.Comma(int64(r.Records)), of, indexes(r), humanize.Comma(int64(r.Batches)), humanize.Comma(int64(r.NewBatches)),
			humanize.IBytes(uint64(r.Size)), humanize.IBytes(uint64(r.NewSize)))
		return nil
	}
	return cmd
}

// indexes returns which indexes a file has, or, if it is empty, which one comes next.
func indexes(r *storage.CompactReport) string {
	if r.NextIndex <= r.FirstIndex {
		return fmt.Sprintf("next index %d", r.NextIndex)
	}
	return fmt.Sprintf("index %d..%d", r.FirstIndex, r.NextIndex-1)
}

func repairCommand() *cobra.Command {
	var f rewriteFlags
	var acceptLoss, adopt, dryRun bool
	cmd := &cobra.Command{
		Use:   "repair FILE | --store ADDRESS TYPE|FILE",
		Short: "Copy the readable messages of a damaged file into a new one beside it",
		Long: `Repair copies every readable message of a type's newest file into a new one, while it holds the type's lock. Each message keeps its
index. Entries of kind "lost" replace unreadable messages; verify, cat and tail report them. The damaged file is sealed and
otherwise not changed. Workers continue in the new one.

First try to restore the damaged bytes from a copy: messages that repair marks as lost stay lost. Durable messages that are missing from
the end of the file are given up only with --accept-loss. So are those in a missing file: if the registered file is not here, a new one
takes its place, and workers continue in it. Look for it on other volumes and in backups first. If an older file is missing, cut, renamed
or a copy, there is nothing to repair: the command exits with 3 and says what to restore.

With --adopt nothing is copied. Workers continue with the newest file here, although the database, which was lost or restored from an old
backup, names another one. Make sure that this is the right directory.

It exits with 4 when nothing is wrong with the file, and with 7 when messages were lost.
` + cli.ExitHelp,
		Example: `  fencepost repair --dry-run data/orders.fpl
  fencepost repair data/orders.fpl
  fencepost repair --accept-loss --dry-run data/orders@0003.fpl`,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "give up messages that are missing from the end of the file or with a missing file, or accept an old copy of it")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "only make the newest file of the type the registered one, after the database was lost or restored from an old backup")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only report what is wrong")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.maybeLost = acceptLoss
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		defer f.files.close()
		if adopt && acceptLoss {
			return cli.Usagef("--adopt and --accept-loss cannot be combined; use one after the other if you need both")
		}
		files, err := storage.ReadChain(f.files.fs(), f.dir, f.typ)
		if err != nil {
			return err
		}
		if wrong := files.Check(); len(wrong) > 0 {
			return fmt.Errorf("%w; repair rewrites the newest file only, and cannot help here", wrong[0])
		}
		var wrong error
		switch {
		case adopt:
			return f.adopt(cmd, dryRun)
		case acceptLoss:
			if wrong, err = f.lost(cmd); err != nil {
				return err
			}
		}
		var lost *storage.RegistryMismatch
		if errors.As(wrong, &lost) && (lost.Missing || lost.Older != 0) {
			return f.giveUp(cmd, lost, files, dryRun)
		}
		return f.repair(cmd, wrong, acceptLoss, dryRun)
	}
	return cmd
}

// repair rewrites a file that exists. wrong is why workers refuse it; nil if that is unknown, or loss is not accepted.
func (f *rewriteFlags) repair(cmd *cobra.Command, wrong error, acceptLoss, dryRun bool) error {
	out := f.files.out(cmd.OutOrStdout())
	found, err := storage.Verify(cmd.Context(), f.path, storage.VerifyOptions{FS: f.files.fs()})
	if errors.Is(err, fs.ErrNotExist) { // with --accept-loss it need not exist
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s does not exist, and according to the database no message is missing without it; check its name", f.path)}
	}
	if err != nil {
		return err
	}
	if found.Sealed != nil {
		return fmt.Errorf("%w: %v; only the newest file of a type can be repaired. To read the rest of this one use fencepost cat --salvage %s",
			storage.ErrRefused, found.Sealed, f.files.command(f.path))
	}
	for _, c := range found.Corrupt {
		printable.Fprintf(out, "%v\n", c)
	}
	if len(found.Corrupt) == 0 && wrong == nil {
		remedy := "; if workers refuse it because messages are missing at its end, restore the newest copy, or give them up with --accept-loss"
		if acceptLoss {
			remedy = ", and according to the database no message is missing at its end"
		}
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s: nothing is damaged%s", f.path, remedy)}
	}
	if dryRun {
		var old *storage.RegistryMismatch
		if errors.As(wrong, &old) && old.Lost() && old.Next < old.Registered.DurableIndex {
			f.sayLost(out, fmt.Sprintf("from index %d to below %d", old.Next, old.Registered.DurableIndex))
		}
		return cmp.Or(found.Err(), wrong)
	}
	r, err := f.run(cmd, worker.RewriteOptions{Repair: true, AcceptLoss: acceptLoss})
	if err != nil {
		return err
	}
	printable.Fprintf(out, "%s  %s records saved, %s lost, index %d..%d\n", r.Path, humanize.Comma(int64(r.Records-r.Lost)), humanize.Comma(int64(r.Lost)),
		r.FirstIndex, max(r.NextIndex, 1)-1)
	if r.Lost > 0 {
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d records could not be saved; %s is kept for further analysis", r.Lost, f.path)}
	}
	return nil
}

// sayLost prints which messages would be given up; "" means none.
func (f *rewriteFlags) sayLost(out io.Writer, which string) {
	if which == "" {
		printable.Fprintf(out, "with --accept-loss and without --dry-run, a new file takes the place of the missing one, and no message is given up: the files here have all of them\n")
		return
	}
	printable.Fprintf(out, "with --accept-loss and without --dry-run, messages %s are given up\n", which)
}

// registered compares the registry entry of the type's file with the files that exist.
func (f *rewriteFlags) registered(cmd *cobra.Command) (wrong *storage.RegistryMismatch, err error) {
	err = withQueue(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error {
		e, err := registryEntry(ctx, b, f.typ)
		if err != nil {
			return err
		}
		err = storage.CheckRegistered(f.files.fs(), f.dir, f.typ, e)
		if !errors.As(err, &wrong) {
			return err
		}
		return nil
	})
	return wrong, err
}

// lost returns why workers refuse the file, which may not exist; wrong is nil if they do not.
func (f *rewriteFlags) lost(cmd *cobra.Command) (wrong, err error) {
	mismatch, err := f.registered(cmd)
	switch {
	case mismatch != nil:
		return mismatch, nil
	case err == nil, errors.Is(err, storage.ErrIntegrity):
		return err, nil
	}
	if _, missing := f.files.size(f.path); missing == nil && cli.Code(err) == cli.ExitNothing { // an unregistered file is repaired, too
		return nil, nil
	}
	return nil, err
}

// giveUp creates a file that takes the place of the lost registered one.
func (f *rewriteFlags) giveUp(cmd *cobra.Command, lost *storage.RegistryMismatch, files storage.Chain, dryRun bool) error {
	durable := lost.Registered.DurableIndex
	if dryRun {
		what := fmt.Sprintf("below index %d, except those in older files elsewhere,", durable)
		switch {
		case len(files) > 0 && files[len(files)-1].Next >= durable: // as after a compaction
			what = ""
		case len(files) > 0:
			what = fmt.Sprintf("from index %d to below %d", files[len(files)-1].Next, durable)
		case lost.Registered.Generation == 1:
			what = fmt.Sprintf("below index %d", durable)
		}
		f.sayLost(f.files.out(cmd.OutOrStdout()), what)
		return lost
	}
	r, err := f.run(cmd, worker.RewriteOptions{Repair: true, AcceptLoss: true})
	if err != nil {
		return err
	}
	printable.Fprintf(f.files.out(cmd.OutOrStdout()), "%s  takes the place of a lost file, workers continue at index %d\n", r.Path, r.NextIndex)
	switch {
	case r.Lost > 0:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d records of type %s are lost and marked as such: those with indexes from %d to %d",
			r.Lost, f.typ, r.NextIndex-r.Lost, r.NextIndex-1)}
	case len(files) == 0 && r.NextIndex > 0:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("all records of type %s with indexes below %d are lost, except those in older files elsewhere", f.typ, r.NextIndex)}
	}
	return nil
}

// adopt makes the newest file the registered one.
func (f *rewriteFlags) adopt(cmd *cobra.Command, dryRun bool) error {
	wrong, err := f.registered(cmd)
	switch {
	case err != nil:
		return err
	case wrong == nil:
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s: the newest file of type %s is the registered one, or continues it: workers continue with it", f.dir, f.typ)}
	case wrong.FileID == storage.FileID{}:
		return fmt.Errorf("%w; --adopt does not apply", wrong)
	case dryRun:
		return wrong
	}
	r, err := f.run(cmd, worker.RewriteOptions{Adopt: true})
	if err != nil {
		return err
	}
	printable.Fprintf(f.files.out(cmd.OutOrStdout()), "%s  is the registered file now, instead of file %s of generation %d; workers continue in it at index %d\n",
		r.Path, wrong.Registered.FileID, wrong.Registered.Generation, r.NextIndex)
	return nil
}
