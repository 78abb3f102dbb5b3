package main

import (
	"context"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/spf13/cobra"
)

func setupCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create the collections and indexes that Fencepost uses; with --check only report what is missing",
		Long: `Setup creates the collection of locks with its TTL index. Everything else is created when it is first used, and messages need no
index except the one on _id. Workers and producers do the same if their permissions allow it; setup is for databases where they do
not. The embedded database needs no setup.`,
		Example: `  fencepost setup --url-file admin-url      # the URL of a user who may create indexes
  fencepost setup --check --url mongodb://db1/shop`,
		Args: cli.NoArgs,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().BoolVar(&check, "check", false, "change nothing, exit 1 if something is missing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withQueue(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			m, ok := b.Queue.(mongoBackend)
			if !ok {
				printable.Fprintf(cmd.OutOrStdout(), "the embedded database needs no setup\n")
				return nil
			}
			do := mongolock.Setup
			if check {
				do = mongolock.CheckSetup
			}
			if err := do(ctx, m.DB(), mongolock.Options{}); err != nil {
				return err
			}
			printable.Fprintf(cmd.OutOrStdout(), "everything is set up\n")
			return nil
		})
	}
	return cmd
}
