package simulation

import (
	"slices"
	"time"
)

// weather is chosen by the seed before anything happens: the participants, their configuration, and the intensity of faults. Chances are
// in 10,000.
type weather struct {
	workers, producers int
	types              []string
	calls, perCall     int           // of each producer: publishes, and messages at most in each
	storm              time.Duration // how long faults happen
	lease              time.Duration
	block              int64 // of the disk

	latency         time.Duration // of one way, most of the time
	slow            int           // chance of one that is up to a second
	lost            int           // of a request, or a reply
	late            int           // of a request that is executed long after its caller has given up
	crash, stall    int           // at a step of a participant
	diskError       int           // at a step on the disk
	syncError       int           // of a sync, which leaves the cache as it is and the device without a part of it
	power           int           // chance that a crash takes down the whole host
	events          int           // of operators, hosts, networks
	delayed, keyed  int           // messages
	bad             int           // messages that the workers' filter refuses
	large           bool          // messages that fill a file
	skew            float64       // of clocks
	prefetch, batch int
	checkpoint      int // batches
	maxTypes        int
	idle            time.Duration
	compress        bool
	untilEmpty      bool            // at the end, fresh workers drain
	setBack         bool            // the queue is restored from a backup
	handlers        bool            // messages go to handlers, not to files
	visitors        int             // processes that take other locks
	jumps           int             // of the queue's clock, when a process reads it
	jumpers         []string        // whose clocks jump, by role …
	jumpTo          []time.Duration // … and how far they are off then
	transactions    bool            // messages are published in transactions, too
	spoils          bool            // an operator makes messages undecodable, and undoes it
	slots           bool            // files are in a store, and each worker is on its own host
	stale           int             // a listing of the store
	minute          bool            // the store is unreachable for a minute
	disasters       bool            // an administrator removes slots
}

func newWeather(seed uint64) weather {
	d := newDice(seed, number("weather"))
	// One in four schedules is mild, so that states that take long to reach without a fault occur as well.
	rough := d.n(4)
	scale := func(most int) int { return d.n(most*rough/3 + 1) }
	w := weather{
		workers: pick(d, 1, 2, 2, 3), producers: pick(d, 1, 1, 2), types: []string{"orders", "audit"}[:pick(d, 1, 1, 2)],
		calls: d.between(3, 10), perCall: pick(d, 1, 4, 12),
		storm: d.span(4*time.Second, 16*time.Second), lease: pick(d, 2*time.Second, 3*time.Second, 5*time.Second),
		block: pick[int64](d, 512, 4096), latency: pick(d, 0, time.Millisecond, 20*time.Millisecond),
		slow: scale(400), lost: scale(500), late: scale(300), crash: scale(120), stall: scale(120), diskError: scale(150), syncError: scale(1500),
		power: pick(d, 0, 2000, 6000), events: scale(12),
		delayed: pick(d, 0, 0, 1500), keyed: pick(d, 0, 4000), bad: pick(d, 0, 2000),
		large: d.chance(150), skew: pick(d, 0, 1.0/32, 1.0/16),
		prefetch: d.between(1, 3), batch: pick(d, 2, 7, 1000), checkpoint: pick(d, 1, 3, 4096),
		maxTypes: pick(d, 0, 0, 1), idle: pick(d, 2*time.Second, time.Minute), compress: d.chance(1000), untilEmpty: d.chance(5000),
	}
	if w.large {
		w.calls, w.perCall = min(w.calls, 4), 3
	}
	if w.setBack = !w.large && d.chance(1000); w.setBack {
		// More delayed messages, because their numbers go back. There is no guarantee for keys used after the backup.
		w.delayed, w.keyed = 5000, 0
	}
	if w.handlers = !w.large && !w.setBack && d.chance(1500); w.handlers {
		w.keyed = 0 // a handler detects copies itself
	}
	w.visitors = pick(d, 0, 0, 0, 0, 3)
	w.clocks(d)
	w.spoils = newDice(seed, number("spoils")).chance(2000)
	w.transactions = newDice(seed, number("transactions")).chance(3000)
	w.stores(newDice(seed, number("stores")), rough)
	return w
}

// clocks chooses whose clocks jump.
func (w *weather) clocks(d *dice) {
	w.jumps = pick(d, 0, 0, 3000)
	off := pick(d, 2*time.Minute, 61*time.Minute, 48*time.Hour)
	switch {
	case w.setBack, d.chance(4000): // messages confirmed after the backup are recognized by their times
		w.jumpers, w.jumpTo = []string{"worker"}, []time.Duration{0, off, -off}
	case w.keyed > 0: // with keys, all publishers must be ahead by the same time
		w.jumpers, w.jumpTo = []string{"producer"}, []time.Duration{0, off}
	default:
		w.jumpers, w.jumpTo = []string{"worker", "producer"}, []time.Duration{0, 0, 2 * time.Minute, -2 * time.Minute, 61 * time.Minute, -61 * time.Minute,
			48 * time.Hour, -48 * time.Hour}
	}
	if w.jumps > 0 && slices.Contains(w.jumpers, "producer") {
		w.delayed = 0 // a publisher that is ahead delays its messages by that much
	}
}

// stores chooses whether files are in a store.
func (w *weather) stores(d *dice, rough int) {
	if w.slots = !w.handlers && d.chance(3000); !w.slots {
		return
	}
	w.stale = d.n(2000*rough/3 + 1)
	if w.minute = rough > 0 && d.chance(500); w.minute {
		w.storm += 80 * time.Second
	}
	w.disasters = !w.setBack && d.chance(1500) // with both, the expected content would be unknown
}
