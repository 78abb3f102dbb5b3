package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func verifyCommand() *cobra.Command {
	o := verifyOptions{maxMemory: defaultMaxMemory}
	var asJSON, quiet, verbose bool
	cmd := &cobra.Command{
		Use:   "verify FILE|DIRECTORY… | --store ADDRESS [TYPE|FILE]…",
		Short: "Check that files are undamaged and complete: every record, every producer's sequence",
		Long: `Verify reads whole files. It checks every byte and, per producer, that no message is missing, duplicated or out of order. It changes
nothing, and works on files that are being written to. A directory stands for all .fpl files in it.

It counts the messages that cat prints. Skipped messages became dead letters or repeated an idempotency key: they have an index, and a place
in their producer's sequence. Lost messages are those that a repair could not read or gave up. Damage to a file that a compaction or repair
has replaced is reported, but is not a violation if the file that has its messages is checked in the same run.

Torn and void bytes are normal traces of crashes and takeovers; readers skip them. A declared gap is not a violation either: messages were
deleted from the queue before they were appended. Everything else is an integrity violation: exit code 3.

Recently used data is read from the page cache. With --device verify first writes the file out and drops it from the cache, so that
it reads the disk.

A file that is the successor of another one, such as orders@0002.fpl, continues the producers' counters of that one. Files of one type
are checked as a series: none between them may be missing, cut, renamed or a copy. The oldest may be of any generation. In a directory the
newest must be there, too; files named individually may be part of a series. A copy that is kept beside the file under a name of its own,
such as orders-old.fpl, is checked alone, and not counted. The same applies with --store: a type means all its files, and no argument means
all types.

` + cli.ExitHelp,
		Example: `  fencepost verify data/orders.fpl
  fencepost verify -v --device data/orders.fpl
  fencepost verify --deep --json /srv/fencepost | jq .producers
  fencepost verify --store mongodb: --url mongodb://db1,db2,db3/shop orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if more := o.maxMemory - defaultMaxMemory; more > 0 && os.Getenv("GOMEMLIMIT") == "" {
				debug.SetMemoryLimit(memoryLimit + int64(more))
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			defer cli.OnSignals(cancel, func() { os.Exit(cli.ExitStopped) })()
			if err := o.files.open(ctx); err != nil {
				return err
			}
			defer o.files.close()
			paths, all, err := o.files.paths("verify", args)
			if err != nil {
				return err
			}
			if !quiet && cli.IsTerminal(cmd.ErrOrStderr()) {
				o.progress = newByteProgress(cmd.ErrOrStderr(), "verify", paths, o.files.size)
			}
			reports := verifyFiles(ctx, paths, o)
			verifyChains(ctx, reports, all, o.files.fs())
			o.progress.clear()
			if asJSON {
				for _, r := range reports {
					if err := printable.EncodeJSON(cmd.OutOrStdout(), r.json(), ""); err != nil {
						return err
					}
				}
			} else {
				printReports(cmd.OutOrStdout(), reports, verbose)
			}
			return verdictOf(reports)
		},
	}
	o.files.add(cmd, store.URLFlag(cmd))
	cmd.Flags().BoolVar(&o.deep, "deep", false, "also look for IDs that occur twice anywhere (20 bytes of memory per message)")
	cmd.Flags().Var(&o.maxMemory, "max-memory", "memory limit for the state of each producer of a file (200 bytes) and, with --deep, of each message")
	cmd.Flags().BoolVar(&o.device, "device", false, "read the disk, not the page cache")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per file")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also print the writer of each part, void bytes, declared gaps and all producers")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress bar")
	return cmd
}

// verdictOf returns the verdicts of all files, joined.
func verdictOf(reports []*fileReport) error {
	var errs []error
	stopped := 0
	for _, r := range reports {
		if r.stopped() {
			stopped++
		} else {
			errs = append(errs, r.verdict())
		}
	}
	if stopped > 0 {
		err := fmt.Errorf("stopped: %d of %d files were not read to their end", stopped, len(reports))
		if errors.Join(errs...) == nil {
			return cli.Stoppedf("%w", err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

type verifyOptions struct {
	deep      bool
	device    bool
	maxMemory cli.Size
	progress  *byteProgress

	files fileFlags

	large *sync.Mutex   // held by the one file whose large batches may be in memory
	kept  *atomic.Int64 // bytes, for the producers of all files and the messages of the files being read
}

const (
	defaultMaxMemory = 96 << 20 // bytes
	hashMemory       = 20       // bytes per message with --deep, in a growing list
)

// fileReport is the result of verifying one file.
type fileReport struct {
	path   string
	files  *fileFlags
	report *storage.Report // nil if the header cannot be read
	audit  worker.Audit
	err    error         // the defect of the file, or the error that stopped verify
	whole  bool          // the file was read to its end
	chain  []error       // why it does not fit the files before and after it
	first  *storage.Link // the file itself, if older ones are not here

	replaced bool // a compaction or repair replaced it: a later file has all its messages
	copied   bool // a copy of another file of the directory, kept under the name of another type
}

// verdict returns the defects of the file and of the series around it. Damage in a replaced file is shown but does not count.
func (r *fileReport) verdict() error {
	if r.passedOver() {
		return errors.Join(r.chain...)
	}
	return errors.Join(append([]error{r.err}, r.chain...)...)
}

func (r *fileReport) passedOver() bool { return r.replaced && errors.Is(r.err, storage.ErrIntegrity) }

// stopped reports whether the file was not read to its end because of a cancellation.
func (r *fileReport) stopped() bool { return errors.Is(r.err, context.Canceled) }

// removed reports whether the file was removed before it was read to its end, usually by keep. Then the files that were listed need not follow one another.
func (r *fileReport) removed() bool { return errors.Is(r.err, fs.ErrNotExist) }

// verifyFiles verifies files concurrently; the reports are in the order of paths.
func verifyFiles(ctx context.Context, paths []string, o verifyOptions) []*fileReport {
	reports := make([]*fileReport, len(paths))
	o.large, o.kept = new(sync.Mutex), new(atomic.Int64)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, path := range paths {
		g.Go(func() error {
			reports[i] = verifyFile(ctx, path, o)
			return nil
		})
	}
	g.Wait()
	return reports
}

func verifyFile(ctx context.Context, path string, o verifyOptions) *fileReport {
	r := &fileReport{path: path, files: &o.files}
	r.audit.Grow = o.keep
	so := storage.VerifyOptions{FS: o.files.fs(), Deep: o.deep, Device: o.device, Visit: r.audit.Record, Progress: o.progress.file(path)}
	hashes := int64(0)
	if o.deep {
		so.Visit = func(rec storage.Record) error {
			hashes += hashMemory
			if err := o.keep(hashMemory); err != nil {
				return err
			}
			return r.audit.Record(rec)
		}
	}
	large := false
	so.Large = func() { o.large.Lock(); large = true }
	defer func() {
		if large {
			o.large.Unlock()
		}
	}()
	so.Start = func(state []byte) error {
		err := r.audit.Restore(state)
		if _, ok := err.(*memoryError); err != nil && !ok {
			err = fmt.Errorf("%s: the state at its beginning: %w; use the version of fencepost that wrote the file, or a newer one", path, err)
		}
		return err
	}
	r.report, r.err = storage.Verify(ctx, path, so)
	o.kept.Add(-hashes)
	o.progress.finish(path)
	if errors.As(r.err, new(*memoryError)) {
		r.err = fmt.Errorf("%s: at index %d: %w", path, r.report.NextIndex, r.err)
	}
	if r.whole = r.err == nil; !r.whole {
		return r
	}
	r.err = r.report.Err()
	if problems, n := r.audit.Problems(); n > 0 && r.err == nil {
		r.err = fmt.Errorf("%w: %s: %w (%d violations of a producer's sequence in all)", storage.ErrIntegrity, path, problems[0], n)
	}
	return r
}

// memoryError says that the state of the files would take more bytes than it may.
type memoryError struct{ kept, most int64 }

func (e *memoryError) Error() string {
	return fmt.Sprintf("the state of producers, and with --deep of messages, takes %d bytes, and may take %d: allow more, as with --max-memory 1GiB, "+
		"or verify fewer files at a time", e.kept, e.most)
}

// keep counts memory for the state of the files.
func (o *verifyOptions) keep(bytes int64) error {
	if kept := o.kept.Add(bytes); kept > int64(o.maxMemory) {
		return &memoryError{kept, int64(o.maxMemory)}
	}
	return nil
}

// chainKey names the files that may continue each other.
type chainKey struct{ dir, typ string }

// chainOf returns the chain to which a file belongs according to its name.
func chainOf(path string) (k chainKey, ok bool) {
	k.dir = filepath.Dir(path)
	k.typ, _, ok = storage.ParseName(filepath.Base(path))
	return k, ok
}

// verifyChains checks the files of each type against each other, if there are several of them, or if they are all files of their directory or type.
func verifyChains(ctx context.Context, reports []*fileReport, all whole, fsys storage.FS) {
	byPath, chains := map[string]*fileReport{}, map[chainKey]storage.Chain{}
	for _, r := range reports {
		path := filepath.Clean(r.path)
		if k, ok := chainOf(path); ok && byPath[path] == nil {
			chains[k] = append(chains[k], r.link(path))
			byPath[path] = r
		}
	}
	checkNames(byPath, chains, all)
	var g errgroup.Group
	for k, c := range chains {
		if len(c) == 1 && !all.has(k) || slices.ContainsFunc(c, func(l storage.Link) bool { return byPath[l.Path].stopped() || byPath[l.Path].removed() }) {
			continue
		}
		wrong := c.Check()
		for _, e := range wrong {
			byPath[e.Path].chain = append(byPath[e.Path].chain, e)
		}
		for path := range c.Replaced() {
			byPath[path].replaced = len(wrong) == 0
		}
		if !all.has(k) {
			continue
		}
		first := slices.MinFunc(c, func(a, b storage.Link) int { return cmp.Compare(a.Generation, b.Generation) })
		if first.Generation > 1 {
			byPath[first.Path].first = &first
		}
		newest := byPath[slices.MaxFunc(c, func(a, b storage.Link) int { return cmp.Compare(a.Generation, b.Generation) }).Path]
		g.Go(func() error { // CheckEnd may wait
			if err := c.CheckEnd(ctx, fsys); errors.Is(err, context.Canceled) {
				newest.err = err
			} else if err != nil {
				newest.chain = append(newest.chain, err)
			}
			return nil
		})
	}
	g.Wait()
}

// checkNames checks files that are alone under the name of another type than theirs, in directories that are checked as a whole. No chain
// contains them. Such a file is a kept copy if the directory has a file with its right name, too. Otherwise it was renamed.
func checkNames(byPath map[string]*fileReport, chains map[chainKey]storage.Chain, all whole) {
	for k, c := range chains {
		l := c[0]
		if len(c) > 1 || l.Type == "" || l.Type == k.typ || !all[chainKey{dir: k.dir}] {
			continue
		}
		right := filepath.Join(k.dir, storage.GenerationName(l.Type, l.Generation))
		if r := byPath[l.Path]; byPath[right] != nil {
			r.copied = true
		} else {
			r.chain = append(r.chain, fmt.Errorf("%w: %s holds generation %d of type %s: it was renamed, or is a kept copy; rename it to %s, or move it to another directory",
				storage.ErrIntegrity, l.Path, l.Generation, l.Type, filepath.Base(right)))
		}
	}
}

// link returns the file as a link of its chain, to be checked against its neighbours.
func (r *fileReport) link(path string) storage.Link {
	if r.report == nil {
		return storage.Link{Path: path, Err: r.err}
	}
	l := r.report.Link()
	l.Path = path
	if !r.whole {
		l.Err = r.err
	}
	return l
}

// successorPath returns the path at which the successor of a sealed file belongs.
func successorPath(path, typ string, s *storage.SealedError) string {
	return filepath.Join(filepath.Dir(path), storage.GenerationName(typ, s.Generation))
}

// eachRecord calls f for every message of a file; fsys is nil for the operating system's.
func eachRecord(fsys storage.FS, path string, f func(*storage.Record) error) error {
	r, err := storage.OpenReader(path, storage.ReaderOptions{FS: fsys})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(&rec)
		}
		if err != nil {
			return err
		}
	}
}
