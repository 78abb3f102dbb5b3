package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

func indexCommand() *cobra.Command {
	var o storage.IndexOptions
	var quiet bool
	var address *string
	cmd := &cobra.Command{
		Use:   "index FILE|DIRECTORY…",
		Short: "Build or refresh the side index of files, so that cat finds a time at once",
		Long: `Index writes a small file beside each file, orders.fpl.idx, that tells where batches start. With it, cat --since, and every program
that reads with storage.OpenReader, skips what comes before. An index, as in cat --from, is found without it. It is safe while the file is being written to, and covers
what is durable; run it again to extend it. A directory stands for all .fpl files in it.

The side index is derived data: you may remove it at any time. It is compared with the file before it is used; where it is wrong, the
file is read without it. --check compares all of it, and writes nothing.

` + cli.ExitHelp,
		Example: `  fencepost index data/orders.fpl
  fencepost index --check /srv/fencepost
  fencepost index data && fencepost cat --since 90m data/orders.fpl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if *address != "" { // on the command line
				return cli.Usagef("files in a store have no side index; leave out fencepost index: cat --store --from starts at once without one, and --since reads from the start")
			}
			if err := cli.FromEnv(cmd); err != nil {
				return err
			}
			paths, _, err := filePaths("index", args)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			defer cli.OnSignals(cancel, func() { os.Exit(cli.ExitStopped) })()
			var progress *byteProgress
			if !quiet && cli.IsTerminal(cmd.ErrOrStderr()) {
				progress = newByteProgress(cmd.ErrOrStderr(), "index", paths, sizeOf)
			}
			var errs []error
			for _, path := range paths {
				o.Progress = progress.file(path)
				r, err := storage.BuildIndex(ctx, path, o)
				progress.finish(path)
				progress.clear()
				if err != nil {
					errs = append(errs, noIndex(path, err))
					continue
				}
				state := string(r.State)
				if r.Reason != "" {
					state += " (" + r.Reason + ")"
				}
				printable.Fprintf(cmd.OutOrStdout(), "%s  %s entries  covers %s of %s bytes  %s\n", path, humanize.Comma(int64(r.Entries)),
					humanize.Comma(r.Covered), humanize.Comma(r.Size), state)
			}
			return errors.Join(errs...)
		},
	}
	address = store.FlagOfReader(cmd)
	cmd.Flags().MarkHidden("store")
	cmd.Flags().BoolVar(&o.Check, "check", false, "only compare the side index with the file")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress bar")
	return cmd
}

// noIndex tells a file without a side index from a file that is not there.
func noIndex(path string, err error) error {
	var where *fs.PathError
	if errors.Is(err, fs.ErrNotExist) && errors.As(err, &where) && where.Path == storage.IndexName(path) {
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s has no side index; build it with fencepost index %s", path, path)}
	}
	return err
}
