package mongoqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// planWorld is a server, a consumer with its files, and the publisher of the delayed messages, all in one goroutine: faults and concurrent
// actions of others are decided before every operation of a promoter.
type planWorld struct {
	clock     time.Time
	plan      *plan
	delayed   map[queue.ScheduleKey]delayed
	notes     map[queue.ID]time.Duration
	messages  map[string]map[queue.ID]string // by type: payloads
	files     map[string]*modelFile
	published []queue.Message   // delayed messages, in the order of their slots
	cancelled map[queue.ID]bool // for certain
	uncertain map[queue.ID]bool // perhaps
	dropped   map[queue.ID]bool // removed because of a mark
	inserted  map[string]bool   // payloads that were messages at some time
	faults    []string

	refused    map[string]bool     // payloads that the server refuses
	refusesAll bool                // … and all others
	lifted     bool                // a refused message is accepted later: it may be in both places then
	letters    map[queue.ID]string // payloads
	under      map[queue.ID]string // ID → type and message that was sent under it
	numbers    map[string]string   // type and number → payload that was a message under it
	gaps       int                 // numbers that a consumer had to give up
	undurable  *planWorld          // what a failover returns to; nil: everything is durable

	before func(w *planWorld) fault // nil: nothing happens
}

// modelFile is a file with its ledger.
type modelFile struct {
	last map[uint64]uint64
	got  []string
}

type fault int

const (
	works      fault = iota
	lost             // not performed, and the answer is an error
	lostAnswer       // performed, and the answer is an error
	half             // performed for the first half, and the answer is an error
)

var errNoAnswer = errors.New("the answer was lost")

func newPlanWorld() *planWorld {
	w := &planWorld{clock: time.UnixMilli(1_800_000_000_000), delayed: map[queue.ScheduleKey]delayed{}, notes: map[queue.ID]time.Duration{},
		messages: map[string]map[queue.ID]string{}, files: map[string]*modelFile{}, cancelled: map[queue.ID]bool{},
		uncertain: map[queue.ID]bool{}, dropped: map[queue.ID]bool{}, inserted: map[string]bool{}, refused: map[string]bool{},
		letters: map[queue.ID]string{}, under: map[queue.ID]string{}, numbers: map[string]string{}}
	for n := range 12 {
		typ := []string{"audit", "orders"}[n%2]
		due := w.clock.Add(time.Duration(n/4-1) * time.Minute) // the last four are due in a minute
		m := queue.Message{Type: typ, ID: queue.NewID(w.clock, 7, uint64(n+1)), Payload: fmt.Appendf(nil, "%02d", n), Due: due}
		w.published = append(w.published, m)
	}
	slices.SortFunc(w.published, func(a, b queue.Message) int { return queue.ScheduleKeyOf(&a).Compare(queue.ScheduleKeyOf(&b)) })
	w.publish()
	return w
}

// newRefusingWorld has some messages that the server refuses, and some that are unfit.
func newRefusingWorld() *planWorld {
	w := newPlanWorld()
	for i, m := range w.published {
		switch i {
		case 0, 3, 4, 10:
			w.refused[string(m.Payload)] = true
		case 2, 6:
			w.published[i].Headers = map[string]string{"": "no key"}
			w.delayed[queue.ScheduleKeyOf(&m)] = delayed{Message: w.published[i]}
		}
	}
	return w
}

// buried reports whether a message has to become a dead letter.
func (w *planWorld) buried(m *queue.Message) bool {
	return w.refused[string(m.Payload)] || m.Headers != nil
}

// refuses reports whether the server refuses a message now.
func (w *planWorld) refuses(m *queue.Message) bool {
	return w.refusesAll || w.refused[string(m.Payload)] && !w.lifted
}

// publish stores the delayed messages, or stores them again.
func (w *planWorld) publish() {
	for _, m := range w.published {
		if _, there := w.delayed[queue.ScheduleKeyOf(&m)]; !there {
			w.delayed[queue.ScheduleKeyOf(&m)] = delayed{Message: m}
		}
	}
}

// consume appends pending messages and acknowledges them, as a worker does.
func (w *planWorld) consume() {
	for typ, pending := range w.messages {
		f := w.files[typ]
		if f == nil {
			f = &modelFile{last: map[uint64]uint64{}}
			w.files[typ] = f
		}
		for _, id := range slices.SortedFunc(maps.Keys(pending), queue.ID.Compare) {
			switch last := f.last[id.Producer()]; {
			case id.N() > last+1:
				continue // held back
			case id.N() == last+1:
				f.last[id.Producer()] = id.N()
				f.got = append(f.got, pending[id])
			}
			delete(pending, id)
		}
	}
}

// declareGaps lets the files continue after numbers that have not arrived.
func (w *planWorld) declareGaps() {
	for typ, pending := range w.messages {
		for len(pending) > 0 {
			first := slices.MinFunc(slices.Collect(maps.Keys(pending)), queue.ID.Compare)
			w.gaps += int(first.N() - w.files[typ].last[first.Producer()] - 1)
			w.files[typ].last[first.Producer()] = first.N() - 1
			w.consume()
		}
	}
}

// check reports what is wrong at the end, when everything was due, promoted and consumed.
func (w *planWorld) check() error {
	w.consume()
	w.declareGaps()
	if w.gaps > len(w.letters) {
		w.faults = append(w.faults, fmt.Sprintf("%d numbers are left out, with %d dead letters", w.gaps, len(w.letters)))
	}
	for _, typ := range []string{"audit", "orders"} {
		var got, want []string
		if f := w.files[typ]; f != nil {
			got = f.got
		}
		for _, m := range w.published {
			if m.Type != typ {
				continue
			}
			inFile := slices.Contains(got, string(m.Payload))
			_, letter := w.letters[m.ID]
			gone := w.cancelled[m.ID] || w.uncertain[m.ID] && !inFile
			switch {
			case w.buried(&m) && w.lifted:
				if !inFile && !letter && !gone {
					w.faults = append(w.faults, fmt.Sprintf("%s is neither in the file nor a dead letter", m.Payload))
				}
				if inFile {
					want = append(want, string(m.Payload))
				}
			case letter && (!w.buried(&m) || w.cancelled[m.ID]):
				w.faults = append(w.faults, fmt.Sprintf("%s is a dead letter", m.Payload))
			case w.buried(&m) && !letter && !w.cancelled[m.ID] && !w.uncertain[m.ID]:
				w.faults = append(w.faults, fmt.Sprintf("%s is no dead letter", m.Payload))
			case !w.buried(&m) && !gone:
				want = append(want, string(m.Payload))
			}
		}
		if !slices.Equal(got, want) {
			w.faults = append(w.faults, fmt.Sprintf("the file of %s has %v, want %v", typ, got, want))
		}
	}
	for slot, d := range w.delayed {
		if !d.cancelled {
			w.faults = append(w.faults, fmt.Sprintf("%v is still there", slot))
		}
	}
	if len(w.faults) > 0 {
		return fmt.Errorf("%v", w.faults)
	}
	return nil
}

// step decides what happens to one operation; n is the number of items that it is about.
func (w *planWorld) step(n int) (keep int, err error) {
	if w.before == nil {
		return n, nil
	}
	switch w.before(w) {
	case lost:
		return -1, errNoAnswer
	case lostAnswer:
		return n, errNoAnswer
	case half:
		return n / 2, errNoAnswer
	}
	return n, nil
}

// write is step for changes. One that is not acknowledged may be rolled back until a later one is.
func (w *planWorld) write(n int) (keep int, err error) {
	keep, err = w.step(n)
	switch {
	case err == nil:
		w.undurable = nil
	case keep > 0 && w.undurable == nil:
		was := *w
		was.delayed, was.notes, was.letters, was.dropped = maps.Clone(w.delayed), maps.Clone(w.notes), maps.Clone(w.letters), maps.Clone(w.dropped)
		was.messages = map[string]map[queue.ID]string{}
		for typ, pending := range w.messages {
			was.messages[typ] = maps.Clone(pending)
		}
		w.undurable = &was
	}
	return keep, err
}

// failOver rolls back what no majority has.
func (w *planWorld) failOver() {
	was := w.undurable
	if was == nil {
		return
	}
	w.plan, w.delayed, w.notes, w.letters, w.messages, w.dropped, w.undurable = was.plan, was.delayed, was.notes, was.letters, was.messages, was.dropped, nil
}

func (w *planWorld) steady() time.Duration { return time.Duration(w.clock.UnixNano()) }

func (w *planWorld) readPlan(context.Context) (plan, bool, error) {
	if _, err := w.step(1); err != nil || w.plan == nil {
		return plan{}, false, err
	}
	p := *w.plan
	p.items, p.letters, p.sequences = slices.Clone(p.items), slices.Clone(p.letters), maps.Clone(p.sequences)
	return p, true, nil
}

func (w *planWorld) createPlan(_ context.Context, p plan) error {
	keep, err := w.write(1)
	if keep > 0 && w.plan == nil {
		w.plan = &p
	}
	return err
}

func (w *planWorld) swapPlan(_ context.Context, version string, p plan) (bool, error) {
	keep, err := w.write(1)
	swapped := keep > 0 && w.plan != nil && w.plan.version == version
	if swapped {
		w.plan = &p
	}
	return swapped && err == nil, err
}

func (w *planWorld) dueUntil(_ context.Context, until time.Time, limit queue.Limit) (out []delayed, err error) {
	if _, err := w.step(1); err != nil {
		return nil, err
	}
	for _, slot := range slices.SortedFunc(maps.Keys(w.delayed), queue.ScheduleKey.Compare) {
		if !slot.Due.After(until) && len(out) < limit.Messages {
			d := w.delayed[slot]
			_, d.unfit = queuedriver.DecideDue(&d.Message, len(d.Payload))
			out = append(out, d)
		}
	}
	return out, nil
}

func (w *planWorld) delayedAt(_ context.Context, slots []queue.ScheduleKey) (out []delayed, err error) {
	if _, err := w.step(1); err != nil {
		return nil, err
	}
	for _, slot := range slots {
		if d, ok := w.delayed[slot]; ok {
			out = append(out, d)
		}
	}
	return out, nil
}

func (w *planWorld) existing(ctx context.Context, slots []queue.ScheduleKey) ([]queue.ScheduleKey, error) {
	there, err := w.delayedAt(ctx, slots)
	return slotsOf(there), err
}

func (w *planWorld) settled(_ context.Context, ids []queue.ID) (map[queue.ID]bool, error) {
	if _, err := w.step(1); err != nil {
		return nil, err
	}
	known := map[queue.ID]bool{}
	for _, id := range ids {
		_, known[id] = w.notes[id]
	}
	return known, nil
}

func (w *planWorld) settle(_ context.Context, ids []queue.ID, passed time.Duration) error {
	keep, err := w.write(len(ids))
	for _, id := range ids[:max(keep, 0)] {
		if _, noted := w.notes[id]; !noted {
			w.notes[id] = passed
		}
	}
	return err
}

func (w *planWorld) forget(_ context.Context, before time.Duration) {
	maps.DeleteFunc(w.notes, func(_ queue.ID, passed time.Duration) bool { return passed < before })
}

func (w *planWorld) cancel(_ context.Context, slots []queue.ScheduleKey) error {
	keep, err := w.write(len(slots))
	for _, slot := range slots[:max(keep, 0)] {
		if d, ok := w.delayed[slot]; ok {
			d.cancelled = true
			w.delayed[slot] = d
		}
	}
	return err
}

func (w *planWorld) remove(_ context.Context, slots []queue.ScheduleKey) error {
	keep, err := w.write(len(slots))
	for _, slot := range slots[:max(keep, 0)] {
		planned := w.plan != nil && slices.Contains(w.plan.slots(), slot)
		_, letter := w.letters[slot.ID]
		if d := w.delayed[slot]; d.cancelled && !planned && !letter && !w.inserted[string(d.Payload)] {
			w.dropped[slot.ID] = true
		}
		delete(w.delayed, slot)
	}
	return err
}

// planWorldStore is the world as seen by one promoter.
type planWorldStore struct {
	*planWorld
	ahead *time.Duration // its clock
}

func (w planWorldStore) now() time.Time { return w.clock.Add(*w.ahead) }

func (w planWorldStore) publish(_ context.Context, typ string, msgs []queue.Message) error {
	keep, err := w.write(len(msgs))
	if w.messages[typ] == nil {
		w.messages[typ] = map[queue.ID]string{}
	}
	for i, m := range msgs[:max(keep, 0)] {
		body := fmt.Sprint(typ, string(m.Payload), m.Headers)
		if other, sent := w.under[m.ID]; sent && other != body {
			w.faults = append(w.faults, fmt.Sprintf("%s was sent under the ID of %s", body, other))
		}
		w.under[m.ID] = body
		if w.refuses(&m) {
			if err != nil {
				return err
			}
			return &queue.InsertError{Stored: i, Refused: true, Err: &documentError{why: "not this one", err: errNoAnswer}}
		}
		number := fmt.Sprint(typ, m.ID.Producer(), m.ID.N())
		if other, given := w.numbers[number]; given && other != string(m.Payload) {
			w.faults = append(w.faults, fmt.Sprintf("number %d of %s is that of %s and of %s", m.ID.N(), typ, other, m.Payload))
		}
		w.numbers[number] = string(m.Payload)
		w.messages[typ][m.ID] = string(m.Payload)
		w.inserted[string(m.Payload)] = true
		for _, p := range w.published {
			if string(p.Payload) == string(m.Payload) && p.Due.After(w.clock) {
				w.faults = append(w.faults, fmt.Sprintf("%s was promoted early", m.Payload))
			}
		}
	}
	return err
}

func (w planWorldStore) takes(_ context.Context, m *queue.Message) (bool, error) {
	_, err := w.step(1)
	return err == nil && !w.refuses(m), err
}

func (w planWorldStore) bury(_ context.Context, _ string, letters []queue.DeadLetter) error {
	keep, err := w.write(len(letters))
	for _, l := range letters[:max(keep, 0)] {
		w.letters[l.ID] = string(l.Payload)
	}
	return err
}

func (w planWorldStore) keep(slot queue.ScheduleKey) {
	w.faults = append(w.faults, fmt.Sprintf("%v is kept", slot))
}

func (w *planWorld) promoter() *promoter {
	return &promoter{store: planWorldStore{w, new(time.Duration)}}
}

// promoteAll lets one promoter work until nothing is due. An error does not stop it, unless it dies of the error.
func (w *planWorld) promoteAll(p *promoter, dies bool) {
	for range 50 {
		n, _, err := p.promote(context.Background(), queue.Limit{Messages: 3})
		if err == nil && n == 0 || err != nil && dies {
			return
		}
	}
}

// end lets everything become due and succeed.
func (w *planWorld) end() error {
	w.before = nil
	w.clock = w.clock.Add(2 * time.Minute)
	w.consume()
	w.declareGaps() // half a minute
	w.promoteAll(w.promoter(), false)
	w.publish() // the last retry
	w.promoteAll(w.promoter(), false)
	return w.check()
}

// interruptions plays every way in which one operation of a promoter can fail, one each, until there is no further operation.
func interruptions() (scenarios int, err error) {
	for _, world := range []func() *planWorld{newPlanWorld, newRefusingWorld} {
		for _, lifts := range []bool{false, true} {
			n, err := interruptionsOf(world, lifts)
			if scenarios += n; err != nil {
				return scenarios, err
			}
		}
	}
	return scenarios, nil
}

// interruptionsOf plays those of one world. lifts: the server accepts everything after the interruption.
func interruptionsOf(world func() *planWorld, lifts bool) (scenarios int, err error) {
	for _, f := range []fault{works, lost, lostAnswer, half} {
		for _, dies := range []bool{false, true} {
			for _, others := range []bool{false, true} {
				for at := 0; ; at++ {
					w := world()
					operation := 0
					w.before = func(w *planWorld) fault {
						if operation++; operation-1 != at {
							return works
						}
						if others { // this promoter is paused: another one does everything, and the files get it
							w.before = nil
							w.promoteAll(w.promoter(), false)
							w.consume()
							w.publish()
						}
						if lifts && len(w.refused) > 0 {
							w.lifted = true
						}
						return f
					}
					w.promoteAll(w.promoter(), dies)
					if operation <= at {
						break
					}
					w.consume()
					scenarios++
					if err := w.end(); err != nil {
						return scenarios, fmt.Errorf("operation %d, fault %d, dies %v, others %v, lifted %v: %w", at, f, dies, others, lifts, err)
					}
					if f == works && !others && w.gaps > 0 {
						return scenarios, fmt.Errorf("%d numbers are left out, and nothing has gone wrong", w.gaps)
					}
				}
			}
		}
	}
	return scenarios, nil
}

// turmoil lets promoters, a canceller, the publisher and the consumer interfere with each other at random.
func turmoil(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := newPlanWorld()
	if seed%2 == 1 {
		w = newRefusingWorld()
	}
	depth := 0
	cancel := func() {
		victim := w.published[rng.IntN(len(w.published))]
		n, err := w.promoter().cancel(context.Background(), []queue.ScheduleKey{queue.ScheduleKeyOf(&victim)})
		switch {
		case err != nil:
			w.uncertain[victim.ID] = true
		case n == 1, w.dropped[victim.ID]: // a promoter that saw the mark may be faster, and then it is not counted
			w.cancelled[victim.ID] = true
		}
	}
	promoters := []*promoter{w.promoter(), w.promoter(), w.promoter()}
	w.before = func(w *planWorld) fault {
		if depth < 3 && rng.IntN(6) == 0 {
			depth++
			switch rng.IntN(6) {
			case 0, 1:
				w.promoteAll(promoters[rng.IntN(3)], rng.IntN(2) == 0)
			case 2:
				cancel()
			case 3:
				w.consume()
			case 4:
				w.publish()
			case 5:
				w.failOver()
			}
			depth--
		}
		if rng.IntN(8) == 0 {
			return fault(rng.IntN(4))
		}
		return works
	}
	for range 4 {
		w.promoteAll(promoters[rng.IntN(3)], rng.IntN(2) == 0)
		w.clock = w.clock.Add(20 * time.Second)
	}
	if err := w.end(); err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	return nil
}

// TestPromotingSurvivesEveryInterruption: an operation of a promoter fails, with its full effect, none, or half of it; the promoter dies or
// continues, or is paused there while another one does its work. The server refuses some messages, permanently or temporarily, and a
// failover rolls back what no majority has. Every delayed message is in its file once, in order, and not early, or a dead letter once. No
// number has two messages, and none is left out unless a message was refused after its promoter was interrupted.
func TestPromotingSurvivesEveryInterruption(t *testing.T) {
	race.Skip(t)
	n, err := interruptions()
	if err != nil || n < 1200 {
		t.Fatalf("%d scenarios, %v", n, err)
	}
	for seed := range uint64(2000) {
		if err := turmoil(seed); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRefusedEverythingBuriesNothing: a server that refuses every message is misconfigured. Whenever it accepts messages again, all are
// promoted, in order.
func TestRefusedEverythingBuriesNothing(t *testing.T) {
	for at := 0; ; at++ {
		w := newPlanWorld()
		operation := 0
		w.before = func(w *planWorld) fault {
			w.refusesAll = operation < at
			operation++
			return works
		}
		p := w.promoter()
		var err error
		for looks := 0; looks < 3 && err == nil; looks++ {
			_, _, err = p.promote(t.Context(), queue.Limit{Messages: 3})
		}
		if at > operation {
			if err == nil || !strings.Contains(err.Error(), "validator") {
				t.Errorf("while everything is refused: %v; want an error that names what to look at", err)
			}
			return
		}
		w.refusesAll = false
		if err := w.end(); err != nil || len(w.letters) > 0 || w.gaps > 0 {
			t.Fatalf("everything was refused before operation %d: %d dead letters, %d numbers are left out, %v", at, len(w.letters), w.gaps, err)
		}
	}
}

// TestRequeuedLetterIsNotBuriedAgain: a promoter dies before it removes the delayed message, and the letter is requeued meanwhile.
func TestRequeuedLetterIsNotBuriedAgain(t *testing.T) {
	requeued := 0
	for at := 0; ; at++ {
		w := newRefusingWorld()
		operation := 0
		w.before = func(*planWorld) fault {
			if operation++; operation > at {
				return lost
			}
			return works
		}
		w.promoteAll(w.promoter(), true)
		if operation <= at {
			break
		}
		gone := map[queue.ID]bool{}
		for id := range w.letters {
			if _, noted := w.notes[id]; noted {
				gone[id] = true
				delete(w.letters, id)
				requeued++
			}
		}
		_ = w.end() // which misses those letters
		for id := range w.letters {
			if gone[id] {
				t.Fatalf("%v is a dead letter again, after an interruption at operation %d", id, at)
			}
		}
	}
	if requeued == 0 {
		t.Error("no letter was requeued")
	}
}

// TestPlannedMessageThatCannotBeRead: an earlier version that could read it has planned it and died. It is neither promoted nor removed.
func TestPlannedMessageThatCannotBeRead(t *testing.T) {
	w := newPlanWorld()
	whole, pieces := w.published[0], w.published[1]
	if whole.Type != pieces.Type {
		t.Fatal("they are of two types")
	}
	pieces.Incomplete, pieces.Payload = true, nil
	w.delayed[queue.ScheduleKeyOf(&pieces)] = delayed{Message: pieces}
	var s queuedriver.Sequence
	w.plan = &plan{version: "1", sequences: map[string]queuedriver.Sequence{}}
	for _, m := range []queue.Message{whole, pieces} {
		w.plan.items = append(w.plan.items, planItem{queue.ScheduleKeyOf(&m), s.Next(queuedriver.Moment{Now: w.clock})})
	}
	w.plan.sequences[whole.Type] = s
	if _, _, err := w.promoter().head(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.messages[whole.Type]; len(got) != 1 {
		t.Errorf("%d messages, want the one that is whole", len(got))
	}
	for m, settled := range map[*queue.Message]bool{&whole: true, &pieces: false} {
		_, there := w.delayed[queue.ScheduleKeyOf(m)]
		if _, noted := w.notes[m.ID]; there == settled || noted != settled {
			t.Errorf("message %s (%v): it is there: %v, it is noted as settled: %v", m.Payload, settled, there, noted)
		}
	}
}

// TestClocksOfPromotersDoNotMatter: promoters whose clocks are minutes or days apart and are set repeatedly, promoters that restart,
// publishers that retry for hours: nothing is promoted twice, and everything in order.
func TestClocksOfPromotersDoNotMatter(t *testing.T) {
	aheads := []time.Duration{-48 * time.Hour, -15 * time.Minute, 0, 0, 15 * time.Minute, 48 * time.Hour}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newPlanWorld()
		clear(w.delayed)
		for i := range w.published {
			w.published[i].Due = w.clock.Add(-100 * time.Hour) // by all clocks
		}
		slices.SortFunc(w.published, func(a, b queue.Message) int { return queue.ScheduleKeyOf(&a).Compare(queue.ScheduleKeyOf(&b)) })
		w.publish()
		end := w.clock.Add(queue.MaxRepeatFor)
		var promoters []*promoter
		for w.clock.Before(end) {
			if len(promoters) == 0 || rng.IntN(10) == 0 {
				promoters = append(promoters, w.promoter())
			}
			p := promoters[rng.IntN(len(promoters))]
			if rng.IntN(2) == 0 {
				*p.store.(planWorldStore).ahead = aheads[rng.IntN(len(aheads))]
			}
			if _, _, err := p.promote(t.Context(), queue.Limit{Messages: 1}); err != nil {
				t.Fatal(err)
			}
			switch rng.IntN(6) {
			case 0:
				w.consume()
			case 1:
				w.publish()
			}
			w.clock = w.clock.Add([]time.Duration{time.Millisecond, time.Second, 2 * time.Minute, time.Hour}[rng.IntN(4)])
		}
		w.publish()
		w.promoteAll(w.promoter(), false)
		if err := w.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestPromoterCountsTheTimeThatPasses: a promoter that has observed how long the numbers have rested needs no clock; a new one does, unless
// it has to finish another's plan.
func TestPromoterCountsTheTimeThatPasses(t *testing.T) {
	w := newPlanWorld()
	for i := range w.published {
		w.published[i].Type, w.published[i].Due = "orders", w.clock.Add(-100*time.Hour)
	}
	clear(w.delayed)
	w.publish()
	last := map[uint64]uint64{} // last number by producer number
	promote := func(p *promoter, ahead time.Duration) (producer uint64) {
		t.Helper()
		*p.store.(planWorldStore).ahead = ahead
		if n, _, err := p.promote(t.Context(), queue.Limit{Messages: 1}); n != 1 || err != nil {
			t.Fatalf("promoted %d, %v", n, err)
		}
		id := slices.MaxFunc(slices.Collect(maps.Keys(w.messages["orders"])), queue.ID.Compare)
		if id.N() != last[id.Producer()]+1 {
			t.Fatalf("the last one is number %d of %016x, want %d", id.N(), id.Producer(), last[id.Producer()]+1)
		}
		last[id.Producer()]++
		return id.Producer()
	}
	a, b := w.promoter(), w.promoter()
	first := promote(a, 0)
	w.clock = w.clock.Add(time.Second)
	if p := promote(a, time.Hour); p != first {
		t.Error("another producer number after a second, as the clock was set an hour ahead")
	}
	w.clock = w.clock.Add(2 * time.Minute)
	second := promote(a, 0)
	if second == first {
		t.Error("the same producer number after two minutes, as the clock was set an hour back")
	}
	w.clock = w.clock.Add(time.Second)
	if p := promote(b, -time.Hour); p != second {
		t.Error("another producer number, because another promoter's clock is behind")
	}
	w.clock = w.clock.Add(2 * time.Minute)
	if p := promote(a, 0); p != second {
		t.Error("another producer number from a promoter that had to finish another's plan")
	}
	w.clock = w.clock.Add(2 * time.Hour)
	w.plan.version, w.plan.items = "another", nil
	if p := promote(b, 0); p == second {
		t.Error("the same producer number after two hours by the clock")
	}
	if seen := 2*time.Minute + time.Second; w.plan.passed != seen {
		t.Errorf("%v are counted, want %v: nothing that only a clock says", w.plan.passed, seen)
	}
}
