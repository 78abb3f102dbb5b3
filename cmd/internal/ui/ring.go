package ui

import (
	"math"
	"time"
)

const (
	ringStep  = 5 * time.Second // duration of one bucket
	ringSteps = 36              // three minutes
	rateSpan  = 10 * time.Second
	leastSpan = 3 * time.Second // a shorter time says nothing about a rate
)

// ring records the recent growth of a file: records per bucket of time. A bucket without observations is NaN.
type ring struct {
	began time.Time // first look
	at    time.Time // last look
	index uint64    // at the last look
	step  int64     // of the newest bucket, in steps since 1970
	grown [ringSteps]float32
}

// add records the current index of the file. New records are spread evenly over the time since the last look.
func (r *ring) add(now time.Time, index uint64) {
	if r.at.IsZero() || index < r.index || now.Sub(r.at) > ringSteps*ringStep || now.Before(r.at) { // the index of a restored database is smaller
		*r = ring{began: now, at: now, index: index, step: stepOf(now)}
		for i := range r.grown {
			r.grown[i] = float32(math.NaN())
		}
		return
	}
	r.forward(stepOf(now))
	total := now.Sub(r.at)
	for from := r.at; from.Before(now); {
		step := stepOf(from)
		until := time.Unix(0, (step+1)*int64(ringStep))
		if until.After(now) {
			until = now
		}
		share := float64(index-r.index) * float64(until.Sub(from)) / float64(total)
		if b := &r.grown[step%ringSteps]; math.IsNaN(float64(*b)) {
			*b = float32(share)
		} else {
			*b += float32(share)
		}
		from = until
	}
	r.at, r.index = now, index
}

func stepOf(t time.Time) int64 { return t.UnixNano() / int64(ringStep) }

// forward empties the buckets up to a step.
func (r *ring) forward(step int64) {
	for r.step < step {
		r.step++
		r.grown[r.step%ringSteps] = float32(math.NaN())
	}
}

// rate returns records per second, over the last rateSpan; ok is false while unknown.
func (r *ring) rate() (perSecond float64, ok bool) {
	span := min(r.at.Sub(r.began), rateSpan)
	if span < leastSpan {
		return 0, false
	}
	from := r.at.Add(-span)
	sum := 0.0
	for step := stepOf(from); step <= stepOf(r.at); step++ {
		grown := float64(r.grown[step%ringSteps])
		if math.IsNaN(grown) {
			continue
		}
		if begin := time.Unix(0, step*int64(ringStep)); begin.Before(from) { // only a part of this bucket counts
			grown *= float64(ringStep-from.Sub(begin)) / float64(ringStep)
		}
		sum += grown
	}
	return sum / span.Seconds(), true
}

// rates returns the rates of the complete buckets, oldest first, in records per second.
func (r *ring) rates() []float64 {
	rates := make([]float64, 0, ringSteps-1)
	for step := r.step - ringSteps + 1; step < r.step; step++ {
		rates = append(rates, float64(r.grown[step%ringSteps])/ringStep.Seconds())
	}
	return rates
}
