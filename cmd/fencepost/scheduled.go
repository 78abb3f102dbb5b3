package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

func scheduledCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scheduled",
		Short: "Show the delayed messages, or remove them",
		Long: `Delayed messages were published with producer publish --delay or --at. When one is due, a worker makes it a normal message at the
end of its type. Until then types ls does not count it.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(scheduledLsCommand(), scheduledRmCommand())
	return cmd
}

// delayedSelection is what chooses delayed messages in both commands.
type delayedSelection struct {
	url   *string
	types []string
	ids   map[queue.ID]bool
}

func (s *delayedSelection) add(cmd *cobra.Command) {
	s.url = cli.URLFlag(cmd)
	cmd.Flags().StringSliceVarP(&s.types, "type", "t", nil, "only messages of this type; repeatable")
}

// parse takes environment and arguments in.
func (s *delayedSelection) parse(cmd *cobra.Command, args []string) error {
	if err := cli.FromEnv(cmd); err != nil {
		return err
	}
	for _, t := range s.types {
		if err := queue.ValidateType(t); err != nil {
			return err
		}
	}
	s.ids = map[queue.ID]bool{}
	for _, arg := range args {
		id, err := queue.ParseID(arg)
		if err != nil {
			return cli.Usagef("%w; fencepost scheduled ls prints the IDs", err)
		}
		s.ids[id] = true
	}
	return nil
}

// delayedReader lists delayed messages.
type delayedReader interface {
	Delayed(ctx context.Context, after queue.ScheduleKey, limit queue.Limit) ([]queue.Message, error)
}

// each calls f with every chosen message, in the order in which they are due, until it returns false.
func (s *delayedSelection) each(ctx context.Context, q delayedReader, f func(queue.Message) bool) error {
	page := queue.Limit{Messages: 500, Bytes: 8 << 20}
	for after := (queue.ScheduleKey{}); ; {
		msgs, err := q.Delayed(ctx, after, page)
		if err != nil || len(msgs) == 0 {
			return err
		}
		for _, m := range msgs {
			if (len(s.types) == 0 || slices.Contains(s.types, m.Type)) && (len(s.ids) == 0 || s.ids[m.ID]) && !f(m) {
				return nil
			}
		}
		after = queue.ScheduleKeyOf(&msgs[len(msgs)-1])
	}
}

func noDelayed(name string) error {
	return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no delayed message of %s matches", name)}
}

// delayedRow is one message in json output.
type delayedRow struct {
	Type      string    `json:"type"`
	ID        string    `json:"id"`
	Due       time.Time `json:"due"`
	InSeconds float64   `json:"in_seconds"` // negative: it is due
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
		Short: "List the delayed messages, the first to become due first",
		Example: `  fencepost scheduled ls
  fencepost scheduled ls --type orders -n 10
  fencepost scheduled ls -o json | jq -r '.[].id'`,
		Args: cli.NoArgs,
	}
	s.add(cmd)
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
			err = s.each(ctx, b.Queue, func(m queue.Message) bool {
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
			if output.Value == "json" {
				return printJSON(cmd, rows)
			}
			if len(rows) == 0 {
				return noDelayed(b.Name)
			}
			return printDelayed(cmd.OutOrStdout(), rows)
		})
	}
	return cmd
}

func printDelayed(out io.Writer, rows []delayedRow) error {
	t := printable.NewTable(out, "DUE", "IN", "TYPE", "ID", "SIZE")
	for _, r := range rows {
		in := time.Duration(r.InSeconds * float64(time.Second)).Round(time.Second).String()
		if r.InSeconds <= 0 {
			in = "due"
		}
		t.Row(r.Due.Local().Format(time.DateTime), in, r.Type, r.ID, humanize.IBytes(uint64(r.Bytes)))
	}
	return t.Flush()
}

func scheduledRmCommand() *cobra.Command {
	var s delayedSelection
	var admin adminFlags
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "rm (ID… | --type TYPE | --all)",
		Short: "Remove delayed messages for good",
		Long: `Rm removes the chosen delayed messages for good. Those that workers are promoting at the same moment stay; the exit code is 7 then.

` + adminHelp,
		Example: `  fencepost scheduled rm 065svpgc20000000000001o00000001a
  fencepost scheduled rm --type orders --dry-run`,
	}
	s.add(cmd)
	admin.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "messages of all types")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list the messages and do nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.parse(cmd, args); err != nil {
			return err
		}
		if err := admin.check(); err != nil {
			return err
		}
		switch {
		case len(s.ids) == 0 && len(s.types) == 0 && !all:
			return cli.Usagef("name the delayed messages: by ID, --type TYPE or --all")
		case all && (len(s.ids) > 0 || len(s.types) > 0):
			return cli.Usagef("--all means the messages of all types and cannot be combined with IDs or --type")
		}
		return withBackend(cmd, *s.url, func(ctx context.Context, b *fencepost.Backend) error { return s.remove(ctx, cmd, b, admin, dryRun) })
	}
	return cmd
}

func (s *delayedSelection) remove(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, admin adminFlags, dryRun bool) error {
	now, err := b.Queue.Now(ctx)
	if err != nil {
		return err
	}
	slots := map[string][]queue.ScheduleKey{} // by type
	chosen := 0
	var rows []delayedRow
	missing := maps.Clone(s.ids)
	err = s.each(ctx, b.Queue, func(m queue.Message) bool {
		slots[m.Type] = append(slots[m.Type], queue.ScheduleKeyOf(&m))
		chosen++
		delete(missing, m.ID)
		if dryRun {
			rows = append(rows, delayedRowOf(m, now))
		}
		return true
	})
	removed := 0
	switch {
	case err != nil:
		return err
	case chosen == 0:
		return noDelayed(b.Name)
	case dryRun:
		err = printDelayed(cmd.OutOrStdout(), rows)
		printable.Fprintf(cmd.ErrOrStderr(), "dry run: %d messages are chosen, nothing was done\n", len(rows))
		removed = chosen
	default:
		for _, typ := range slices.Sorted(maps.Keys(slots)) {
			err = admin.alone(ctx, cmd, b, typ, func(ctx context.Context) error {
				for some := range slices.Chunk(slots[typ], 500) {
					n, err := b.Queue.CancelDelayed(ctx, some)
					if removed += n; err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				break
			}
		}
		printable.Fprintf(cmd.OutOrStdout(), "removed=%d\n", removed)
	}
	switch {
	case removed > 0 && errors.Is(err, lock.ErrHeld):
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("the other messages stay: %w", err)}
	case err != nil:
		return err
	case removed < chosen:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d of the messages were gone already: promoted, or removed by somebody else", chosen-removed)}
	case len(missing) > 0:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d of the IDs are not delayed messages, one of them is %s", len(missing), slices.Collect(maps.Keys(missing))[0])}
	}
	return nil
}
