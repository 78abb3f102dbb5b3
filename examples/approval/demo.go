package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// demonstration starts each caller as a process.
type demonstration struct {
	out  io.Writer
	args []string // of all callers
}

func demonstrate(ctx context.Context, out io.Writer, url, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &demonstration{out, []string{"--url", url, "--dir", dir, "--duration", "10s"}}
	for _, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"Two users approve transaction 100 at the same time, a third one 101:", d.together},
		{"Once more, later:", func(ctx context.Context) error { return d.expect(ctx, 0, "--transaction", "100") }},
		{"A caller is killed in the middle; the next one takes the lock over:", d.killed},
		{"A caller is frozen for longer than the duration of the lock, 2 s:", d.frozen},
	} {
		fmt.Fprintln(out, step.title)
		if err := step.run(ctx); err != nil {
			return err
		}
	}
	return d.count(dir)
}

func (d *demonstration) together(ctx context.Context) error {
	first, err := d.start(ctx, "--transaction", "100", "--work", "5s")
	if err != nil {
		return err
	}
	other, err := d.start(ctx, "--transaction", "101", "--work", "2s")
	if err != nil {
		return err
	}
	return errors.Join(d.expect(ctx, 1, "--transaction", "100"), d.end(first, 0), d.end(other, 0))
}

func (d *demonstration) killed(ctx context.Context) error {
	c, err := d.start(ctx, "--transaction", "102", "--work", "1m")
	if err != nil {
		return err
	}
	if err := errors.Join(c.Process.Kill(), d.end(c, -1)); err != nil {
		return err
	}
	return d.expect(ctx, 0, "--transaction", "102", "--wait", "20s")
}

func (d *demonstration) frozen(ctx context.Context) error {
	c, err := d.start(ctx, "--transaction", "103", "--duration", "2s", "--work", "6s")
	if err != nil {
		return err
	}
	if err := freeze(c.Process); errors.Is(err, errors.ErrUnsupported) {
		fmt.Fprintln(d.out, "  (not on this system)")
		return d.end(c, 0)
	} else if err != nil {
		return err
	}
	err = errors.Join(
		d.expect(ctx, 1, "--transaction", "103"),
		d.expect(ctx, 0, "--transaction", "103", "--wait", "10s"))
	fmt.Fprintln(d.out, "  and the frozen one resumes")
	return errors.Join(err, thaw(c.Process), d.end(c, 1))
}

// count counts the results.
func (d *demonstration) count(dir string) error {
	approvals, _ := filepath.Glob(filepath.Join(dir, "approval-*")) // the pattern is good
	mails, _ := filepath.Glob(filepath.Join(dir, "mail-*"))
	fmt.Fprintf(d.out, "%d transactions are approved, %d mails were sent\n", len(approvals), len(mails))
	if len(approvals) != 4 || len(mails) != 4 {
		return errors.New("expected 4 of each")
	}
	return nil
}

// caller is a process that approves a transaction.
type caller struct {
	*exec.Cmd
	output *bufio.Reader
	errors *strings.Builder
}

// start starts a caller and waits until it has acquired the lock.
func (d *demonstration) start(ctx context.Context, args ...string) (*caller, error) {
	c, err := d.launch(ctx, args...)
	if err != nil {
		return nil, err
	}
	line, err := c.output.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the caller said nothing: %w; its errors: %s", errors.Join(err, c.Wait()), c.errors)
	}
	fmt.Fprintf(d.out, "  caller %d: %s", c.Process.Pid, line)
	return c, nil
}

// expect runs a caller to its end and compares its exit code.
func (d *demonstration) expect(ctx context.Context, code int, args ...string) error {
	c, err := d.launch(ctx, args...)
	if err != nil {
		return err
	}
	return d.end(c, code)
}

func (d *demonstration) launch(ctx context.Context, args ...string) (*caller, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, slices.Concat(d.args, args)...)
	c := &caller{Cmd: cmd, errors: &strings.Builder{}}
	cmd.Stderr, cmd.WaitDelay = c.errors, time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.output = bufio.NewReader(stdout)
	return c, cmd.Start()
}

// end waits for the end of a caller and compares its exit code. -1 means killed.
func (d *demonstration) end(c *caller, code int) error {
	rest, _ := io.ReadAll(c.output)
	err := c.Wait()
	for line := range strings.Lines(string(rest) + c.errors.String()) {
		fmt.Fprintf(d.out, "  caller %d: %s", c.Process.Pid, line)
	}
	if c.ProcessState == nil {
		return err
	}
	if got := c.ProcessState.ExitCode(); got != code {
		return fmt.Errorf("caller %d: exit code %d, want %d", c.Process.Pid, got, code)
	}
	if code >= 0 {
		fmt.Fprintf(d.out, "  caller %d: exit code %d\n", c.Process.Pid, code)
	} else {
		fmt.Fprintf(d.out, "  caller %d: killed\n", c.Process.Pid)
	}
	return nil
}
