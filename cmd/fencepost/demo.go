package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

const (
	demoTimeout = 5 * time.Minute       // the whole demo
	demoPoll    = 10 * time.Millisecond // poll interval while looking for a worker to kill
	pathHeader  = "path"
)

func demoCommand() *cobra.Command {
	d := &demo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Publish a source tree, drain it with workers, kill one of them, and check every byte",
		Long: `Demo publishes every file of a source tree (the installed Go toolchain's by default), one message per file, its type taken
from the file's extension. It starts worker processes for all types, kills one with SIGKILL while it holds a lock and is
in the middle of appending, and lets the others finish. Then it verifies every file, and compares path and SHA-256 of
every message in them with the originals.

Without --url it runs embedded, with no server. With --url mongodb://… it creates its own database on that server, and
drops it at the end. With --store the files are in a store, in a part of it that the demo creates and removes at the end.
The workers then share no directory, and the files of the killed worker continue without its disk.

With --ui it also serves the pages of fencepost ui, prints their address, and keeps them open until Ctrl-C.

` + cli.ExitHelp,
		Example: `  fencepost demo
  fencepost demo --ui
  fencepost demo --url mongodb://db1,db2,db3/ --store mongodb:
  fencepost demo --store 's3://bucket/prefix?region=eu-central-1'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *d.files.address != "" {
				if err := cli.NoDirWithStore(cmd); err != nil {
					return err
				}
				d.dir = "" // FENCEPOST_DIR is for files
			}
			stopped, stop := context.WithCancel(cmd.Context())
			defer stop()
			ctx, cancel := context.WithTimeoutCause(stopped, demoTimeout,
				fmt.Errorf("the demo did not finish within %v", demoTimeout))
			defer cancel()
			defer cli.OnSignals(stop, func() { os.Exit(cli.ExitStopped) })()
			d.stopped = stopped.Done()
			d.out = cmd.OutOrStdout()
			err := d.run(ctx)
			if cause := context.Cause(ctx); err != nil && cause != nil {
				err = fmt.Errorf("%w (%w)", cause, err)
			}
			return err
		},
	}
	f := cmd.Flags()
	cli.URLVar(cmd, &d.url, "", "backend: mongodb://host/ for a server; embedded if not given")
	f.StringVar(&d.dir, "dir", "", "directory of files and logs; must not exist or be empty (default: a temporary one)")
	d.files.address, d.files.url, d.files.stderr = store.Flag(cmd), &d.url, cmd.ErrOrStderr
	f.StringVar(&d.source, "source", "", "source tree to publish (default: the Go toolchain's)")
	f.IntVar(&d.workers, "workers", 4, "worker processes, at least 2")
	f.DurationVar(&d.lease, "lease", 2*time.Second, "lease of the workers' locks")
	f.BoolVar(&d.ui, "ui", false, "serve pages to watch it in a browser, on a free port of this machine, until Ctrl-C")
	f.BoolVar(&d.keep, "keep", false, "keep files, logs and database")
	return cmd
}

// workerEnv returns the environment of the demo's workers: the caller's, but with the demo's own places. No configuration file may name others.
func (d *demo) workerEnv(environ []string) []string {
	env := slices.DeleteFunc(environ, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"FENCEPOST_URL", "FENCEPOST_URL_FILE", "FENCEPOST_STORE", "FENCEPOST_STORE_FILE", "FENCEPOST_CONFIG"}, name)
	})
	env = append(env, "FENCEPOST_URL="+d.url)
	if *d.files.address == "" {
		return append(env, "FENCEPOST_DIR="+d.dir)
	}
	return append(env, "FENCEPOST_STORE="+*d.files.address)
}

// demo is one run of the demo.
type demo struct {
	url, dir, source string
	files            fileFlags // the demo's own part of --store
	used             bool      // the store has answered
	workers          int
	lease            time.Duration
	keep, ui         bool
	stopped          <-chan struct{} // closed by the first signal
	out              io.Writer

	originals map[string]original // by path relative to the source
	types     []string
	bytes     int64
	procs     []*exec.Cmd
	began     bool            // the database was opened
	exited    []chan struct{} // closed after the process with the same index in procs has exited
}

type original struct {
	typ string
	sum [sha256.Size]byte
}

func (d *demo) say(format string, args ...any) { printable.Fprintf(d.out, format+"\n", args...) }

func (d *demo) run(ctx context.Context) (err error) {
	if d.workers < 2 {
		return cli.Usagef("--workers %d: one worker is killed, so it takes at least 2", d.workers)
	}
	cleanup, err := d.prepare()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	start := time.Now()
	if err := d.scan(); err != nil {
		return err
	}
	b, err := cli.Open(ctx, d.url)
	if err != nil {
		return err
	}
	d.began = true
	defer func() { err = errors.Join(err, closeBackend(b)) }()
	if err := d.openStore(ctx); err != nil {
		return err
	}
	if d.ui {
		pages, err := d.openPages(b)
		if err != nil {
			return err
		}
		defer pages.close() // before the backend is closed
	}
	for _, step := range []func(context.Context, *fencepost.Backend) error{d.publish, d.drain, d.check} {
		if err := step(ctx, b); err != nil {
			return err
		}
	}
	d.say("\nNothing lost, nothing duplicated, nothing changed. The whole demo took %.1f s.", time.Since(start).Seconds())
	if d.keep {
		d.say("Kept: %s, with the workers' logs; try  fencepost verify %s", d.dir, d.files.command(d.path(d.types[0])))
	}
	if d.ui {
		d.say("The pages stay until Ctrl-C.")
		<-d.stopped
	}
	return nil
}

// prepare decides where everything goes, and returns a function that cleans up.
func (d *demo) prepare() (cleanup func() error, err error) {
	if d.source == "" {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		root := strings.TrimSpace(string(out))
		if err != nil || root == "" {
			return nil, cli.Usagef("cannot find the Go toolchain's sources (go env GOROOT); name a directory with --source")
		}
		d.source = filepath.Join(root, "src")
	}
	if info, err := os.Stat(d.source); err != nil || !info.IsDir() {
		return nil, cli.Usagef("--source %s is not a readable directory", d.source)
	}
	made := d.dir == ""
	if made {
		if d.dir, err = os.MkdirTemp("", "fencepost-demo-"); err != nil {
			return nil, err
		}
	} else {
		if names, err := os.ReadDir(d.dir); err == nil && len(names) > 0 {
			return nil, cli.Usagef("--dir %s is not empty; the demo needs an empty directory", d.dir)
		}
		if err := os.MkdirAll(d.dir, 0o750); err != nil {
			return nil, cli.Usagef("--dir: %w", err)
		}
	}
	var drops []func() error
	cleanup = func() error {
		d.killAll()
		defer d.files.close()
		if d.keep {
			return nil
		}
		var err error
		for _, drop := range drops {
			if d.began { // a server that did not answer has nothing to drop
				err = errors.Join(err, drop())
			}
		}
		if made {
			err = errors.Join(err, os.RemoveAll(d.dir))
		}
		return err
	}
	for _, own := range []func() (func() error, error){d.ownURL, d.ownStore} {
		drop, err := own()
		if err != nil {
			d.keep = false // there is nothing to keep yet
			return nil, errors.Join(err, cleanup())
		}
		drops = append(drops, drop)
	}
	return cleanup, nil
}

// scan reads the source tree: its files and their checksums.
func (d *demo) scan() error {
	d.originals = make(map[string]original)
	err := filepath.WalkDir(d.source, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(content) > queue.MaxPayload {
			return nil
		}
		rel, err := filepath.Rel(d.source, path)
		if err != nil {
			return err
		}
		d.originals[rel] = original{typeOf(rel), sha256.Sum256(content)}
		d.bytes += int64(len(content))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the source tree: %w", err)
	}
	if len(d.originals) == 0 {
		return &cli.Error{Code: cli.ExitNothing, Err: fmt.Errorf("%s has no files", d.source)}
	}
	for _, o := range d.originals {
		d.types = append(d.types, o.typ)
	}
	slices.Sort(d.types)
	d.types = slices.Compact(d.types)
	return nil
}

// typeOf returns the type for a file's extension.
func typeOf(path string) string {
	ext := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if queue.ValidateType(ext) != nil {
		return "other"
	}
	return ext
}

// publish publishes every file, in the order of their paths.
func (d *demo) publish(ctx context.Context, b *fencepost.Backend) error {
	start := time.Now()
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	paths := make([]string, 0, len(d.originals))
	for path := range d.originals {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	var stored atomic.Int64
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(d.source, path))
		if err != nil {
			return err
		}
		m := queue.Message{Type: d.originals[path].typ, Payload: content, Headers: map[string]string{pathHeader: path}}
		if err := p.Send(ctx, m, func(r queue.Result) {
			if r.Status == queue.Stored {
				stored.Add(1)
			}
		}); err != nil {
			return fmt.Errorf("publish %s: %w", path, err)
		}
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	if n := int(stored.Load()); n != len(paths) {
		return fmt.Errorf("only %d of %d messages were confirmed", n, len(paths))
	}
	took := time.Since(start).Seconds()
	d.say("publish   %s files of %s, %s, as %d types (one per file extension), all confirmed after %.1f s",
		humanize.Comma(int64(len(paths))), d.source, humanize.IBytes(uint64(d.bytes)), len(d.types), took)
	d.say("          to %s", b.Name)
	if d.files.place != nil {
		d.say("          the files go to %s", d.files.place.Name)
	}
	return nil
}

// drain starts the workers, kills one at work, and waits for the others.
func (d *demo) drain(ctx context.Context, b *fencepost.Backend) error {
	start := time.Now()
	var pids []string
	for i := range d.workers {
		if err := d.startWorker(i); err != nil {
			return err
		}
		pids = append(pids, strconv.Itoa(d.procs[i].Process.Pid))
	}
	d.say("drain     %d worker processes over all types, lease %v (pids %s)", d.workers, d.lease, strings.Join(pids, ", "))

	victim, typ, err := d.killOne(ctx, b)
	if err != nil {
		return err
	}
	killed := time.Now()
	depth, err := b.Queue.Depth(ctx, typ, len(d.originals))
	if err != nil {
		return err
	}
	d.say("kill -9   worker %d, which held the lock of type %q and had %s of its messages still to append",
		victim+1, typ, humanize.Comma(int64(depth.Pending)))

	var g errgroup.Group
	for i := range d.procs {
		if i == victim {
			continue
		}
		g.Go(func() error {
			select {
			case <-d.exited[i]:
			case <-ctx.Done():
				return ctx.Err()
			}
			return d.failed(i)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if heir, after, ok := d.heir(victim, typ, killed); ok {
		d.say("take over worker %d got the lock after %.1f s, fenced off the dead writer and continued with %q", heir+1, after.Seconds(), typ)
	}
	d.say("          everything drained %.1f s after the workers started", time.Since(start).Seconds())
	return nil
}

// startWorker starts the i-th worker process.
func (d *demo) startWorker(i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(d.logFile(i))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self, "worker", "--all-types", "--until-empty",
		"--max-types", "4", "--lease", d.lease.String(), "--log-format", "json")
	// Passed in the environment, so that ps does not show the addresses.
	cmd.Env = d.workerEnv(os.Environ())
	cmd.Stderr = log
	// Each worker is in its own process group: Ctrl-C reaches only the demo, which stops the workers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start worker %d: %w", i+1, err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	d.procs, d.exited = append(d.procs, cmd), append(d.exited, done)
	return nil
}

// check verifies every file and compares every message in them with its original.
func (d *demo) check(ctx context.Context, _ *fencepost.Backend) error {
	start := time.Now()
	found := make(map[string]int, len(d.originals))
	var reports []*fileReport
	var wrong []string
	var bytes int64
	for _, typ := range d.types {
		path := d.path(typ)
		rep := verifyFiles(ctx, []string{path}, verifyOptions{maxMemory: defaultMaxMemory, files: d.files})[0]
		if rep.err != nil {
			return rep.err
		}
		reports = append(reports, rep)
		bytes += rep.report.Size
		err := eachRecord(d.files.fs(), path, func(r *storage.Record) error {
			var rel string
			for _, h := range r.Headers {
				if h.Key == pathHeader {
					rel = h.Value
				}
			}
			found[rel]++
			if o, ok := d.originals[rel]; !ok || o.typ != typ || sha256.Sum256(r.Payload) != o.sum {
				wrong = append(wrong, rel)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for rel := range d.originals {
		if n := found[rel]; n != 1 {
			wrong = append(wrong, fmt.Sprintf("%s (%d times)", rel, n))
		}
	}
	if len(wrong) > 0 {
		return &cli.Error{Code: cli.ExitIntegrity, Err: fmt.Errorf("%d messages differ from what was published, the first is %s", len(wrong), wrong[0])}
	}
	d.say("verify    %d files, %s, all good", len(reports), humanize.IBytes(uint64(bytes)))
	d.say("compare   %s of %s messages have the path and SHA-256 of their original, each exactly once (%.1f s)\n",
		humanize.Comma(int64(len(found))), humanize.Comma(int64(len(d.originals))), time.Since(start).Seconds())
	d.table(reports)
	return nil
}

// table prints the largest files, and those that show traces of the kill.
func (d *demo) table(reports []*fileReport) {
	slices.SortStableFunc(reports, func(a, b *fileReport) int { return int(b.report.Messages) - int(a.report.Messages) })
	t := printable.NewTable(d.out, "FILE", "MESSAGES", "BYTES", "EPOCHS", "TORN OR VOID", "VERDICT")
	hidden := 0
	for i, r := range reports {
		if i >= 8 && tornBytes(r.report)+r.report.VoidBytes == 0 {
			hidden++
			continue
		}
		t.Row(filepath.Base(r.path), humanize.Comma(int64(r.report.Messages)),
			humanize.IBytes(uint64(r.report.Size)), r.report.RegionCount, humanize.IBytes(uint64(tornBytes(r.report)+r.report.VoidBytes)), "ok")
	}
	t.Flush()
	if hidden > 0 {
		d.say("and %d smaller ones, all ok", hidden)
	}
}
