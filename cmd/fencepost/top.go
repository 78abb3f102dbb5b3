package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

const (
	lookTimeout   = 10 * time.Second // for one refresh
	lookers       = 4                // concurrent queries to the server
	liveRows      = 100              // types shown on a terminal
	liveQuestions = 1000             // types whose backlog one refresh of a terminal queries
	rateWindow    = 20 * time.Second // workers report the progress of their files every 5 s
)

func topCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	var once bool
	var refresh time.Duration
	most, rows := cli.Count(backlog.DefaultMax), cli.Count(0)
	cmd := &cobra.Command{
		Use:   "top [TYPE]…",
		Short: "Watch the types: backlog, age, rate, holder",
		Long: `Top shows all types, or those given by name or glob, in a table that it refreshes, those with the oldest backlog first; q ends it.
Without a terminal, or with --once, it prints one plain table.

BACKLOG is counted up to --count-up-to. RATE is how fast the file grows, as reported by its worker. RENEWED is when the holder last renewed
the lock, which a live holder does every fifth of its lease. PLACE is where the file is, shown only if the files are in different places.
LAST ERROR is the error that currently keeps a worker from draining the type; earlier errors are in its log and, with --listen, in its /statusz.

Top costs the server a read of index entries per type and refresh, and a read of the file's entry per type shown, a few at a time.
On a terminal it shows at most 100 types, unless --count says otherwise, and each refresh queries at most 1000 types: those shown, and the
others in turn. Types whose backlog is not known yet come last.`,
		Example: `  fencepost top
  fencepost top --once
  fencepost top --count 20 'customer-*'
  fencepost top --once -o json --url mongodb://localhost/shop`,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format; json requires --once")
	cmd.Flags().BoolVar(&once, "once", false, "print one table and exit")
	cmd.Flags().DurationVar(&refresh, "refresh", 2*time.Second, "refresh interval")
	cmd.Flags().Var(&most, "count-up-to", "count at most this many messages per type")
	cmd.Flags().VarP(&rows, "count", "n", "show at most this many types; 0 means all, or 100 on a terminal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkGlobs(args); err != nil {
			return err
		}
		live := !once && cli.IsTerminal(cmd.OutOrStdout())
		switch {
		case most < 1:
			return cli.Usagef("--count-up-to %d: count at least 1", most)
		case refresh < 100*time.Millisecond:
			return cli.Usagef("--refresh %v is too often; use at least 100ms", refresh)
		case live && output.Value == "json":
			return cli.Usagef("-o json requires --once")
		}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			v := newView(b, args, int(most), refresh)
			if v.rows = int(rows); live {
				v.rows, v.depths.Questions = cmp.Or(int(rows), liveRows), liveQuestions
			}
			defer v.depths.Close()
			if live {
				return watchTop(ctx, v, cmd.OutOrStdout().(*os.File), refresh)
			}
			s, err := v.look(ctx)
			if err != nil {
				return err
			}
			if s.others > 0 {
				printable.Fprintf(cmd.ErrOrStderr(), "%s\n", s.rest())
			}
			if output.Value == "json" {
				return printJSON(cmd, s.Rows)
			}
			if len(s.Rows) == 0 {
				return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s has no types; publish something with producer publish", b.Name)}
			}
			return s.table(cmd.OutOrStdout())
		})
	}
	return cmd
}

// topRow is one type. Unknown values are left out.
type topRow struct {
	Type          string   `json:"type"`
	Backlog       *int     `json:"backlog,omitempty"`
	BacklogCapped bool     `json:"backlog_capped,omitempty"` // the backlog is larger
	OldestSeconds *float64 `json:"oldest_seconds,omitempty"`
	Rate          *float64 `json:"rate,omitempty"` // messages per second into the file
	DurableIndex  uint64   `json:"durable_index"`
	Place         string   `json:"place,omitempty"` // where the file is: a store, or host:/directory
	Holder        string   `json:"holder,omitempty"`
	Instance      string   `json:"instance,omitempty"` // of the holder
	Token         int64    `json:"token,omitempty"`
	RenewedAgo    *float64 `json:"renewed_seconds_ago,omitempty"`
	LeaseSeconds  float64  `json:"lease_seconds,omitempty"`
	State         string   `json:"state"`
	Why           string   `json:"why,omitempty"`
	LastError     string   `json:"last_error,omitempty"` // the error that keeps a worker from draining it
}

// snapshot is the result of one refresh.
type snapshot struct {
	Rows    []topRow
	others  int // types without a row
	unknown int // number of all types whose backlog is not known
	workers int
	at      time.Time
}

// view queries a backend repeatedly.
type view struct {
	b      *fencepost.Backend
	args   []string // names and globs of the types; none: all
	rows   int      // types to show, at most; 0: all
	depths *backlog.Sampler
	shown  []string          // types shown at the last refresh
	files  map[string]growth // of the types shown
}

// growth is how a file has grown within the rateWindow, as reported by its worker.
type growth struct {
	began   time.Time // the first look
	index   uint64    // the index at the last look
	changes []progress
}

// progress is an index of a file, and when it was first seen.
type progress struct {
	index uint64
	at    time.Time
}

func newView(b *fencepost.Backend, args []string, most int, refresh time.Duration) *view {
	return &view{b: b, args: args, files: map[string]growth{},
		depths: &backlog.Sampler{Queue: b.Queue, Max: most, Every: refresh / 2, Patience: lookTimeout / 2}}
}

// look queries the types, a few at a time, and the registry entries of those that it shows.
func (v *view) look(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("%s did not answer within %v", v.b.Name, lookTimeout))
	defer cancel()
	types, err := wantedTypes(ctx, v.b, v.args)
	if err != nil {
		return nil, withCause(ctx, err)
	}
	var (
		g        errgroup.Group
		now      time.Time
		settings map[string]queue.Settings
		members  []queue.Member
		records  []lock.Record
	)
	g.SetLimit(lookers)
	g.Go(func() (err error) { now, err = v.b.Queue.Now(ctx); return err })
	g.Go(func() (err error) { settings, err = v.b.Queue.AllSettings(ctx); return err })
	g.Go(func() (err error) { members, err = v.b.Queue.Members(ctx, "", 0); return err })
	g.Go(func() (err error) { records, err = v.b.Locker.List(ctx); return err })
	if err := g.Wait(); err != nil {
		return nil, withCause(ctx, err)
	}
	depths := v.backlogs(ctx, types)
	s := &snapshot{workers: len(members), unknown: len(types) - len(depths)}
	age := func(typ string) time.Duration {
		if d, ok := depths[typ]; ok {
			return d.Age
		}
		return -1
	}
	slices.SortStableFunc(types, func(a, b string) int { return cmp.Or(cmp.Compare(age(b), age(a)), strings.Compare(a, b)) })
	if v.rows > 0 && len(types) > v.rows {
		types, s.others = types[:v.rows], len(types)-v.rows
	}
	v.shown = types
	files, damaged, err := v.entries(ctx, types)
	if err != nil {
		return nil, withCause(ctx, err)
	}
	locks := make(map[string]lock.Record, len(records))
	for _, r := range records {
		locks[r.Name] = r
	}
	s.Rows, s.at = make([]topRow, len(types)), time.Now()
	kept := make(map[string]growth, len(types))
	failing := cli.Failures(members, now)
	for i, typ := range types {
		row := &s.Rows[i]
		*row = topRow{Type: typ, DurableIndex: files[i].DurableIndex, Place: files[i].Place}
		if d, ok := depths[typ]; ok {
			age := d.Age.Seconds()
			row.Backlog, row.BacklogCapped, row.OldestSeconds = &d.Pending, d.Capped, &age
		}
		kept[typ] = v.files[typ].look(files[i].DurableIndex, s.at)
		row.Rate = kept[typ].rate(s.at)
		row.describe(locks[typ], settings[typ], now)
		if damaged[i] {
			row.State += ", file entry damaged"
		}
		row.LastError = failing[typ]
	}
	v.files = kept
	return s, nil
}

// entries returns the registry entries of the files of the types, and which of them are damaged.
func (v *view) entries(ctx context.Context, types []string) (files []queue.RegistryEntry, damaged []bool, err error) {
	files, damaged = make([]queue.RegistryEntry, len(types)), make([]bool, len(types))
	var g errgroup.Group
	g.SetLimit(lookers)
	for i, typ := range types {
		g.Go(func() (err error) {
			if files[i], _, err = v.b.Queue.RegistryEntry(ctx, typ); errors.Is(err, queue.ErrDamaged) {
				damaged[i], err = true, nil
			}
			return err
		})
	}
	return files, damaged, g.Wait()
}

// backlogs samples the backlogs of the types, first of those shown at the last refresh.
func (v *view) backlogs(ctx context.Context, types []string) map[string]backlog.Sample {
	was := make(map[string]bool, len(v.shown))
	for _, typ := range v.shown {
		was[typ] = true
	}
	var first, others []string
	for _, typ := range types {
		if was[typ] {
			first = append(first, typ)
		} else {
			others = append(others, typ)
		}
	}
	known, _ := v.depths.SamplesOf(ctx, first, others)
	return known
}

// rest says how many types have no row.
func (s *snapshot) rest() string {
	line := fmt.Sprintf("… and %d more types", s.others)
	if s.unknown > 0 {
		line += fmt.Sprintf("; the backlog of %d types is not known yet", s.unknown)
	}
	return line
}

// withCause returns why ctx ended, or err if it has not.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// look adds an observation. The first one does not count as a change, because it is unknown how long ago the file reached that index.
func (g growth) look(index uint64, now time.Time) growth {
	switch {
	case g.began.IsZero() || index < g.index: // the index of a restored database is smaller
		return growth{began: now, index: index}
	case index > g.index:
		g.changes = append(slices.Clone(g.changes), progress{index, now})
	}
	g.index = index
	for len(g.changes) > 2 && now.Sub(g.changes[1].at) >= rateWindow {
		g.changes = g.changes[1:]
	}
	return g
}

// rate returns messages per second, or nil while unknown.
func (g growth) rate(now time.Time) *float64 {
	perSecond := 0.0
	last := g.began
	if n := len(g.changes); n > 0 {
		last = g.changes[n-1].at
	}
	if now.Sub(last) < rateWindow/2 { // two reporting intervals of a worker
		if len(g.changes) < 2 {
			return nil
		}
		first, last := g.changes[0], g.changes[len(g.changes)-1]
		perSecond = float64(last.index-first.index) / last.at.Sub(first.at).Seconds()
	}
	return &perSecond
}

// describe sets the holder of the type, and the resulting state.
func (r *topRow) describe(l lock.Record, s queue.Settings, now time.Time) {
	var notes []string
	if set := admin.State(s); set != "-" {
		notes, r.Why = append(notes, set), s.Why
	}
	if holds := l.Holds(); len(holds) > 0 {
		h := holds[0]
		r.Holder, r.Instance, r.Token, r.LeaseSeconds = fmt.Sprintf("%s pid %d", h.Owner.Host, h.Owner.PID), h.Owner.Instance, l.Token, h.Lease.Seconds()
		if !l.At.IsZero() {
			ago := max(now.Sub(l.At), 0).Seconds()
			r.RenewedAgo = &ago
			if ago > h.Lease.Seconds() {
				notes = append(notes, "holder silent")
			}
		}
		if h.Asked != "" {
			notes = append(notes, "asked to release: "+h.Asked)
		}
	} else if r.Backlog != nil && *r.Backlog > 0 && !s.DrainPaused {
		notes = append(notes, "not drained")
	}
	if r.State = strings.Join(notes, ", "); r.State == "" {
		r.State = "idle"
		if r.Holder != "" {
			r.State = "held"
		}
	}
}

// places returns the places of the types' files, each once.
func (s *snapshot) places() (places []string) {
	for _, r := range s.Rows {
		if r.Place != "" && !slices.Contains(places, r.Place) {
			places = append(places, r.Place)
		}
	}
	return places
}

// table prints the rows.
func (s *snapshot) table(w io.Writer) error {
	several := len(s.places()) > 1
	row := func(cells []any, place, failed string) []any {
		if several {
			cells = append(cells, place)
		}
		return append(cells, failed)
	}
	t := printable.NewTable(w, row([]any{"TYPE", "BACKLOG", "OLDEST", "RATE", "HOLDER", "TOKEN", "RENEWED", "STATE"}, "PLACE", "LAST ERROR")...)
	for _, r := range s.Rows {
		count, oldest, perSecond, holder, token, renewed, state := "?", "?", "-", "-", "-", "-", r.State
		if r.Backlog != nil {
			count, oldest = fmt.Sprint(*r.Backlog), "-"
			if r.BacklogCapped {
				count += "+"
			}
			if *r.Backlog > 0 {
				oldest = seconds(*r.OldestSeconds)
			}
		}
		if r.Rate != nil {
			perSecond = fmt.Sprintf("%.0f/s", *r.Rate)
		}
		if r.Holder != "" {
			holder, token = r.Holder, fmt.Sprint(r.Token)
		}
		if r.RenewedAgo != nil {
			renewed = seconds(*r.RenewedAgo) + " ago"
		}
		if r.Why != "" {
			state += " (" + r.Why + ")"
		}
		t.Row(row([]any{r.Type, count, oldest, perSecond, holder, token, renewed, state}, cmp.Or(r.Place, "-"), cmp.Or(r.LastError, "-"))...)
	}
	return t.Flush()
}

// seconds formats an age, rounded to tenths of a second below a minute, and to seconds above.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return d.Round(time.Second / 10).String()
	}
	return d.Round(time.Second).String()
}
