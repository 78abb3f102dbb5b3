// Command custom-sink drains a queue into a custom destination instead of a file: running totals of sales, kept in memory by the
// worker that holds the type, and written to a table after every batch.
//
// Two things make it exact. The written document contains the totals and the numbers of the messages in them, so a message that is delivered
// twice counts once (totals.go). And the store refuses writes from a holder whose token is not the latest (store.go): a holder that was
// suspended for longer than its lease and does not know that it has a successor.
//
// The program shows such a holder. It is suspended right before it writes, another worker takes over its lock and does all the work, and
// then it resumes. With --no-fence the store does not check the token: the late write replaces the new document with an old one, and
// acknowledged messages are lost.
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
	"sync"
	"syscall"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "custom-sink:", err)
		os.Exit(1)
	}
}

// sink is the worker.Handler. One sink serves any number of types.
type sink struct {
	store      *store
	beforeSave func() // the demonstration suspends it here

	mu   sync.Mutex
	held map[string]claimed // by type
}

// claimed is the document of a type, as this worker last read or wrote it under token.
type claimed struct {
	token  int64
	totals *totals
}

// Handle adds the sales in msgs to the totals of their type.
func (s *sink) Handle(ctx context.Context, lease worker.Lease, msgs []queue.Message) error {
	typ, token := lease.Name(), lease.Token()
	before, err := s.current(ctx, typ, token)
	if err != nil {
		return err
	}
	after := before.clone()
	errs := make([]error, len(msgs))
	failed := false
	for i := range msgs {
		if errs[i] = worker.Permanent(after.add(&msgs[i])); errs[i] != nil {
			failed = true // the other messages still count: sales do not depend on each other
		}
	}
	if s.beforeSave != nil {
		s.beforeSave()
	}
	if err := s.store.save(ctx, typ, token, after); err != nil {
		s.forget(typ) // it may have been written nevertheless: read it again
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[typ] = claimed{token, after} // rule: keep only a written document, because its messages will be acknowledged
	if failed {
		return &worker.BatchError{Errs: errs}
	}
	return nil
}

// current returns the document. It claims the document first if this is the first batch under a token.
func (s *sink) current(ctx context.Context, typ string, token int64) (*totals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.held[typ]; ok && c.token == token {
		return c.totals, nil
	}
	t, err := s.store.claim(ctx, typ, token)
	if err == nil {
		s.held[typ] = claimed{token, t}
	}
	return t, err
}

func (s *sink) forget(typ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, typ)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("custom-sink", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in a temporary directory)")
	noFence := flags.Bool("no-fence", false, "let the store accept writes with any token")
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
	st, err := openStore(ctx, filepath.Join(dir, "totals.db"))
	if err != nil {
		return err
	}
	defer st.db.Close()
	st.noFence = *noFence

	// Two workers, each with its own connections, as on two machines.
	var b [2]*fencepost.Backend
	for i := range b {
		if b[i], err = fencepost.Open(ctx, *url); err != nil {
			return err
		}
		defer b[i].Close(context.WithoutCancel(ctx))
	}
	want, err := publish(ctx, b[0].Queue)
	if err != nil {
		return err
	}
	if err := demonstrate(ctx, out, st, b); err != nil {
		return err
	}
	got, err := st.load(ctx, typ)
	if err != nil {
		return err
	}
	for _, item := range slices.Sorted(maps.Keys(want)) {
		fmt.Fprintf(out, "%-6s sold for %6d, the total says %6d\n", item, want[item], got.Cents[item])
	}
	if !maps.Equal(got.Cents, want) {
		return errors.New("the totals are wrong: sales that were acknowledged are missing")
	}
	fmt.Fprintf(out, "%d sales, each counted once\n", got.Sales)
	return nil
}

const (
	typ   = "sales"
	sales = 200
	batch = 50
)

// publish publishes the sales and returns the expected totals.
func publish(ctx context.Context, q queue.Queue) (map[string]int64, error) {
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	defer p.Close(context.WithoutCancel(ctx))
	want := map[string]int64{}
	msgs := make([]queue.Message, sales)
	for i := range msgs {
		item, cents := []string{"chair", "lamp", "table"}[i%3], int64(100+i)
		want[item] += cents
		msgs[i] = queue.Message{Type: typ, Payload: fmt.Appendf(nil, "%s %d", item, cents)}
	}
	for _, r := range p.PublishAll(ctx, msgs) {
		if r.Err != nil {
			return nil, r.Err
		}
	}
	return want, nil
}

// demonstrate suspends the first worker in its second batch, lets the second one take over, and resumes the first.
func demonstrate(ctx context.Context, out io.Writer, st *store, b [2]*fencepost.Backend) error {
	suspended, resume := make(chan struct{}), make(chan struct{})
	batches := 0
	first := &sink{store: st, held: map[string]claimed{}, beforeSave: func() {
		if batches++; batches == 2 {
			close(suspended)
			<-resume
		}
	}}
	late := make(chan error, 1)
	note := func(next worker.Handler) worker.Handler { // middleware that reports how the second batch ended
		return worker.HandlerFunc(func(ctx context.Context, lease worker.Lease, msgs []queue.Message) error {
			err := next.Handle(context.WithoutCancel(ctx), lease, msgs) // a suspended holder does not see that the lease is lost
			if batches == 2 {
				late <- err
			}
			return err
		})
	}
	pool, err := newPool(b[0], first, func(c *worker.Config) { c.To = worker.Handling{Handler: first, Use: []worker.Middleware{note}} })
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	select {
	case <-suspended:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), <-ended)
	}
	fmt.Fprintln(out, "the first worker is suspended, right before it writes its second batch")

	// Its lease would expire 20 s later, with the same effect.
	if err := b[1].Locker.ForceRelease(ctx, typ, "the holder is suspended"); err != nil {
		return err
	}
	second := &sink{store: st, held: map[string]claimed{}}
	successor, err := newPool(b[1], second, func(c *worker.Config) { c.UntilEmpty = true })
	if err != nil {
		return err
	}
	if err := successor.Run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "the second worker has taken over and handled %d sales\n", successor.Stats().Handled)

	pool.Stop()
	close(resume)
	switch err := <-late; {
	case errors.Is(err, errFenced):
		fmt.Fprintln(out, "the first one resumes:", err)
	case err == nil:
		fmt.Fprintln(out, "the first one resumes, and writes")
	default:
		return errors.Join(err, <-ended)
	}
	return <-ended
}

func newPool(b *fencepost.Backend, s *sink, more func(*worker.Config)) (*worker.Pool, error) {
	cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{typ}, Batch: batch, To: worker.Handling{Handler: s}, OnError: worker.DeadLetter}
	more(&cfg)
	return worker.New(cfg)
}
