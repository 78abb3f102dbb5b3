package lock

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

// When is a lease renewed? A fifth of its length after the last renewal was sent. One goroutine per
// Locker (keepRenewing) schedules all leases. It renews the leases that are due together with those
// due soon, in one command if the store is a [BatchRenewer]:
//
//	due ──► a batch: leases of the same length
//	          ├─ all found ──► due again after a fifth of the lease
//	          ├─ no clear answer ──► the same batch again, with more time
//	          │     └─ no clear answer ──► each lease by itself
//	          └─ fewer found ──► smaller batches, in the same way
//	                └─ fewer found ──► each lease by itself: renewed, lost, or retried until its deadline
//
// The leases of a batch are equally long, so they have the same interval and timeout. Each batch
// runs on its own goroutine. If one hangs, it delays only its own leases, and no longer than a single
// hanging renewal would.

const (
	renewalsPerLease = 5
	batchPart        = 45                           // about the square root of MaxRenewals, so that one lost lease costs a full batch few extra commands
	notDue           = time.Duration(math.MaxInt64) // of a lease whose renewal is under way
)

// renewalWindow is how much earlier than due a lease may be renewed to join a batch. It is half of
// the interval, so leases that were once in one batch stay together, and two batches that are not
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

// wakeRenewer makes keepRenewing check the schedule again.
func (l *Locker) wakeRenewer() {
	select {
	case l.renewWake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// keepRenewing renews all leases of the Locker until none is left; renewAfter restarts it.
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
		var timer <-chan time.Time // nil, which blocks forever, if all renewals are under way
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

// renewBatch renews leases of the same length, with one command if possible. If the answer does not confirm all of them, it
// continues with smaller batches, then with each lease by itself. Without a clear answer it retries the batch once.
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
	// rule: the deadline of every lease in a batch counts from the send of the batch.
	sent := l.valid()
	found, err := renewal(l, shortestTimeout(batch), func(ctx context.Context) (int, error) {
		return l.batches.RenewMany(ctx, renewals)
	})
	// rule: a batch extends its leases only if all of them were found: the answer does not say which were not.
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
		l.renewBatch(batch) // with more time: many commands would slow a slow store down further
		return
	}
	// rule: leases that a batch did not confirm are renewed in smaller batches, and finally one by one.
	if len(batch) <= batchPart {
		l.renewEach(batch)
		return
	}
	for part := range slices.Chunk(batch, batchPart) {
		l.inBackground(func() { l.renewBatch(part) })
	}
}

// isLate reports whether the last renewal of the lease has failed.
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

// hearRequests passes requests to release on to the holders of a batch. An error does no harm: the
// next batch queries again.
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
		// rule: the deadline counts from the send: the store may have applied the renewal right then.
		sent := le.l.valid()
		r, err := renewal(le.l, le.renewalTimeout(), func(ctx context.Context) (renewed, error) {
			// rule: bound to the id, not to a version: our own earlier renewal, if its answer was lost, must not end the lease.
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
		// rule: a failed renewal is retried until the deadline, and no longer.
		if !pause(le.stop, retry.Next()) {
			return
		}
	}
}

// look checks, without a renewal, whether a lease that already lasts until the end set by WithMaxHold was taken away, or
// its release was requested.
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

// renewal calls the store. If the store has become slow, it reports the slow answer to l.pace for acquisitions: their
// timeouts are shorter, so they would never see one. Fast answers are not reported, because an acquisition may wait for
// more than a renewal does.
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
// rule: a renewal that follows a failed one gets half of the remaining time. Otherwise a slow store would answer one
// retry after another too late, until the lease is lost.
func (le *Lease) renewalTimeout() time.Duration {
	least := opTimeout(le.hold.Lease)
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.renewErr == nil {
		return least
	}
	return max(least, (le.deadline-le.l.valid())/2)
}

// shortestTimeout is the shortest renewalTimeout of the leases in a batch.
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

// renewalFailed counts a store error and keeps it as the Cause of a later LostError.
func (le *Lease) renewalFailed(err error) {
	le.l.stats.renewFailed.Add(1)
	le.mu.Lock()
	defer le.mu.Unlock()
	le.renewErr = err
}
