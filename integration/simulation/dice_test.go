package simulation

import "time"

// dice are random numbers that depend only on their purpose: the seed of the schedule and a few more numbers (which participant, which
// operation, which repetition). So a decision does not depend on earlier decisions elsewhere.
type dice struct{ state uint64 }

func newDice(seed uint64, about ...uint64) *dice {
	d := &dice{mix(seed)}
	for _, n := range about {
		d.state = mix(d.state ^ n)
	}
	return d
}

// mix is the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (d *dice) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	return mix(d.state)
}

func (d *dice) n(n int) int { return int(d.next() % uint64(n)) }

// between returns a number from a range that includes both ends.
func (d *dice) between(from, to int) int { return from + d.n(to-from+1) }

// chance is true n times in 10,000.
func (d *dice) chance(n int) bool { return d.n(10_000) < n }

func (d *dice) upTo(most time.Duration) time.Duration {
	return time.Duration(d.next() % uint64(most+1))
}

func (d *dice) span(from, to time.Duration) time.Duration { return from + d.upTo(to-from) }

func pick[T any](d *dice, from ...T) T { return from[d.n(len(from))] }

// number hashes a name.
func number(name string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}
