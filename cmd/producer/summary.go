package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

// The outcomes of the messages, and the summary of a run.

// tally counts outcomes. Its methods are called from the publisher's goroutines.
type tally struct {
	mu                              sync.Mutex
	published, unknown, rejected    int64
	bytes                           int64
	firstUnknown, firstRejected     error
	firstUnknownIn, firstRejectedIn string
	progress                        *progressbar.ProgressBar
	stop                            func()    // ends the reading
	heard                           time.Time // when a message was last stored, or the run began
	full                            bool      // the backlog was full at the last check, and nothing has been stored since
	journal                         *journal
}

func (t *tally) note(r queue.Result, size int, where string) {
	if t.journal != nil {
		t.journal.settled(r)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch r.Status {
	case queue.Stored:
		t.heard, t.full = time.Now(), false
		t.published++
		t.bytes += int64(size)
		if t.progress != nil {
			t.progress.Describe(fmt.Sprintf("%d stored", t.published))
			t.progress.Add64(int64(size))
		}
	case queue.Unknown:
		if t.unknown++; t.firstUnknown == nil {
			t.firstUnknown, t.firstUnknownIn = r.Err, where
		}
	default:
		t.rejected++
		t.stop() // later messages must not overtake it
		if t.firstRejected == nil && t.firstUnknown == nil {
			t.firstRejected, t.firstRejectedIn = r.Err, where
		}
	}
}

// outcome returns the error of the whole run, which determines the exit code.
func (t *tally) outcome(ctx context.Context, dryRun bool, readErr, closeErr error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := readErr
	switch {
	case t.firstRejected != nil:
		not := " was not stored"
		if strings.Contains(t.firstRejected.Error(), "not stored") {
			not = ""
		}
		err = fmt.Errorf("%s%s: %w", t.firstRejectedIn, not, t.firstRejected)
	case t.firstUnknown != nil:
		err = fmt.Errorf("%s may be stored or not: %w", t.firstUnknownIn, t.firstUnknown)
	case err == nil:
		err = closeErr
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		hint := ""
		if t.unknown > 0 {
			hint = fmt.Sprintf("; %d more may be stored or not", t.unknown)
		}
		if t.journal != nil {
			hint += "; the same command continues after them"
		}
		return cli.Stoppedf("stopped after %d messages%s", t.published, hint)
	case t.published == 0 || dryRun:
		return err
	}
	code := cli.ExitPartial
	if c := cli.Code(err); c == cli.ExitNotNow {
		code = c // the remaining messages may be published later
	}
	where := "are published"
	if errors.Is(err, queue.ErrReplaced) {
		where = "were confirmed before, and are in the old database"
	}
	return &cli.Error{Code: code, Err: fmt.Errorf("%w; the %d messages before it %s", err, t.published, where)}
}

// printSummary prints the outcome. If that fails, its error says what was stored: whoever repeats the command would publish it twice.
func (f *publishFlags) printSummary(w io.Writer, t *tally, elapsed time.Duration) error {
	published, err := f.writeSummary(w, t, elapsed)
	switch {
	case err == nil:
		return nil
	case published == 0:
		return fmt.Errorf("the outcome could not be written; no message was stored: %w", err)
	}
	return &cli.Error{Code: cli.ExitPartial, Err: fmt.Errorf("the outcome could not be written, but %d messages are stored; do not publish them again: %w", published, err)}
}

// writeSummary writes the last line, and returns how many messages were published.
func (f *publishFlags) writeSummary(w io.Writer, t *tally, elapsed time.Duration) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	published, checked := t.published, int64(0)
	if f.dryRun {
		published, checked = 0, t.published
	}
	rate := int64(float64(published) / max(elapsed.Seconds(), 1e-6))
	if f.output.Value == "json" {
		_, err := printable.Fprintf(w, `{"published":%d,"unknown":%d,"rejected":%d,"checked":%d,"bytes":%d,"elapsed_seconds":%.3f,"rate":%d}`+"\n",
			published, t.unknown, t.rejected, checked, t.bytes, elapsed.Seconds(), rate)
		return published, err
	}
	if f.dryRun {
		_, err := printable.Fprintf(w, "published=0 checked=%d bytes=%d (dry run)\n", checked, t.bytes)
		return 0, err
	}
	_, err := printable.Fprintf(w, "published=%d unknown=%d rejected=%d bytes=%d elapsed=%s rate=%d/s\n",
		published, t.unknown, t.rejected, t.bytes, elapsed.Round(time.Millisecond), rate)
	return published, err
}

func (f *publishFlags) progressBar(cmd *cobra.Command, ins []input) *progressbar.ProgressBar {
	if f.quiet || !cli.IsTerminal(cmd.ErrOrStderr()) {
		return nil
	}
	total := int64(0)
	for _, in := range ins {
		if in.size < 0 {
			total = -1
			break
		}
		total += in.size
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetWriter(cmd.ErrOrStderr()), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription(f.typ), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetPredictTime(total > 0),
		progressbar.OptionSetWidth(30))
}
