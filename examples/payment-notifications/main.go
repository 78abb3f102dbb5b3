// Command payment-notifications compares locks that scale differently.
//
// A payment provider notifies a service that a payment has changed. The service reads the payment from its database, asks
// the provider what has changed, which takes a second, and stores the sum. The provider reports only the changes since
// the last request, so when two notifications of one payment overlap, one change is lost. They need a lock. Which one?
//
// Twelve notifications arrive, one every 50 ms, for the payments 1,2,3,1,1,1,2,2,2,3,3,3. For each lock in turn the program
// starts instances of the service as processes, plays the provider, the database and the sender, and reports how long the
// calls took and which payments are wrong. It draws the waterfall of the calls (--svg).
//
//	--scale 20   run everything twenty times as fast
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "payment-notifications:", err)
		os.Exit(1)
	}
}

const (
	interval = 50 * time.Millisecond // between notifications
	service  = time.Second           // time that the provider takes to answer
)

var payments = []int{1, 2, 3, 1, 1, 1, 2, 2, 2, 3, 3, 3}

// scenario is one way to lock.
type scenario struct {
	title     string
	lock      string
	instances int
}

var scenarios = []scenario{
	{"no lock", lockNone, 1},
	{"one lock for all, in the process", lockOne, 1},
	{"a lock per payment, in the process", lockPerID, 1},
	{"a lock per payment, in each of two processes", lockPerID, 2},
	{"one lock for all, shared by two processes", lockOneShared, 2},
	{"a lock per payment, shared by two processes", lockPerIDShared, 2},
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("payment-notifications", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	scale := flags.Float64("scale", 1, "run everything this many times as fast")
	svg := flags.String("svg", "", "file for the picture")
	world := flags.String("world", "", "run as an instance of the service; the URL of provider and database (used by the program itself)")
	how := flags.String("lock", lockNone, "the lock of the instance (used by the program itself)")
	flags.Parse(args)
	if flags.NArg() > 0 || *scale <= 0 {
		fmt.Fprintln(os.Stderr, "only flags are accepted, with a positive scale")
		os.Exit(2)
	}
	if *world != "" {
		return instance(ctx, *world, *how, *url, out)
	}
	dir, err := os.MkdirTemp("", "fencepost-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *url == "" {
		*url = "sqlite://" + filepath.Join(dir, "fencepost.db")
	}

	fmt.Fprintln(out, "lock                                          longest call     total  wrong payments")
	var results []*result
	for _, s := range scenarios {
		r, err := s.run(ctx, *scale, *url)
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		results = append(results, r)
		fmt.Fprintf(out, "%-44s  %10.2f s  %6.2f s  %s\n", s.title, r.longest().Seconds(), r.total().Seconds(), r.wrongText())
	}
	if *svg == "" {
		return nil
	}
	return os.WriteFile(*svg, []byte(waterfall(results)), 0o644)
}

// result is the result of a scenario.
type result struct {
	scenario
	calls []call // in the order in which they were sent
	wrong []int  // payments whose sum differs from the provider's
}

// call is one notification. Its times count from the first one.
type call struct {
	payment       int
	start, locked time.Duration // locked: when the service got the lock
	end           time.Duration
}

func (r *result) longest() (d time.Duration) {
	for _, c := range r.calls {
		d = max(d, c.end-c.start)
	}
	return d
}

func (r *result) total() (d time.Duration) {
	for _, c := range r.calls {
		d = max(d, c.end)
	}
	return d
}

func (r *result) wrongText() string {
	if len(r.wrong) == 0 {
		return "none"
	}
	return strings.Trim(fmt.Sprint(r.wrong), "[]")
}

func (r *result) isWrong(payment int) bool { return slices.Contains(r.wrong, payment) }
