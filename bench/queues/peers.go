package queues

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/queue"
)

// peer is a queue that is published to in batches, as far as it supports them, and drained into one
// durable file.
type peer struct {
	name, how string
	short     string                               // in the plot
	n         int                                  // messages of a round
	publish   func(n int) error                    // the next n messages, durable as the settings say
	drain     func(n int) (stop func(), err error) // until n are handled and acknowledged; stop is not measured
	check     func(total int) error                // checks the file
	why       error                                // not nil: the reason why it is not measured

	published, drained []float64 // messages per second, of each round
}

// peers are the peers that were measured, or not.
type peers struct {
	list []*peer
	with string // versions
}

const (
	namePeerServer = "Fencepost, " // the server
	namePeerSQLite = "Fencepost, SQLite"
)

func (b *bench) measurePeers(ctx context.Context) (all peers, err error) {
	var ends []func() error
	defer func() {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	ours, err := b.fencepostPeers(ctx, &ends)
	if err != nil {
		return all, err
	}
	all.list = ours
	for _, open := range []func(context.Context, *[]func() error) ([]*peer, string, error){b.river, b.asynq} {
		list, version, err := open(ctx, &ends)
		if err != nil && !errors.Is(err, errNone) || ctx.Err() != nil {
			return all, errors.Join(ctx.Err(), err)
		}
		for _, p := range list {
			p.why = err
		}
		all.list = append(all.list, list...)
		if err == nil {
			all.with += "; " + version
		} else {
			b.o.Logf("%s: %v", list[0].name, err)
		}
	}
	all.with = machine.Versions("github.com/riverqueue/river", "github.com/hibiken/asynq") + all.with
	for round := range b.few() + 1 { // the first one does not count
		for _, p := range all.list {
			if p.why != nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return all, err
			}
			begin := time.Now()
			if err := p.publish(p.n); err != nil {
				return all, fmt.Errorf("%s: publish: %w", p.name, err)
			}
			published := time.Since(begin)
			begin = time.Now()
			stop, err := p.drain(p.n)
			drained := time.Since(begin)
			stop()
			if err != nil {
				return all, fmt.Errorf("%s: drain: %w", p.name, err)
			}
			if round > 0 {
				p.published = append(p.published, float64(p.n)/published.Seconds())
				p.drained = append(p.drained, float64(p.n)/drained.Seconds())
			}
			if err := p.check((round + 1) * p.n); err != nil {
				return all, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return all, nil
}

// fencepostPeers returns Fencepost on the server and on SQLite.
func (b *bench) fencepostPeers(ctx context.Context, ends *[]func() error) (list []*peer, err error) {
	on := func(name, short string, p *place) error {
		publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
		if err != nil {
			return err
		}
		*ends = append(*ends, func() error { return publisher.Close(context.WithoutCancel(ctx)) })
		list = append(list, &peer{name: name, short: short, how: "batches of 1000; one pool", n: b.sized(20_000, 1000),
			publish: func(n int) error { return p.publishAll(ctx, publisher, n) },
			drain:   func(int) (func(), error) { return func() {}, p.Drain(ctx, oneType) },
			check: func(total int) error {
				return errors.Join(messages.Complete("what was drained", p.Drained[oneType], total), p.Verify(ctx))
			},
		})
		return nil
	}
	p, err := b.newBackend(ctx, "peers_fencepost")
	if err == nil {
		err = on(namePeerServer+b.server.Name, "server", p)
	}
	if err != nil {
		return nil, err
	}
	if p, err = b.newEmbedded(ctx, "peers_embedded"); err == nil {
		err = on(namePeerSQLite, "SQLite", p)
	}
	return list, err
}

// checkOrdered checks a file written by one worker.
func checkOrdered(j *messages.Journal) func(int) error { return j.Check }

// checkUnordered checks a file written by many workers.
func checkUnordered(j *messages.Journal) func(int) error {
	return func(total int) error {
		seen := map[int]bool{}
		if err := j.Each(messages.AsSet(seen)); err != nil {
			return err
		}
		return messages.Complete("the file", len(seen), total)
	}
}
