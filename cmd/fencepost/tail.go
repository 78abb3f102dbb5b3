package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

func tailCommand() *cobra.Command {
	format := cli.NewOneOf("lines", "json", "len32", "raw")
	var follow, unsynced bool
	lines := cli.Count(10)
	var begin cli.Count
	var files fileFlags
	cmd := &cobra.Command{
		Use:   "tail FILE | --store ADDRESS TYPE|FILE",
		Short: "Print the last messages of a type, and with -f new ones as they are appended",
		Long: `Tail prints the last messages of a file's type and, with --follow, waits for more until it is stopped or, on Linux, until nothing reads
its output any more. Where the file was sealed (size limit, compaction, repair) it continues in the newest one. If FILE was removed
(keep), it begins with the next one of its type. It prints durable messages only; to make sure that they are, it syncs the file itself. --unsynced prints messages sooner, which a crash may still undo.

It stops with exit code 3 when the file was removed or replaced or is damaged, or when a file between FILE and the newest one is missing,
cut, renamed or a copy. Formats are those of cat.`,
		Example: `  fencepost tail data/orders.fpl
  fencepost tail -f --format json data/orders.fpl | jq .payload
  fencepost tail -f --from 0 data/orders.fpl        # everything, and then new messages
  fencepost tail -f --store mongodb: --url mongodb://db1,db2,db3/shop orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("tail prints one file; name it, as in fencepost tail -f data/orders.fpl")
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			defer cli.OnSignals(cancel, func() { os.Exit(cli.ExitStopped) })() // nobody may be reading the output
			if err := files.open(ctx); err != nil {
				return err
			}
			defer files.close()
			t := &tailer{out: newMessageWriter(cmd.OutOrStdout(), format.Value), notes: files.out(cmd.ErrOrStderr()), unsynced: unsynced, fs: files.fs()}
			path, err := files.one("tail", args[0], oldest)
			if err != nil {
				return err
			}
			if err := t.chain(path); err != nil {
				return err
			}
			from := uint64(begin)
			if cmd.Flags().Changed("from") {
				path = t.fileFrom(path, from)
				if len(t.files) > 0 {
					tellBegin(t.notes, path, t.files[0].First, from)
				}
			} else {
				var err error
				if path, from, err = t.last(ctx, path, uint64(lines)); err != nil {
					return err
				}
			}
			if !follow {
				err := t.each(ctx, path, from, t.batch)
				if err == nil {
					err = t.files.CheckEnd(ctx, t.fs)
				}
				return t.out.flushed(err)
			}
			go func() {
				if waitForHangup(ctx, cmd.OutOrStdout()) {
					cancel() // nobody reads any more, as after head -1
				}
			}()
			return t.follow(ctx, path, from)
		},
	}
	files.add(cmd, store.URLFlag(cmd))
	cmd.Flags().Var(format, "format", "how messages are printed")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	cmd.Flags().VarP(&lines, "lines", "n", "start with this many of the existing messages")
	cmd.Flags().Var(&begin, "from", "start at this index instead, in FILE or one of its successors")
	cmd.Flags().BoolVar(&unsynced, "unsynced", false, "also print messages that are not durable yet")
	return cmd
}

type tailer struct {
	out      *messageWriter
	notes    io.Writer // stderr
	unsynced bool
	fs       storage.FS    // nil: the operating system's
	files    storage.Chain // the named file and its successors, without those that a compaction or repair replaced
	skip     uint64        // how many messages at the beginning are not printed
}

// chain checks path and its successors against each other. A file whose name is not that of a type's file is read alone.
func (t *tailer) chain(path string) error {
	k, ok := chainOf(path)
	if !ok {
		return nil
	}
	files, err := storage.ReadChain(t.fs, k.dir, k.typ)
	if err != nil {
		return err
	}
	_, generation, _ := storage.ParseName(filepath.Base(path))
	t.files = files.From(generation)
	if wrong := t.files.Check(); len(wrong) > 0 {
		return wrong[0]
	}
	t.files = chain.Needed(t.files)
	return nil
}

// fileFrom returns the newest file that has an index, or may get it, or the oldest file if all begin later.
func (t *tailer) fileFrom(path string, index uint64) string {
	if len(t.files) == 0 {
		return path
	}
	return t.files[max(t.files.At(index), 0)].Path
}

func (t *tailer) open(path string, from uint64) (*storage.Reader, error) {
	return storage.OpenReader(path, storage.ReaderOptions{FS: t.fs, From: from, Durable: !t.unsynced})
}

// last returns where to begin so that the last n messages are printed: a file and an index. It sets skip. A dead letter has an index, too, and is not
// printed, so n indexes before the end may be too few.
func (t *tailer) last(ctx context.Context, path string, n uint64) (string, uint64, error) {
	newest, start, next, err := t.newest(t.fileFrom(path, math.MaxUint64))
	if err != nil {
		return "", 0, err
	}
	path, first := t.fileOf(newest, start, next-min(n, next))
	from := max(first, next-min(n, next))
	for back := n; 0 < n && n < next; back *= 2 {
		found := uint64(0)
		err := t.each(ctx, path, from, func(recs []storage.Record) error {
			for i := range recs {
				if recs[i].Kind.IsMessage() && recs[i].Index < next {
					found++
				}
			}
			return nil
		})
		if err != nil {
			return path, from, ctx.Err() // printing reports damage
		}
		if t.skip = found - min(n, found); found >= n || from == 0 {
			break
		}
		wanted := next - min(2*back, next)
		older, olderFirst := t.fileOf(newest, start, wanted)
		switch {
		case from > first: // an older file is not read before this one
			from = max(first, wanted)
		case older == path:
			return path, from, nil // it is the oldest
		default:
			path, first, from = older, olderFirst, max(olderFirst, wanted)
		}
	}
	return path, from, nil
}

// newest returns the newest file of the type of path, its first index, and the index after its last message.
func (t *tailer) newest(path string) (_ string, first, next uint64, err error) {
	for {
		r, err := t.open(path, math.MaxUint64)
		if err != nil {
			return "", 0, 0, err
		}
		_, err = r.Next()
		first, next, seal, typ := r.FirstIndex(), r.NextIndex(), r.Sealed(), r.Type()
		r.Close()
		if !errors.Is(err, io.EOF) {
			return "", 0, 0, err
		}
		if seal != nil {
			successor := t.next(path)
			if successor == "" { // it may have been created since chain was read
				successor = filepath.Join(filepath.Dir(path), storage.GenerationName(typ, seal.Generation))
			}
			if r, err := t.open(successor, math.MaxUint64); err == nil {
				r.Close()
				path = successor
				continue
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", 0, 0, err
			}
		}
		return path, first, next, nil
	}
}

// fileOf returns the file that has an index, or the oldest file, and the first index of the file. newest is the newest file, which begins at first.
func (t *tailer) fileOf(newest string, first, index uint64) (string, uint64) {
	path := newest
	for _, l := range slices.Backward(t.files) {
		if first <= index {
			break
		}
		if l.Type != "" && l.First < first {
			path, first = l.Path, l.First
		}
	}
	return path, first
}

// each calls do with the records of the file and its successors from an index on.
func (t *tailer) each(ctx context.Context, path string, from uint64, do func([]storage.Record) error) error {
	for {
		r, err := t.open(path, from)
		if err != nil {
			return err
		}
		err = eachBatch(ctx, r, do)
		next := r.NextIndex()
		r.Close()
		successor := t.next(path)
		if err != nil || successor == "" {
			return err
		}
		path, from = successor, max(from, next)
	}
}

// eachBatch calls do with the records of r, to its end.
func eachBatch(ctx context.Context, r *storage.Reader, do func([]storage.Record) error) error {
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		recs, err := r.NextBatch()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(recs)
		}
		if err != nil {
			return err
		}
	}
}

// next returns the path of the file after path, "" if there is none. It need not be the one that the seal names: a compaction or repair may
// have replaced that one, and it was removed.
func (t *tailer) next(path string) string {
	i := slices.IndexFunc(t.files, func(l storage.Link) bool { return filepath.Clean(l.Path) == filepath.Clean(path) })
	if i < 0 || i+1 == len(t.files) {
		return ""
	}
	return t.files[i+1].Path
}

// follow prints the messages of the file from an index on, and then new ones.
func (t *tailer) follow(ctx context.Context, path string, from uint64) error {
	f, err := storage.Follow(path, storage.FollowOptions{FS: t.fs, From: from, Unsynced: t.unsynced})
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		recs, err := f.Next(ctx)
		if err == nil {
			err = t.out.flushed(t.batch(recs))
		}
		if retracted := (*storage.RetractedError)(nil); t.unsynced && errors.As(err, &retracted) {
			return fmt.Errorf("%w; messages %d to %d printed above do not count", err, retracted.First, retracted.Next-1)
		}
		if err != nil {
			return err
		}
	}
}

// batch prints the messages among records, and says how many of them were lost in a repair.
func (t *tailer) batch(recs []storage.Record) error {
	lost := 0
	for i := range recs {
		switch {
		case recs[i].Kind == storage.KindLost && t.skip == 0:
			lost++
		case !recs[i].Kind.IsMessage():
		case t.skip > 0:
			t.skip--
		default:
			if err := t.out.print(&recs[i]); err != nil {
				return err
			}
		}
	}
	if lost > 0 {
		printable.Fprintf(t.notes, "%d missing between index %d and %d: a repair could not read them, or gave them up\n", lost, recs[0].Index, recs[len(recs)-1].Index)
	}
	return nil
}
