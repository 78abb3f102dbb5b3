package main

import (
	"fmt"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// selection chooses dead letters or delayed messages, by type and by ID. The IDs are arguments.
type selection struct {
	url   *string
	types []string
	ids   []queue.ID
}

// add adds the flags. what names the things to choose from.
func (s *selection) add(cmd *cobra.Command, what string) {
	s.url = cli.URLFlag(cmd)
	cmd.Flags().StringSliceVarP(&s.types, "type", "t", nil, "only "+what+" of this type; repeatable; takes effect on the command line only")
}

// parse reads the arguments.
func (s *selection) parse(cmd *cobra.Command, args []string) error {
	// rule: a type is chosen on the command line only. FENCEPOST_TYPE, and type in a config file, say what a worker serves.
	if !cli.OnCommandLine(cmd.Flags().Lookup("type")) {
		s.types = nil
	}
	for _, t := range s.types {
		if err := queue.ValidateType(t); err != nil {
			return err
		}
	}
	for _, arg := range args {
		id, err := queue.ParseID(arg)
		if err != nil {
			return cli.Usagef("%w; %s ls prints the IDs", err, cmd.Parent().CommandPath())
		}
		s.ids = append(s.ids, id)
	}
	return nil
}

// What a selection chooses from, in errors.
const (
	deadLetter     = "dead letter"
	delayedMessage = "delayed message"
)

// noMatch returns the error of a command that has found none of what it looks for.
func noMatch(what string, b *fencepost.Backend) error {
	return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no %s of %s matches", what, b.Name)}
}

// found returns an error if nothing was chosen, or IDs are missing.
func found(what string, b *fencepost.Backend, chosen int, missing []queue.ID) error {
	switch {
	case chosen == 0:
		return noMatch(what, b)
	case len(missing) > 0:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d of the IDs are not %ss, for example %s", len(missing), what, missing[0])}
	}
	return nil
}
