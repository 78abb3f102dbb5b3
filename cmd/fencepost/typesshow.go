package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// lookAtMost bounds how many dead letters, delayed and pending messages are read to count them.
var lookAtMost = queue.Limit{Messages: 1000, Bytes: 16 << 20}

// typeDetails is the json output of types show.
type typeDetails struct {
	typeRow
	Changed    time.Time   `json:"changed,omitzero"` // when its settings were changed, by the server's clock
	Lock       *lockRow    `json:"lock,omitempty"`   // left out if the lock was never used
	Workers    []workerRow `json:"workers"`          // workers that serve the type; some may have died
	Dead       int         `json:"dead"`
	DeadCapped bool        `json:"dead_capped,omitempty"` // there are more dead letters
	NextDue    time.Time   `json:"next_due,omitzero"`     // of its delayed messages, if it is among the first lookAtMost of all types
	Unfit      []unfitRow  `json:"unfit,omitempty"`       // the oldest messages, and foreign keys, that cannot be appended

	unfit unfit
}

// workerRow is a worker that serves a type.
type workerRow struct {
	Instance string    `json:"instance"`
	Host     string    `json:"host"`
	PID      int       `json:"pid"`
	Version  string    `json:"version"`
	Holds    bool      `json:"holds"`
	Stopping bool      `json:"stopping,omitempty"`
	Seen     time.Time `json:"seen"`
}

func typesShowCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	most := cli.Count(100_000)
	cmd := &cobra.Command{
		Use:   "show TYPE",
		Short: "Show one type: backlog, settings, file, lock, workers, dead letters, delayed messages",
		Example: `  fencepost types show orders
  fencepost types show orders -o json --url mongodb://localhost/shop`,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().Var(&most, "count-up-to", "count at most this many messages")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) != 1:
			return cli.Usagef("name one type, as in fencepost types show orders")
		case most < 1:
			return cli.Usagef("--count-up-to %d: count at least 1", most)
		}
		if err := queue.ValidateType(args[0]); err != nil {
			return err
		}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			known, err := b.Queue.Types(ctx)
			if err != nil {
				return err
			}
			if !slices.Contains(known, args[0]) {
				return unknownType(b, args[0])
			}
			now, err := b.Queue.Now(ctx)
			if err != nil {
				return err
			}
			d, err := showType(ctx, b, args[0], int(most), now)
			if err != nil {
				return err
			}
			if output.Value == "json" {
				return printJSON(cmd, d)
			}
			return d.print(cmd.OutOrStdout(), now)
		})
	}
	return cmd
}

func showType(ctx context.Context, b *fencepost.Backend, typ string, most int, now time.Time) (*typeDetails, error) {
	set, err := b.Queue.Settings(ctx, typ)
	if err != nil {
		return nil, err
	}
	depth, err := b.Queue.Depth(ctx, typ, most)
	if err != nil {
		return nil, err
	}
	row, err := oneTypeRow(ctx, b, typ, depth, now, set)
	if err != nil {
		return nil, err
	}
	d := &typeDetails{typeRow: row, Changed: set.Changed, Workers: []workerRow{}}
	switch r, err := b.Locker.Inspect(ctx, typ); {
	case nothingMatched(err) != err: // the lock was never used
	case errors.Is(err, lock.ErrDamaged):
		d.Lock = &lockRow{Name: typ, Damaged: err.Error()}
	case err != nil:
		return nil, err
	default:
		l := lockRowOf(r)
		d.Lock = &l
	}
	members, err := b.Queue.Members(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	d.LastError = cli.Failures(members, now)[typ]
	for _, m := range members {
		if globs.Match(m.Types, typ) {
			d.Workers = append(d.Workers, workerRow{m.Instance, m.Host, m.PID, m.Version, slices.Contains(m.Held, typ), m.Stopping, m.Seen})
		}
	}
	letters, err := b.Queue.DeadLetters(ctx, typ, queue.ID{}, lookAtMost)
	if err != nil {
		return nil, err
	}
	d.Dead = len(letters)
	if d.Dead > 0 {
		more, err := b.Queue.DeadLetters(ctx, typ, letters[d.Dead-1].ID, queue.Limit{Messages: 1})
		if err != nil {
			return nil, err
		}
		d.DeadCapped = len(more) > 0
	}
	delayed, err := b.Queue.Delayed(ctx, queue.ScheduleKey{}, lookAtMost)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(delayed, func(m queue.Message) bool { return m.Type == typ }); i >= 0 {
		d.NextDue = delayed[i].Due
	}
	if d.unfit, err = findUnfit(ctx, b.Queue, typ, lookAtMost, 1000); err != nil {
		return nil, err
	}
	d.Unfit = slices.Concat(d.unfit.messages, d.unfit.foreign)
	return d, nil
}

func (d *typeDetails) print(out io.Writer, now time.Time) error {
	t := printable.NewWholeTable(out)
	line := func(what, format string, args ...any) { t.Row(what, fmt.Sprintf(format, args...)) }
	plus := func(n int, capped bool) string {
		if capped {
			return humanize.Comma(int64(n)) + " or more"
		}
		return humanize.Comma(int64(n))
	}
	line("type", "%s", d.Type)
	if d.Pending == 0 {
		line("pending", "nothing")
	} else {
		line("pending", "%s, the oldest for %s", plus(d.Pending, d.PendingCapped), seconds(d.OldestSeconds))
	}
	for _, s := range d.unfit.lines(d.Type) {
		line("unfit", "%s", s)
	}
	line("settings", "%s", d.state)
	if !d.Changed.IsZero() {
		line("changed", "%s", ago(now, d.Changed))
	}
	if d.FileDamaged != "" {
		line("file", "%s", d.FileDamaged)
	} else if d.FileID == "" {
		line("file", "none yet")
	} else {
		line("file", "%s  generation %d  epoch %d  %s records durable", d.FileID, d.Generation, d.Epoch, humanize.Comma(int64(d.DurableIndex)))
		if d.Place != "" {
			line("place", "%s", d.Place)
		}
	}
	switch {
	case d.Lock == nil:
		line("lock", "never used")
	case d.Lock.Damaged != "":
		line("lock", "%s", d.Lock.Damaged)
	case !d.Lock.Held:
		line("lock", "free  token %d", d.Lock.Token)
	default:
		h := d.Lock.Holders[0]
		line("lock", "held by %s  token %d  lease %v  acquired %s  renewed %s  %s", h, d.Lock.Token, h.lease(), ago(now, d.Lock.Since), ago(now, d.Lock.Renewed), h.Why)
	}
	for _, m := range d.Workers {
		role := "stands by"
		switch {
		case m.Holds:
			role = "holds it"
		case m.Stopping:
			role = "stopping"
		}
		line("worker", "%s  %s pid %d  %s  %s  seen %s", m.Instance, m.Host, m.PID, m.Version, role, ago(now, m.Seen))
	}
	if len(d.Workers) == 0 {
		line("workers", "none")
	}
	if d.LastError != "" {
		line("error", "%s", d.LastError)
	}
	if d.Dead > 0 {
		line("dead", "%s; fencepost dead ls --type %s", plus(d.Dead, d.DeadCapped), d.Type)
	} else {
		line("dead", "none")
	}
	if !d.NextDue.IsZero() {
		line("delayed", "the next in %v", max(d.NextDue.Sub(now), 0).Round(time.Second))
	}
	return t.Flush()
}
