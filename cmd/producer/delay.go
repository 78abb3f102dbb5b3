package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// delay says when the messages of a run become due. It is the value of --delay; its field at is the value of --at.
type delay struct {
	after time.Duration
	at    cli.Moment
}

func (d *delay) String() string {
	if d.after == 0 {
		return ""
	}
	return d.after.String()
}

func (d *delay) Type() string { return "duration" }

// Set parses a duration.
func (d *delay) Set(v string) error {
	after, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it as in 90s, 10m or 24h", v)
	}
	if after < 0 {
		return fmt.Errorf("%s is negative; write it as in 90s, 10m or 24h", v)
	}
	d.after = after
	return nil
}

// check refuses combinations of flags; resume is the value of --resume.
func (d *delay) check(resume string) error {
	delayed := d.after > 0 || !d.at.IsZero()
	switch {
	case d.after > 0 && !d.at.IsZero():
		return cli.Usagef("--delay and --at cannot be combined; use one of them")
	case delayed && resume != "":
		return cli.Usagef("--resume is for messages that are published at once; leave it out, or --delay and --at")
	}
	return nil
}

// through returns p.Send for messages with this delay.
func (d *delay) through(p *queue.Publisher, log io.Writer) func(context.Context, queue.Message, func(queue.Result)) error {
	switch {
	case d.after > 0:
		return func(ctx context.Context, m queue.Message, done func(queue.Result)) error {
			m.Due = p.Now().Add(d.after) // each message's delay counts from its own publish time
			return p.Send(ctx, m, done)
		}
	case !d.at.IsZero():
		if now := p.Now(); d.at.Before(now) {
			printable.Fprintf(log, "--at %s is in the past, the queue's clock says %s: the messages are due at once\n", d.at.String(), now.UTC().Format(time.RFC3339))
		}
		return func(ctx context.Context, m queue.Message, done func(queue.Result)) error {
			m.Due = d.at.Time
			return p.Send(ctx, m, done)
		}
	}
	return p.Send
}
