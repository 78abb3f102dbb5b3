package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

// keeper removes old files of types.
type keeper struct {
	url         *string
	files       fileFlags
	admin       adminFlags
	age         cli.Age
	size        cli.Size
	replaced    bool
	dryRun, yes bool
	quiet       bool

	out io.Writer
}

func keepCommand() *cobra.Command {
	var k keeper
	cmd := &cobra.Command{
		Use:   "keep DIRECTORY|FILE… | --store ADDRESS [TYPE]…",
		Short: "Remove old files of types: files older than --age, or the oldest beyond --size",
		Long: `Keep removes files that were sealed (--max-file-size of the worker, compact, repair), oldest first, with the messages in them. A directory
stands for all types in it, and a file for all files of its type. With --store arguments are types; none means all.

  --age 30d        files that were sealed longer ago: all their messages are older
  --size 100GiB    the oldest files, until those of a type have no more than this together
  --replaced       files that compact or repair replaced, after the file with their messages was read completely

The time when a file was sealed comes from the clock of the worker that sealed it. --age compares it with this machine's clock or the database's,
whichever is earlier. Files that have the messages of removed ones, because of compact or repair, are read first.

Workers continue in the meantime. The newest file of a type is never removed, nor one that is not sealed. Nothing of a type is removed if a file is
missing, cut, renamed or a copy, or if the newest is not the one that the database names. Duplicates are refused as before: everything that
workers must know about older messages is in the newest file.

` + adminHelp + `

The last line for each type is removed=… bytes=… and the files that are kept. Finding nothing to remove is not an error.
` + cli.ExitHelp,
		Example: `  fencepost keep --age 30d --dry-run data
  fencepost keep --age 30d --size 100GiB --yes data/orders.fpl
  fencepost compact data/orders.fpl && fencepost keep --replaced --yes data/orders.fpl
  fencepost keep --size 1TiB --yes --store mongodb: --url mongodb://db1,db2,db3/shop`,
	}
	k.url = cli.URLFlag(cmd)
	k.files.add(cmd, k.url)
	k.admin.add(cmd)
	cmd.Flags().Var(&k.age, "age", "remove files that were sealed longer ago than this, as in 30d or 12h")
	cmd.Flags().Var(&k.size, "size", "remove the oldest files of a type while all of them have more bytes than this together, as in 100GiB")
	cmd.Flags().BoolVar(&k.replaced, "replaced", false, "remove files that a compaction or repair replaced")
	cmd.Flags().BoolVar(&k.dryRun, "dry-run", false, "print what would be removed, remove nothing")
	cmd.Flags().BoolVar(&k.yes, "yes", false, "really remove them")
	cmd.Flags().BoolVarP(&k.quiet, "quiet", "q", false, "no progress bar")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := k.admin.check(); err != nil {
			return err
		}
		if k.age == 0 && k.size == 0 && !k.replaced {
			return cli.Usagef("name what to remove: --age, as in --age 30d, --size, as in --size 100GiB, or --replaced")
		}
		if err := confirmed(k.dryRun, k.yes, "messages in removed files"); err != nil {
			return err
		}
		if err := k.files.open(cmd.Context()); err != nil {
			return err
		}
		defer k.files.close()
		paths, _, err := k.files.paths("keep", args)
		if err != nil {
			return err
		}
		types, err := typesOf(paths)
		if err != nil {
			return err
		}
		k.out = k.files.out(cmd.OutOrStdout())
		return withBackend(cmd, *k.url, func(ctx context.Context, b *fencepost.Backend) error {
			var errs []error
			for _, t := range types {
				if ctx.Err() != nil { // a signal: the remaining types are not processed
					errs = append(errs, ctx.Err())
					break
				}
				errs = append(errs, k.keepInTurn(ctx, cmd, b, t))
			}
			return errors.Join(errs...)
		})
	}
	return cmd
}

// typesOf returns the types of files with their directories, each once.
func typesOf(paths []string) (types []chainKey, err error) {
	for _, path := range paths {
		t, ok := chainOf(path)
		if !ok {
			return nil, cli.Usagef("%s is not the name of a type's file; use one such as data/orders.fpl", path)
		}
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	return types, nil
}

// keepInTurn calls keep when no other command changes the type; a dry run need not wait for that.
func (k *keeper) keepInTurn(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, t chainKey) error {
	if k.dryRun {
		return k.keep(ctx, cmd, b, t)
	}
	// A type that the database does not know, perhaps a mistyped one, gets no lock.
	if _, err := registryEntry(ctx, b, t.typ); err != nil {
		return err
	}
	return k.admin.turn(cmd).Take(ctx, b, t.typ, func(ctx context.Context) error { return k.keep(ctx, cmd, b, t) })
}

// keep removes the old files of one type.
func (k *keeper) keep(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, t chainKey) error {
	entry, err := registryEntry(ctx, b, t.typ)
	if err != nil {
		return err
	}
	o := storage.KeepOptions{Registered: entry, Age: time.Duration(k.age), Size: int64(k.size), Replaced: k.replaced, DryRun: k.dryRun}
	if k.files.place != nil {
		o.FS = k.files.place.Until(ctx)
	}
	// The clock that is behind decides which files are old.
	if o.Now, err = b.Queue.Now(ctx); err != nil {
		return err
	}
	if now := time.Now(); now.Before(o.Now) {
		o.Now = now
	}
	if !k.quiet && cli.IsTerminal(cmd.ErrOrStderr()) {
		p := newByteProgress(cmd.ErrOrStderr(), "keep "+t.typ, nil, k.files.size)
		o.Progress = func(path string, done, total int64) { p.more(path, total); p.file(path)(done, total) }
		defer p.clear()
	}
	r, err := storage.Keep(ctx, t.dir, t.typ, o)
	if err == nil || len(r.Old)+len(r.Ended) > 0 {
		k.print(t, r)
	}
	return err
}

// print prints what was removed of a type, or would be.
func (k *keeper) print(t chainKey, r *storage.KeepReport) {
	would, bytes := "removed", int64(0)
	if k.dryRun {
		would = "would be removed"
	}
	for _, f := range r.Old {
		bytes += f.Size
		index := "no messages"
		if f.Next > f.First {
			index = fmt.Sprintf("index %d..%d", f.First, f.Next-1)
		}
		printable.Fprintf(k.out, "%s  %s  %s  sealed %s  %s: %s\n", f.Path, index, humanize.IBytes(uint64(f.Size)), f.SealedAt.UTC().Format(time.RFC3339), would, f.Why)
	}
	for _, name := range r.Ended {
		printable.Fprintf(k.out, "%s  removed: completes an earlier run\n", filepath.Join(t.dir, name))
	}
	n := len(r.Old)
	dry := ""
	if k.dryRun {
		dry, n = fmt.Sprintf(" matching=%d", n), 0
	}
	printable.Fprintf(k.out, "%s  removed=%d%s bytes=%d", t.typ, n, dry, bytes)
	if len(r.Kept) > 0 {
		left := int64(0)
		for _, l := range r.Kept {
			left += l.Size
		}
		printable.Fprintf(k.out, "  kept: generation %d on, index %d on, files: %d, %s", r.Kept[0].Generation, r.Kept[0].First, len(r.Kept), humanize.IBytes(uint64(left)))
	}
	if k.dryRun {
		printable.Fprintf(k.out, " (dry run)")
	}
	printable.Fprintf(k.out, "\n")
}
