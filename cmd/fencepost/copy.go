package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

// copyEnd is the source or the destination of a copy.
type copyEnd struct {
	place *store.Place // nil: a directory
	dir   string
}

// isStore reports whether an argument is the address of a store, not a path. ./s3:x is a path.
func isStore(arg string) bool {
	scheme, _, ok := strings.Cut(arg, ":")
	return ok && !strings.ContainsAny(scheme, "/.")
}

// openEnd opens the place that an argument names. Close it, unless there is an error.
func openEnd(ctx context.Context, arg, url string) (*copyEnd, error) {
	if !isStore(arg) {
		return &copyEnd{dir: arg}, nil
	}
	place, err := store.Open(ctx, arg, url)
	if err != nil {
		return nil, err
	}
	return &copyEnd{place, place.Dir}, nil
}

func (e *copyEnd) close() {
	if e.place != nil {
		e.place.Close()
	}
}

// name returns its name for people.
func (e *copyEnd) name() string {
	if e.place != nil {
		return e.place.Name
	}
	return e.dir
}

// argument returns the flag that makes workers use it.
func (e *copyEnd) argument() string {
	if e.place != nil {
		return cli.StoreArgument(e.place.Address)
	}
	return "--dir " + e.dir
}

// tell returns err. If it is about a file of the store, the file is named by its name there.
func (e *copyEnd) tell(err error) error {
	if e.place == nil || err == nil || !strings.Contains(err.Error(), filepath.Clean(e.dir)+string(filepath.Separator)) {
		return err
	}
	return cli.InStore(err, e.place.Address)
}

// fs returns the file system for requests that end with ctx; nil is the operating system's.
func (e *copyEnd) fs(ctx context.Context) storage.FS {
	if e.place != nil {
		return e.place.Until(ctx)
	}
	return nil
}

// files returns the files of a type; "" means all types.
func (e *copyEnd) files(typ string) (paths []string, err error) {
	if e.place != nil {
		return e.place.Files(typ)
	}
	names, err := storage.OS().List(e.dir, typ)
	for _, name := range names {
		if t, _, ok := storage.ParseName(name); ok && (typ == "" || t == typ) {
			paths = append(paths, filepath.Join(e.dir, name))
		}
	}
	return paths, err
}

// copying is one run of the copy command.
type copying struct {
	cmd            *cobra.Command
	wait, lease    time.Duration
	overlay, quiet bool
	dryRun, yes    bool
	from, to       *copyEnd
}

func copyCommand() *cobra.Command {
	var o copying
	cmd := &cobra.Command{
		Use:   "copy FROM TO [TYPE...] (--dry-run | --yes)",
		Short: "Move types to another directory or store: copy their files, check the copies, and let workers continue there",
		Long: `Copy moves types: afterwards their workers must be started with TO, and workers in FROM refuse them. It is not for backups.
--dry-run prints what would be moved. FROM and TO are directories, or stores as in --store: mongodb: (the database of --url), mongodb://host/database, s3://bucket/prefix,
shared:/directory. @FILE reads the address from a file or pipe that has it as its only line: ps shows a password on the command line to every
user. Without TYPE all types in FROM are moved, one after the other.

The older files of a type are copied while its workers continue. Then copy takes its lock, seals and copies the newest file,
and registers the new place: workers started there continue in a new file, and workers in the old place refuse the type. Restart
them with the new address. Nothing is removed from FROM: remove the files after the copies have been verified and backed up.

If it is interrupted, workers in the old place continue. Run it again: files that were copied are not copied again.

` + cli.ExitHelp,
		Example: `  fencepost copy --dry-run data mongodb: --url mongodb://db1,db2,db3/shop
  fencepost copy --yes data 's3://bucket/files?region=eu-central-1' orders --wait 1m
  fencepost copy --yes s3://bucket/files data orders
  fencepost copy --yes data @/run/secrets/fencepost-store --url-file /run/secrets/fencepost-url`,
	}
	o.cmd = cmd
	url := cli.URLFlag(cmd)
	f := cmd.Flags()
	f.DurationVar(&o.wait, "wait", 0, "ask the holder to release the type, and wait this long for it; 0 means do not wait")
	f.DurationVar(&o.lease, "lease", worker.DefaultLease, "how long a type stays locked if this program dies")
	f.BoolVar(&o.overlay, "allow-overlay", false, "accept a directory on an overlay file system")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be moved, change nothing")
	f.BoolVar(&o.yes, "yes", false, "really move the types")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress bar")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < 2:
			return cli.Usagef("copy takes two places, as in fencepost copy data mongodb:")
		case o.lease < lock.MinLease || o.wait < 0:
			return cli.Usagef("use a --lease of at least %v, and a --wait that is not negative", lock.MinLease)
		}
		types := args[2:]
		for _, typ := range types {
			if err := queue.ValidateType(typ); err != nil {
				return err
			}
		}
		var places [2]string
		for i := range places {
			var err error
			if places[i], err = copyPlace(cmd, args[i], *url); err != nil {
				return err
			}
		}
		if !o.dryRun && !o.yes {
			return cli.Usagef("copy moves types, and workers in %s refuse them afterwards: check first with --dry-run, then give --yes", args[0])
		}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) (err error) {
			if o.from, err = openEnd(ctx, places[0], *url); err != nil {
				return err
			}
			defer o.from.close()
			if o.to, err = openEnd(ctx, places[1], *url); err != nil {
				return err
			}
			defer o.to.close()
			return o.run(ctx, b, types)
		})
	}
	return cmd
}

// copyPlace returns the directory or the store address that an argument stands for.
func copyPlace(cmd *cobra.Command, arg, url string) (string, error) {
	place, err := cli.Address(cmd, arg)
	if err == nil && isStore(place) {
		err = store.Check(place, url)
	}
	return place, err
}

// run copies the types, or all types in o.from if types is empty.
func (o *copying) run(ctx context.Context, b *fencepost.Backend, types []string) (err error) {
	from, to := o.from, o.to
	if worker.Place(from.fs(ctx), from.dir) == worker.Place(to.fs(ctx), to.dir) {
		return cli.Usagef("%s and %s are the same place", from.name(), to.name())
	}
	if to.place != nil && !o.dryRun {
		// rule: nothing is written to a store before a probe has shown that it lets only one of several creates succeed.
		if err := to.place.Probe(ctx); err != nil {
			return err
		}
	}
	if err := o.checkTo(); err != nil {
		return err
	}
	if len(types) == 0 {
		if types, err = typesIn(from); err != nil {
			return err
		}
	}
	var errs []error
	for i, typ := range types {
		if ctx.Err() != nil { // a signal: the remaining types are not copied
			errs = append(errs, ctx.Err())
			break
		}
		do := o.copyType
		if o.dryRun {
			do = o.preview
		}
		err := do(ctx, b, typ)
		if ctx.Err() == nil {
			err = copyError(typ, to.tell(from.tell(err)))
		}
		errs = append(errs, err)
		if rest := len(types) - i - 1; rest > 0 && o.endsAll(err) {
			errs = append(errs, fmt.Errorf("stopped after type %s: the other %d types were not copied", typ, rest))
			break
		}
	}
	return errors.Join(errs...)
}

// checkTo checks whether files can be created in a directory; stores are probed.
func (o *copying) checkTo() error {
	if o.to.place != nil {
		return nil
	}
	return storage.CheckWritable(o.to.dir, storage.Options{AllowOverlay: o.overlay})
}

// endsAll reports whether the error of one type would be that of all others, too.
func (o *copying) endsAll(err error) bool {
	return err != nil && (errors.Is(err, storage.ErrNoSpace) || errors.Is(err, lock.ErrUnavailable) || o.checkTo() != nil)
}

// preview prints what copying a type would do. It changes nothing.
func (o *copying) preview(ctx context.Context, b *fencepost.Backend, typ string) error {
	entry, err := registryEntry(ctx, b, typ)
	switch {
	case err != nil:
		return err
	case entry.Place == worker.Place(o.to.fs(ctx), o.to.dir):
		printCopied(o.cmd.OutOrStdout(), typ, &worker.CopyReport{Already: true}, o.from, o.to)
		return nil
	}
	fsys := o.from.fs(ctx)
	if err := storage.CheckRegistered(fsys, o.from.dir, typ, entry); err != nil {
		return err
	}
	chain, wrong := checkChain(fsys, o.from.dir, typ)
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	bytes := int64(0)
	for _, l := range chain {
		bytes += l.Size
	}
	printable.Fprintf(o.cmd.OutOrStdout(), "%s  from %s to %s  files: %d, %s: would be moved; its workers would then need %s (dry run)\n", typ, o.from.name(), o.to.name(),
		len(chain), humanize.IBytes(uint64(bytes)), o.to.argument())
	return nil
}

// copyType copies a type, and prints the result.
func (o *copying) copyType(ctx context.Context, b *fencepost.Backend, typ string) error {
	if _, err := registryEntry(ctx, b, typ); err != nil { // a mistyped type gets no lock
		return err
	}
	fsys := o.from.fs(ctx)
	cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Lease: o.lease,
		To: worker.Files{Dir: o.from.dir, Storage: storage.Options{FS: fsys, AllowOverlay: o.overlay}}}
	opts := worker.CopyOptions{FS: o.to.fs(ctx), Dir: o.to.dir, Wait: o.wait}
	var bar *byteProgress
	if !o.quiet && cli.IsTerminal(o.cmd.ErrOrStderr()) {
		paths, err := o.from.files(typ)
		if err != nil {
			return err
		}
		bar = newByteProgress(o.cmd.ErrOrStderr(), "copy "+typ, paths, func(path string) (int64, error) { return sizeIn(fsys, path) })
		opts.Progress = func(path string, done, total int64) { bar.file(path)(done, total) }
	}
	var r *worker.CopyReport
	turn := admin.Turn{Why: o.cmd.CommandPath(), Wait: admin.Wait} // no command removes files while they are copied
	err := turn.Take(ctx, b, typ, func(ctx context.Context) (err error) {
		r, err = worker.Copy(ctx, cfg, typ, opts)
		return err
	})
	bar.clear()
	if err == nil {
		printCopied(o.cmd.OutOrStdout(), typ, r, o.from, o.to)
	}
	return err
}

// copyError adds the remedy to the error of a copy.
func copyError(typ string, err error) error {
	switch {
	case errors.Is(err, lock.ErrHeld) && !errors.As(err, new(*admin.BusyError)):
		return fmt.Errorf("%w; stop the workers of type %s, or ask them to release it with --wait 1m", err, typ)
	case errors.Is(err, fs.ErrNotExist):
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("nothing to copy for type %s: %w; fencepost types show %s says where its file is", typ, err, typ)}
	}
	return err
}

// printCopied prints the result of copying a type.
func printCopied(out io.Writer, typ string, r *worker.CopyReport, from, to *copyEnd) {
	if r.Already {
		printable.Fprintf(out, "%s  is already in %s\n", typ, to.name())
		return
	}
	there := ""
	if n := r.Files - r.Copied; n > 0 {
		there = fmt.Sprintf(", %d of them already there", n)
	}
	printable.Fprintf(out, "%s  from %s to %s  files: %d%s  records: %s; start its workers with %s\n", typ, from.name(), to.name(), r.Files, there,
		humanize.Comma(int64(r.NextIndex)), to.argument())
}

// typesIn returns the types that have files in a place, at least one.
func typesIn(e *copyEnd) (types []string, err error) {
	paths, err := e.files("")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Stat(e.dir); e.place == nil && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("directory %s does not exist; check the path, and that its volume is mounted", e.dir)
	}
	for _, path := range paths {
		typ, _, _ := storage.ParseName(filepath.Base(path))
		types = append(types, typ)
	}
	slices.Sort(types)
	if types = slices.Compact(types); len(types) == 0 {
		return nil, &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("there are no files in %s", e.name())}
	}
	return types, nil
}
