package mongoqueue

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Promoting delayed messages touches many documents, and no transaction is there to hold them together. What holds them together is one
// document, the plan:
//
//	      read the plan ──▶ finish it, if this process has not seen it finished
//	           │
//	      read what is due
//	           │
//	      replace the plan, if it is still the one that was read: these delayed messages, under these IDs
//	           │                                                   └─ somebody else was faster: begin again another time
//	           ▼
//	finish:  insert the messages ──▶ note that they are settled ──▶ remove the delayed ones
//
// rule: a message gets its number by the replacement and by nothing else, so each gets one, and the numbers are dense, whoever dies where.
// rule: a plan is replaced only by who knows that it is finished.
// rule: what is removed without being promoted is marked first, and removed only after the plan was replaced. Who has read it unmarked
// has read an older plan and cannot put it into the next one.
//
// Finishing is idempotent: a promoter that was paused and goes on later inserts what was inserted before, under the same IDs, and the file
// of the type refuses what it has.

// plan is the document that says which delayed messages are being promoted.
type plan struct {
	version   string // another one with every replacement
	items     []planItem
	sequences map[string]queue.Sequence // by type: the numbers given so far
}

// planItem is one delayed message and its ID as a normal one.
type planItem struct {
	slot queue.Slot
	as   queue.ID
}

// delayed is a delayed message as it is stored.
type delayed struct {
	queue.Message
	cancelled bool
}

// planStore is what promoting needs of a server. All writes are durable when they return.
type planStore interface {
	now() time.Time
	readPlan(ctx context.Context) (p plan, ok bool, err error)
	// createPlan stores the first plan unless there is one.
	createPlan(ctx context.Context, p plan) error
	// swapPlan replaces the plan if its version is still the given one.
	swapPlan(ctx context.Context, version string, p plan) (swapped bool, err error)
	// dueUntil returns whole messages that are due, in order of their slots.
	dueUntil(ctx context.Context, until time.Time, limit queue.Limit) ([]delayed, error)
	// delayedAt returns the messages of some slots that are there, in order of their slots.
	delayedAt(ctx context.Context, slots []queue.Slot) ([]delayed, error)
	// settled tells which delayed messages were settled lately; settle notes that they are.
	settled(ctx context.Context, ids []queue.ID) (map[queue.ID]bool, error)
	settle(ctx context.Context, ids []queue.ID) error
	// cancel marks messages.
	cancel(ctx context.Context, slots []queue.Slot) error
	// publish inserts messages of a type, idempotent by ID.
	publish(ctx context.Context, typ string, msgs []queue.Message) error
	// remove removes delayed messages. Those that are gone already are no error.
	remove(ctx context.Context, slots []queue.Slot) error
}

// promoter promotes. Safe for concurrent use.
type promoter struct {
	store planStore

	mu       sync.Mutex
	finished string // version of a plan that this promoter has finished

	mutant promoteMutant
}

// promoteMutant drops one safety rule each, for the tests that prove that the rule is needed.
type promoteMutant struct {
	insertUnplanned bool // insert without having replaced the plan
	numbersInMemory bool // give numbers that no plan remembers
	leaveUnfinished bool // replace a plan that is perhaps not finished
	removeFirst     bool // remove the delayed messages before the others are inserted
	noNote          bool // do not note what is settled
	removeAtOnce    bool // cancel without replacing the plan
}

func newVersion() string { return rand.Text() }

// head returns the plan, finished.
func (p *promoter) head(ctx context.Context) (plan, error) {
	for {
		head, ok, err := p.store.readPlan(ctx)
		if err != nil {
			return plan{}, err
		}
		if !ok {
			if err := p.store.createPlan(ctx, plan{version: newVersion()}); err != nil {
				return plan{}, err
			}
			continue
		}
		p.mu.Lock()
		finished := p.finished == head.version
		p.mu.Unlock()
		if finished || len(head.items) == 0 || p.mutant.leaveUnfinished {
			return head, nil
		}
		// rule: what was read may still be taken back by a fail-over. A plan is durable for certain once it was replaced.
		version := head.version
		head.version = newVersion()
		switch swapped, err := p.store.swapPlan(ctx, version, head); {
		case err != nil:
			return plan{}, err
		case !swapped:
			continue
		}
		slots := make([]queue.Slot, len(head.items))
		for i, item := range head.items {
			slots[i] = item.slot
		}
		there, err := p.store.delayedAt(ctx, slots)
		if err != nil {
			return plan{}, err
		}
		return head, p.finish(ctx, head, there, nil)
	}
}

// promote makes and finishes a plan, or more if there was nothing but what is to be removed. It promotes none if nothing is due, and if
// somebody else was faster.
func (p *promoter) promote(ctx context.Context, limit queue.Limit) (promoted int, err error) {
	for {
		promoted, more, err := p.promoteOnce(ctx, limit)
		if promoted > 0 || !more || err != nil {
			return promoted, err
		}
	}
}

func (p *promoter) promoteOnce(ctx context.Context, limit queue.Limit) (promoted int, more bool, err error) {
	head, err := p.head(ctx)
	if err != nil {
		return 0, false, err
	}
	now := p.store.now()
	due, err := p.store.dueUntil(ctx, now, limit)
	if err != nil || len(due) == 0 {
		return 0, false, err
	}
	known, err := p.store.settled(ctx, noted(due, now))
	if err != nil {
		return 0, false, err
	}
	next := plan{version: newVersion(), sequences: map[string]queue.Sequence{}}
	for typ, s := range head.sequences {
		if !s.Stale(now) {
			next.sequences[typ] = s
		}
	}
	if p.mutant.numbersInMemory {
		clear(next.sequences)
	}
	var drop []delayed
	for i := range due {
		m := &due[i]
		// rule: a repetition that landed after its message was promoted or cancelled is not another message
		if m.cancelled || known[m.ID] {
			drop = append(drop, *m)
			continue
		}
		s := next.sequences[m.Type]
		next.items = append(next.items, planItem{queue.SlotOf(&m.Message), s.Next(now)})
		next.sequences[m.Type] = s
	}
	swapped, err := p.store.swapPlan(ctx, head.version, next)
	if err != nil || !swapped && !p.mutant.insertUnplanned {
		return 0, false, err // rule: after an unclear answer the plan is read again, and finished if it is this one
	}
	return len(next.items), true, p.finish(ctx, next, due, drop)
}

func slotsOf(msgs []delayed) []queue.Slot {
	slots := make([]queue.Slot, len(msgs))
	for i := range msgs {
		slots[i] = queue.SlotOf(&msgs[i].Message)
	}
	return slots
}

// noted returns the IDs of those messages whose settling is noted: their publishers may still repeat them.
func noted(msgs []delayed, now time.Time) (ids []queue.ID) {
	for i := range msgs {
		if now.Sub(msgs[i].ID.Time()) < queue.SettledFor {
			ids = append(ids, msgs[i].ID)
		}
	}
	return ids
}

// finish publishes what is left of a plan, and removes that and drop.
func (p *promoter) finish(ctx context.Context, plan plan, there, drop []delayed) error {
	bySlot := make(map[queue.Slot]*delayed, len(there))
	for i := range there {
		bySlot[queue.SlotOf(&there[i].Message)] = &there[i]
	}
	byType := map[string][]queue.Message{}
	left := drop
	for _, item := range plan.items {
		d := bySlot[item.slot]
		if d == nil {
			continue // removed already, so all of the plan were inserted before
		}
		left = append(left, *d)
		if !d.Incomplete { // … and as this one was about to be
			byType[d.Type] = append(byType[d.Type], queue.Message{Type: d.Type, ID: item.as, Payload: d.Payload,
				Headers: queue.PromotedHeaders(d.Headers, d.ID, item.as)})
		}
	}
	remove := slotsOf(left)
	if p.mutant.removeFirst {
		if err := p.store.remove(ctx, remove); err != nil {
			return err
		}
	}
	for _, typ := range slices.Sorted(maps.Keys(byType)) {
		if err := p.store.publish(ctx, typ, byType[typ]); err != nil {
			return err
		}
	}
	if !p.mutant.noNote {
		if err := p.store.settle(ctx, noted(left, p.store.now())); err != nil {
			return err
		}
	}
	// rule: only now, when the messages are durable and their delayed ones cannot come back unnoticed
	if err := p.store.remove(ctx, remove); err != nil {
		return err
	}
	p.mu.Lock()
	p.finished = plan.version
	p.mu.Unlock()
	return nil
}

// cancel removes delayed messages that no plan contains.
func (p *promoter) cancel(ctx context.Context, slots []queue.Slot) (cancelled int, err error) {
	if err := p.store.cancel(ctx, slots); err != nil {
		return 0, err
	}
	head, err := p.fence(ctx)
	if err != nil {
		return 0, err
	}
	there, err := p.store.delayedAt(ctx, slots)
	if err != nil {
		return 0, err
	}
	there = slices.DeleteFunc(there, func(d delayed) bool {
		return slices.ContainsFunc(head.items, func(item planItem) bool { return item.slot == queue.SlotOf(&d.Message) })
	})
	ids := noted(there, p.store.now())
	known, err := p.store.settled(ctx, ids)
	if err != nil {
		return 0, err
	}
	if err := p.store.settle(ctx, ids); err != nil {
		return 0, err
	}
	for i := range there {
		if !known[there[i].ID] { // else it is a late repetition of what was promoted or cancelled before
			cancelled++
		}
	}
	if err := p.store.remove(ctx, slotsOf(there)); err != nil {
		return 0, err
	}
	return cancelled, nil
}

// fence replaces the plan by itself: no plan that was made of what was read before can follow it.
func (p *promoter) fence(ctx context.Context) (plan, error) {
	for {
		head, ok, err := p.store.readPlan(ctx)
		switch {
		case err != nil:
			return plan{}, err
		case !ok:
			if err := p.store.createPlan(ctx, plan{version: newVersion()}); err != nil {
				return plan{}, err
			}
			continue
		case p.mutant.removeAtOnce:
			return head, nil
		}
		version := head.version
		head.version = newVersion()
		if swapped, err := p.store.swapPlan(ctx, version, head); err != nil || swapped {
			return head, err
		}
	}
}
