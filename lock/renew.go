package lock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

// When is a lease renewed? A fifth of it after the last renewal was sent. One goroutine per Locker
// (keepRenewing) has the schedule of all leases. It renews those that are due together with those
// that are due soon, in one command if the store is a [BatchRenewer]:
//
//	due ──► a batch: leases of the same length
//	          ├─ all of them found ──► due again after a fifth of the lease
//	          ├─ no clear answer ──► the same again, with more time
//	          │     └─ no clear answer ──► each by itself
//	          └─ fewer ──► parts of it, in the same way
//	                └─ fewer ──► each by itself: renewed, lost, or tried again until its deadline
//
// The leases of a batch are equally long, so they have the same interval and timeout. Each batch
// runs on its own goroutine. If one hangs, it delays its own leases only, and not longer than a
// single renewal that hangs would.

const (
	renewalsPerLease = 5
	batchPart        = 45                           // about the root of MaxRenewals, so that one lost lease costs a full batch few commands more
	notDue           = time.Duration(math.MaxInt64) // of a lease whose renewal is under way
)

// renewalWindow is how much earlier than due a lease may be renewed to join a batch. It is half of
// the interval: so leases that were once in one batch stay together, and two batches that are not
// full are at least that far apart.
func renewalWindow(lease time.Duration) time.Duration { return lease / renewalsPerLease / 2 }

// renewAfter schedules the next renewal of a lease, unless it has ended. sent is when the operation
// that granted or last renewed it was sent. The caller is counted in l.wg.
func (l *Locker) renewAfter(le *Lease, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leases[le.hold.ID] != le {
		return // it has ended
	}
	le.due = sent + le.hold.Lease/renewalsPerLease
	switch {
	case !l.renewing:
		l.renewing = true
		l.wg.Add(1)
		go l.keepRenewing()
	case le.due < l.nextRenewal:
		l.wakeRenewer()
	}
}

// wakeRenewer makes keepRenewing look at the schedule again.
func (l *Locker) wakeRenewer() {
	select {
	case l.renewWake <- struct{}{}:
	default: // it is about to look anyway
	}
}

// keepRenewing renews all leases of the Locker until none is left; renewAfter starts it again.
func (l *Locker) keepRenewing() {
	defer l.wg.Done()
	for {
		due, next, ok := l.takeDue()
		if !ok {
			return
		}
		if len(due) > 0 {
			l.inBackground(func() { l.renewBatch(due) })
			continue
		}
		var timer <-chan time.Time // nil, which blocks for ever, if all renewals are under way
		if next != notDue {
			timer = time.After(next - l.valid())
		}
		select {
		case <-timer:
		case <-l.renewWake:
		}
	}
}

// inBackground runs f on a goroutine that Close waits for. The caller is counted in l.wg.
func (l *Locker) inBackground(f func()) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		f()
	}()
}

// takeDue takes the next batch out of the schedule, the most overdue leases first. If none is due,
// next is when one will be. ok is false when the Locker has no lease.
func (l *Locker) takeDue() (batch []*Lease, next time.Duration, ok bool) {
	now := l.valid()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.leases) == 0 {
		l.renewing = false
		return nil, 0, false
	}
	var first *Lease
	for _, le := range l.leases {
		if first == nil || le.due < first.due {
			first = le
		}
	}
	l.nextRenewal = first.due
	if first.due > now {
		return nil, first.due, true
	}
	length, until := first.hold.Lease, now
	if l.batches != nil {
		until += renewalWindow(length)
	}
	for _, le := range l.leases {
		if le.hold.Lease == length && le.due <= until {
			batch = append(batch, le)
		}
	}
	if len(batch) > MaxRenewals {
		slices.SortFunc(batch, func(a, b *Lease) int { return cmp.Compare(a.due, b.due) })
		batch = batch[:MaxRenewals]
	}
	for _, le := range batch {
		le.due = notDue
	}
	return batch, 0, true
}

// renewBatch renews leases of the same length, with one command if possible. If the answer does not
// confirm all of them, it continues with parts of the batch, then with each lease by itself. Without a clear answer it tries once more.
func (l *Locker) renewBatch(batch []*Lease) {
	batch = slices.DeleteFunc(batch, func(le *Lease) bool {
		held, enough := le.held()
		if held && enough {
			l.inBackground(le.look)
		}
		return !held || enough
	})
	if l.batches == nil || len(batch) < 2 {
		l.renewEach(batch)
		return
	}
	renewals := make([]Renewal, len(batch))
	for i, le := range batch {
		renewals[i] = Renewal{Name: le.name, Hold: le.hold, Version: NewVersion()}
	}
	// rule: the deadline of every lease in a batch counts from the sending of the batch.
	sent := l.valid()
	found, err := renewal(l, shortestTimeout(batch), func(ctx context.Context) (int, error) {
		return l.batches.RenewMany(ctx, renewals)
	})
	// rule: a batch extends its leases only if all of them were found: it does not say which one was not.
	if err == nil && found == len(batch) {
		for _, le := range batch {
			le.extend(sent)
			l.renewAfter(le, sent)
		}
		l.hearRequests(batch)
		return
	}
	if err != nil {
		late := slices.ContainsFunc(batch, (*Lease).isLate)
		for _, le := range batch {
			le.renewalFailed(err)
		}
		if late { // there is no time for parts
			l.renewEach(batch)
			return
		}
		retry := newJitter(batch[0].hold.Lease / 20)
		pause(l.base.Done(), retry.Next())
		l.renewBatch(batch) // with more time: a slow store would be slower still with many commands
		return
	}
	// rule: what a batch did not confirm is renewed by smaller ones, and by single renewals in the end.
	if len(batch) <= batchPart {
		l.renewEach(batch)
		return
	}
	for part := range slices.Chunk(batch, batchPart) {
		l.inBackground(func() { l.renewBatch(part) })
	}
}

// isLate tells whether the last renewal of the lease has failed.
func (le *Lease) isLate() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.renewErr != nil
}

// renewEach renews leases with one command each, concurrently.
func (l *Locker) renewEach(leases []*Lease) {
	for _, le := range leases {
		l.inBackground(le.renew)
	}
}

// hearRequests finds out which of the holders were asked to release. An error does no harm: the next
// batch asks again.
func (l *Locker) hearRequests(batch []*Lease) {
	names := make([]string, len(batch))
	for i, le := range batch {
		names[i] = le.name
	}
	asked, err := call(l, l.base, opTimeout(batch[0].hold.Lease), func(ctx context.Context) (map[HoldID]string, error) {
		return l.batches.Requests(ctx, names)
	}, nil)
	if err != nil {
		return
	}
	for _, le := range batch {
		le.hear(asked[le.hold.ID])
	}
}

// renew renews one lease, retrying until a clear answer or the end of the lease.
func (le *Lease) renew() {
	retry := newJitter(le.hold.Lease / 20)
	for {
		// rule: the deadline counts from the sending: the store may have applied the renewal right then.
		sent := le.l.valid()
		r, err := renewal(le.l, le.renewalTimeout(), func(ctx context.Context) (renewed, error) {
			// rule: bound to the id, not to a version: the own earlier renewal, its answer lost, must not end the lease.
			asked, ok, err := le.l.store.Renew(ctx, le.name, le.hold, NewVersion())
			return renewed{asked, ok}, err
		})
		if err == nil && !r.ok {
			le.lose(le.whyGone())
			return
		}
		if err == nil {
			le.extend(sent)
			le.hear(r.asked)
			le.l.renewAfter(le, sent)
			return
		}
		le.renewalFailed(err)
		// rule: a failed renewal is tried again until the deadline, and no longer.
		if !pause(le.stop, retry.Next()) {
			return
		}
	}
}

// look finds out, without a renewal, what others have done with a lease that already lasts until its end: released it by force, or asked for it.
func (le *Lease) look() {
	sent := le.l.valid()
	r, err := le.record(opTimeout(le.hold.Lease))
	if err == nil {
		holds := r.Holds()
		i := slices.IndexFunc(holds, func(h Hold) bool { return h.ID == le.hold.ID })
		if i < 0 {
			le.renew() // a read may be stale; the answer to a renewal is not
			return
		}
		le.hear(holds[i].Asked)
	}
	le.l.renewAfter(le, sent)
}

// renewal calls the store. If the store has become slow, acquisitions learn that from an answer: they give up earlier
// than a renewal, and would never see one. Quick answers tell them nothing: acquisitions may wait for more.
func renewal[T any](l *Locker, timeout time.Duration, op func(context.Context) (T, error)) (T, error) {
	began := l.clock()
	v, err := call(l, l.base, timeout, op, nil)
	if end := l.clock(); err == nil && end-began > maxTimeout {
		l.pace.saw(began, end, true)
	}
	return v, err
}

// renewalTimeout bounds the next renewal of a lease.
//
// rule: one that follows a failed renewal has half of the time that is left. A slow store would answer all of them too
// late, one after another, until the lease is lost.
func (le *Lease) renewalTimeout() time.Duration {
	least := opTimeout(le.hold.Lease)
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.renewErr == nil {
		return least
	}
	return max(least, (le.deadline-le.l.valid())/2)
}

// shortestTimeout bounds a renewal of some leases.
func shortestTimeout(batch []*Lease) time.Duration {
	least := batch[0].renewalTimeout()
	for _, le := range batch[1:] {
		least = min(least, le.renewalTimeout())
	}
	return least
}

// renewed is the answer to a renewal.
type renewed struct {
	asked string
	ok    bool
}

// renewalFailed counts an error of the store and keeps it, to be the Cause of a later LostError.
func (le *Lease) renewalFailed(err error) {
	le.l.stats.renewFailed.Add(1)
	le.mu.Lock()
	defer le.mu.Unlock()
	le.renewErr = err
}
