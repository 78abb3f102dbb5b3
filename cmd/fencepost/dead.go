package main

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

func deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Show dead letters, publish them again, or remove them",
		Long: `Dead letters are messages that workers gave up: a handler failed too often, or the file refused the message. They are kept until
they are published again (requeue) or removed (rm).`,
		Args: cli.NoArgs,
		Run:  cli.Help,
	}
	cmd.AddCommand(deadLsCommand(), deadShowCommand(), deadRequeueCommand(), deadRmCommand())
	return cmd
}

// deadSelection chooses letters in all four commands.
type deadSelection struct {
	selection
	reason string
	since  cli.Since
}

func (s *deadSelection) letters() admin.Letters {
	return admin.Letters{Types: s.types, IDs: s.ids, Reason: s.reason, Since: s.since.Time}
}

func (s *deadSelection) add(cmd *cobra.Command) {
	s.selection.add(cmd, "letters")
	cmd.Flags().StringVar(&s.reason, "reason", "", "only letters whose reason contains this text")
	cmd.Flags().Var(&s.since, "since", "only letters put aside since this time, or within this duration: 2026-01-31T15:04:05Z, 90m")
}

// filters reports whether the selection leaves letters out.
func (s *deadSelection) filters() bool {
	return len(s.types) > 0 || s.reason != "" || !s.since.IsZero()
}

// letterRow is one letter in json output.
type letterRow struct {
	Type          string            `json:"type"`
	ID            string            `json:"id"`
	Published     time.Time         `json:"published"`
	Died          time.Time         `json:"died"`
	Reason        string            `json:"reason"`
	Attempts      int               `json:"attempts"`
	Worker        string            `json:"worker"`
	Damaged       string            `json:"damaged,omitempty"` // which of the fields above are unreadable
	Bytes         int               `json:"bytes"`             // of the payload
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
}

func letterRowOf(l queue.DeadLetter) letterRow {
	return letterRow{Type: l.Type, ID: l.ID.String(), Published: l.ID.Time().UTC(), Died: l.Time.UTC(), Reason: l.Reason,
		Attempts: l.Attempts, Worker: l.Worker, Damaged: l.Damaged, Bytes: len(l.Payload)}
}

func deadLsCommand() *cobra.Command {
	var s deadSelection
	output := cli.NewOneOf("text", "json")
	limit := cli.Count(1000)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List dead letters: type, ID, time, attempts, size, reason",
		Example: `  fencepost dead ls
  fencepost dead ls --type orders --since 24h --reason timeout
  fencepost dead ls -o json | jq -r '.[].id'`,
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
			rows := []letterRow{}
			more := errors.New("there are more")
			err := s.letters().Each(ctx, b.Queue, func(l queue.DeadLetter) error {
				if len(rows) == int(limit) {
					return more
				}
				rows = append(rows, letterRowOf(l))
				return nil
			})
			if errors.Is(err, more) {
				printable.Fprintf(cmd.ErrOrStderr(), "there are more than %d; see --count\n", limit)
			} else if err != nil {
				return err
			}
			switch {
			case output.Value == "json":
				err = printJSON(cmd, rows)
			case len(rows) > 0:
				err = printLetters(cmd.OutOrStdout(), rows)
			case !s.filters():
				_, err = printable.Fprintf(cmd.OutOrStdout(), "no dead letters\n")
			}
			if err == nil && len(rows) == 0 && s.filters() {
				return noMatch(deadLetter, b)
			}
			return err
		})
	}
	return cmd
}

func printLetters(out io.Writer, rows []letterRow) error {
	t := printable.NewTable(out, "TYPE", "ID", "DIED", "ATTEMPTS", "SIZE", "REASON")
	for _, r := range rows {
		reason := r.Reason
		if r.Damaged != "" {
			reason = strings.TrimSpace("damaged: " + r.Damaged + "; " + reason)
		}
		t.Row(r.Type, r.ID, r.Died.Format(time.RFC3339), r.Attempts, humanize.IBytes(uint64(r.Bytes)), reason)
	}
	return t.Flush()
}

func deadShowCommand() *cobra.Command {
	var s deadSelection
	output := cli.NewOneOf("text", "json", "raw")
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with its payload; raw prints the payload and nothing else",
		Example: `  fencepost dead show 065svpgc20000000000001o00000001a
  fencepost dead show -o raw 065svpgc20000000000001o00000001a > payload`,
	}
	s.add(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("name one ID, as fencepost dead ls prints it")
		}
		if err := s.parse(cmd, args); err != nil {
			return err
		}
		return withBackend(cmd, *s.url, func(ctx context.Context, b *fencepost.Backend) error {
			found := false
			err := s.letters().Each(ctx, b.Queue, func(l queue.DeadLetter) error {
				found = true
				return printLetter(cmd, output.Value, l)
			})
			if err == nil && !found {
				return noMatch(deadLetter, b)
			}
			return err
		})
	}
	return cmd
}

func printLetter(cmd *cobra.Command, format string, l queue.DeadLetter) error {
	out := cmd.OutOrStdout()
	row := letterRowOf(l)
	row.Headers = l.Headers
	switch format {
	case "raw":
		w := newMessageWriter(out, format)
		return errors.Join(w.bytes(l.Payload), w.Flush())
	case "json":
		if utf8.Valid(l.Payload) {
			row.Payload = new(string(l.Payload))
		} else {
			row.PayloadBase64 = new(base64.StdEncoding.EncodeToString(l.Payload))
		}
		return printJSON(cmd, row)
	}
	printable.Fprintf(out, "type       %s\nid         %s\npublished  %s\ndied       %s\nattempts   %d\nworker     %s\nreason     %s\n", row.Type, row.ID,
		row.Published.Format(time.RFC3339Nano), row.Died.Format(time.RFC3339Nano), row.Attempts, row.Worker, printable.Lines(row.Reason, "           "))
	if row.Damaged != "" {
		printable.Fprintf(out, "damaged    %s\n", row.Damaged)
	}
	for _, k := range slices.Sorted(maps.Keys(l.Headers)) {
		printable.Fprintf(out, "header     %q: %q\n", k, l.Headers[k])
	}
	switch {
	case l.Incomplete:
		printable.Fprintf(out, "payload    incomplete: its removal was interrupted; remove it again with fencepost dead rm --yes\n")
	case !utf8.Valid(l.Payload):
		printable.Fprintf(out, "payload    %d bytes, not text; see --output raw\n", len(l.Payload))
	case cli.IsTerminal(out):
		printable.Fprintf(out, "payload    %d bytes\n  %s\n", len(l.Payload), printable.Lines(string(l.Payload), "  "))
	default:
		printable.Fprintf(out, "payload    %d bytes\n%s\n", len(l.Payload), printable.Safe(l.Payload))
	}
	return nil
}

// deadAction is shared by requeue and rm. Type by type, they work on the letters that existed when they began with the type.
type deadAction struct {
	deadSelection
	adminFlags
	all, dryRun bool
}

func (a *deadAction) add(cmd *cobra.Command) {
	a.deadSelection.add(cmd)
	a.adminFlags.add(cmd)
	cmd.Flags().BoolVar(&a.all, "all", false, "letters of all types")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "list the letters and do nothing")
}

func (a *deadAction) parse(cmd *cobra.Command, args []string) error {
	if err := a.deadSelection.parse(cmd, args); err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return err
	}
	switch {
	case len(a.ids) == 0 && len(a.types) == 0 && !a.all && (a.reason != "" || !a.since.IsZero()):
		return cli.Usagef("name the types: --type TYPE, or --all and the same filter for the letters of all types")
	case len(a.ids) == 0 && len(a.types) == 0 && !a.all:
		return cli.Usagef("name the dead letters: by ID, --type TYPE or --all")
	case a.all && (len(a.ids) > 0 || len(a.types) > 0):
		return cli.Usagef("--all means the dead letters of all types and cannot be combined with IDs or --type")
	}
	return nil
}

// change requeues or removes the chosen letters.
type change func(admin.Letters, context.Context, *fencepost.Backend, admin.Turn, admin.Progress) (admin.Outcome, error)

// run makes a change and prints the outcome, or lists the letters (dryRun).
func (a *deadAction) run(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, do change, print func(admin.Outcome)) error {
	if a.dryRun {
		return a.list(ctx, cmd, b)
	}
	o, err := do(a.letters(), ctx, b, a.turn(cmd), silent)
	if o.Done+o.Left > 0 {
		print(o)
	}
	if err != nil {
		return err
	}
	return found(deadLetter, b, o.Chosen, o.Missing)
}

func (a *deadAction) list(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend) error {
	missing := slices.Clone(a.ids)
	var rows []letterRow
	err := a.letters().Each(ctx, b.Queue, func(l queue.DeadLetter) error {
		missing = slices.DeleteFunc(missing, func(id queue.ID) bool { return id == l.ID })
		rows = append(rows, letterRowOf(l))
		return nil
	})
	if err == nil && len(rows) > 0 {
		err = printLetters(cmd.OutOrStdout(), rows)
		printable.Fprintf(cmd.ErrOrStderr(), "dry run: %d letters match, nothing was changed\n", len(rows))
	}
	if err != nil {
		return err
	}
	return found(deadLetter, b, len(rows), missing)
}

func deadRequeueCommand() *cobra.Command {
	var a deadAction
	cmd := &cobra.Command{
		Use:   "requeue (ID… | --type TYPE | --all)",
		Short: "Publish dead letters again, as new messages at the end of their types",
		Long: `Requeue publishes the chosen letters as new messages, with new IDs, in the order in which they were first published, and removes
each letter once its message is stored. It takes the letters that exist when it begins with their type; a message that fails again
in the meantime is left for the next run.

It can be stopped at any time without losing anything. If this program dies after it stored a message and before it removed the letter,
the letter is still listed, and requeueing it again publishes the message twice.

` + adminHelp + `

The last line of the output is requeued=… left=…; exit code 7 if any chosen letter is left.`,
		Example: `  fencepost dead requeue 065svpgc20000000000001o00000001a
  fencepost dead requeue --type orders --reason "connection refused" --dry-run
  fencepost dead requeue --all`,
	}
	a.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.parse(cmd, args); err != nil {
			return err
		}
		return withBackend(cmd, *a.url, func(ctx context.Context, b *fencepost.Backend) error {
			return a.run(ctx, cmd, b, admin.Letters.Requeue, func(o admin.Outcome) {
				printable.Fprintf(cmd.OutOrStdout(), "requeued=%d left=%d\n", o.Done, o.Left)
			})
		})
	}
	return cmd
}

func deadRmCommand() *cobra.Command {
	var a deadAction
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm (ID… | --type TYPE | --all) (--dry-run | --yes)",
		Short: "Remove dead letters permanently",
		Long: `Rm permanently removes the chosen letters with their messages.

` + adminHelp,
		Example: `  fencepost dead rm 065svpgc20000000000001o00000001a --yes
  fencepost dead rm --type orders --dry-run`,
	}
	a.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "really remove them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.parse(cmd, args); err != nil {
			return err
		}
		if err := confirmed(a.dryRun, yes, "removed letters"); err != nil {
			return err
		}
		return withBackend(cmd, *a.url, func(ctx context.Context, b *fencepost.Backend) error {
			return a.run(ctx, cmd, b, admin.Letters.Remove, func(o admin.Outcome) {
				printable.Fprintf(cmd.OutOrStdout(), "removed=%d\n", o.Done)
			})
		})
	}
	return cmd
}
