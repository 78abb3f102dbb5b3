//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/spf13/cobra"
)

// producerCommand is the program that runs use as producers: a user of the library that keeps a journal.
func producerCommand() *cobra.Command {
	p := &producer{}
	cmd := &cobra.Command{Use: "producer", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx, stop := context.WithCancel(cmd.Context())
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }() // closed by the process that started it
		return p.run(ctx)
	}}
	f := cmd.Flags()
	f.StringVar(&p.url, "url", "", "backend")
	f.StringVar(&p.journals, "journals", "", "directory of journals")
	f.StringVar(&p.name, "name", "", "name of this start of a producer: a journal's, never used before")
	f.StringSliceVar(&p.types, "types", nil, "types to publish")
	f.Uint64Var(&p.seed, "seed", 0, "of sizes and pauses")
	f.DurationVar(&p.pause, "pause", 20*time.Millisecond, "between two publishes, on average")
	return cmd
}

type producer struct {
	url, journals, name string
	types               []string
	seed                uint64
	pause               time.Duration

	rng *rand.Rand
}

// run publishes until ctx ends. After a failure it continues with a new Publisher and a new journal: the order across the two is not
// guaranteed, and the old one would first wait for 45 s.
func (p *producer) run(ctx context.Context) error {
	p.rng = rand.New(rand.NewPCG(p.seed, 0))
	for life := 1; ctx.Err() == nil; life++ {
		if err := p.publish(ctx, fmt.Sprintf("%s.%d", p.name, life)); err != nil {
			return err
		}
	}
	return nil
}

// publish opens the backend and publishes until something fails. It returns only errors about the journal: the others are what is
// tested.
func (p *producer) publish(ctx context.Context, name string) error {
	opening, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := fencepost.Open(opening, p.url)
	if err != nil {
		fmt.Fprintln(os.Stderr, name, err)
		wait(ctx, 100*time.Millisecond)
		return nil
	}
	defer bounded(ctx, b.Close)
	repeat := time.Duration(500+p.rng.IntN(5000)) * time.Millisecond
	publisher, err := queue.NewPublisher(opening, b.Queue, queue.PublisherOptions{
		AttemptTimeout: time.Duration(200+p.rng.IntN(2000)) * time.Millisecond,
		RepeatFor:      repeat,
		BatchMessages:  1 + p.rng.IntN(100),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, name, err)
		wait(ctx, 100*time.Millisecond)
		return nil
	}
	j, err := newJournal(p.journals, name)
	if err != nil {
		return err
	}
	defer j.f.Close()
	err = p.stream(ctx, publisher, repeat+time.Second, j, name)
	bounded(ctx, publisher.Close)
	return err
}

// bounded closes something within 10 s, whether ctx has ended or not.
func bounded(ctx context.Context, close func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// stream publishes until something fails. Each call waits at most for patience: after a failure the rest of what was published
// together waits for 45 s.
func (p *producer) stream(ctx context.Context, publisher *queue.Publisher, patience time.Duration, j *journal, name string) error {
	next := map[string]int{}
	for ctx.Err() == nil {
		var msgs []queue.Message
		var numbers []int
		sent := map[string]int{}
		for range 1 + p.rng.IntN(30) {
			typ := p.types[p.rng.IntN(len(p.types))]
			next[typ]++
			m := queue.Message{Type: typ, Payload: stream{name, typ}.payload(next[typ])}
			if p.rng.IntN(50) == 0 { // one that is refused before it is sent
				m.Headers = map[string]string{queue.KeyHeader: strings.Repeat("k", queue.MaxKeyLen+1)}
			}
			msgs, numbers = append(msgs, m), append(numbers, next[typ])
			sent[typ]++
		}
		for typ, n := range sent {
			if err := j.note("sent", typ, next[typ]-n+1, next[typ]); err != nil {
				return err
			}
		}
		// Messages in flight when ctx ends get their answers first.
		waiting := patience
		if p.rng.IntN(20) == 0 { // or hardly any patience
			waiting = time.Duration(p.rng.IntN(int(200 * time.Millisecond)))
		}
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), waiting)
		results := publisher.PublishAll(attempt, msgs)
		cancel()
		failed := false
		for i, r := range results {
			word := map[queue.Status]string{queue.Stored: "confirmed", queue.Unknown: "unknown", queue.Rejected: "refused"}[r.Status]
			if word == "" {
				return fmt.Errorf("%s: status %v of message %d", name, r.Status, numbers[i])
			}
			if err := j.note(word, msgs[i].Type, numbers[i], numbers[i]); err != nil {
				return err
			}
			failed = failed || r.Status != queue.Stored && msgs[i].Headers == nil
		}
		if failed {
			wait(ctx, 50*time.Millisecond)
			return nil
		}
		wait(ctx, time.Duration(p.rng.ExpFloat64()*float64(p.pause)))
	}
	return nil
}

// wait waits, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
