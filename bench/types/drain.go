package types

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
)

// Names of the contenders, as they are shown.
const (
	nameBare  = "bare loop"
	nameAgain = "bare loop again"
	nameOne   = "1 replica"
	nameFour  = "4 replicas"
)

// drain is a drain of types with the same number of messages each.
type drain struct {
	types, each int
	times       measure.Times
	kinds       map[string]map[string]int64 // commands of the last round, by contender and kind
}

// is reports whether a target was set for this drain.
func (d *drain) is(types, each int) bool { return d.types == types && d.each == each }

func (d *drain) speed(name string) measure.Summary {
	return measure.Summarize(d.times.Ratios(nameBare, name))
}

// rate returns how many messages per second a contender drains.
func (d *drain) rate(name string) float64 {
	return float64(d.types*d.each) / d.times.Median(name).Seconds()
}

// perType returns how many commands of a kind, or of all kinds, a contender sends per type.
func (d *drain) perType(name, kind string) float64 {
	sum := d.kinds[name][kind]
	if kind == "" {
		for _, n := range d.kinds[name] {
			sum += n
		}
	}
	return float64(sum) / float64(d.types)
}

func (b *bench) measureDrains(ctx context.Context) (all []*drain, err error) {
	all = []*drain{{types: 1, each: 25_600}, {types: 16, each: 1600}, {types: 256, each: 100}, {types: 2000, each: 10}, {types: 10_000, each: 10}}
	if b.o.Quick {
		all = []*drain{{types: 1, each: 160}, {types: 16, each: 10}}
	}
	for _, d := range all {
		b.o.Logf("drain: %d types of %d messages", d.types, d.each)
		if err := b.drain(ctx, d); err != nil {
			return nil, fmt.Errorf("%d types: %w", d.types, err)
		}
	}
	return all, nil
}

func (b *bench) drain(ctx context.Context, d *drain) (err error) {
	types := names(d.types)
	d.kinds = map[string]map[string]int64{}
	var list []measure.Contender
	var places []*messages.Place
	contender := func(name string, run func(*messages.Place) error) (*messages.Place, error) {
		p, err := b.server.NewPlace(fmt.Sprintf("drain%d_%d", d.types, len(list)))
		if err != nil {
			return nil, err
		}
		places = append(places, p)
		list = append(list, measure.Contender{
			Name:    name,
			Prepare: func() error { return errors.Join(p.Clear(ctx), p.Load(ctx, d.each, types...)) },
			Run:     func() error { return run(p) },
			Check:   func() error { return errors.Join(p.Empty(ctx), p.CloseJournals()) }, // ten thousand files each
		})
		return p, nil
	}
	for _, name := range []string{nameBare, nameAgain} {
		_, err := contender(name, func(p *messages.Place) error {
			for _, typ := range types {
				if err := p.Bare(ctx, typ, 0, nil); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for name, n := range map[string]int{nameOne: 1, nameFour: 4} {
		var g group
		if g, err = startGroup(ctx, n); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.end()) }()
		var p *messages.Place
		p, err = contender(name, func(p *messages.Place) error {
			kinds, err := g.drain(d.types, d.types*d.each)
			d.kinds[name] = kinds
			for _, typ := range types {
				p.Drained[typ] = p.Given[typ]
			}
			return err
		})
		if err == nil {
			_, err = g.tell(order{Do: doOpen, URL: p.URI, Dir: p.Dir})
		}
		if err != nil {
			return err
		}
	}
	if d.times, err = measure.Run(ctx, measure.Plan{Rounds: b.rounds(), Blocks: 1}, list); err != nil {
		return err
	}
	for _, p := range places {
		if err := p.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}
