package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
)

// From the input to the publisher: the target of messages, the rate, and the end of a run.

// awaitReader waits until everything is handed over, or reading has ended. A read from a pipe cannot be cancelled, so awaitReader waits for it
// only briefly: after the end of reading nothing more is handed over.
func awaitReader(reading context.Context, sent <-chan error) error {
	select {
	case err := <-sent:
		return err
	case <-reading.Done():
	}
	select {
	case err := <-sent:
		return err
	case <-time.After(readerTimeout):
		return reading.Err()
	}
}

// target receives messages. send may return before the outcome is known; finish waits for all outcomes.
type target struct {
	send   func(context.Context, queue.Message, func(queue.Result)) error
	finish func() error
}

// dryRun only checks messages.
func dryRun() target {
	check := func(_ context.Context, m queue.Message, done func(queue.Result)) error {
		if err := m.Validate(); err != nil {
			return err
		}
		done(queue.Result{Status: queue.Stored})
		return nil
	}
	return target{check, func() error { return nil }}
}

// openQueue connects a publisher. ctx ends with the first signal, patient with the second one.
func (f *publishFlags) openQueue(ctx, patient context.Context, log io.Writer, t *tally) (target, error) {
	b, err := cli.Connect(ctx, f.url, f.connectTimeout, func(reason string) {
		printable.Fprintf(log, "waiting for a usable server at %s, for up to %v: %s\n", fencepost.Redact(f.url), f.connectTimeout, reason)
	})
	if err != nil {
		return target{}, err
	}
	j := t.journal
	disconnect := func() error {
		closeCtx, cancel := context.WithTimeout(patient, closeTimeout)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- b.Close(closeCtx) }()
		select {
		case err := <-closed:
			return err
		case <-closeCtx.Done():
			return nil
		}
	}
	wait := f.backlogWait
	if wait == 0 {
		wait = -1 // at once
	}
	opt := queue.PublisherOptions{Linger: f.linger, BacklogWait: wait, OnBacklogFull: func(typ string, limit int) {
		t.mu.Lock()
		t.full = true
		t.mu.Unlock()
		if wait > 0 {
			printable.Fprintf(log, "%d messages of type %s are pending, which is its limit: waiting for room, for up to %v\n", limit, typ, wait)
		}
	}, OnRepeat: func(r queue.Repeat) {
		if r.Attempt == 2 { // a single failure is not worth a message
			printable.Fprintf(log, "%d messages could not be stored, retrying for up to %v: %v\n", r.Messages, queue.DefaultRepeatFor, r.Err)
		}
	}}
	if j != nil {
		if opt.Resume, err = j.attach(b.Name); err != nil {
			return target{}, errors.Join(err, disconnect())
		}
	}
	p, err := queue.NewPublisher(ctx, b.Queue, opt)
	if errors.Is(err, queue.ErrCheckpointTooOld) {
		err = j.tooOld(err)
	}
	if err != nil {
		return target{}, errors.Join(err, disconnect())
	}
	return target{f.delay.through(p, log), func() error {
		// Wait for every outcome, as long as the publisher retries; after a signal, not much longer.
		closing, giveUp := context.WithCancel(patient)
		defer giveUp()
		defer context.AfterFunc(ctx, func() { t.windDown(closing, p, log); giveUp() })()
		return errors.Join(p.Close(closing), disconnect())
	}}, nil
}

// windDown waits, after a signal, for as long as it makes sense to wait for outcomes.
func (t *tally) windDown(closing context.Context, p *queue.Publisher, log io.Writer) {
	pause := func(d time.Duration) (goOn bool) {
		select {
		case <-time.After(d):
		case <-closing.Done():
		}
		return closing.Err() == nil
	}
	t.mu.Lock()
	full := t.full
	t.mu.Unlock()
	if !full && !pause(flushTimeout) { // with a full backlog, another second would not help
		return
	}
	p.Stop()
	t.mu.Lock()
	left := time.Until(t.heard.Add(silenceTimeout)).Round(time.Second)
	t.mu.Unlock()
	if left > 0 && pause(100*time.Millisecond) { // enough to settle the messages that were not sent
		printable.Fprintf(log, "waiting up to %v for the outcome of messages that were sent; a second signal exits at once\n", left)
		pause(left)
	}
}

// sendAll reads all inputs and hands their messages over. It stops at the first one that cannot be published: later messages
// must not overtake it.
func (f *publishFlags) sendAll(ctx context.Context, j job, to target, t *tally) error {
	pace := pacer{rate: int64(f.rate)}
	for _, in := range j.ins {
		src, closer, err := in.open()
		if err != nil {
			return err
		}
		err = f.sendInput(ctx, in.name, src, j, &pace, to, t)
		if closed := closer.Close(); err == nil && closed != nil {
			err = fmt.Errorf("read %s: %w", in.name, closed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendInput is sendAll for one input.
func (f *publishFlags) sendInput(ctx context.Context, name string, src source, j job, pace *pacer, to target, t *tally) error {
	for {
		payload, where, err := src.next()
		var bad *inputError
		switch {
		case errors.Is(err, io.EOF):
			if t.journal != nil {
				t.journal.readAll(src.(positioned).position())
			}
			return nil
		case errors.As(err, &bad):
			return cli.Usagef("%s, %w", name, err)
		case err != nil:
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := pace.wait(ctx); err != nil {
			return err
		}
		if t.journal != nil {
			t.journal.handOver(src.(positioned).position())
		}
		size, where := len(payload), name+", "+where
		m := queue.Message{Type: f.typ, Payload: payload, Headers: j.headers}
		if j.key != nil {
			k, err := j.key(payload)
			if err != nil {
				return cli.Usagef("%s: --key-from %s: %w", where, f.keyFrom, err)
			}
			m.Headers = withKey(j.headers, k)
		}
		if err := to.send(ctx, m, func(r queue.Result) { t.note(r, size, where) }); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	}
}

// pacer limits the rate: message n is sent no earlier than n/rate seconds after message 0.
type pacer struct {
	rate  int64
	start time.Time
	n     int64
}

func (p *pacer) wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil || p.rate == 0 {
		return err
	}
	if p.n == 0 {
		p.start = time.Now()
	}
	due := p.start.Add(time.Duration(float64(p.n) / float64(p.rate) * float64(time.Second)))
	p.n++
	return wait.For(ctx, time.Until(due))
}
