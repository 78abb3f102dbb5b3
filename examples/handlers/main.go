// Command handlers shows how to handle messages with your own code: in batches, one by one, and for several customers concurrently. It
// also shows the use of middleware, and what happens to a message that fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "handlers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("handlers", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
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
	b, err := fencepost.Open(ctx, *url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx))
	// Publisher middleware: every message gets a header that names its source program.
	stamp := func(_ context.Context, msgs *queue.Outgoing) {
		for i := range msgs.Len() {
			msgs.SetHeader(i, "source", "shop")
		}
	}
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{Use: []queue.Middleware{stamp}})
	if err != nil {
		return err
	}
	defer p.Close(context.WithoutCancel(ctx))
	s := &shop{b: b, p: p, out: out}
	for _, f := range []func(context.Context) error{s.batches, s.oneByOne, s.byCustomer, s.failing} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// shop holds the state that the parts share.
type shop struct {
	b   *fencepost.Backend
	p   *queue.Publisher
	out io.Writer
}

func (s *shop) publish(ctx context.Context, orders ...string) error {
	var msgs []queue.Message
	for _, o := range orders {
		msgs = append(msgs, queue.Message{Type: "orders", Payload: []byte(o)})
	}
	for _, r := range s.p.PublishAll(ctx, msgs) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// drain runs a worker until the queue is empty.
func (s *shop) drain(ctx context.Context, cfg worker.Config) error {
	cfg.Queue, cfg.Locker, cfg.Types, cfg.UntilEmpty = s.b.Queue, s.b.Locker, []string{"orders"}, true
	cfg.RetryMin, cfg.RetryMax = time.Millisecond, 10*time.Millisecond // short, so that the example ends quickly
	pool, err := worker.New(cfg)
	if err != nil {
		return err
	}
	return pool.Run(ctx)
}

// batches: a Handler receives up to Config.Batch messages per call. A nil error means that all are handled. An error means that none is, as
// after a transaction was rolled back.
func (s *shop) batches(ctx context.Context) error {
	fmt.Fprintln(s.out, "in batches:")
	if err := s.publish(ctx, "ann: chair", "bob: lamp", "ann: table"); err != nil {
		return err
	}
	insert := worker.HandlerFunc(func(_ context.Context, lease worker.Lease, msgs []queue.Message) error {
		for _, m := range msgs {
			fmt.Fprintf(s.out, "  %s of %s, from the %s\n", m.Payload, lease.Name(), m.Headers["source"])
		}
		return nil
	})
	return s.drain(ctx, worker.Config{To: worker.Handling{Handler: insert}})
}

// oneByOne: Each turns a function for one message into a Handler. Middleware wraps every call of it.
func (s *shop) oneByOne(ctx context.Context) error {
	fmt.Fprintln(s.out, "one by one:")
	if err := s.publish(ctx, "ann: chair", "bob: lamp"); err != nil {
		return err
	}
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		fmt.Fprintf(s.out, "  ship %s\n", m.Payload)
		return nil
	})
	logged := func(next worker.Handler) worker.Handler {
		return worker.HandlerFunc(func(ctx context.Context, lease worker.Lease, msgs []queue.Message) error {
			err := next.Handle(ctx, lease, msgs)
			fmt.Fprintf(s.out, "  log: type %s, error %v\n", lease.Name(), err)
			return err
		})
	}
	return s.drain(ctx, worker.Config{To: worker.Handling{Handler: ship, Use: []worker.Middleware{logged}}})
}

// byCustomer: Keyed handles several customers concurrently, and the messages of each customer in order.
func (s *shop) byCustomer(ctx context.Context) error {
	fmt.Fprintln(s.out, "by customer, two at a time:")
	if err := s.publish(ctx, "ann: chair", "bob: lamp", "ann: table", "bob: desk"); err != nil {
		return err
	}
	customer := func(m queue.Message) string { c, _, _ := strings.Cut(string(m.Payload), ":"); return c }
	var mu sync.Mutex
	orders := map[string][]string{}
	both := make(chan struct{}) // closed when ann and bob are being served concurrently
	pack := worker.Each(func(ctx context.Context, _ worker.Lease, m queue.Message) error {
		mu.Lock()
		c := customer(m)
		orders[c] = append(orders[c], string(m.Payload))
		if len(orders) == 2 && len(orders[c]) == 1 {
			close(both)
		}
		mu.Unlock()
		select {
		case <-both:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err := s.drain(ctx, worker.Config{To: worker.Handling{Handler: worker.Keyed(customer, 2, pack)}}); err != nil {
		return err
	}
	for _, c := range slices.Sorted(maps.Keys(orders)) {
		fmt.Fprintf(s.out, "  %s\n", strings.Join(orders[c], ", "))
	}
	return nil
}

// failing: a message that fails is retried in place and becomes a dead letter after MaxAttempts; one with a Permanent error becomes a dead
// letter at once. The messages after it then continue. Once the fault is fixed, the dead letters are published again.
func (s *shop) failing(ctx context.Context) error {
	fmt.Fprintln(s.out, "with failures:")
	if err := s.publish(ctx, "ann: chair", "bob: lamp", "", "ann: table"); err != nil {
		return err
	}
	tries := map[string]int{}
	mended := false
	ship := worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		order := string(m.Payload)
		tries[order]++
		switch {
		case order == "":
			return worker.Permanent(errors.New("an order for nothing"))
		case order == "ann: chair" && tries[order] == 1:
			return errors.New("no answer")
		case order == "bob: lamp" && !mended:
			panic("no such lamp")
		}
		fmt.Fprintf(s.out, "  ship %s, at attempt %d\n", order, tries[order])
		return nil
	})
	cfg := worker.Config{To: worker.Handling{Handler: ship, Timeout: time.Minute}, OnError: worker.DeadLetter, MaxAttempts: 3}
	if err := s.drain(ctx, cfg); err != nil {
		return err
	}
	var lamps []queue.DeadLetter
	for l, err := range queue.DeadLetters(ctx, s.b.Queue, queue.DeadLetterFilter{Type: "orders"}) {
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "  dead after %d: %q, %s\n", l.Attempts, l.Payload, l.Reason)
		if strings.Contains(l.Reason, "lamp") {
			lamps = append(lamps, l)
		}
	}
	mended = true
	n, err := queue.Requeue(ctx, s.b.Queue, s.p, lamps) // or: fencepost dead requeue --type orders --reason lamp
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  %d published again\n", n)
	return s.drain(ctx, cfg)
}
