package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// remember is how long a silent producer is remembered, the same time as in the files. A publisher that was idle for an hour takes a new
// producer number.
const remember = 24 * time.Hour

// totals is the document of a type: the sales, and the messages that are counted in them. Both are written together, so every message
// counts exactly once, however often it is delivered.
type totals struct {
	Cents     map[string]int64     `json:"cents,omitempty"` // by item
	Sales     int                  `json:"sales,omitempty"`
	Producers map[uint64]*producer `json:"producers,omitempty"`
}

// producer records the messages of one producer that were seen: a publisher numbers its messages of a type 1, 2, 3 …
type producer struct {
	Last    uint64    `json:"last"`
	Missing []uint64  `json:"missing,omitempty"` // numbers below Last that were not seen: dead letters, mostly
	Time    time.Time `json:"time"`
}

func newTotals() *totals {
	return &totals{Cents: map[string]int64{}, Producers: map[uint64]*producer{}}
}

func (t *totals) clone() *totals {
	c := &totals{Cents: maps.Clone(t.Cents), Sales: t.Sales, Producers: make(map[uint64]*producer, len(t.Producers))}
	for id, p := range t.Producers {
		c.Producers[id] = &producer{p.Last, slices.Clone(p.Missing), p.Time}
	}
	return c
}

// add counts the sale in m, unless it is already counted. A message is an item and a price: "chair 12000".
func (t *totals) add(m *queue.Message) error {
	item, price, ok := strings.Cut(string(m.Payload), " ")
	cents, err := strconv.ParseInt(price, 10, 64)
	if !ok || err != nil {
		return fmt.Errorf("%.40q is not a sale; it should be an item and a price in cents, as in \"chair 12000\"", m.Payload)
	}
	if !t.first(m.ID) {
		return nil
	}
	t.Cents[item] += cents
	t.Sales++
	return nil
}

// first reports whether a message is seen for the first time, and records it.
func (t *totals) first(id queue.ID) bool {
	p, n := t.Producers[id.Producer()], id.N()
	switch {
	case p == nil:
		p = &producer{}
		t.Producers[id.Producer()] = p
	case n <= p.Last:
		i := slices.Index(p.Missing, n)
		if i < 0 {
			return false
		}
		p.Missing = slices.Delete(p.Missing, i, i+1)
		return true
	default:
		for i := p.Last + 1; i < n; i++ {
			p.Missing = append(p.Missing, i)
		}
	}
	p.Last, p.Time = n, id.Time()
	maps.DeleteFunc(t.Producers, func(_ uint64, other *producer) bool { return p.Time.Sub(other.Time) > remember })
	return true
}
