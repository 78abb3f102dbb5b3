package locktest

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/internal/transition"
)

var _ lock.BatchRenewer = (*memoryHandle)(nil)

// RenewMany is one call, whose Name is the number of renewals. Each of them is applied and observed as a [Renew].
func (h *memoryHandle) RenewMany(ctx context.Context, renewals []lock.Renewal) (found int, err error) {
	return deliver(ctx, h, RenewMany, fmt.Sprint(len(renewals)), func(fault Fault) (found int) {
		if fault.Half {
			renewals = renewals[:len(renewals)/2]
		}
		for _, r := range renewals {
			if ok, _ := h.m.apply(Renew, r.Name, transition.Renew(r.Hold, r.Version)); ok {
				found++
			}
		}
		return found
	}, func(d time.Duration) {
		for _, r := range renewals {
			h.m.rollBack(r.Name, d, transition.Renew(r.Hold, r.Version))
		}
	})
}

// Requests is one call, whose Name is the number of records queried.
func (h *memoryHandle) Requests(ctx context.Context, names []string) (map[lock.HoldID]string, error) {
	return deliver(ctx, h, Requests, fmt.Sprint(len(names)), func(Fault) map[lock.HoldID]string {
		asked := make(map[lock.HoldID]string)
		for _, name := range names {
			h.m.apply(Read, name, func(r *lock.Record, _ bool) bool {
				addRequests(asked, *r)
				return true
			})
		}
		return asked
	}, func(time.Duration) {})
}

// addRequests adds the requests to release in a record, by the ID of the hold.
func addRequests(asked map[lock.HoldID]string, r lock.Record) {
	for _, h := range r.Holds() {
		if h.Asked != "" {
			asked[h.ID] = h.Asked
		}
	}
}

// RenewMany records a batch as one Renew for each of its holds, all concurrent. If the store found fewer than all, the answer does not say
// which, nor why ([Fault.Half]): then all answers count as unclear. On a store without batches it renews one hold after the other.
func (r *Recorder) RenewMany(ctx context.Context, renewals []lock.Renewal) (found int, err error) {
	b, ok := r.Store.(lock.BatchRenewer)
	if !ok {
		for _, one := range renewals {
			if _, ok, err := r.Renew(ctx, one.Name, one.Hold, one.Version); err != nil {
				return found, err
			} else if ok {
				found++
			}
		}
		return found, nil
	}
	r.mu.Lock()
	first := r.n + 1
	for _, one := range renewals {
		r.n++
		r.write(Step{Process: r.process, N: r.n, At: r.clock(), Op: Renew, Name: one.Name, ID: id(one.Hold.ID), Permits: one.Hold.Permits})
	}
	r.mu.Unlock()
	found, err = b.RenewMany(ctx, renewals)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := found == len(renewals)
	for i := range renewals {
		r.write(Step{Process: r.process, N: first + int64(i), Done: true, At: r.clock(), OK: all && err == nil, Unclear: err != nil || !all})
	}
	return found, err
}

// Requests implements lock.BatchRenewer. It is a hint, and not part of the history.
func (r *Recorder) Requests(ctx context.Context, names []string) (map[lock.HoldID]string, error) {
	if b, ok := r.Store.(lock.BatchRenewer); ok {
		return b.Requests(ctx, names)
	}
	asked := make(map[lock.HoldID]string)
	for _, name := range names {
		rec, _, err := r.Store.Read(ctx, name)
		if err != nil {
			return nil, err
		}
		addRequests(asked, rec)
	}
	return asked, nil
}
