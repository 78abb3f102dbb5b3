package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

func deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Show the dead letters, publish them again, or remove them",
		Long: `Dead letters are messages that workers gave up: a handler failed too often, or the file refuses the message. They stay until they
are published again (requeue) or removed (rm).`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(deadLsCommand(), deadShowCommand(), deadRequeueCommand(), deadRmCommand())
	return cmd
}

// deadSelection is what chooses letters in all four commands.
type deadSelection struct {
	url    *string
	types  []string
	reason string
	since  cli.Since
	ids    []queue.ID
}

func (s *deadSelection) add(cmd *cobra.Command) {
	s.url = cli.URLFlag(cmd)
	cmd.Flags().StringSliceVarP(&s.types, "type", "t", nil, "only letters of this type; repeatable")
	cmd.Flags().StringVar(&s.reason, "reason", "", "only letters whose reason contains this text")
	cmd.Flags().Var(&s.since, "since", "only letters put aside since this time, or within this duration: 2026-01-31T15:04:05Z, 90m")
}

// parse takes environment and arguments in.
func (s *deadSelection) parse(cmd *cobra.Command, args []string) error {
	if err := cli.FromEnv(cmd); err != nil {
		return err
	}
	for _, t := range s.types {
		if err := queue.ValidateType(t); err != nil {
			return err
		}
	}
	for _, arg := range args {
		id, err := queue.ParseID(arg)
		if err != nil {
			return cli.Usagef("%w; fencepost dead ls prints the IDs", err)
		}
		s.ids = append(s.ids, id)
	}
	return nil
}

// each calls f with every chosen letter, by type and ID.
func (s *deadSelection) each(ctx context.Context, q queue.DeadLetterReader, f func(queue.DeadLetter) error) error {
	types := s.types
	if len(types) == 0 {
		types = []string{""} // all
	}
	for _, typ := range types {
		if err := s.eachOf(ctx, q, typ, f); err != nil {
			return err
		}
	}
	return nil
}

// eachOf is each for one type.
func (s *deadSelection) eachOf(ctx context.Context, q queue.DeadLetterReader, typ string, f func(queue.DeadLetter) error) error {
	for l, err := range queue.DeadLetters(ctx, q, queue.DeadLetterFilter{Type: typ, IDs: s.ids, Reason: s.reason, Since: s.since.Time}) {
		if err == nil {
			err = f(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func noDead(name string) error {
	return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no dead letter of %s matches", name)}
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
	Damaged       string            `json:"damaged,omitempty"` // which of the fields above cannot be read
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
		Short: "List the dead letters: type, ID, when, how often tried, why",
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
			err := s.each(ctx, b.Queue, func(l queue.DeadLetter) error {
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
			if output.Value == "json" {
				return printJSON(cmd, rows)
			}
			if len(rows) == 0 {
				return noDead(b.Name)
			}
			return printLetters(cmd.OutOrStdout(), rows)
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
		t.Row(r.Type, r.ID, r.Died.Local().Format(time.DateTime), r.Attempts, humanize.IBytes(uint64(r.Bytes)), reason)
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
			err := s.each(ctx, b.Queue, func(l queue.DeadLetter) error {
				found = true
				return printLetter(cmd, output.Value, l)
			})
			if err == nil && !found {
				return noDead(b.Name)
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
		printable.Fprintf(out, "payload    gone in part: its removal was cut off; remove it again with fencepost dead rm\n")
	case !utf8.Valid(l.Payload):
		printable.Fprintf(out, "payload    %d bytes, not text; see --output raw\n", len(l.Payload))
	case cli.IsTerminal(out):
		printable.Fprintf(out, "payload    %d bytes\n  %s\n", len(l.Payload), printable.Lines(string(l.Payload), "  "))
	default:
		printable.Fprintf(out, "payload    %d bytes\n%s\n", len(l.Payload), printable.Safe(l.Payload))
	}
	return nil
}

// deadAction is what requeue and rm share: type by type, they work on the letters that were there when they began.
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

// run calls do with the chosen letters in portions, or lists them (dryRun).
func (a *deadAction) run(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, do func(context.Context, []queue.DeadLetter) error) error {
	missing := map[queue.ID]bool{}
	for _, id := range a.ids {
		missing[id] = true
	}
	chosen := 0
	choose := func(l queue.DeadLetter) {
		chosen++
		delete(missing, l.ID)
	}
	var err error
	if a.dryRun {
		err = a.list(ctx, cmd, b, choose)
	} else {
		err = a.act(ctx, cmd, b, choose, do)
	}
	switch {
	case err != nil:
		return err
	case chosen == 0:
		return noDead(b.Name)
	case len(missing) > 0:
		return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("%d of the IDs are not dead letters, one of them is %s", len(missing), slices.Collect(maps.Keys(missing))[0])}
	}
	return nil
}

func (a *deadAction) list(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, choose func(queue.DeadLetter)) error {
	var rows []letterRow
	err := a.each(ctx, b.Queue, func(l queue.DeadLetter) error {
		choose(l)
		rows = append(rows, letterRowOf(l))
		return nil
	})
	if err != nil || len(rows) == 0 {
		return err
	}
	err = printLetters(cmd.OutOrStdout(), rows)
	printable.Fprintf(cmd.ErrOrStderr(), "dry run: %d letters are chosen, nothing was done\n", len(rows))
	return err
}

// act works type by type.
func (a *deadAction) act(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, choose func(queue.DeadLetter), do func(context.Context, []queue.DeadLetter) error) error {
	types := a.types
	if len(types) == 0 {
		var err error
		if types, err = b.Queue.Types(ctx); err != nil {
			return err
		}
	}
	acted := false
	for _, typ := range types {
		one := errors.New("there is one")
		err := a.eachOf(ctx, b.Queue, typ, func(queue.DeadLetter) error { return one })
		if err == nil {
			continue // no lock for nothing
		}
		if errors.Is(err, one) {
			err = a.alone(ctx, cmd, b, typ, func(ctx context.Context) error { return a.actOn(ctx, b, typ, choose, do) })
		}
		switch {
		case err == nil:
			acted = true
		case acted && errors.Is(err, lock.ErrHeld):
			return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("the dead letters of type %s and of the types after it remain: %w", typ, err)}
		default:
			return err
		}
	}
	return nil
}

// actOn works on one type.
//
// rule: the letters are chosen under the lock. Those that were chosen before it may be gone, and published, by now.
func (a *deadAction) actOn(ctx context.Context, b *fencepost.Backend, typ string, choose func(queue.DeadLetter), do func(context.Context, []queue.DeadLetter) error) error {
	// rule: what dies meanwhile is not chosen, above all not what was requeued and has died again.
	chosen := map[queue.ID]bool{}
	err := a.eachOf(ctx, b.Queue, typ, func(l queue.DeadLetter) error {
		choose(l)
		chosen[l.ID] = true
		return nil
	})
	if err != nil {
		return err
	}
	const letters, bytes = 500, 8 << 20
	var portion []queue.DeadLetter
	size := 0
	flush := func() error {
		// rule: nothing is begun without the lock.
		if len(portion) == 0 || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := do(ctx, portion)
		portion, size = portion[:0], 0
		return err
	}
	err = a.eachOf(ctx, b.Queue, typ, func(l queue.DeadLetter) error {
		if !chosen[l.ID] {
			return nil
		}
		portion = append(portion, l)
		if size += l.Size(); len(portion) == letters || size >= bytes {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

func deadRequeueCommand() *cobra.Command {
	var a deadAction
	cmd := &cobra.Command{
		Use:   "requeue (ID… | --type TYPE | --all)",
		Short: "Publish dead letters again, as new messages at the end of their types",
		Long: `Requeue publishes the chosen letters as new messages, with new IDs, in the order in which they were first published, and removes
each letter once its message is stored. It takes the letters that exist when it begins with their type; a message that fails again
meanwhile is left for the next run.

Stopping it at any time loses nothing. If this program dies after it stored a message and before it removed the letter, the letter is
still listed, and requeueing it again publishes the message twice.

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
			p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
			if err != nil {
				return err
			}
			requeued, left := 0, 0
			var failed error // the first
			err = a.run(ctx, cmd, b, func(ctx context.Context, letters []queue.DeadLetter) error {
				n, err := queue.Requeue(ctx, b.Queue, p, letters)
				requeued += n
				left += len(letters) - n
				if failed == nil {
					failed = err
				}
				return nil
			})
			closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = p.Close(closeCtx) // the outcomes are known, or unknown for good
			if requeued+left > 0 {
				printable.Fprintf(cmd.OutOrStdout(), "requeued=%d left=%d\n", requeued, left)
			}
			if err == nil && failed != nil {
				err = &cli.Error{Code: cli.ExitPartial, Err: failed}
			}
			return err
		})
	}
	return cmd
}

func deadRmCommand() *cobra.Command {
	var a deadAction
	cmd := &cobra.Command{
		Use:   "rm (ID… | --type TYPE | --all)",
		Short: "Remove dead letters for good",
		Long: `Rm removes the chosen letters with their messages, for good.

` + adminHelp,
		Example: `  fencepost dead rm 065svpgc20000000000001o00000001a
  fencepost dead rm --type orders --dry-run`,
	}
	a.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.parse(cmd, args); err != nil {
			return err
		}
		return withBackend(cmd, *a.url, func(ctx context.Context, b *fencepost.Backend) error {
			removed := 0
			err := a.run(ctx, cmd, b, func(ctx context.Context, letters []queue.DeadLetter) error {
				ids := map[string][]queue.ID{}
				for _, l := range letters {
					ids[l.Type] = append(ids[l.Type], l.ID)
				}
				for typ, ids := range ids {
					if err := b.Queue.RemoveDeadLetters(ctx, typ, ids); err != nil {
						return err
					}
					removed += len(ids)
				}
				return nil
			})
			if removed > 0 {
				printable.Fprintf(cmd.OutOrStdout(), "removed=%d\n", removed)
			}
			return err
		})
	}
	return cmd
}
