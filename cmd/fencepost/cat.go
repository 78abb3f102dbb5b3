package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/recordjson"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

func catCommand() *cobra.Command {
	c := &catter{format: cli.NewOneOf("lines", "json", "len32", "raw")}
	var limit, from cli.Count
	var since cli.Since
	var ids []string
	cmd := &cobra.Command{
		Use:   "cat FILE… | --store ADDRESS TYPE|FILE…",
		Short: "Print the messages of files",
		Long: `Cat prints the messages of files to stdout, in file order. It is safe on a file that is being written to: it prints the messages
written so far. At damage to durable data it stops with exit code 3. With --salvage it reports the damage, continues after it,
and ends with exit code 3.

Given several files of one type, in any order, it prints every message once and in order: messages that a compaction or repair copied are
printed from the newest file. If a file between them is missing, cut, renamed or a copy, it prints nothing and exits with 3; with --salvage it reports that,
continues, and may print messages that a compaction or repair copied twice, with the same index.

On a terminal, control characters in payloads are escaped, as in \x1b or \n. A pipe or a file gets the payloads unchanged.

Formats: lines (the payload and a newline), raw (the payload and nothing else), len32 (the length of the payload, 32 bit big endian,
and the payload: the format that producer publish --format len32 reads), json (one object per line with index, id, time, epoch,
headers, and payload, or payload_base64 if it is not UTF-8 text; of headers with the same key it has the last, and U+FFFD where a header is
not UTF-8: Fencepost's publishers refuse such headers). In the json format, a part that --salvage cannot read appears as a
line {"gap":{…}} with the lost indexes as far as they are known, from from_index up to but not including to_index; in the other
formats it is reported on stderr.

--id searches the whole file for an ID, in the form that cat prints. --from and --since start reading at the last checkpoint before the
requested place. Nothing before that is read, so damage there goes unnoticed; use fencepost verify to find it.

With --store a type stands for all its files.`,
		Example: `  fencepost cat data/words.fpl | sort | uniq -c
  fencepost cat --format json --from 1000 --count 10 data/orders.fpl | jq .
  fencepost cat --since 90m data/orders.fpl
  fencepost cat --format json --id 065svpgc20000000000001o00000001a data/orders*.fpl
  fencepost cat --salvage --format json damaged.fpl > readable.ndjson
  fencepost cat --format len32 data/orders.fpl | producer publish --type copy --format len32
  fencepost cat --store shared:/srv/fencepost orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no file; name the files to print, as in fencepost cat data/orders.fpl")
			}
			if err := c.want(ids); err != nil {
				return err
			}
			if err := c.files.open(cmd.Context()); err != nil {
				return err
			}
			defer c.files.close()
			paths, err := c.paths(args)
			if err != nil {
				return err
			}
			c.out, c.notes = newMessageWriter(cmd.OutOrStdout(), c.format.Value), c.files.out(cmd.ErrOrStderr())
			c.limited, c.left, c.options.Since, c.options.FS = limit > 0, int64(limit), since.Time, c.files.fs()
			c.options.From, c.asked = uint64(from), cmd.Flags().Changed("from")
			err = c.chains(paths)
			for _, path := range paths {
				if err == nil && (!c.limited || c.left > 0) {
					err = c.file(path)
				}
			}
			if err == nil {
				err = c.verdict()
			}
			return c.out.flushed(err)
		},
	}
	c.files.add(cmd, store.URLFlag(cmd))
	cmd.Flags().VarP(c.format, "format", "f", "how messages are printed")
	cmd.Flags().Var(&from, "from", "start at this index")
	cmd.Flags().Var(&since, "since", "leave out messages from before this time, or older than this duration: 2026-01-31T15:04:05Z, 90m")
	cmd.Flags().StringArrayVar(&ids, "id", nil, "print only the message with this ID; repeatable")
	cmd.Flags().BoolVar(&c.salvage, "salvage", false, "continue after damage")
	cmd.Flags().VarP(&limit, "count", "n", "print at most this many; 0 means no limit")
	return cmd
}

// catter prints messages of several files.
type catter struct {
	files   fileFlags
	options storage.ReaderOptions
	format  *cli.OneOf
	salvage bool
	limited bool
	left    int64           // messages still to be printed, if limited
	wanted  map[string]bool // the IDs of --id, as bytes; true: found
	names   [][]string      // for each --id, the keys of wanted that it can stand for, and then its text

	out     *messageWriter
	notes   io.Writer // stderr
	damage  error     // the first damage found
	damages int
	last    string // the damage reported last

	asked bool              // --from was given
	begun map[chainKey]bool // series of which a file was printed

	until  map[string]uint64  // for each of several files of a type: the index from which later files have the messages
	broken map[string][]error // with --salvage: why a file does not fit those before and after it
}

// paths returns the files that the arguments stand for, in the order in which they are printed.
func (c *catter) paths(args []string) (paths []string, err error) {
	if c.files.place != nil {
		paths, _, err = c.files.paths("cat", args)
		return inOrder(paths), err
	}
	for _, path := range args {
		if err := readable("cat", path); err != nil {
			return nil, err
		}
	}
	return inOrder(args), nil
}

// inOrder returns each path once, and the files of a type in the order of their messages: a shell sorts orders@10000.fpl before orders@9999.fpl.
func inOrder(paths []string) (ordered []string) {
	chain := func(path string) chainKey {
		k, ok := chainOf(path)
		if !ok {
			k.typ = "/" + path // not the name of a type
		}
		return k
	}
	generation := func(path string) uint64 {
		_, g, _ := storage.ParseName(filepath.Base(path))
		return g
	}
	byType := map[chainKey][]string{}
	for _, path := range paths {
		k := chain(path)
		if !slices.ContainsFunc(byType[k], func(p string) bool { return filepath.Clean(p) == filepath.Clean(path) }) {
			byType[k] = append(byType[k], path)
		}
	}
	for _, path := range paths {
		k := chain(path)
		slices.SortFunc(byType[k], func(a, b string) int { return cmp.Compare(generation(a), generation(b)) })
		ordered = append(ordered, byType[k]...)
		delete(byType, k)
	}
	return ordered
}

// chains checks the files of each type among paths against each other.
func (c *catter) chains(paths []string) error {
	byType, keys := map[chainKey][]string{}, []chainKey(nil)
	for _, path := range paths {
		path = filepath.Clean(path)
		if k, ok := chainOf(path); ok && !slices.Contains(byType[k], path) {
			if byType[k] = append(byType[k], path); len(byType[k]) == 2 { // a single file cannot be checked against others
				keys = append(keys, k)
			}
		}
	}
	c.begun, c.until, c.broken = map[chainKey]bool{}, map[string]uint64{}, map[string][]error{}
	var wrong []error
	for _, k := range keys {
		var chain storage.Chain
		for _, path := range byType[k] {
			l := storage.ReadLink(c.files.fs(), path)
			if errors.Is(l.Err, fs.ErrNotExist) { // removed just now, usually by keep; the others need not follow one another
				return l.Err
			}
			chain = append(chain, l)
		}
		found := chain.Check()
		if len(found) == 0 {
			maps.Copy(c.until, chain.Starts())
		}
		for _, e := range found {
			wrong = append(wrong, e)
			c.broken[e.Path] = append(c.broken[e.Path], e)
		}
	}
	if c.salvage {
		return nil
	}
	return errors.Join(wrong...)
}

// want parses the values of --id. An ID of 32 characters may be the text form of a message ID, or a foreign ID in hex.
func (c *catter) want(ids []string) error {
	for _, id := range ids {
		var forms []string
		if b, err := queue.ParseID(id); err == nil {
			forms = append(forms, string(b[:]))
		}
		if b, err := hex.DecodeString(id); err == nil && len(b) > 0 {
			forms = append(forms, string(b))
		}
		if forms == nil {
			return cli.Usagef("--id %q is not an ID: use the 32 characters that fencepost cat --format json prints, or hex digits for a foreign ID", id)
		}
		if c.wanted == nil {
			c.wanted = map[string]bool{}
		}
		for _, f := range forms {
			c.wanted[f] = false
		}
		c.names = append(c.names, append(forms, id))
	}
	return nil
}

// file prints the messages of a file, up to those that a later one has.
func (c *catter) file(path string) error {
	taken, err := c.takenBack(path)
	if err != nil {
		return err
	}
	r, err := storage.OpenReader(path, c.options)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, err := range c.broken[filepath.Clean(path)] {
		if err := c.gap(err); err != nil {
			return err
		}
	}
	until, replaced := c.until[filepath.Clean(path)]
	if replaced && until <= r.FirstIndex() {
		printable.Fprintf(c.notes, "%s was replaced by a compaction or repair; its messages are in a later file\n", path)
		return nil
	}
	if k := (chainKey{filepath.Dir(path), r.Type()}); !c.begun[k] {
		c.begun[k] = true
		if c.asked {
			tellBegin(c.notes, path, r.FirstIndex(), c.options.From)
		}
	}
	lost, found := 0, 0
	for (!c.limited || c.left > 0) && (c.names == nil || found < len(c.names)) {
		rec, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			c.tellEnd(path, r, lost)
			return nil
		case err != nil:
			if err := c.gap(err); err != nil {
				return err
			}
			continue
		case replaced && rec.Index >= until:
			return nil
		case rec.Index < c.options.From || taken.has(&rec, r.BatchEnd()):
			continue
		case rec.Kind == storage.KindLost:
			lost++
			continue
		}
		if c.names != nil {
			if _, ok := c.wanted[string(rec.ID)]; !ok {
				continue
			}
			c.wanted[string(rec.ID)] = true
			found++
		}
		if rec.Kind == storage.KindSkipped {
			if c.names != nil {
				printable.Fprintf(c.notes, "%s: message %s, index %d, was put aside (dead-lettered): %q\n", path, cli.IDText(rec.ID), rec.Index, rec.Payload)
			}
			continue
		}
		if err := c.out.print(&rec); err != nil {
			return err
		}
		c.left--
	}
	return nil
}

// tellEnd says what follows the messages of a file that was read to its end, and how many lost ones were among them.
func (c *catter) tellEnd(path string, r *storage.Reader, lost int) {
	if lost > 0 {
		printable.Fprintf(c.notes, "%s: %d messages are missing: a repair could not read them, or gave them up\n", path, lost)
	}
	if s := r.Sealed(); s != nil {
		printable.Fprintf(c.notes, "%s is sealed; it continues in %s\n", path, successorPath(path, r.Type(), s))
	}
}

// tellBegin says on notes if the messages that were asked for, from an index on, begin later, in the first of the files to read.
func tellBegin(notes io.Writer, path string, first, from uint64) {
	if first > from {
		printable.Fprintf(notes, "%s begins with index %d: messages from index %d on are in an older file, or were removed\n", path, first, from)
	}
}

// retractions are the records that later writers of a file took back.
type retractions []*storage.RetractedError

// takenBack returns, with --salvage, the records that were taken back in the file, which is known only at its end.
func (c *catter) takenBack(path string) (taken retractions, err error) {
	if !c.salvage {
		return nil, nil
	}
	report, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: c.files.fs()})
	if report == nil {
		return nil, err
	}
	debug.FreeOSMemory() // return the memory of Verify before the reader allocates as much
	if n := len(report.Corrupt); report.CorruptCount > uint64(n) {
		return nil, fmt.Errorf("%w: %s has %d damaged places, and only the first %d are known here, so cat cannot tell which messages were taken back; "+
			"repair the file, and print the new one", storage.ErrIntegrity, path, report.CorruptCount, n)
	}
	for _, err := range report.Corrupt {
		if r := (*storage.RetractedError)(nil); errors.As(err, &r) {
			taken = append(taken, r)
		}
	}
	return taken, nil // an error that stopped Verify stops cat, too
}

// has reports whether rec, in a batch that ends at end, was taken back.
func (t retractions) has(rec *storage.Record, end int64) bool {
	return slices.ContainsFunc(t, func(r *storage.RetractedError) bool {
		return end <= r.Offset && rec.Index >= r.First && rec.Index < r.Next
	})
}

// gap reports damage that cat may skip; otherwise it returns err.
func (c *catter) gap(err error) error {
	var (
		corrupt   *storage.CorruptError
		retracted *storage.RetractedError
		chain     *storage.ChainError
		g         recordjson.Gap
	)
	switch {
	case !c.salvage, c.last == err.Error(): // the same damage twice: the reader cannot continue after it, as in a file that became shorter
		return err
	case errors.As(err, &corrupt):
		g = recordjson.Gap{FromIndex: corrupt.LostFirst, ToIndex: corrupt.LostNext, Offset: corrupt.Offset, End: corrupt.End, Reason: corrupt.Reason}
	case errors.As(err, &retracted):
		g = recordjson.Gap{FromIndex: retracted.First, ToIndex: retracted.Next, Offset: retracted.Offset, End: retracted.Offset,
			Reason: "a later writer did not find these: they were never durable, and are not printed"}
	case errors.As(err, &chain):
		g = recordjson.Gap{FromIndex: chain.LostFirst, ToIndex: chain.LostNext, Reason: chain.Reason}
		if chain.LostNext == math.MaxUint64 {
			g.ToIndex = g.FromIndex
		}
	default:
		return err
	}
	c.last = err.Error()
	if c.damages++; c.damage == nil {
		c.damage = err
	}
	if c.format.Value == "json" {
		return printable.EncodeJSON(c.out, struct {
			Gap recordjson.Gap `json:"gap"`
		}{g}, "")
	}
	_, err = printable.Fprintf(c.notes, "gap: %v\n", err)
	return err
}

// verdict returns the error for all files together, at the end.
func (c *catter) verdict() error {
	switch c.damages {
	case 0:
	case 1:
		return fmt.Errorf("1 gap, everything else that can be read was printed: %w", c.damage)
	default:
		return fmt.Errorf("%d gaps, everything else that can be read was printed; the first: %w", c.damages, c.damage)
	}
	var missing []string
	for _, forms := range c.names {
		n := len(forms) - 1
		if !slices.ContainsFunc(forms[:n], func(f string) bool { return c.wanted[f] }) {
			missing = append(missing, forms[n])
		}
	}
	if missing != nil {
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("no message with ID %s; it may still be pending (fencepost types ls) or be in another generation of the file",
			strings.Join(missing, ", "))}
	}
	return nil
}

// messageWriter prints messages in one of the formats of cat.
type messageWriter struct {
	*bufio.Writer
	format   string
	terminal bool
}

func newMessageWriter(out io.Writer, format string) *messageWriter {
	return &messageWriter{bufio.NewWriterSize(out, 1<<20), format, cli.IsTerminal(out)}
}

func (w *messageWriter) print(r *storage.Record) (err error) {
	switch w.format {
	case "raw":
		err = w.bytes(r.Payload)
	case "lines":
		w.bytes(r.Payload)
		err = w.WriteByte('\n')
	case "len32":
		w.bytes(binary.BigEndian.AppendUint32(nil, uint32(len(r.Payload))))
		err = w.bytes(r.Payload)
	case "json":
		recordjson.Write(w.Writer, r)
		err = w.WriteByte('\n')
	}
	return err
}

// flushed flushes, and joins err and the error of that. A failed write is one error, which is reported once.
func (w *messageWriter) flushed(err error) error {
	failed := w.Flush()
	if failed == nil || errors.Is(err, failed) {
		return err
	}
	return errors.Join(err, failed)
}

// bytes prints a payload unchanged, except on a terminal.
//
// rule: on a terminal no payload can control the terminal, or begin a line.
func (w *messageWriter) bytes(b []byte) error {
	if w.terminal {
		b = []byte(printable.Text(string(b)))
	}
	_, err := w.Write(b)
	return err
}
