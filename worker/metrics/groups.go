package metrics

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/fencepost/fencepost/worker"
	"github.com/prometheus/client_golang/prometheus"
)

// Which types have series of their own, and how the others are combined under Other.
//
// A Prometheus counter must never fall, and must rise by exactly the number of events counted. So groups
// adds up increases, scrape by scrape, and never totals: the increase of a type since the last scrape
// goes to the group that the type is in, and stays there when the type moves.

const (
	// Other is the label of the types that have no series of their own. It is not a valid name of a
	// type.
	Other = "_other"

	// DefaultTypes is how many types have series of their own by default.
	DefaultTypes = 100

	// AllTypes, as the argument of MaxTypes, gives every type series of its own.
	AllTypes = math.MaxInt

	questions = 500 // how many types one scrape queries the server about, at most

	// When one type takes the place of another. Each change creates new series in Prometheus, which
	// also keeps the old ones. So places change rarely, and only for much more traffic.
	compareEvery = 10 * time.Minute
	changed      = 10 // within compareEvery at most a tenth of the places changes
	busier       = 4  // a type needs this many times the messages …
	atLeast      = 10 // … of the other type plus this many
)

// counts has the counters of a type: those of perType, then those of causes.
type counts []uint64

// groups divides the types into those with series of their own and Other. Metrics.mu guards it.
type groups struct {
	most     int
	own      map[string]counts // by type with series of its own: the part of its counters that was counted in Other
	tallies  map[string]*tally // by served type
	previous map[string]counts // by type with series of its own, during take: its counters at the last scrape
	other    counts            // of Other, including types that have left it
	used     bool              // a type has been in Other
	compared time.Time         // when places were last compared
	changes  int               // places that may still change before the next comparison
}

// tally is the state of a type at the last scrape.
type tally struct {
	counts   counts
	messages uint64 // in total
	compared uint64 // messages at the last comparison
	before   uint64 // messages between the last two comparisons
	blocked  bool   // it needs attention
}

// busy is the number of messages in the last 10 to 20 minutes.
func (t *tally) busy() uint64 { return t.before + t.messages - t.compared }

// typeCounts are the counters of a type, or of Other.
type typeCounts struct {
	typ    string
	counts counts
}

func newGroups(most int) groups {
	return groups{most: most, own: map[string]counts{}, tallies: map[string]*tally{}, other: newCounts()}
}

func newCounts() counts { return make(counts, len(perType)+len(causes)) }

// countsOf returns the counters in a status.
func countsOf(s *worker.TypeStatus) counts {
	c := newCounts()
	for i, p := range perType {
		c[i] = p.value(s)
	}
	for i, cause := range causes {
		c[len(perType)+i] = s.Losses[cause]
	}
	return c
}

// add adds the increase from before to now.
func (c counts) add(now, before counts) {
	for i := range c {
		c[i] += now[i] - before[i]
	}
}

// collect sends the counters to Prometheus.
func (t *typeCounts) collect(ch chan<- prometheus.Metric) {
	for i, p := range perType {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.CounterValue, float64(t.counts[i]), t.typ)
	}
	for i, cause := range causes { // also those at 0, so that the first one is an increase
		ch <- prometheus.MustNewConstMetric(lossesDesc, prometheus.CounterValue, float64(t.counts[len(perType)+i]), t.typ, string(cause))
	}
}

// label returns the type itself if it has series of its own, otherwise Other.
func (g *groups) label(typ string) string {
	if _, ok := g.own[typ]; ok {
		return typ
	}
	return Other
}

// mayName reports whether a type that becomes active gets series of its own at once. A type that was
// counted in Other has to wait for the next scrape: its counts until then belong to Other.
func (g *groups) mayName(typ string) bool {
	return len(g.own) < g.most && g.tallies[typ] == nil && g.own[typ] == nil
}

// firstCome returns the label of an active type, giving it series of its own if there is a place.
func (g *groups) firstCome(typ string) string {
	if g.mayName(typ) {
		g.own[typ] = newCounts()
	}
	return g.label(typ)
}

// take processes the status of all served types, chooses those with series of their own, and returns
// the counters to report.
func (g *groups) take(types []worker.TypeStatus, now time.Time) []typeCounts {
	g.keepOnly(types)
	g.previous = map[string]counts{}
	var waiting []string // active types in Other
	for i := range types {
		s := &types[i]
		active := g.count(s, len(types) <= g.most)
		if active && g.label(s.Type) == Other {
			waiting = append(waiting, s.Type)
		}
	}
	g.change(waiting, now)
	var told []typeCounts
	for i := range types {
		if base, ok := g.own[types[i].Type]; ok {
			c := newCounts()
			c.add(g.tallies[types[i].Type].counts, base)
			told = append(told, typeCounts{types[i].Type, c})
		}
	}
	if g.used {
		told = append(told, typeCounts{Other, slices.Clone(g.other)})
	}
	return told
}

// keepOnly forgets the types that are no longer served.
func (g *groups) keepOnly(types []worker.TypeStatus) {
	served := make(map[string]bool, len(types))
	for i := range types {
		served[types[i].Type] = true
	}
	for typ := range g.own {
		if !served[typ] {
			delete(g.own, typ)
		}
	}
	for typ := range g.tallies {
		if !served[typ] {
			delete(g.tallies, typ)
		}
	}
}

// count adds the counts of a type since the last scrape to its group, and reports whether the type is
// active. If there is room for all types, each gets series of its own, with all of its counts.
func (g *groups) count(s *worker.TypeStatus, room bool) (active bool) {
	now, messages := countsOf(s), s.Appended+s.Handled+s.Dead
	t := g.tallies[s.Type]
	active = room || s.Held || s.State == worker.Blocked || s.State == worker.Refused || messages > 0 && (t == nil || messages > t.messages)
	if t == nil {
		if active {
			g.firstCome(s.Type)
		}
		t = &tally{counts: newCounts()}
		g.tallies[s.Type] = t
	}
	if g.label(s.Type) == Other {
		// rule: Other grows by the increases of its types since the last scrape, and never by a total
		g.other.add(now, t.counts)
		g.used = true
	} else {
		g.previous[s.Type] = t.counts
	}
	t.counts, t.messages, t.blocked = now, messages, s.State == worker.Blocked || s.State == worker.Refused
	return active
}

// change moves types out of Other: active ones into free places, and those that need attention or have
// far more traffic into the places of other types.
func (g *groups) change(waiting []string, now time.Time) {
	first := func(a, b string) int { // types that need attention, then the busiest
		x, y := g.tallies[a], g.tallies[b]
		return cmp.Or(compareBools(y.blocked, x.blocked), cmp.Compare(y.busy(), x.busy()), cmp.Compare(a, b))
	}
	slices.SortFunc(waiting, first)
	for len(waiting) > 0 && len(g.own) < g.most {
		g.name(waiting[0])
		waiting = waiting[1:]
	}
	comparing := now.Sub(g.compared) >= compareEvery
	if comparing {
		g.changes = (g.most + changed - 1) / changed
	}
	g.replace(waiting, first, comparing && !g.compared.IsZero())
	if !comparing {
		return
	}
	g.compared = now
	for _, t := range g.tallies {
		t.before, t.compared = t.messages-t.compared, t.messages
	}
}

// name moves a type from Other to series of its own.
func (g *groups) name(typ string) {
	// rule: the counts of a type in Other stay there, and the type's own counters begin at 0
	g.own[typ] = g.tallies[typ].counts
	g.previous[typ] = g.tallies[typ].counts
}

// replace gives the places of other types to types of Other: to those that need attention and, if
// comparing, to those with far more traffic.
func (g *groups) replace(waiting []string, first func(a, b string) int, comparing bool) {
	if len(waiting) == 0 || !comparing && !g.tallies[waiting[0]].blocked {
		return
	}
	var last []string // types that have series of their own, the least important ones first
	for typ := range g.own {
		last = append(last, typ)
	}
	slices.SortFunc(last, func(a, b string) int { return first(b, a) })
	for i := 0; i < min(len(waiting), len(last)) && g.changes > 0; i++ {
		in, out := g.tallies[waiting[i]], g.tallies[last[i]]
		if out.blocked || !in.blocked && (!comparing || in.busy() < busier*(out.busy()+atLeast)) {
			break
		}
		// rule: the increase of a type since its own series were last reported goes to Other
		g.other.add(out.counts, g.previous[last[i]])
		g.used = true
		delete(g.own, last[i])
		g.name(waiting[i])
		g.changes-- // rule: few places change, as each change creates series that Prometheus keeps
	}
}

func compareBools(a, b bool) int { return int(truth(a)) - int(truth(b)) }
