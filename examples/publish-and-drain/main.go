// Command publish-and-drain is the shortest tour of the library. It opens a queue by URL, publishes one message, many, and a stream of
// them, drains them into one file per type while it listens to the worker's events, and reads the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "publish-and-drain:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("publish-and-drain", flag.ExitOnError) // with status 2 if a flag is invalid
	url := flags.String("url", "", "URL of the queue and the locks: mongodb://host/database or sqlite://path (default: embedded, in --dir)")
	dir := flags.String("dir", "", "directory of the files; use the same one in every run with one database (default: data with --url, else a temporary directory)")
	stream := flags.Int("stream", 10_000, "number of messages in the stream")
	flags.Parse(args)
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
	switch {
	case *dir != "":
	case *url != "":
		*dir = "data" // the database registers its files, so they must persist
	default:
		temp, err := os.MkdirTemp("", "fencepost-example-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		*dir = temp
	}
	if *url == "" {
		*url = "sqlite://" + filepath.Join(*dir, "fencepost.db")
	}

	b, err := fencepost.Open(ctx, *url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx))
	if err := publish(ctx, b.Queue, *stream, out); err != nil {
		return err
	}
	if err := drain(ctx, b, *dir, out); err != nil {
		return err
	}
	for _, typ := range []string{"audit", "orders", "readings"} {
		if err := read(filepath.Join(*dir, storage.FileName(typ)), out); err != nil {
			return err
		}
	}
	return nil
}

// publish publishes messages in each of the three ways. One publisher serves a whole program.
func publish(ctx context.Context, q queue.Queue, stream int, out io.Writer) error {
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		return err
	}

	// One, and wait. No error means that it is durably stored.
	id, err := p.Publish(ctx, "orders", []byte("chair"), map[string]string{"customer": "ann"})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "published order %d\n", id.N())

	// Many, of any types, and wait for all. Each has its own result.
	results := p.PublishAll(ctx, []queue.Message{
		{Type: "orders", Payload: []byte("table")},
		{Type: "orders", Payload: []byte("lamp")},
		{Type: "audit", Payload: []byte("ann ordered three things")},
		{Type: "No Type", Payload: []byte("x")},
	})
	for i, r := range results {
		fmt.Fprintf(out, "message %d is %v\n", i, r.Status)
	}

	// A stream, without waiting for each: Send blocks only when too many messages are in flight, and reports each result later.
	var stored, failed atomic.Int64
	for i := range stream {
		m := queue.Message{Type: "readings", Payload: fmt.Appendf(nil, "reading %d", i)}
		if err := p.Send(ctx, m, func(r queue.Result) {
			if r.Err != nil {
				failed.Add(1)
			} else {
				stored.Add(1)
			}
		}); err != nil {
			return errors.Join(err, p.Close(ctx))
		}
	}
	if err := p.Close(ctx); err != nil { // after Close every result is known
		return err
	}
	fmt.Fprintf(out, "%d readings are stored, %d are not\n", stored.Load(), failed.Load())
	return nil
}

// drain moves all messages into files and returns. Without UntilEmpty, the worker runs until it is stopped.
func drain(ctx context.Context, b *fencepost.Backend, dir string, out io.Writer) error {
	pool, err := worker.New(worker.Config{
		Queue: b.Queue, Locker: b.Locker,
		To:         worker.Files{Dir: dir, Storage: storage.Options{AllowOverlay: true}}, // the writable layer of a container is good enough for an example
		Types:      []string{"orders", "audit", "read*"},
		UntilEmpty: true,
	})
	if err != nil {
		return err
	}
	// The pool does not wait for subscribers: one that falls behind by more than 100 events misses the oldest, and learns how many.
	events, cancel := pool.Subscribe(100, worker.Acquired, worker.Lost, worker.Dead)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	held := map[string]bool{}
	for e := range events { // closed when Run returns
		switch e.Kind {
		case worker.Acquired:
			held[e.Type] = true
		case worker.Lost:
			fmt.Fprintf(out, "%s: %v; retrying\n", e.Type, e.Err)
		case worker.Dead:
			fmt.Fprintf(out, "%s: message %s was put aside: %s\n", e.Type, e.Letter.ID, e.Letter.Reason)
		}
	}
	if err := <-ended; err != nil {
		return err
	}
	fmt.Fprintf(out, "%d types were held and drained\n", len(held))
	return nil
}

// read reads a file from its beginning. It also works while a worker writes to the file, and returns only durable records.
func read(path string, out io.Writer) error {
	r, err := storage.OpenReader(path, storage.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	n := 0
	for ; ; n++ {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n < 3 {
			fmt.Fprintf(out, "%s %d: %s\n", filepath.Base(path), rec.Index, rec.Payload)
		}
	}
	fmt.Fprintf(out, "%s holds %d\n", filepath.Base(path), n)
	return nil
}
