// Command approval makes an operation idempotent even if it runs twice concurrently: it approves a
// transaction, which takes a while and ends with an e-mail.
//
//	approval --transaction 100 --url … --dir …
//
// The lock "TranApproval_100" is held for the approval of that transaction, so approvals of other transactions continue.
// A caller that finds it held does not wait, because the approval is in progress. It exits at once and names the
// holder.
//
//	exit code 0   the transaction is approved, by this call or by an earlier one
//	exit code 1   it is not: another caller is approving it, or the lock was lost meanwhile
//
// The lock has a duration. If a caller crashes or freezes, the lock stays for that time; then the next caller takes it over.
// No cleanup job is needed. The duration cannot be too short for a slow approval, because a live caller renews the lock.
// ([lock.WithMaxHold] would limit that.) No clocks are compared, so before a takeover a caller must itself observe that the
// lock was not renewed for its duration: a service with many calls has observed it, a program like this one needs --wait.
// On the machine of a dead caller the takeover needs no wait.
//
// A frozen caller that resumes finds its lock lost and exits. If it has already passed that check, two other safeguards
// decide: the approval is stored once per transaction, and the mail server delivers each message ID once. So the lock avoids
// double work, and these two guarantee the result.
//
// Without --transaction the program demonstrates all of this.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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
		fmt.Fprintln(os.Stderr, "approval:", err)
		os.Exit(1)
	}
}

// approval is one call.
type approval struct {
	transaction          int
	dir                  string
	duration, work, wait time.Duration
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var a approval
	flags := flag.NewFlagSet("approval", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	flags.IntVar(&a.transaction, "transaction", 0, "the transaction to approve (default: demonstrate)")
	flags.StringVar(&a.dir, "dir", "", "directory of approvals and mails (default: a temporary directory)")
	flags.DurationVar(&a.duration, "duration", time.Minute, "how long the lock outlives a caller that died; at least 1s")
	flags.DurationVar(&a.work, "work", 500*time.Millisecond, "how long an approval takes")
	flags.DurationVar(&a.wait, "wait", 0, "how long to wait for the lock (default: exit at once)")
	flags.Parse(args)
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *url == "" {
		*url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	}
	if a.dir == "" {
		a.dir = dir
	}
	if a.transaction == 0 {
		return demonstrate(ctx, out, *url, a.dir)
	}
	b, err := fencepost.Open(ctx, *url)
	if err != nil {
		return err
	}
	err = a.run(ctx, b.Locker, out)
	return errors.Join(err, b.Close(context.WithoutCancel(ctx)))
}

// run approves the transaction unless another caller holds its lock.
func (a *approval) run(ctx context.Context, l *lock.Locker, out io.Writer) (err error) {
	name := fmt.Sprintf("TranApproval_%d", a.transaction)
	acquire := l.TryAcquire
	options := []lock.Option{lock.WithLease(a.duration), lock.WithWhy("approval")}
	if a.wait > 0 {
		acquire, options = l.Acquire, append(options, lock.WithWait(a.wait))
	}
	lease, err := acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		if released := lease.Release(ctx); released != nil && !errors.Is(err, released) {
			err = errors.Join(err, released)
		}
	}()

	// Under the lock: its previous holder may have approved the transaction.
	if a.approved() {
		fmt.Fprintf(out, "transaction %d is approved already\n", a.transaction)
		return a.mail() // in case that holder died before it sent the mail
	}
	fmt.Fprintf(out, "approving transaction %d\n", a.transaction)
	select {
	case <-time.After(a.work):
	case <-lease.Context().Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := lease.Check(0); err != nil {
		return err
	}
	if err := a.store(lease.Token()); err != nil {
		return err
	}
	fmt.Fprintf(out, "transaction %d is approved\n", a.transaction)
	return a.mail()
}

func (a *approval) file(kind string) string {
	return filepath.Join(a.dir, fmt.Sprintf("%s-%d.json", kind, a.transaction))
}

func (a *approval) approved() bool {
	_, err := os.Stat(a.file("approval"))
	return err == nil
}

// store stores the approval. Of several attempts only the first succeeds.
func (a *approval) store(token int64) error {
	err := create(a.file("approval"), map[string]any{"transaction": a.transaction, "token": token, "pid": os.Getpid()})
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("transaction %d was approved by another caller meanwhile: %w", a.transaction, lock.ErrLost)
	}
	return err
}

// mail sends the mail. The mail server, which is the directory here, delivers each message ID once.
func (a *approval) mail() error {
	err := create(a.file("mail"), map[string]any{"id": fmt.Sprintf("approval-%d", a.transaction), "pid": os.Getpid()})
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// create creates a file with its content in one step; the error is os.ErrExist if the file exists.
func create(path string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it has a second name by then, or none
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
