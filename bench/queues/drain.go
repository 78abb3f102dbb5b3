package queues

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/queue"
)

// Names of the contenders, as they are shown.
const (
	nameBare      = "bare loop"
	nameAgain     = "bare loop again"
	nameFencepost = "fencepost"
	nameSend      = "fencepost, Send"

	nameInsertMany = "raw insertMany" // the other half of the bare loop

	oneType = "orders"
)

// timed is a measurement of contenders in turns.
type timed struct {
	times measure.Times
	n     int // messages of a block
}

func (t *timed) rate(name string) float64 { return float64(t.n) / t.times.Median(name).Seconds() }

func (t *timed) speed(name string) measure.Summary {
	return measure.Summarize(t.times.Ratios(nameBare, name))
}

func (b *bench) measureDrain(ctx context.Context) (t timed, err error) {
	t.n = b.sized(30_000, 3000)
	var list []measure.Contender
	var places []*place
	contender := func(name string, p *place, drain func() error) {
		places = append(places, p)
		list = append(list, measure.Contender{
			Name:    name,
			Prepare: func() error { return errors.Join(p.Clear(ctx), p.Load(ctx, t.n, oneType)) },
			Run:     drain,
			Check:   func() error { return p.Empty(ctx) },
		})
	}
	for _, name := range []string{nameBare, nameAgain} {
		p, err := b.newPlace(fmt.Sprintf("drain%d", len(list)))
		if err != nil {
			return t, err
		}
		contender(name, p, func() error { return p.Bare(ctx, oneType, 0, nil) })
	}
	p, err := b.newBackend(ctx, "drain_fencepost")
	if err != nil {
		return t, err
	}
	contender(nameFencepost, p, func() error { return p.Drain(ctx, oneType) })
	if t.times, err = measure.Run(ctx, measure.Plan{Rounds: b.o.Rounds, Blocks: 1}, list); err != nil {
		return t, err
	}
	return t, verifyAll(ctx, places...)
}

// single measures the approach of the usual articles: one message at a time.
type single struct {
	backlog int
	names   []string
	rates   map[string][]float64 // messages per second, of each round
	ratios  map[string][]float64 // Fencepost's rate, of a drain of the whole backlog in the same round / this one's
}

// The approach of the usual articles, and the same without everything that can be left out.
const (
	nameOrdered   = "one by one: findOneAndDelete of the first, write, fdatasync"
	nameUnordered = "the same of any one, without fdatasync"
)

func (b *bench) measureSingle(ctx context.Context) (s single, err error) {
	s = single{backlog: b.sized(40_000, 2000), names: []string{nameOrdered, nameUnordered}, rates: map[string][]float64{}, ratios: map[string][]float64{}}
	most, span := b.sized(200, 10), 2*time.Second
	p, err := b.newPlace("single")
	if err != nil {
		return s, err
	}
	f, err := b.newBackend(ctx, "single_fencepost")
	if err != nil {
		return s, err
	}
	for range b.few() {
		if err := errors.Join(p.Clear(ctx), p.Load(ctx, s.backlog, oneType), f.Clear(ctx), f.Load(ctx, s.backlog, oneType)); err != nil {
			return s, err
		}
		j, err := p.Journal(oneType)
		if err != nil {
			return s, err
		}
		rates := map[string]float64{}
		for _, name := range s.names {
			n, begin := 0, time.Now()
			for n < most && time.Since(begin) < span {
				if err := p.takeOne(ctx, j, name == nameOrdered); err != nil {
					return s, fmt.Errorf("%s: %w", name, err)
				}
				n++
			}
			rates[name] = float64(n) / time.Since(begin).Seconds()
		}
		begin := time.Now()
		if err := f.Drain(ctx, oneType); err != nil {
			return s, err
		}
		rate := float64(s.backlog) / time.Since(begin).Seconds()
		for name, r := range rates {
			s.rates[name] = append(s.rates[name], r)
			s.ratios[name] = append(s.ratios[name], rate/r)
		}
	}
	seen := map[int]bool{}
	if err := p.Journals[oneType].Each(messages.AsSet(seen)); err != nil {
		return s, err
	}
	return s, errors.Join(messages.Complete("what was taken one by one", len(seen), p.Drained[oneType]), f.Empty(ctx), f.Verify(ctx))
}

// takeOne takes out one message.
func (p *place) takeOne(ctx context.Context, j *messages.Journal, ordered bool) error {
	o := options.FindOneAndDelete()
	if ordered {
		o.SetSort(bson.D{{Key: "_id", Value: 1}})
	}
	raw, err := p.Messages.FindOneAndDelete(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: oneType + "/"}, {Key: "$lt", Value: oneType + "0"}}}}, o).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return errors.New("nothing is left")
	}
	if err != nil {
		return err
	}
	_, b := raw.Lookup("b").Binary()
	p.Drained[oneType]++
	if !ordered {
		_, err = j.F.Write(b)
		return err
	}
	return j.Append(b)
}

func (b *bench) measurePublish(ctx context.Context) (t timed, err error) {
	t.n = b.sized(20_000, 2000)
	var list []measure.Contender
	contender := func(name string, p *place, publish func() error) {
		list = append(list, measure.Contender{Name: name, Prepare: func() error { return p.Clear(ctx) }, Run: publish, Check: func() error {
			return p.checkPublished(ctx, t.n)
		}})
	}
	for _, name := range []string{nameBare, nameAgain} {
		p, err := b.newPlace(fmt.Sprintf("publish%d", len(list)))
		if err != nil {
			return t, err
		}
		from := messages.NewSource()
		contender(name, p, func() error {
			for range t.n / messages.BatchSize {
				if _, err := p.Messages.InsertMany(ctx, p.Documents(from, oneType, messages.BatchSize)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, name := range []string{nameFencepost, nameSend} {
		p, err := b.newBackend(ctx, fmt.Sprintf("publish%d", len(list)))
		if err != nil {
			return t, err
		}
		publisher, err := queue.NewPublisher(ctx, p.Backend.Queue, queue.PublisherOptions{})
		if err != nil {
			return t, err
		}
		defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
		publish := p.publishAll
		if name == nameSend {
			publish = p.send
		}
		contender(name, p, func() error { return publish(ctx, publisher, t.n) })
	}
	t.times, err = measure.Run(ctx, measure.Plan{Rounds: b.o.Rounds, Blocks: 1}, list)
	return t, err
}

// publishAll publishes n messages with one call per batch.
func (p *place) publishAll(ctx context.Context, publisher *queue.Publisher, n int) error {
	for ; n > 0; n -= messages.BatchSize {
		msgs := make([]queue.Message, min(n, messages.BatchSize))
		for i := range msgs {
			msgs[i] = queue.Message{Type: oneType, Payload: messages.Payload(p.Given[oneType])}
			p.Given[oneType]++
		}
		for _, r := range publisher.PublishAll(ctx, msgs) {
			if r.Err != nil {
				return r.Err
			}
		}
	}
	return nil
}

// send publishes n messages, one call each, and waits for all.
func (p *place) send(ctx context.Context, publisher *queue.Publisher, n int) error {
	results := make(chan error, n)
	for range n {
		m := queue.Message{Type: oneType, Payload: messages.Payload(p.Given[oneType])}
		p.Given[oneType]++
		if err := publisher.Send(ctx, m, func(r queue.Result) { results <- r.Err }); err != nil {
			return err
		}
	}
	for range n {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

// checkPublished reads back the last n messages that were given: all present, in the order of their
// keys.
func (p *place) checkPublished(ctx context.Context, n int) error {
	cursor, err := p.Messages.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: oneType + "/"}, {Key: "$lt", Value: oneType + "0"}}}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return err
	}
	defer cursor.Close(ctx)
	next := p.Given[oneType] - n
	for cursor.Next(ctx) {
		_, b := cursor.Current.Lookup("b").Binary()
		i, err := messages.Number(b)
		if err == nil {
			err = messages.InOrder(&next)(i)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(cursor.Err(), messages.Complete("the collection", next, p.Given[oneType]))
}
