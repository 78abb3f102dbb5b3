package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// chooseTypes returns the known types that args name, by name or glob. With create, unknown names are accepted, too.
func chooseTypes(ctx context.Context, b *fencepost.Backend, args []string, create bool) ([]string, error) {
	known, err := b.Queue.Types(ctx)
	if err != nil {
		return nil, err
	}
	var chosen []string
	for _, arg := range args {
		if !globs.Is(arg) {
			if !create && !slices.Contains(known, arg) {
				return nil, unknownType(b, arg)
			}
			chosen = append(chosen, arg)
			continue
		}
		before := len(chosen)
		for _, typ := range known {
			if globs.Match([]string{arg}, typ) {
				chosen = append(chosen, typ)
			}
		}
		if len(chosen) == before {
			return nil, &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no type of %s matches %s; fencepost types ls lists them", b.Name, arg)}
		}
	}
	slices.Sort(chosen)
	return slices.Compact(chosen), nil
}

func unknownType(b *fencepost.Backend, typ string) error {
	return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s knows no type %s; fencepost types ls lists them", b.Name, typ)}
}

// wantedTypes returns the types that args name, or all types if there are no args.
func wantedTypes(ctx context.Context, b *fencepost.Backend, args []string) ([]string, error) {
	if len(args) == 0 {
		return b.Queue.Types(ctx)
	}
	return chooseTypes(ctx, b, args, false)
}

// checkTypeArgs checks names and globs; there must be one.
func checkTypeArgs(args []string) error {
	if len(args) == 0 {
		return cli.Usagef("name at least one TYPE; fencepost types ls lists them")
	}
	return checkGlobs(args)
}

// checkGlobs checks names and globs; there may be none.
func checkGlobs(args []string) error {
	for _, arg := range args {
		if globs.Is(arg) {
			if err := globs.Check(arg); err != nil {
				return cli.Usagef("%s is not a glob: %w", arg, err)
			}
		} else if err := queue.ValidateType(arg); err != nil {
			return err
		}
	}
	return nil
}

// changeCommand completes a command that changes the settings of types.
func changeCommand(cmd *cobra.Command, change func() (queue.SettingsPatch, error)) *cobra.Command {
	url := cli.URLFlag(cmd)
	var why string
	var create bool
	cmd.Flags().StringVar(&why, "why", "", "the reason, shown by types ls and in publishers' errors while the pause or limit lasts")
	cmd.Flags().BoolVar(&create, "create", false, "also set it for a type that does not exist yet")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkTypeArgs(args); err != nil {
			return err
		}
		c, err := change()
		if err != nil {
			return err
		}
		c.Why = why
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			types, err := chooseTypes(ctx, b, args, create)
			if err != nil {
				return err
			}
			for i, typ := range types {
				s, err := admin.Change(ctx, b.Queue, typ, c)
				if err != nil && i > 0 {
					return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("type %s and the types after it are unchanged: %w", typ, err)}
				} else if err != nil {
					return err
				}
				printable.Fprintf(cmd.OutOrStdout(), "%s: %s\n", typ, changed(c, s))
			}
			return nil
		})
	}
	return cmd
}

// changed says what a change has done, and what is set now.
func changed(c queue.SettingsPatch, now queue.Settings) string {
	ended := func(patch *bool) bool { return patch != nil && !*patch }
	var did []string
	switch drain, publish := ended(c.DrainPaused), ended(c.PublishPaused); {
	case drain && publish:
		did = append(did, "resumed")
	case drain:
		did = append(did, "draining resumed")
	case publish:
		did = append(did, "publishing resumed")
	case c.MaxBacklog != nil && *c.MaxBacklog == 0:
		did = append(did, "limit removed")
	}
	if !now.IsZero() {
		did = append(did, admin.State(now))
	}
	return strings.Join(did, "; ")
}

// pauseFlags adds the flags that say whether draining or publishing is meant; neither means both.
func pauseFlags(cmd *cobra.Command, to bool) func() (queue.SettingsPatch, error) {
	var drain, publish bool
	cmd.Flags().BoolVar(&drain, "drain", false, "apply to draining only")
	cmd.Flags().BoolVar(&publish, "publish", false, "apply to publishing only")
	return func() (queue.SettingsPatch, error) { return admin.Pause(drain, publish, to), nil }
}

func typesPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause TYPE…",
		Short: "Stop workers from draining types, and publishers from publishing to them",
		Long: `Pause takes effect within a few seconds. With --drain workers release the types and do not drain them, while messages pile up. With
--publish publishers refuse new messages with an error that names the pause. Without either flag, both. Nothing pending is lost, and
messages that a publisher has already sent are still stored. A TYPE may be a glob.`,
		Example: `  fencepost types pause orders --why "moving the file"
  fencepost types pause 'orders.*' --drain --why "disk is being replaced"`,
	}
	return changeCommand(cmd, pauseFlags(cmd, true))
}

func typesResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume TYPE…",
		Short:   "End a pause",
		Long:    `Resume ends a pause or, with --drain or --publish, only that part of it. Workers and publishers notice within seconds. A TYPE may be a glob.`,
		Example: `  fencepost types resume orders`,
	}
	return changeCommand(cmd, pauseFlags(cmd, false))
}

func typesLimitCommand() *cobra.Command {
	most := cli.Count(-1)
	cmd := &cobra.Command{
		Use:   "limit TYPE… --max-backlog N",
		Short: "Limit the backlog of types: publishers wait while it is full",
		Long: `Limit sets how many messages of a type may be pending. Publishers wait until there is room before they send more, and give up after a
while (producer publish: --backlog-wait, exit code 6). 0 removes the limit. Several publishers together may exceed it by what they send
in two seconds. The server counts that many index entries to compare, so do not set it larger than needed.`,
		Example: `  fencepost types limit orders --max-backlog 100k
  fencepost types limit orders --max-backlog 0`,
	}
	cmd.Flags().Var(&most, "max-backlog", "pending messages, as in 1000 or 100k; 0 means no limit")
	return changeCommand(cmd, func() (queue.SettingsPatch, error) {
		if most < 0 {
			return queue.SettingsPatch{}, cli.Usagef("give --max-backlog N, the most messages that may be pending, or 0 for no limit")
		}
		if most > queue.MaxBacklogLimit {
			return queue.SettingsPatch{}, cli.Usagef("--max-backlog %d: use at most %d", most, queue.MaxBacklogLimit)
		}
		return queue.SettingsPatch{MaxBacklog: new(int(most))}, nil
	})
}

func typesPurgeCommand() *cobra.Command {
	var dryRun, yes, all, foreign bool
	var turn adminFlags
	var before cli.Moment
	var older cli.Age
	cmd := &cobra.Command{
		Use:   "purge TYPE (ID… | --before TIME | --older AGE | --all | --foreign) (--dry-run | --yes)",
		Short: "Remove pending messages permanently",
		Long: `Purge removes pending messages of a type: those that are named, those published --before a time or longer ago than --older, or --all.
Messages that are published while it runs stay, and so do the messages in the file. With --foreign it removes no messages, but what
another program stored under keys that hold no message ID; types peek --foreign lists those keys.

A worker does not know what was purged: it waits --gap-timeout for the missing numbers of a producer, and then declares a gap in the
file. It may still append what it has already fetched. To avoid that, pause draining, wait until types ls shows no change, purge,
resume.

` + adminHelp + `

The last line of the output is purged=…, with bytes=… unless IDs or --foreign are given; exit code 4 if nothing matched.`,
		Example: `  fencepost types purge orders --all --dry-run
  fencepost types purge orders 065svpgc20000000000001o00000001a --yes
  fencepost types purge orders --foreign --dry-run
  fencepost types purge orders --older 24h --yes`,
	}
	url := cli.URLFlag(cmd)
	turn.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count, remove nothing")
	cmd.Flags().BoolVar(&yes, "yes", false, "really remove them")
	cmd.Flags().Var(&before, "before", "only messages published before this time, as in 2026-01-31T15:04:05Z")
	cmd.Flags().Var(&older, "older", "only messages published longer ago than this, as in 24h or 30d")
	cmd.Flags().BoolVar(&all, "all", false, "all messages")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "remove foreign keys, and no messages")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := turn.check(); err != nil {
			return err
		}
		switch {
		case len(args) == 0:
			return cli.Usagef("name one TYPE; fencepost types ls lists them")
		case older > 0 && !before.IsZero():
			return cli.Usagef("--before and --older cannot be combined; use one of them")
		}
		if err := confirmed(dryRun, yes, "purged messages"); err != nil {
			return err
		}
		typ := args[0]
		if err := queue.ValidateType(typ); err != nil {
			return err
		}
		ids, err := parsePurge(args[1:], foreign, all, older > 0 || !before.IsZero())
		if err != nil {
			return err
		}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			switch {
			case foreign:
				return purgeForeign(ctx, cmd, b, typ, dryRun, turn.turn(cmd))
			case len(ids) > 0:
				return purgeIDs(ctx, cmd, b, typ, ids, dryRun, turn.turn(cmd))
			}
			if older > 0 {
				now, err := b.Queue.Now(ctx)
				if err != nil {
					return err
				}
				before.Time = now.Add(-time.Duration(older)) // by the server's clock, from which the times of the messages come
			}
			return purge(ctx, cmd, b, typ, before.Time, dryRun, turn.turn(cmd))
		})
	}
	return cmd
}

func purge(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, before time.Time, dryRun bool, turn admin.Turn) error {
	if _, err := chooseTypes(ctx, b, []string{typ}, false); err != nil {
		return err
	}
	var p queue.Purged
	var err error
	if dryRun {
		p, err = queue.Purge(ctx, b.Queue, typ, before, true)
	} else {
		p, err = admin.Purge(ctx, b, typ, before, turn)
	}
	switch {
	case p.Messages == 0 && err == nil:
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no pending message of type %s matches", typ)}
	case dryRun && err == nil:
		printable.Fprintf(cmd.OutOrStdout(), "purged=0 matching=%d bytes=%d published from %s to %s (dry run)\n", p.Messages, p.Bytes,
			p.First.Time().UTC().Format(time.RFC3339), p.Last.Time().UTC().Format(time.RFC3339))
	case !dryRun:
		printable.Fprintf(cmd.OutOrStdout(), "purged=%d bytes=%d\n", p.Messages, p.Bytes)
	}
	if err != nil && p.Messages > 0 && !dryRun {
		code := cli.ExitPartial
		if context.Cause(ctx) == context.Canceled { // and the lock was not lost
			code = cli.ExitStopped
		}
		return &cli.Error{Code: code, Err: err}
	}
	return err
}

// pendingRow is one message in the json output of types peek.
type pendingRow struct {
	ID            string            `json:"id"`
	Producer      string            `json:"producer"`
	N             uint64            `json:"n"`
	Published     time.Time         `json:"published"`
	AgeSeconds    float64           `json:"age_seconds"`
	Bytes         int               `json:"bytes"` // of the payload
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
	Incomplete    bool              `json:"incomplete,omitempty"`
	Unfit         string            `json:"unfit,omitempty"` // why it cannot be appended as it is

	preview string
}

func typesPeekCommand() *cobra.Command {
	output := cli.NewOneOf("text", "json")
	limit := cli.Count(10)
	var from string
	cmd := &cobra.Command{
		Use:   "peek TYPE",
		Short: "Show the oldest pending messages without consuming them",
		Long: `Peek reads pending messages without removing them. They are listed in the order in which workers append them; the number is the
message's place in its producer's sequence. A message that cannot be appended has a reason. With --foreign it lists the keys in the range
of the type's messages that hold no message ID: another program stored something there, which is never appended.`,
		Example: `  fencepost types peek orders
  fencepost types peek orders -n 100 --from 065svpgc20000000000001o00000001a -o json`,
	}
	url := cli.URLFlag(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format; json has the whole payloads")
	cmd.Flags().VarP(&limit, "count", "n", "show at most this many")
	cmd.Flags().StringVar(&from, "from", "", "begin with this ID, or the next one after it")
	foreign := cmd.Flags().Bool("foreign", false, "list the foreign keys of the type, and no messages")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("name one TYPE; fencepost types ls lists them")
		}
		if err := queue.ValidateType(args[0]); err != nil {
			return err
		}
		if limit < 1 || limit > 10_000 {
			return cli.Usagef("--count %d: show 1 to 10000", limit)
		}
		if *foreign && from != "" {
			return cli.Usagef("--foreign and --from cannot be combined; foreign keys hold no IDs")
		}
		var after queue.ID
		if from != "" {
			id, err := queue.ParseID(from)
			if err != nil {
				return cli.Usagef("--from: %w; types peek prints the IDs", err)
			}
			after = id.Prev()
		}
		return withBackend(cmd, *url, func(ctx context.Context, b *fencepost.Backend) error {
			if *foreign {
				return peekForeign(ctx, cmd, b, args[0], int(limit), output.Value == "json")
			}
			return peek(ctx, cmd, b, args[0], after, int(limit), output.Value == "json")
		})
	}
	return cmd
}

func peek(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend, typ string, after queue.ID, limit int, whole bool) error {
	now, err := b.Queue.Now(ctx)
	if err != nil {
		return err
	}
	rows := []pendingRow{}
	for len(rows) < limit {
		msgs, err := b.Queue.Fetch(ctx, typ, after, queue.Limit{Messages: min(limit-len(rows), 500), Bytes: 8 << 20})
		if err != nil {
			return err
		}
		if len(msgs) == 0 {
			break
		}
		for i := range msgs {
			rows = append(rows, pendingRowOf(&msgs[i], now, whole))
		}
		after = msgs[len(msgs)-1].ID
	}
	if whole {
		if err := printJSON(cmd, rows); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		if _, err := chooseTypes(ctx, b, []string{typ}, false); err != nil {
			return err
		}
		if keys, err := b.Queue.ForeignKeys(ctx, typ, "", 1); err == nil && len(keys) > 0 {
			return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("only foreign keys are pending there; fencepost types peek --foreign %s lists them", typ)}
		}
		return &cli.Error{Code: cli.ExitNothing, Err: errors.New("nothing is pending there")}
	}
	if whole {
		return nil
	}
	t := printable.NewTable(cmd.OutOrStdout(), "ID", "NUMBER", "AGE", "SIZE", "HEADERS", "PAYLOAD")
	for _, r := range rows {
		age := time.Duration(r.AgeSeconds * float64(time.Second)).Round(time.Second / 10)
		t.Row(r.ID, r.N, age, humanize.IBytes(uint64(r.Bytes)), headersOf(r.Headers), r.preview)
	}
	return t.Flush()
}

func pendingRowOf(m *queue.Message, now time.Time, whole bool) pendingRow {
	r := pendingRow{ID: m.ID.String(), Producer: fmt.Sprintf("%016x", m.ID.Producer()), N: m.ID.N(), Published: m.ID.Time().UTC(),
		AgeSeconds: max(now.Sub(m.ID.Time()).Seconds(), 0), Bytes: len(m.Payload), Headers: m.Headers, Incomplete: m.Incomplete, Unfit: m.Unfit()}
	switch {
	case m.Incomplete && whole:
	case r.Unfit != "" && !whole:
		r.preview = "(cannot be appended: " + r.Unfit + ")"
	case whole && utf8.Valid(m.Payload):
		r.Payload = new(string(m.Payload))
	case whole:
		r.PayloadBase64 = new(base64.StdEncoding.EncodeToString(m.Payload))
	default:
		r.preview = preview(m.Payload)
	}
	return r
}

// preview returns the beginning of a payload, more than a table shows. White space is a space inside, and escaped at both ends: there it is
// usually a mistake, and a table would not show it.
func preview(payload []byte) string {
	text := string(payload[:min(len(payload), 1000)])
	inside := strings.TrimSpace(text)
	before, after, _ := strings.Cut(text, inside)
	return spaces(before) + strings.Join(strings.Fields(inside), " ") + spaces(after)
}

// spaces returns white space as in a Go string, and each space as \x20.
func spaces(s string) string {
	return strings.ReplaceAll(strings.Trim(strconv.QuoteToASCII(s), `"`), " ", `\x20`)
}

func headersOf(headers map[string]string) string {
	if len(headers) == 0 {
		return "-"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(headers)) {
		v := headers[k]
		if strings.ContainsFunc(k+v, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || r == '"' }) {
			k, v = strconv.Quote(k), strconv.Quote(v)
		}
		parts = append(parts, k+"="+v)
	}
	return strings.Join(parts, " ")
}
