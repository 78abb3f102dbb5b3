package main

import (
	"time"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// adminHelp is part of the help of commands that wait for their turn.
const adminHelp = `Only one of these can run on a type at a time: dead requeue, dead rm, scheduled rm, types purge, keep, copy, and the same actions in ui. A
second command waits up to --wait (copy and ui: 15 s), then exits with 5 and names the running command.`

// adminFlags are the flags of commands that change the stored messages or files of a type.
type adminFlags struct {
	wait time.Duration
}

func (f *adminFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.wait, "wait", admin.Wait, "wait this long while another command changes the messages or files of the type; 0 means do not wait")
}

func (f *adminFlags) check() error {
	if f.wait < 0 {
		return cli.Usagef("--wait %v is negative", f.wait)
	}
	return nil
}

// turn returns how the command waits for its turn.
func (f *adminFlags) turn(cmd *cobra.Command) admin.Turn {
	return admin.Turn{Why: cmd.CommandPath(), Wait: f.wait}
}

// confirmed refuses to remove something for good unless the user has said so; a dry run needs no confirmation. what is removed.
func confirmed(dryRun, yes bool, what string) error {
	if dryRun || yes {
		return nil
	}
	return cli.Usagef("%s are lost permanently: check first with --dry-run, then give --yes", what)
}

// silent ignores the progress of a change.
func silent(admin.Outcome) {}
