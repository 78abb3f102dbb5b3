package types

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/queue"
)

// few is the number of messages of each type that is drained on SQLite.
const few = 5

// embedded is the first drain of many small types on SQLite.
type embedded struct {
	counts  []int // of types
	workers []int
	times   measure.Times
}

// ofTypes returns the name of a contender.
func ofTypes(types, workers int) string {
	return fmt.Sprintf("%d types, workers: %d", types, workers)
}

// least and most are the contenders that the targets compare.
func (e *embedded) least() (types, workers int) { return e.counts[0], e.workers[0] }
func (e *embedded) most() (types, workers int) {
	return e.counts[len(e.counts)-1], e.workers[len(e.workers)-1]
}

// perType returns how many milliseconds a type took, for each round.
func (e *embedded) perType(types, workers int) (ms []float64) {
	for _, round := range e.times[ofTypes(types, workers)] {
		for _, d := range round {
			ms = append(ms, d.Seconds()*1e3/float64(types))
		}
	}
	return ms
}

// growth returns the time per type with most types and workers, divided by that with the least, for each round.
func (e *embedded) growth() (ratios []float64) {
	least := e.perType(e.least())
	for i, ms := range e.perType(e.most()) {
		ratios = append(ratios, ms/least[i])
	}
	return ratios
}

func (b *bench) measureEmbedded(ctx context.Context) (e embedded, err error) {
	e = embedded{counts: []int{500, 2000, 4000}, workers: []int{1, 4}}
	if b.o.Quick {
		e.counts = []int{5, 20}
	}
	var list []measure.Contender
	for _, workers := range e.workers {
		var g group
		if g, err = startGroup(ctx, workers); err != nil {
			return e, err
		}
		defer func() { err = errors.Join(err, g.end()) }()
		for _, n := range e.counts {
			list = append(list, b.firstDrain(ctx, g, n))
		}
	}
	e.times, err = measure.Run(ctx, measure.Plan{Rounds: b.half(), Blocks: 1}, list)
	return e, err
}

// firstDrain lets a group drain this many new types, in a new database.
func (b *bench) firstDrain(ctx context.Context, g group, types int) measure.Contender {
	var p *messages.Place
	return measure.Contender{
		Name: ofTypes(types, len(g)),
		Prepare: func() (err error) {
			if p, err = messages.OpenEmbedded(ctx, filepath.Join(b.o.Dir, fmt.Sprintf("embedded%d_%d", types, len(g)))); err != nil {
				return err
			}
			if err := publish(ctx, p, names(types)); err != nil {
				return errors.Join(err, p.Backend.Close(context.WithoutCancel(ctx)))
			}
			if err := p.Backend.Close(ctx); err != nil {
				return err
			}
			_, err = g.tell(order{Do: doOpen, URL: p.URI, Dir: p.Dir})
			return err
		},
		Run: func() error { _, err := g.drain(types, types*few); return err },
		Check: func() error {
			for _, typ := range names(types) {
				p.Drained[typ] = few
			}
			_, err := g.tell(order{Do: doClose})
			return errors.Join(err, p.Verify(ctx), os.RemoveAll(p.Dir))
		},
	}
}

// publish publishes a few messages of each type.
func publish(ctx context.Context, p *messages.Place, types []string) (err error) {
	publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	var msgs []queue.Message
	for _, typ := range types {
		for i := range few {
			msgs = append(msgs, queue.Message{Type: typ, Payload: messages.Payload(i)})
		}
	}
	for len(msgs) > 0 {
		n := min(len(msgs), messages.BatchSize)
		for _, r := range publisher.PublishAll(ctx, msgs[:n]) {
			if r.Err != nil {
				return r.Err
			}
		}
		msgs = msgs[n:]
	}
	return nil
}
