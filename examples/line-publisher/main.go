// Command line-publisher publishes messages from stdin, one per line, and prints the outcome of each. It implements the lines of
// docs/protocol.md, "Conformance", so fencepost conform publisher can check it:
//
//	go build ./examples/line-publisher
//	fencepost conform publisher --url mongodb://127.0.0.1:27017 -- ./line-publisher
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
)

func main() {
	if err := run(context.Background(), os.Getenv("FENCEPOST_URL"), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "line-publisher:", err)
		os.Exit(1)
	}
}

// line is one message.
type line struct {
	Line    int
	Type    string
	Payload []byte // base64 in JSON
	Headers map[string]string
	Key     string
}

func run(ctx context.Context, url string, in io.Reader, out io.Writer) error {
	b, err := fencepost.Open(ctx, url)
	if err != nil {
		return err
	}
	defer b.Close(ctx)
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(n int, r queue.Result) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Status {
		case queue.Stored:
			fmt.Fprintln(out, "ok", n, r.ID)
		case queue.Unknown:
			fmt.Fprintln(out, "unknown", n, r.ID)
		default:
			fmt.Fprintln(out, "rejected", n, strings.Join(strings.Fields(r.Err.Error()), " "))
		}
	}
	for lines := json.NewDecoder(in); ; {
		var l line
		if err := lines.Decode(&l); errors.Is(err, io.EOF) {
			return p.Close(ctx) // after Close every result is known
		} else if err != nil {
			return errors.Join(fmt.Errorf("stdin: %w", err), p.Close(ctx))
		}
		m := queue.Message{Type: l.Type, Payload: l.Payload, Headers: l.Headers}
		if l.Key != "" {
			if m.Headers == nil {
				m.Headers = map[string]string{}
			}
			m.Headers[queue.KeyHeader] = l.Key
		}
		if err := p.Send(ctx, m, func(r queue.Result) { say(l.Line, r) }); err != nil {
			say(l.Line, queue.Result{Status: queue.Rejected, Err: err})
		}
	}
}
