package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/mongolock"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func locksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "Show the locks, and release one whose holder hangs",
		Args:  cli.NoArgs,
		Run:   cli.Help,
	}
	cmd.AddCommand(locksLsCommand(), locksShowCommand(), locksWatchCommand(), locksReleaseCommand())
	return cmd
}

// locksFlags say which locks a command is about.
type locksFlags struct{ url, collection *string }

func addLocksFlags(cmd *cobra.Command) *locksFlags {
	return &locksFlags{cli.URLFlag(cmd), cmd.Flags().String("collection", mongolock.DefaultCollection, "with MongoDB, the collection of the locks: that of mongolock.Options.Collection")}
}

// withBackend is withBackend with the Locker of --collection. It creates no collection.
func (f *locksFlags) withBackend(cmd *cobra.Command, do func(context.Context, *fencepost.Backend) error) error {
	return withBackend(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error {
		if *f.collection == mongolock.DefaultCollection {
			return do(ctx, b)
		}
		q, ok := b.Queue.(mongoBackend)
		if !ok {
			return cli.Usagef("--collection %s: the embedded database has one table of locks; leave out --collection", *f.collection)
		}
		found, err := q.DB().ListCollectionNames(ctx, bson.D{{Key: "name", Value: *f.collection}})
		if err != nil {
			return fmt.Errorf("look for the collection %s: %w", *f.collection, err)
		}
		if len(found) == 0 {
			return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("there is no collection %s in the database %s; name the one of your locks with --collection", *f.collection, q.DB().Name())}
		}
		s, err := mongolock.New(ctx, q.DB(), mongolock.Options{Collection: *f.collection})
		if err != nil {
			return err
		}
		locker, err := lock.New(s, lock.Options{})
		if err != nil {
			return err
		}
		other := &fencepost.Backend{Queue: b.Queue, Locker: locker, Name: b.Name}
		defer locker.Close(ctx)
		return do(ctx, other)
	})
}

// The json output of locks. Times are by the server's clock.
type (
	lockRow struct {
		Name      string      `json:"name"`
		Token     int64       `json:"token"`
		Held      bool        `json:"held"`
		Holders   []holderRow `json:"holders"`
		Waiting   []holderRow `json:"waiting"` // in line, first come first served
		ForcedWhy string      `json:"forced_why,omitempty"`
		Damaged   string      `json:"damaged,omitempty"` // why the record cannot be read
		Since     time.Time   `json:"since,omitzero"`
		Renewed   time.Time   `json:"renewed,omitzero"`
	}
	holderRow struct {
		Host         string  `json:"host,omitempty"`
		PID          int     `json:"pid,omitempty"`
		Instance     string  `json:"instance,omitempty"`
		Why          string  `json:"why,omitempty"`
		LeaseSeconds float64 `json:"lease_seconds"`
		Permits      int     `json:"permits,omitempty"` // how many holders may share the lock; none: exclusive
		Asked        string  `json:"asked_to_release,omitempty"`
	}
)

func lockRowOf(r lock.Record) lockRow {
	row := lockRow{Name: r.Name, Token: r.Token, Held: r.Held(), Holders: []holderRow{}, Waiting: []holderRow{}, Since: r.Since, Renewed: r.At}
	for _, h := range r.Holds() {
		row.Holders = append(row.Holders, holderRowOf(h))
	}
	for _, e := range r.Queue {
		row.Waiting = append(row.Waiting, holderRowOf(e.Hold))
	}
	if r.Forced != nil {
		row.ForcedWhy = r.Forced.Why
	}
	if r.Damaged != nil {
		row.Damaged = cli.WithRemedy(r.Damaged).Error()
	}
	return row
}

func holderRowOf(h lock.Hold) holderRow {
	return holderRow{h.Owner.Host, h.Owner.PID, h.Owner.Instance, h.Why, h.Lease.Seconds(), h.Permits, h.Asked}
}

func (h holderRow) String() string { return fmt.Sprintf("%s pid %d", h.Host, h.PID) }

func (h holderRow) lease() time.Duration {
	return time.Duration(h.LeaseSeconds * float64(time.Second)).Round(time.Millisecond)
}

// ago returns how long before now a time of the server's clock was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return max(now.Sub(t), 0).Round(time.Second/10).String() + " ago"
}

func locksLsCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	var all bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the locks: holder, fencing token, lease, last renewal",
		Long: `Ls lists the locks that are held. A lock whose holder died stays listed until another program wants it. Times are from the server's clock
and for information only: no program bases decisions on them.`,
		Example: `  fencepost locks ls
  fencepost locks ls --all -o json`,
		Args: cli.NoArgs,
	}
	flags := addLocksFlags(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().BoolVar(&all, "all", false, "list free locks too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.withBackend(cmd, func(ctx context.Context, b *fencepost.Backend) error {
			return listLocks(ctx, cmd, b, all, output.Value == "json")
		})
	}
	return cmd
}

func listLocks(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, all, json bool) error {
	records, err := b.Locker.List(ctx)
	if err != nil {
		return err
	}
	rows := make([]lockRow, 0, len(records))
	for _, r := range records {
		if all || r.Held() || r.Damaged != nil {
			rows = append(rows, lockRowOf(r))
		}
	}
	for _, r := range rows {
		if r.Damaged != "" {
			printable.Fprintf(cmd.ErrOrStderr(), "%s\n", r.Damaged)
		}
	}
	if json {
		return printJSON(cmd, rows)
	}
	if len(rows) == 0 {
		printable.Fprintf(cmd.OutOrStdout(), "no lock is held\n")
		return nil
	}
	now, err := b.Queue.Now(ctx)
	if err != nil {
		return err
	}
	t := printable.NewTable(cmd.OutOrStdout(), "NAME", "TOKEN", "HOLDER", "LEASE", "SINCE", "RENEWED", "WAITING", "WHY")
	for _, r := range rows {
		holder, lease, why := "-", "-", "-"
		if r.Damaged != "" {
			holder = "(damaged)"
		}
		if r.Held {
			h := r.Holders[0]
			holder, lease, why = h.String(), h.lease().String(), h.Why
			if more := len(r.Holders) - 1; more > 0 {
				holder += fmt.Sprintf(" and %d more", more)
			}
		}
		t.Row(r.Name, r.Token, holder, lease, ago(now, r.Since), ago(now, r.Renewed), len(r.Waiting), why)
	}
	return t.Flush()
}

func locksShowCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one lock: its holders and their reasons, the waiters, the last release by force",
		Example: `  fencepost locks show orders
  fencepost locks show --url mongodb://localhost/shop -o json orders`,
	}
	flags := addLocksFlags(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("name one lock, as in fencepost locks show orders")
		}
		return flags.withBackend(cmd, func(ctx context.Context, b *fencepost.Backend) error {
			r, err := b.Locker.Inspect(ctx, args[0])
			if err != nil {
				return nothingMatched(err)
			}
			row := lockRowOf(r)
			if output.Value == "json" {
				return printJSON(cmd, row)
			}
			now, err := b.Queue.Now(ctx)
			if err != nil {
				return err
			}
			row.print(cmd.OutOrStdout(), now)
			return nil
		})
	}
	return cmd
}

func (r lockRow) print(w io.Writer, now time.Time) {
	state := "free"
	if r.Held {
		state = "held"
	}
	printable.Fprintf(w, "%s  %s  token %d  acquired %s  renewed %s\n", r.Name, state, r.Token, ago(now, r.Since), ago(now, r.Renewed))
	line := func(what string, h holderRow) {
		printable.Fprintf(w, "  %s: %s  instance %s  lease %v", what, h, h.Instance, h.lease())
		if h.Permits > 0 {
			printable.Fprintf(w, "  shared by at most %d", h.Permits)
		}
		if h.Why != "" {
			printable.Fprintf(w, "  for %q", h.Why)
		}
		if h.Asked != "" {
			printable.Fprintf(w, "  asked to release: %q", h.Asked)
		}
		printable.Fprintf(w, "\n")
	}
	for _, h := range r.Holders {
		line("holder", h)
	}
	for _, h := range r.Waiting {
		line("in line", h)
	}
	if r.ForcedWhy != "" {
		printable.Fprintf(w, "  released by force: %q\n", r.ForcedWhy)
	}
}

// nothingMatched gives errors about locks that do not exist or are not held their exit code.
func nothingMatched(err error) error {
	if errors.Is(err, lock.ErrUnknown) || errors.Is(err, lock.ErrNotHeld) {
		return &cli.Error{Code: cli.ExitNothing, Err: err}
	}
	return err
}

func locksWatchCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	interval := time.Second
	cmd := &cobra.Command{
		Use:   "watch [NAME]…",
		Short: "Print a line whenever a lock changes hands, until stopped",
		Long: `Watch polls the locks, all or the named ones, and prints a line for each that was acquired, handed over or released since the last
poll. Several changes between two polls result in one line; the token shows how many grants there were.`,
		Example: `  fencepost locks watch
  fencepost locks watch -o json orders audit | jq .holders`,
	}
	flags := addLocksFlags(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().DurationVar(&interval, "interval", interval, "how often to poll")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if interval < 10*time.Millisecond {
			return cli.Usagef("--interval must be at least 10ms")
		}
		return flags.withBackend(cmd, func(ctx context.Context, b *fencepost.Backend) error {
			return watchLocks(ctx, b, names, interval, func(r lock.Record) error { return printChange(cmd.OutOrStdout(), output.Value, r) })
		})
	}
	return cmd
}

// watchLocks calls tell for each lock, all or the named ones, at first and whenever its holders have changed, until ctx ends.
func watchLocks(ctx context.Context, b *fencepost.Backend, names []string, interval time.Duration, tell func(lock.Record) error) error {
	seen := map[string]lock.Record{}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		records, err := b.Locker.List(ctx)
		if err != nil {
			return err
		}
		for _, r := range records {
			before, known := seen[r.Name]
			if len(names) > 0 && !slices.Contains(names, r.Name) || known && sameHolders(before, r) {
				continue
			}
			seen[r.Name] = r
			if err := tell(r); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sameHolders reports whether nothing but renewals happened to a lock between a and b.
func sameHolders(a, b lock.Record) bool {
	return a.Token == b.Token && (a.Damaged == nil) == (b.Damaged == nil) && slices.EqualFunc(a.Holds(), b.Holds(), func(x, y lock.Hold) bool { return x.ID == y.ID && x.Asked == y.Asked })
}

func printChange(w io.Writer, format string, r lock.Record) error {
	row := lockRowOf(r)
	if format == "json" {
		return printable.EncodeJSON(w, row, "")
	}
	var holders []string
	for _, h := range row.Holders {
		text := h.String()
		if h.Why != "" {
			text += " (" + h.Why + ")"
		}
		if h.Asked != "" {
			text += fmt.Sprintf(" asked to release: %q", h.Asked)
		}
		holders = append(holders, text)
	}
	state := "free"
	switch {
	case row.Held:
		state = strings.Join(holders, ", ")
	case row.Damaged != "":
		state = row.Damaged
	}
	_, err := printable.Fprintf(w, "%s  %s  token %d  %s\n", time.Now().UTC().Format(time.RFC3339), row.Name, row.Token, state)
	return err
}

func locksReleaseCommand() *cobra.Command {
	var request, force bool
	var why string
	cmd := &cobra.Command{
		Use:   "release (--request | --force) --why TEXT NAME",
		Short: "Ask the holder of a lock to release it, or take it away",
		Long: `With --request the holder is asked: a worker finishes what it has fetched and releases the type. With --force the lock is taken away.
Its holder notices within a fifth of its lease. The file refuses its writes as soon as the next holder has opened it, so nothing is lost
or written twice. Use --force when a holder hangs; the lock of a dead holder expires without it. --force also frees a lock whose record is
damaged.`,
		Example: `  fencepost locks release --request --why "maintenance of host 7" orders
  fencepost locks release --force --why "pid 4711 hangs, INC-1234" orders`,
	}
	flags := addLocksFlags(cmd)
	cmd.Flags().BoolVar(&request, "request", false, "ask the holder")
	cmd.Flags().BoolVar(&force, "force", false, "take the lock away")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the holder's log and for locks show")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) != 1:
			return cli.Usagef("name one lock, as in fencepost locks release --request --why maintenance orders")
		case request == force:
			return cli.Usagef("choose one: --request asks the holder, --force takes the lock away")
		case why == "":
			return cli.Usagef("give the reason with --why; the holder logs it")
		}
		return flags.withBackend(cmd, func(ctx context.Context, b *fencepost.Backend) error {
			said, err := admin.ReleaseLock(ctx, b, args[0], why, force)
			if err != nil {
				return nothingMatched(err)
			}
			printable.Fprintf(cmd.OutOrStdout(), "%s\n", said)
			return nil
		})
	}
	return cmd
}
