package main

import (
	"context"
	"fmt"
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

// unfitRow is something in the queue that cannot be appended, in json output.
type unfitRow struct {
	ID  string `json:"id,omitempty"`  // of a message …
	Key string `json:"key,omitempty"` // … or a foreign key
	Why string `json:"why"`
}

func (r unfitRow) String() string {
	if r.Key != "" {
		return fmt.Sprintf("the key %q %s", r.Key, r.Why)
	}
	return r.ID + ": " + r.Why
}

// unfit lists the messages and foreign keys of a type that cannot be appended.
type unfit struct {
	messages, foreign []unfitRow
	looked            int  // how many of the oldest messages were checked
	more              bool // there are more foreign keys
}

// unfitReader is the part of a queue that findUnfit needs.
type unfitReader interface {
	queue.Fetcher
	admin.ForeignKeyReader
}

// findUnfit checks the oldest messages of a type, and lists some of its foreign keys.
func findUnfit(ctx context.Context, q unfitReader, typ string, look queue.Limit, mostKeys int) (u unfit, err error) {
	msgs, err := q.Fetch(ctx, typ, queue.ID{}, look)
	if err != nil {
		return u, err
	}
	u.looked = len(msgs)
	for i := range msgs {
		if why := msgs[i].Unfit(); why != "" {
			u.messages = append(u.messages, unfitRow{ID: msgs[i].ID.String(), Why: why})
		}
	}
	keys, err := q.ForeignKeys(ctx, typ, "", mostKeys+1)
	if err != nil {
		return u, err
	}
	u.more = len(keys) > mostKeys
	for _, key := range keys[:min(len(keys), mostKeys)] {
		u.foreign = append(u.foreign, unfitRow{Key: key, Why: "holds no message ID"})
	}
	return u, nil
}

// foreignCount returns the number of foreign keys, as far as known.
func (u *unfit) foreignCount() string {
	s := humanize.Comma(int64(len(u.foreign)))
	if u.more {
		s += " or more"
	}
	return s
}

// lines returns a summary for people, which names the first few of each kind.
func (u *unfit) lines(typ string) (lines []string) {
	const named = 10
	for _, r := range u.messages[:min(len(u.messages), named)] {
		lines = append(lines, r.String())
	}
	if len(u.messages) > named {
		lines = append(lines, fmt.Sprintf("… %d of the oldest %d messages cannot be appended; fencepost types peek %s -n %d", len(u.messages), u.looked, typ, u.looked))
	}
	for _, r := range u.foreign[:min(len(u.foreign), named)] {
		lines = append(lines, r.String())
	}
	if len(u.foreign) > named {
		lines = append(lines, fmt.Sprintf("… %s foreign keys; fencepost types peek --foreign %s", u.foreignCount(), typ))
	}
	return lines
}

// doctorLook bounds the messages of each type that doctor reads. Messages that cannot be appended become the oldest once the rest is drained.
var doctorLook = queue.Limit{Messages: 100, Bytes: 1 << 20}

// examineMessages checks whether the oldest pending messages can be appended.
func (d *doctor) examineMessages(ctx context.Context, q queue.Queue) error {
	began, found := time.Now(), false // found: there is something to report
	for i, typ := range d.types {
		if d.late("messages", began, i) {
			found = true
			break
		}
		u, err := findUnfit(ctx, q, typ, doctorLook, 1000)
		if err != nil {
			return err
		}
		if n := len(u.messages); n > 0 {
			d.bad(cli.ExitFailed, "messages", "%s: %d of the oldest %d pending messages cannot be appended, one is %v; repair it, and it is appended; "+
				"fencepost types show %s lists them", typ, n, u.looked, u.messages[0], typ)
		}
		if len(u.foreign) > 0 {
			d.warn("messages", "%s: %s foreign keys lie among its messages, and stay there: %v; fencepost types peek --foreign %s lists them, "+
				"types purge --foreign removes them", typ, u.foreignCount(), u.foreign[0], typ)
		}
		found = found || len(u.messages)+len(u.foreign) > 0
	}
	if _, _, err := q.NextDue(ctx); err != nil {
		return err
	}
	for _, s := range q.Strays() {
		d.warn("messages", "%v", s)
	}
	if !found && len(d.types) > 0 {
		d.good("messages", "the oldest pending ones of all types can be appended")
	}
	return nil
}

// peekForeign implements types peek --foreign.
func peekForeign(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, limit int, json bool) error {
	keys, err := admin.ForeignKeys(ctx, b.Queue, typ, limit)
	if err == nil && json {
		err = printJSON(cmd, append([]string{}, keys...)) // [] instead of null
	}
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return noForeign(typ)
	case json:
		return nil
	}
	for _, key := range keys {
		printable.Fprintf(cmd.OutOrStdout(), "%s\n", key)
	}
	return nil
}

func noForeign(typ string) error {
	return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("type %s has no foreign keys", typ)}
}

// purgeForeign implements types purge --foreign.
func purgeForeign(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, dryRun bool, turn admin.Turn) error {
	o, err := admin.PurgeForeign(ctx, b, typ, dryRun, turn)
	switch {
	case err != nil && o.Chosen == 0:
		return err
	case o.Chosen == 0:
		return noForeign(typ)
	case dryRun:
		printable.Fprintf(cmd.OutOrStdout(), "purged=0 matching=%d foreign keys (dry run)\n", o.Chosen)
		return nil
	}
	printable.Fprintf(cmd.OutOrStdout(), "purged=%d\n", o.Done)
	switch {
	case err == nil || o.Done == 0:
		return err
	case ctx.Err() != nil:
		return &cli.Error{Code: cli.ExitStopped, Err: err}
	}
	return &cli.Error{Code: cli.ExitPartial, Err: err}
}

// purgeIDs implements types purge for IDs.
func purgeIDs(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, ids []queue.ID, dryRun bool, turn admin.Turn) error {
	o, err := admin.PurgeIDs(ctx, b, typ, ids, dryRun, turn)
	var missing error
	if n := len(o.Missing); n > 0 {
		missing = fmt.Errorf("no message %s of type %s is pending", o.Missing[n-1], typ)
	}
	switch {
	case err != nil:
		return err
	case o.Chosen == 0:
		return &cli.Error{Code: cli.ExitNothing, Err: missing}
	case dryRun:
		printable.Fprintf(cmd.OutOrStdout(), "purged=0 matching=%d (dry run)\n", o.Chosen)
	default:
		printable.Fprintf(cmd.OutOrStdout(), "purged=%d\n", o.Done)
	}
	if missing != nil {
		return &cli.Error{Code: cli.ExitPartial, Err: missing}
	}
	return nil
}

// parsePurge reads the arguments of types purge after the type, and checks that there is exactly one choice: IDs, or one of the flags.
func parsePurge(args []string, flags ...bool) (ids []queue.ID, err error) {
	for _, arg := range args {
		id, err := queue.ParseID(arg)
		if err != nil {
			return nil, cli.Usagef("%w; fencepost types peek prints the IDs", err)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	choices := 0
	for _, chosen := range append(flags, len(ids) > 0) {
		if chosen {
			choices++
		}
	}
	switch {
	// rule: all messages go only by --all. No ID is also what an empty variable of a shell leaves behind.
	case choices == 0:
		return nil, cli.Usagef("choose the messages: by ID, --before, --older or --all, or --foreign for foreign keys")
	case choices > 1:
		return nil, cli.Usagef("IDs, --before or --older, --all and --foreign cannot be combined; use one of them")
	}
	return ids, nil
}
