package mongoqueue

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// Promoting delayed messages changes many documents without a transaction. One document makes it safe: the plan, which says which messages
// are being promoted under which IDs:
//
//	      read the plan ──▶ finish it, if this process has not seen it finished
//	           │
//	      read what is due
//	           │
//	      replace the plan, if it is still the one that was read: these delayed messages, under these IDs
//	           │                                                   └─ another promoter was faster: start over another time
//	           ▼
//	finish:  insert the messages ──▶ move what cannot be promoted to the dead letters ──▶ note that they are settled ──▶ remove the delayed ones
//	           │
//	           └─ the server permanently refuses one of them: replace the plan with one that buries it, and continue
//
// rule: a message gets its number only from the replacement of the plan, so each gets one, and the numbers are dense, wherever a promoter
// dies.
// rule: a promoter replaces a plan only if it knows that the plan is finished.
// rule: a message removed without being promoted is marked first, and removed only after the plan was replaced. A promoter that read it
// unmarked read an older plan and cannot put the message into the next one.
//
// A message that cannot be promoted is in the plan as well, without a number: the promoter that finishes the plan buries it under the ID
// of the delayed message. If the server refuses a message that has a number, the number goes to the next one of its type, and so on, as
// long as it is certain that no promoter has inserted anything after it:
//
// rule: only the promoter that has made a plan, and has had clear answers since, reuses a number. A promoter that finishes another's plan
// first replaces it with the same plan under another version, so the maker's own replacement tells whether it was alone. The others leave
// the number out: a consumer waits for it, and declares a gap, but no number has two messages.
//
// Finishing is idempotent: a promoter that was paused and resumes later inserts what was inserted before, under the same IDs, and the file
// of the type rejects what it already has.

// plan says which delayed messages are being promoted, and under which IDs.
type plan struct {
	version   string                          // changes with every replacement
	items     []planItem                      // to be promoted
	letters   []planLetter                    // to become dead letters
	sequences map[string]queuedriver.Sequence // by type: the numbers assigned so far
	passed    time.Duration                   // see queuedriver.Moment
}

// planItem is a delayed message, and the ID under which it is promoted.
type planItem struct {
	slot queue.ScheduleKey
	as   queue.ID
}

// planLetter is a delayed message that becomes a dead letter.
type planLetter struct {
	slot queue.ScheduleKey
	why  string
}

// slots returns the keys of all delayed messages in the plan.
func (p *plan) slots() []queue.ScheduleKey {
	slots := make([]queue.ScheduleKey, 0, len(p.items)+len(p.letters))
	for _, item := range p.items {
		slots = append(slots, item.slot)
	}
	for _, l := range p.letters {
		slots = append(slots, l.slot)
	}
	return slots
}

// bury returns the plan in which item i is to be buried. If renumber is set, the later items of its type get its number and those that
// follow; otherwise its number is left out.
func (p *plan) bury(i int, why string, renumber bool) plan {
	item := p.items[i]
	next := plan{version: newVersion(), items: slices.Delete(slices.Clone(p.items), i, i+1), sequences: maps.Clone(p.sequences),
		letters: append(slices.Clone(p.letters), letterOf(item.slot, why)), passed: p.passed}
	if !renumber {
		return next
	}
	// rule: the number is reused, the ID is not: no two messages ever have the same ID.
	m := queuedriver.Moment{Passed: p.passed, Watched: true}
	s := queuedriver.Sequence{Producer: item.as.Producer(), N: item.as.N() - 1, At: next.sequences[item.slot.Type].At + 1, Used: m.Passed.Milliseconds()}
	for j := i; j < len(next.items); j++ {
		if next.items[j].slot.Type == item.slot.Type {
			next.items[j].as = s.Next(m)
		}
	}
	next.sequences[item.slot.Type] = s
	return next
}

// maxWhy bounds what a plan says about each letter, in bytes.
const maxWhy = 500

// letterOf truncates the reason, so that a plan of many letters fits into a document.
func letterOf(slot queue.ScheduleKey, why string) planLetter {
	return planLetter{slot, strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")}
}

// delayed is a delayed message as it is stored.
type delayed struct {
	queue.Message
	cancelled bool
	unfit     error // why it becomes a dead letter; nil: it is promoted
}

// planStore is the part of a server that a promoter needs. All writes are durable when they return.
type planStore interface {
	now() time.Time
	// steady is a monotonic clock.
	steady() time.Duration
	readPlan(ctx context.Context) (p plan, ok bool, err error)
	// createPlan stores the first plan unless there is one.
	createPlan(ctx context.Context, p plan) error
	// swapPlan replaces the plan if its version is still the given one.
	swapPlan(ctx context.Context, version string, p plan) (swapped bool, err error)
	// dueUntil returns due messages, in order, except for those that stay where they are.
	dueUntil(ctx context.Context, until time.Time, limit queue.Limit) ([]delayed, error)
	// delayedAt returns those of the messages with these keys that exist, in order.
	delayedAt(ctx context.Context, slots []queue.ScheduleKey) ([]delayed, error)
	// existing returns which of these keys exist.
	existing(ctx context.Context, slots []queue.ScheduleKey) ([]queue.ScheduleKey, error)
	// settled returns which delayed messages were recently promoted or cancelled. settle records that they were, and when, by
	// Moment.Passed. forget removes older notes from time to time.
	settled(ctx context.Context, ids []queue.ID) (map[queue.ID]bool, error)
	settle(ctx context.Context, ids []queue.ID, passed time.Duration) error
	forget(ctx context.Context, before time.Duration)
	// cancel marks messages as cancelled, which excludes them from later plans.
	cancel(ctx context.Context, slots []queue.ScheduleKey) error
	// publish inserts messages of a type, idempotent by ID. See refusedDocument for its errors.
	publish(ctx context.Context, typ string, msgs []queue.Message) error
	// takes reports whether the server would accept such a message.
	takes(ctx context.Context, m *queue.Message) (bool, error)
	// bury stores dead letters of a type, idempotent by ID.
	bury(ctx context.Context, typ string, letters []queue.DeadLetter) error
	// keep skips a delayed message for a while.
	keep(slot queue.ScheduleKey)
	// remove removes delayed messages. It is no error if one does not exist.
	remove(ctx context.Context, slots []queue.ScheduleKey) error
}

// promoter makes and finishes plans. Safe for concurrent use.
type promoter struct {
	store planStore

	mu       sync.Mutex
	finished string        // version of a plan that this promoter has finished, or has seen empty
	since    time.Duration // when that was, by the steady clock
}

func newVersion() string { return crand.Text() }

// head reads the plan and finishes it if necessary. It also returns the moment for the next plan.
func (p *promoter) head(ctx context.Context) (plan, queuedriver.Moment, error) {
	for {
		head, ok, err := p.store.readPlan(ctx)
		if err != nil {
			return plan{}, queuedriver.Moment{}, err
		}
		if !ok {
			if err := p.store.createPlan(ctx, plan{version: newVersion()}); err != nil {
				return plan{}, queuedriver.Moment{}, err
			}
			continue
		}
		if passed, watched := p.watched(&head); watched || len(head.items)+len(head.letters) == 0 {
			return head, queuedriver.Moment{Now: p.store.now(), Passed: head.passed + passed, Watched: watched}, nil
		}
		// rule: a failover may still roll back the plan that was read. A plan is certainly durable once it was replaced.
		version := head.version
		head.version = newVersion()
		// rule: a sequence rests from when its numbers were used, not from when they were assigned. Under a new producer number the next
		// messages could overtake those that are inserted only now.
		for _, item := range head.items {
			s := head.sequences[item.slot.Type]
			s.At, s.Used = max(s.At, p.store.now().UnixMilli()), head.passed.Milliseconds()
			head.sequences[item.slot.Type] = s
		}
		switch swapped, err := p.store.swapPlan(ctx, version, head); {
		case err != nil:
			return plan{}, queuedriver.Moment{}, err
		case !swapped:
			continue
		}
		there, err := p.store.delayedAt(ctx, head.slots())
		if err != nil {
			return plan{}, queuedriver.Moment{}, err
		}
		// rule: a letter whose delayed message is noted as settled was buried. It may have been requeued since.
		letters := slices.DeleteFunc(slices.Clone(there), func(d delayed) bool {
			return !slices.ContainsFunc(head.letters, func(l planLetter) bool { return l.slot == queue.ScheduleKeyOf(&d.Message) })
		})
		buried, err := p.store.settled(ctx, idsOf(letters))
		if err != nil {
			return plan{}, queuedriver.Moment{}, err
		}
		head.letters = slices.DeleteFunc(head.letters, func(l planLetter) bool { return buried[l.slot.ID] })
		gone := slices.DeleteFunc(letters, func(d delayed) bool { return !buried[d.ID] })
		if finished, err := p.finish(ctx, &head, there, gone, false); finished || err != nil {
			// A promoter that finished another's plan has not observed how long the sequences had rested.
			return head, queuedriver.Moment{Now: p.store.now(), Passed: head.passed}, err
		}
	}
}

// watched reports whether this promoter has finished the plan, or has already seen it empty, and how much time has passed since.
func (p *promoter) watched(of *plan) (passed time.Duration, watched bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if watched = p.finished == of.version; watched {
		return p.store.steady() - p.since, true
	}
	if len(of.items)+len(of.letters) == 0 {
		p.finished, p.since = of.version, p.store.steady()
	}
	return 0, false
}

// promote makes and finishes plans until one has promoted messages. It promotes none if nothing is due,
// or if another promoter was faster.
func (p *promoter) promote(ctx context.Context, limit queue.Limit) (promoted, buried int, err error) {
	for {
		n, letters, more, err := p.promoteOnce(ctx, limit)
		buried += letters
		if n > 0 || !more || err != nil {
			return n, buried, err
		}
	}
}

// promoteOnce makes one plan and finishes it. more means that further messages may be due.
func (p *promoter) promoteOnce(ctx context.Context, limit queue.Limit) (promoted, buried int, more bool, err error) {
	head, moment, err := p.head(ctx)
	if err != nil {
		return 0, 0, false, err
	}
	due, err := p.store.dueUntil(ctx, moment.Now, limit)
	if err != nil || len(due) == 0 {
		return 0, 0, false, err
	}
	known, err := p.store.settled(ctx, idsOf(due)) // rule: for all of them, whatever the time of the ID and a clock say
	if err != nil {
		return 0, 0, false, err
	}
	next := plan{version: newVersion(), sequences: map[string]queuedriver.Sequence{}, passed: moment.Passed}
	for typ, s := range head.sequences {
		if !s.Stale(moment) {
			next.sequences[typ] = s
		}
	}
	var drop []delayed
	for i := range due {
		m := &due[i]
		// rule: a repetition that landed after its message was promoted or cancelled is not a new message
		if m.cancelled || known[m.ID] {
			drop = append(drop, *m)
			continue
		}
		if m.unfit != nil {
			next.letters = append(next.letters, letterOf(queue.ScheduleKeyOf(&m.Message), m.unfit.Error()))
			continue
		}
		s := next.sequences[m.Type]
		next.items = append(next.items, planItem{queue.ScheduleKeyOf(&m.Message), s.Next(moment)})
		next.sequences[m.Type] = s
	}
	swapped, err := p.store.swapPlan(ctx, head.version, next)
	if err != nil || !swapped {
		return 0, 0, false, err // rule: after an unclear answer the plan is read again, and finished if it is this one
	}
	finished, err := p.finish(ctx, &next, due, drop, true)
	if !finished {
		return 0, 0, false, err
	}
	// rule: only notes that are old enough are removed, measured by time that promoters have observed
	p.store.forget(ctx, next.passed-queuedriver.SettledFor-time.Hour)
	return len(next.items), len(next.letters), true, err
}

func slotsOf(msgs []delayed) []queue.ScheduleKey {
	slots := make([]queue.ScheduleKey, len(msgs))
	for i := range msgs {
		slots[i] = queue.ScheduleKeyOf(&msgs[i].Message)
	}
	return slots
}

func idsOf(msgs []delayed) []queue.ID {
	ids := make([]queue.ID, len(msgs))
	for i := range msgs {
		ids[i] = msgs[i].ID
	}
	return ids
}

// finish does the remaining work of a plan: it publishes the items, buries the letters, and removes both and drop. It changes the plan if
// the server refuses messages. alone means that this promoter has just made the plan. finished is false if another promoter has replaced
// the plan meanwhile.
func (p *promoter) finish(ctx context.Context, plan *plan, there, drop []delayed, alone bool) (finished bool, err error) {
	bySlot := make(map[queue.ScheduleKey]*delayed, len(there))
	for i := range there {
		bySlot[queue.ScheduleKeyOf(&there[i].Message)] = &there[i]
	}
	types := map[string]bool{}
	for _, item := range plan.items {
		types[item.slot.Type] = true
	}
	for _, typ := range slices.Sorted(maps.Keys(types)) {
		if finished, err := p.publish(ctx, plan, typ, bySlot, alone); !finished || err != nil {
			return false, err
		}
	}
	if finished, err := p.bury(ctx, plan, bySlot); !finished || err != nil {
		return false, err
	}
	left := drop
	for _, slot := range plan.slots() {
		// rule: an incomplete message was not published, so it stays. An earlier version, which could read it, has planned it.
		if d := bySlot[slot]; d != nil && !d.Incomplete {
			left = append(left, *d)
		}
	}
	if err := p.store.settle(ctx, idsOf(left), plan.passed); err != nil {
		return false, err
	}
	// rule: only after the messages and letters are durable and their delayed messages cannot reappear unnoticed
	if err := p.store.remove(ctx, slotsOf(left)); err != nil {
		return false, err
	}
	p.mu.Lock()
	p.finished, p.since = plan.version, p.store.steady()
	p.mu.Unlock()
	return true, nil
}

// publish publishes the items of one type. An item that the server permanently refuses becomes a letter
// of the plan.
func (p *promoter) publish(ctx context.Context, plan *plan, typ string, bySlot map[queue.ScheduleKey]*delayed, alone bool) (finished bool, err error) {
	stored := 0                    // number of leading messages
	var suspect *queue.ScheduleKey // refused although others are accepted
	for {
		var msgs []queue.Message
		var items []int
		for i, item := range plan.items {
			// A missing one was already removed, so the whole plan was inserted before.
			if d := bySlot[item.slot]; d != nil && !d.Incomplete && item.slot.Type == typ {
				msgs = append(msgs, queue.Message{Type: typ, ID: item.as, Payload: d.Payload, Headers: queuedriver.PromotedHeaders(d.Headers, d.ID, item.as)})
				items = append(items, i)
			}
		}
		if stored == len(msgs) {
			return true, nil
		}
		err := p.store.publish(ctx, typ, msgs[stored:])
		n, why, refused := refusedDocument(err)
		if !refused {
			return err == nil, err
		}
		stored += n
		slot := plan.items[items[stored]].slot
		// rule: a message becomes a dead letter only if it is refused while others are accepted, both before and after a check shows that
		// they are. Refusing everything is an operator's mistake, and temporary.
		if suspect == nil || *suspect != slot {
			takes, takesErr := p.takesOthers(ctx, plan, bySlot, slot)
			switch {
			case takesErr != nil:
				return false, errors.Join(err, takesErr)
			case !takes:
				return false, fmt.Errorf("%w; it refuses other messages, too, so none becomes a dead letter: look at the validator of the collection messages", err)
			}
			suspect = &slot
			continue
		}
		next := plan.bury(items[stored], "the server refuses it: "+why, alone)
		if swapped, err := p.store.swapPlan(ctx, plan.version, next); !swapped || err != nil {
			return false, err
		}
		*plan = next
	}
}

// triedMost bounds how many messages of a plan takesOthers tries.
const triedMost = 20

// takesOthers reports whether the server accepts an empty message, or one of some other messages of the plan: a validator may require
// something that an empty one does not have.
func (p *promoter) takesOthers(ctx context.Context, plan *plan, bySlot map[queue.ScheduleKey]*delayed, refused queue.ScheduleKey) (bool, error) {
	try := []queue.Message{{}}
	for _, i := range rand.Perm(len(plan.items)) {
		if d := bySlot[plan.items[i].slot]; d != nil && plan.items[i].slot != refused && len(try) <= triedMost {
			try = append(try, queue.Message{Payload: d.Payload, Headers: queuedriver.PromotedHeaders(d.Headers, d.ID, plan.items[i].as)})
		}
	}
	for i := range try {
		if takes, err := p.store.takes(ctx, &try[i]); takes || err != nil {
			return takes, err
		}
	}
	return false, nil
}

// bury stores the dead letters of a plan. If the server refuses a message even as a letter, it stays delayed and is removed from the plan,
// so that an operator can cancel it.
func (p *promoter) bury(ctx context.Context, plan *plan, bySlot map[queue.ScheduleKey]*delayed) (finished bool, err error) {
	byType := map[string][]queue.DeadLetter{}
	slots := map[queue.ID]queue.ScheduleKey{}
	for _, l := range plan.letters {
		if d := bySlot[l.slot]; d != nil && !d.Incomplete {
			byType[d.Type] = append(byType[d.Type], queuedriver.DelayedDeadLetter(d.Message, l.why))
			slots[d.ID] = l.slot
		}
	}
	next := *plan
	next.version = newVersion()
	for _, typ := range slices.Sorted(maps.Keys(byType)) {
		refused, err := p.buryType(ctx, typ, byType[typ])
		for _, id := range refused {
			p.store.keep(slots[id])
			next.letters = slices.DeleteFunc(slices.Clone(next.letters), func(l planLetter) bool { return l.slot == slots[id] })
		}
		if err != nil {
			return false, err
		}
	}
	if len(next.letters) == len(plan.letters) {
		return true, nil
	}
	swapped, err := p.store.swapPlan(ctx, plan.version, next)
	*plan = next
	return swapped && err == nil, err
}

// buryType stores dead letters of one type, and returns those that the server refuses. It stores them one by one if it refuses any.
func (p *promoter) buryType(ctx context.Context, typ string, letters []queue.DeadLetter) (refused []queue.ID, err error) {
	err = p.store.bury(ctx, typ, letters)
	if _, _, some := refusedDocument(err); !some {
		return nil, err
	}
	for i := range letters {
		err := p.store.bury(ctx, typ, letters[i:i+1])
		if _, _, this := refusedDocument(err); this {
			refused = append(refused, letters[i].ID)
		} else if err != nil {
			return refused, err
		}
	}
	return refused, nil
}
