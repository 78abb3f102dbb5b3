// Command awaiting-a-mutex runs several writer processes, with one file and one mutex per data type.
//
// A storage has one file for each type of data, and only one writer at a time may write to a file. So each writer awaits
// the mutex of its type, writes a block of lines, and releases it. The mutex is in the shared database.
//
// Awaiting costs no thread. [await] returns a channel; its goroutine is parked, and the writer, which has only one thread for
// Go code here, continues with other work until it gets the mutex.
//
// At the end the program reads the files: blocks of two writers must not overlap, and the fencing tokens of the blocks in
// one file must grow. With --no-lock they do overlap, and it exits with 1.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "awaiting-a-mutex:", err)
		os.Exit(1)
	}
}

type config struct {
	url, dir                      string
	writers, types, blocks, lines int
	pause                         time.Duration
	noLock                        bool
	writer                        int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	flags := flag.NewFlagSet("awaiting-a-mutex", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	flags.IntVar(&c.writers, "writers", 6, "writer processes")
	flags.IntVar(&c.types, "types", 2, "data types, and so files and mutexes")
	flags.IntVar(&c.blocks, "blocks", 3, "blocks that each writer writes")
	flags.IntVar(&c.lines, "lines", 20, "lines of a block")
	flags.DurationVar(&c.pause, "pause", 2*time.Millisecond, "how long it takes to write a line")
	flags.BoolVar(&c.noLock, "no-lock", false, "write without the mutex, to see its effect")
	flags.StringVar(&c.dir, "dir", "", "directory of the files (default: a temporary directory)")
	flags.IntVar(&c.writer, "writer", 0, "run as this writer (used by the program itself)")
	flags.Parse(args)
	if flags.NArg() > 0 || c.writers < 1 || c.types < 1 {
		fmt.Fprintln(os.Stderr, "only flags are accepted, with at least one writer and one type")
		os.Exit(2)
	}
	if c.url = *url; c.writer > 0 {
		return c.write(ctx, json.NewEncoder(out))
	}
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c.url == "" {
		c.url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	}
	if c.dir == "" {
		c.dir = dir
	}
	return c.coordinate(ctx, args, out)
}

// report is a writer's report about one block.
type report struct {
	Writer int
	Type   string
	Waited time.Duration
	Other  int // units of other work done meanwhile
	Token  int64
}

// coordinate starts the writers, prints their reports, and checks the files.
func (c *config) coordinate(ctx context.Context, args []string, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	reports := make(chan report)
	errs := make(chan error, c.writers)
	var g sync.WaitGroup
	for w := range c.writers {
		cmd := exec.CommandContext(ctx, self, append(slices.Clone(args), "--url", c.url, "--dir", c.dir, "--writer", fmt.Sprint(w+1))...)
		cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		g.Go(func() {
			if err := cmd.Start(); err != nil {
				errs <- err
				return
			}
			for d := json.NewDecoder(stdout); ; {
				var r report
				if d.Decode(&r) != nil {
					break
				}
				reports <- r
			}
			if err := cmd.Wait(); err != nil {
				errs <- fmt.Errorf("writer %d: %w", w+1, err)
			}
		})
	}
	go func() { g.Wait(); close(reports) }()

	fmt.Fprintln(out, "writer  type    waited  other work meanwhile  token")
	for r := range reports {
		fmt.Fprintf(out, "%6d  %-4s  %5d ms  %14d units  %d\n", r.Writer, r.Type, r.Waited.Milliseconds(), r.Other, r.Token)
	}
	close(errs)
	for err := range errs {
		return err
	}
	var damaged error
	for t := range min(c.types, c.writers) {
		blocks, err := check(c.file(typeName(t)))
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", typeName(t), err)
			damaged = errors.New("writers overlapped")
			continue
		}
		fmt.Fprintf(out, "%s: %d blocks, no two overlap, tokens grow\n", typeName(t), blocks)
	}
	return damaged
}

func typeName(i int) string { return fmt.Sprintf("t%d", i+1) }

func (c *config) file(typ string) string { return filepath.Join(c.dir, typ+".txt") }

// write is a writer process.
func (c *config) write(ctx context.Context, reports *json.Encoder) error {
	runtime.GOMAXPROCS(1)
	b, err := fencepost.Open(ctx, c.url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything has been released
	typ := typeName((c.writer - 1) % c.types)
	for range c.blocks {
		r := report{Writer: c.writer, Type: typ}
		if c.noLock {
			if err := c.block(ctx, typ, 0); err != nil {
				return err
			}
		} else if err := c.locked(ctx, b.Locker, &r); err != nil {
			return err
		}
		if err := reports.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// locked awaits the mutex, doing other work meanwhile, and writes a block under it.
func (c *config) locked(ctx context.Context, l *lock.Locker, r *report) error {
	began := time.Now()
	mutex := await(ctx, l, r.Type)
	work := time.NewTicker(time.Millisecond)
	defer work.Stop()
	for {
		select {
		case <-work.C:
			r.Other++
			continue
		case m := <-mutex:
			if m.err != nil {
				return m.err
			}
			r.Waited, r.Token = time.Since(began), m.lease.Token()
			err := c.block(m.lease.Context(), r.Type, r.Token)
			return errors.Join(err, m.lease.Release(ctx))
		}
	}
}

// acquired is the result of await.
type acquired struct {
	lease *lock.Lease
	err   error
}

// await is a non-blocking Acquire: the result arrives on the returned channel.
func await(ctx context.Context, l *lock.Locker, name string) <-chan acquired {
	c := make(chan acquired, 1)
	go func() {
		lease, err := l.Acquire(ctx, name, lock.WithWhy("to write a block"))
		c <- acquired{lease, err}
	}()
	return c
}

// block appends a block of lines to the file of a type, until the context of the lock ends.
func (c *config) block(ctx context.Context, typ string, token int64) error {
	f, err := os.OpenFile(c.file(typ), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for i := range c.lines {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := fmt.Fprintf(f, "%d %d %d %d\n", c.writer, token, i+1, c.lines); err != nil {
			return err
		}
		time.Sleep(c.pause)
	}
	return f.Sync()
}

// check reads a file and verifies that blocks follow each other, each complete, with growing tokens.
func check(path string) (blocks int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	type line struct{ writer, token, n, of int }
	var last line
	s := bufio.NewScanner(f)
	for at := 1; s.Scan(); at++ {
		var l line
		if _, err := fmt.Sscanf(s.Text(), "%d %d %d %d", &l.writer, &l.token, &l.n, &l.of); err != nil {
			return 0, fmt.Errorf("line %d %q: %w", at, s.Text(), err)
		}
		switch inside := last.n < last.of; {
		case inside && (l.writer != last.writer || l.n != last.n+1):
			return 0, fmt.Errorf("line %d: writer %d is inside a block of writer %d", at, l.writer, last.writer)
		case !inside && l.n != 1:
			return 0, fmt.Errorf("line %d: a block of writer %d begins with its line %d", at, l.writer, l.n)
		case !inside && last.token > 0 && l.token <= last.token:
			return 0, fmt.Errorf("line %d: token %d after %d", at, l.token, last.token)
		case !inside:
			blocks++
		}
		last = l
	}
	if last.n < last.of {
		return 0, errors.New("the last block is not complete")
	}
	return blocks, s.Err()
}
