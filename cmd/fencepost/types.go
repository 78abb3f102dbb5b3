package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func typesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "types",
		Short: "Show the types in the queue; pause, limit or purge them; show pending messages",
		Args:  cli.NoArgs,
		Run:   cli.Help,
	}
	cmd.AddCommand(typesLsCommand(), typesShowCommand(), typesPauseCommand(), typesResumeCommand(), typesLimitCommand(), typesPurgeCommand(), typesPeekCommand())
	return cmd
}

// typeRow is one type in the json output of types ls.
type typeRow struct {
	Type          string  `json:"type"`
	Pending       int     `json:"pending"`
	PendingCapped bool    `json:"pending_capped,omitempty"` // more are pending
	OldestSeconds float64 `json:"oldest_seconds"`
	ForeignKeys   int     `json:"foreign_keys,omitempty"` // seen while counting the messages; there may be more
	DurableIndex  uint64  `json:"durable_index"`
	Epoch         uint64  `json:"epoch"`
	FileID        string  `json:"file_id,omitempty"`
	Generation    uint64  `json:"generation"`      // of the file: 1 for the first one, 0: no file yet
	Place         string  `json:"place,omitempty"` // where the file is: a store, or host:/directory
	DrainPaused   bool    `json:"drain_paused,omitempty"`
	PublishPaused bool    `json:"publish_paused,omitempty"`
	MaxBacklog    int     `json:"max_backlog,omitempty"`
	FileDamaged   string  `json:"file_damaged,omitempty"` // why the registry entry of the file cannot be read
	Why           string  `json:"why,omitempty"`          // the reason given with the last change of drain, publish or limit
	LastError     string  `json:"last_error,omitempty"`   // the error that keeps a worker from draining it

	state string
}

func typesLsCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	most := cli.Count(100_000)
	var pending bool
	cmd := &cobra.Command{
		Use:   "ls [TYPE]…",
		Short: "List the types: backlog, age of the oldest message, durable messages in the file, settings",
		Long: `Ls lists all types, or those given by name or glob; with --pending only those with pending messages. It costs the server a read
of index entries and a read of the file's entry per type, a few at a time; with --pending the latter for listed types only. A type is failing if a worker reports an error that keeps it
from draining the type; types show prints the error.
With -o json the array is streamed. After an error it is incomplete, and the exit code is not 0.`,
		Example: `  fencepost types ls
  fencepost types ls 'customer-7*' --pending
  fencepost types ls --url mongodb://localhost/shop -o json`,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().Var(&most, "count-up-to", "count at most this many messages per type")
	cmd.Flags().BoolVar(&pending, "pending", false, "only types with pending messages")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkGlobs(args); err != nil {
			return err
		}
		if most < 1 {
			return cli.Usagef("--count-up-to %d: count at least 1", most)
		}
		look := lookAtTypes{args: args, most: int(most), pending: pending}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			return look.print(ctx, cmd, b, output.Value == "json")
		})
	}
	return cmd
}

// lookAtTypes is the query of types ls.
type lookAtTypes struct {
	args    []string // names and globs
	most    int      // messages to count, of each type
	pending bool     // only types that have some
}

// print prints the types: as a table or, one after the other, as a JSON array.
func (l lookAtTypes) print(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, json bool) error {
	var rows []typeRow
	found, list := 0, jsonArray{w: cmd.OutOrStdout()}
	err := l.each(ctx, b, func(r typeRow) error {
		found++
		if json {
			return list.add(r)
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range b.Queue.Strays() {
		printable.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", s)
	}
	if json {
		if err := list.end(); err != nil {
			return err
		}
	}
	switch {
	case found == 0 && l.pending:
		return &cli.Error{Code: cli.ExitNothing, Err: errors.New("no type has pending messages; leave out --pending to list all types")}
	case json:
		return nil
	case found == 0:
		_, err := printable.Fprintf(cmd.OutOrStdout(), "no types; publish something with producer publish\n")
		return err
	}
	table := printable.NewTable(cmd.OutOrStdout(), "TYPE", "PENDING", "OLDEST", "IN FILE", "EPOCH", "GENERATION", "STATE")
	for _, r := range rows {
		table.Row(r.cells()...)
	}
	return table.Flush()
}

// cells returns the row of the table.
func (r typeRow) cells() []any {
	pending, oldest := fmt.Sprint(r.Pending), "-"
	if r.PendingCapped {
		pending += "+"
	}
	if r.Pending > 0 {
		oldest = time.Duration(r.OldestSeconds * float64(time.Second)).Round(time.Second / 10).String()
	}
	state := r.state
	if r.ForeignKeys > 0 {
		state = strings.TrimPrefix(state+", foreign keys", "-, ")
	}
	if r.FileDamaged != "" {
		state = strings.TrimPrefix(state+", file entry damaged: fencepost types show "+r.Type, "-, ")
	}
	if r.LastError != "" {
		state = strings.TrimPrefix(state+", failing: fencepost types show "+r.Type, "-, ")
	}
	if r.FileID == "" {
		return []any{r.Type, pending, oldest, "-", "-", "-", state}
	}
	return []any{r.Type, pending, oldest, r.DurableIndex, r.Epoch, r.Generation, state}
}

// rowsPage is the number of types that are queried before they are printed, so that not all of them have to fit into memory.
const rowsPage = 500

// each calls add for each type, in order.
func (l lookAtTypes) each(ctx context.Context, b *fencepost.Backend, add func(typeRow) error) error {
	types, err := wantedTypes(ctx, b, l.args)
	if err != nil {
		return err
	}
	now, err := b.Queue.Now(ctx)
	if err != nil {
		return err
	}
	settings, err := b.Queue.AllSettings(ctx)
	if err != nil {
		return err
	}
	members, err := b.Queue.Members(ctx, "", 0)
	if err != nil {
		return err
	}
	failing := cli.Failures(members, now)
	for page := range slices.Chunk(types, rowsPage) {
		rows, err := l.page(ctx, b, page, now, settings)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row == nil {
				continue
			}
			row.LastError = failing[row.Type]
			if err := add(*row); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// page returns the rows of some types, querying a few at a time. A row is nil if the type is left out.
func (l lookAtTypes) page(ctx context.Context, b *fencepost.Backend, types []string, now time.Time, settings map[string]queue.Settings) ([]*typeRow, error) {
	rows := make([]*typeRow, len(types))
	g, looking := errgroup.WithContext(ctx)
	g.SetLimit(lookers)
	for i, typ := range types {
		if looking.Err() != nil {
			break
		}
		g.Go(func() error {
			depth, err := b.Queue.Depth(looking, typ, l.most)
			if err != nil || l.pending && depth.Pending == 0 {
				return err
			}
			row, err := oneTypeRow(looking, b, typ, depth, now, settings[typ])
			rows[i] = &row
			return err
		})
	}
	return rows, g.Wait()
}

func oneTypeRow(ctx context.Context, b *fencepost.Backend, typ string, depth queue.Depth, now time.Time, set queue.Settings) (typeRow, error) {
	file, known, err := b.Queue.RegistryEntry(ctx, typ)
	damaged := errors.Is(err, queue.ErrDamaged)
	if err != nil && !damaged {
		return typeRow{}, err
	}
	row := typeRow{Type: typ, Pending: depth.Pending, PendingCapped: depth.Capped, ForeignKeys: depth.Foreign, DurableIndex: file.DurableIndex, Epoch: file.Epoch}
	row.DrainPaused, row.PublishPaused, row.MaxBacklog, row.Why = set.DrainPaused, set.PublishPaused, set.MaxBacklog, set.Why
	if row.state = admin.State(set); set.Why != "" {
		row.state += " (" + set.Why + ")"
	}
	if depth.Pending > 0 {
		row.OldestSeconds = max(now.Sub(depth.Oldest.Time()).Seconds(), 0)
	}
	if damaged {
		row.FileDamaged = err.Error()
	}
	if known {
		row.FileID, row.Generation, row.Place = fmt.Sprintf("%x", file.FileID), file.Generation, file.Place
	}
	return row, nil
}
