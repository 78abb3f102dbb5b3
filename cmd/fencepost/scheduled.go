package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

func scheduledCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scheduled",
		Short: "Show delayed messages, or remove them",
		Long: `Delayed messages were published with producer publish --delay or --at. When one is due, a worker makes it a normal message at the
end of its type. Until then types ls does not count it.`,
		Args: cli.NoArgs,
		Run:  cli.Help,
	}
	cmd.AddCommand(scheduledLsCommand(), scheduledRmCommand())
	return cmd
}

// delayedSelection chooses delayed messages in both commands.
type delayedSelection struct{ selection }

func (s *delayedSelection) delayed() admin.Delayed { return admin.Delayed{Types: s.types, IDs: s.ids} }

// delayedRow is one message in json output.
type delayedRow struct {
	Type      string    `json:"type"`
	ID        string    `json:"id"`
	Due       time.Time `json:"due"`
	InSeconds float64   `json:"in_seconds"` // time until it is due; negative: overdue
	Published time.Time `json:"published"`
	Bytes     int       `json:"bytes"` // of the payload
}

func delayedRowOf(m queue.Message, now time.Time) delayedRow {
	return delayedRow{Type: m.Type, ID: m.ID.String(), Due: m.Due.UTC(), InSeconds: m.Due.Sub(now).Seconds(), Published: m.ID.Time().UTC(), Bytes: len(m.Payload)}
}

func scheduledLsCommand() *cobra.Command {
	var s delayedSelection
	output := cli.NewOneOf("text", "json")
	limit := cli.Count(1000)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List delayed messages, the earliest due first",
		Example: `  fencepost scheduled ls
  fencepost scheduled ls --type orders -n 10
  fencepost scheduled ls -o json | jq -r '.[].id'`,
		Args: cli.NoArgs,
	}
	s.add(cmd, "messages")
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().VarP(&limit, "count", "n", "list at most this many")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.parse(cmd, args); err != nil {
			return err
		}
		if limit < 1 {
			return cli.Usagef("--count %d: list at least 1", limit)
		}
		return withBackend(cmd, *s.url, func(ctx context.Context, b *fencepost.Backend) error {
			now, err := b.Queue.Now(ctx)
			if err != nil {
				return err
			}
			rows := []delayedRow{}
			more := false
			err = s.delayed().Each(ctx, b.Queue, func(m queue.Message) bool {
				if more = len(rows) == int(limit); !more {
					rows = append(rows, delayedRowOf(m, now))
				}
				return !more
			})
			if err != nil {
				return err
			}
			if more {
				printable.Fprintf(cmd.ErrOrStderr(), "there are more than %d; see --count\n", limit)
			}
			switch {
			case output.Value == "json":
				err = printJSON(cmd, rows)
			case len(rows) > 0:
				err = printDelayed(cmd.OutOrStdout(), rows)
			case len(s.types) == 0:
				_, err = printable.Fprintf(cmd.OutOrStdout(), "no delayed messages\n")
			}
			if err == nil && len(rows) == 0 && len(s.types) > 0 {
				return noMatch(delayedMessage, b)
			}
			return err
		})
	}
	return cmd
}

func printDelayed(out io.Writer, rows []delayedRow) error {
	t := printable.NewTable(out, "DUE", "IN", "TYPE", "ID", "SIZE")
	for _, r := range rows {
		in := timeUntil(time.Duration(r.InSeconds * float64(time.Second)))
		t.Row(r.Due.Format(time.RFC3339), in, r.Type, r.ID, humanize.IBytes(uint64(r.Bytes)))
	}
	return t.Flush()
}

// timeUntil describes how long it is until a message is due.
func timeUntil(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d <= 0:
		return "due"
	case d < day:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

func scheduledRmCommand() *cobra.Command {
	var s delayedSelection
	var turn adminFlags
	var all, dryRun, yes bool
	cmd := &cobra.Command{
		Use:   "rm (ID… | --type TYPE | --all) (--dry-run | --yes)",
		Short: "Remove delayed messages permanently",
		Long: `Rm permanently removes the chosen delayed messages. Messages that workers are promoting at that moment stay; the exit code is then 7.

` + adminHelp,
		Example: `  fencepost scheduled rm 065svpgc20000000000001o00000001a --yes
  fencepost scheduled rm --type orders --dry-run`,
	}
	s.add(cmd, "messages")
	turn.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "messages of all types")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list the messages and do nothing")
	cmd.Flags().BoolVar(&yes, "yes", false, "really remove them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.parse(cmd, args); err != nil {
			return err
		}
		if err := turn.check(); err != nil {
			return err
		}
		switch {
		case len(s.ids) == 0 && len(s.types) == 0 && !all:
			return cli.Usagef("name the delayed messages: by ID, --type TYPE or --all")
		case all && (len(s.ids) > 0 || len(s.types) > 0):
			return cli.Usagef("--all means the messages of all types and cannot be combined with IDs or --type")
		}
		if err := confirmed(dryRun, yes, "removed messages"); err != nil {
			return err
		}
		return withBackend(cmd, *s.url, func(ctx context.Context, b *fencepost.Backend) error {
			if dryRun {
				return s.list(ctx, cmd, b)
			}
			o, err := s.delayed().Remove(ctx, b, turn.turn(cmd), silent)
			if o.Chosen > 0 {
				printable.Fprintf(cmd.OutOrStdout(), "removed=%d\n", o.Done)
			}
			if err != nil {
				return err
			}
			return found(delayedMessage, b, o.Chosen, o.Missing)
		})
	}
	return cmd
}

// list implements rm --dry-run.
func (s *delayedSelection) list(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend) error {
	now, err := b.Queue.Now(ctx)
	if err != nil {
		return err
	}
	missing := slices.Clone(s.ids)
	var rows []delayedRow
	err = s.delayed().Each(ctx, b.Queue, func(m queue.Message) bool {
		missing = slices.DeleteFunc(missing, func(id queue.ID) bool { return id == m.ID })
		rows = append(rows, delayedRowOf(m, now))
		return true
	})
	if err == nil && len(rows) > 0 {
		err = printDelayed(cmd.OutOrStdout(), rows)
		printable.Fprintf(cmd.ErrOrStderr(), "dry run: %d messages match, nothing was changed\n", len(rows))
	}
	if err != nil {
		return err
	}
	return found(delayedMessage, b, len(rows), missing)
}
