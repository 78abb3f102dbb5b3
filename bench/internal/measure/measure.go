// Package measure times contenders side by side in one run, so that other load on the machine affects all of them,
// and compares them by ratios, which mean more on a shared machine than seconds.
package measure

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// Contender is one way of doing a piece of work.
type Contender struct {
	Name    string
	Prepare func() error // before each Run, outside the measured time; may be nil
	Run     func() error // what is measured
	Check   func() error // after each Run, outside the measured time; may be nil
}

// Plan says how often to measure. A round consists of Blocks runs of every contender; the order within a block is
// random.
type Plan struct {
	Rounds, Blocks int
	EndBlock       func() error // outside the measured time; may be nil
}

// Times are measured durations: by contender, then round, then block.
type Times map[string][][]time.Duration

// Run executes the plan, after one block that does not count.
func Run(ctx context.Context, p Plan, contenders []Contender) (Times, error) {
	t := Times{}
	for i := range contenders {
		if _, err := once(ctx, &contenders[i]); err != nil {
			return nil, err
		}
	}
	order := slices.Clone(contenders)
	for round := range p.Rounds {
		for _, c := range contenders {
			t[c.Name] = append(t[c.Name], nil)
		}
		for range p.Blocks {
			rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for i := range order {
				took, err := once(ctx, &order[i])
				if err != nil {
					return nil, err
				}
				name := order[i].Name
				t[name][round] = append(t[name][round], took)
			}
			if p.EndBlock != nil {
				if err := p.EndBlock(); err != nil {
					return nil, err
				}
			}
		}
	}
	return t, nil
}

func once(ctx context.Context, c *Contender) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if c.Prepare != nil {
		if err := c.Prepare(); err != nil {
			return 0, fmt.Errorf("prepare %s: %w", c.Name, err)
		}
	}
	runtime.GC() // no contender pays for the garbage of another
	start := time.Now()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w", c.Name, err)
	}
	took := time.Since(start)
	if c.Check != nil {
		if err := c.Check(); err != nil {
			return 0, fmt.Errorf("check %s: %w", c.Name, err)
		}
	}
	return took, nil
}

// Ratios returns a's time divided by b's, for each round: the median of a's blocks over the median of b's. If a is
// the yardstick, this is the speed of b, and 1 means equally fast.
func (t Times) Ratios(a, b string) []float64 {
	ratios := make([]float64, len(t[a]))
	for i := range ratios {
		ratios[i] = medianSeconds(t[a][i]) / medianSeconds(t[b][i])
	}
	return ratios
}

// Whole returns the same ratio for the sums of all blocks. It includes what a median hides, such as a new segment
// every thousand batches, but also all other load on the machine.
func (t Times) Whole(a, b string) float64 { return t.sum(a) / t.sum(b) }

func (t Times) sum(name string) (s float64) {
	for _, round := range t[name] {
		for _, d := range round {
			s += d.Seconds()
		}
	}
	return s
}

// Median returns the median of the rounds' medians.
func (t Times) Median(name string) time.Duration {
	var medians []float64
	for _, round := range t[name] {
		medians = append(medians, medianSeconds(round))
	}
	return time.Duration(Summarize(medians).Median * float64(time.Second))
}

func medianSeconds(ds []time.Duration) float64 {
	s := make([]float64, len(ds))
	for i, d := range ds {
		s[i] = d.Seconds()
	}
	return Summarize(s).Median
}

// Summary describes a sample.
type Summary struct{ Min, Q1, Median, Q3, Max float64 }

// Summarize returns the quantiles of values, interpolated between neighbours; NaN if there are none.
func Summarize(values []float64) Summary {
	s := slices.Clone(values)
	slices.Sort(s)
	return Summary{Min: quantile(s, 0), Q1: quantile(s, .25), Median: quantile(s, .5), Q3: quantile(s, .75), Max: quantile(s, 1)}
}

// Quantile returns the value below which the share q of values lies, as in Summarize.
func Quantile(values []float64, q float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), q)
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
