package lock

import (
	"sync"
	"time"
)

const (
	maxObservations = 10_000 // names; if one is forgotten, a takeover has to observe its record for a whole lease again
	maxDead         = 1_000  // ids; if one is forgotten, this process has to wait for the lease of its own orphan
)

// observations holds what a Locker remembers about the records it has read. Every read adds to it, so
// repeated calls of TryAcquire find a dead holder as soon as one long Acquire does. Safe for
// concurrent use.
type observations struct {
	mu    sync.Mutex
	names map[string]*observation
	// dead has the ids of this Locker's own holds that no code relies on: of attempts that failed with
	// an unclear outcome, and of lost leases that were released. A hold with such an id may be taken
	// over at once. deadOrder has the same ids, oldest first.
	dead      map[HoldID]struct{}
	deadOrder []HoldID
}

// observation is what is known about one name. Times are readings of the Locker's clock.
type observation struct {
	record  Record
	known   bool          // record is from the last reply; otherwise it has our own hold, or nothing
	version time.Duration // when a reply first showed record.Version
	hold    time.Duration // when a reply first showed record.Hold.ID
	floor   int64         // greatest token ever seen; survives the deletion of the record
	turns   turns         // how the lock changed hands during the last wait for it

	// entries is when a reply first showed each version of the record's shares and queue. The map
	// is never modified, only replaced: copies of the observation share it.
	entries map[Version]time.Duration
}

// saw records a reply of the store that arrived at now, and returns the updated observation.
//
// rule: the time counts from the reply that first showed the version, which is later than the write.
func (o *observations) saw(name string, r Record, found bool, now time.Duration) observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	ob := o.get(name)
	if !found {
		*ob = observation{floor: ob.floor, turns: ob.turns}
		return *ob
	}
	ob.floor = max(ob.floor, r.Token)
	if !ob.known || ob.record.Version != r.Version {
		ob.version = now
	}
	if !ob.known || ob.record.Hold == nil || r.Hold == nil || ob.record.Hold.ID != r.Hold.ID {
		ob.hold = now
	}
	// An entry keeps the time at which its version was first seen. Entries no longer in the record are forgotten.
	before := ob.entries
	ob.entries = nil
	for _, list := range [][]Entry{r.Shares, r.Queue} {
		for _, e := range list {
			if ob.entries == nil {
				ob.entries = make(map[Version]time.Duration)
			}
			since, ok := before[e.Version]
			if !ok {
				since = now
			}
			ob.entries[e.Version] = since
		}
	}
	ob.known, ob.record = true, r
	return *ob
}

// granted records a grant to this Locker. From then until ended, only the hold of the record is
// known: the holder renews without reading.
func (o *observations) granted(name string, token int64, h Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ob := o.get(name)
	ob.floor = max(ob.floor, token)
	if !h.Shared() { // shared holders continue to observe each other
		*ob = observation{floor: ob.floor, turns: ob.turns, record: Record{Name: name, Token: token, Hold: &h}}
	}
}

// ended records the end of a hold of this Locker.
func (o *observations) ended(name string, id HoldID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ob := o.names[name]; ob != nil && !ob.known && ob.record.Hold != nil && ob.record.Hold.ID == id {
		*ob = observation{floor: ob.floor, turns: ob.turns}
	}
}

// keepTurns saves the turns of a wait for the next wait for the same name.
func (o *observations) keepTurns(name string, t turns) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.get(name).turns = t
}

// look returns the observation of name, without querying the store.
func (o *observations) look(name string) observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ob := o.names[name]; ob != nil {
		return *ob
	}
	return observation{}
}

// get returns the observation of name to modify, making room for a new one if needed. o.mu is held.
func (o *observations) get(name string) *observation {
	if ob := o.names[name]; ob != nil {
		return ob
	}
	if o.names == nil {
		o.names = make(map[string]*observation)
	}
	for victim := range o.names {
		if len(o.names) < maxObservations {
			break
		}
		delete(o.names, victim)
	}
	ob := &observation{}
	o.names[name] = ob
	return ob
}

// markDead adds an id of this Locker to dead.
func (o *observations) markDead(id HoldID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.dead[id]; ok {
		return
	}
	if o.dead == nil {
		o.dead = make(map[HoldID]struct{})
	}
	if len(o.deadOrder) >= maxDead {
		delete(o.dead, o.deadOrder[0])
		o.deadOrder = o.deadOrder[1:]
	}
	o.dead[id] = struct{}{}
	o.deadOrder = append(o.deadOrder, id)
}

// isDead reports whether markDead was called with the id and the id is not yet forgotten.
func (o *observations) isDead(id HoldID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.dead[id]
	return ok
}
