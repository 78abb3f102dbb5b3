package mongoqueue

import (
	"context"
	"slices"

	"github.com/fencepost/fencepost/queue"
)

// cancel removes delayed messages, except those already in a plan: they are being promoted.
func (p *promoter) cancel(ctx context.Context, slots []queue.ScheduleKey) (cancelled int, err error) {
	if err := p.store.cancel(ctx, slots); err != nil {
		return 0, err
	}
	head, err := p.fence(ctx)
	if err != nil {
		return 0, err
	}
	there, err := p.store.existing(ctx, slots)
	if err != nil {
		return 0, err
	}
	there = slices.DeleteFunc(there, func(slot queue.ScheduleKey) bool { return slices.Contains(head.slots(), slot) })
	ids := make([]queue.ID, len(there))
	for i, slot := range there {
		ids[i] = slot.ID
	}
	known, err := p.store.settled(ctx, ids)
	if err != nil {
		return 0, err
	}
	if err := p.store.settle(ctx, ids, head.passed); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if !known[id] { // else it is a late retry of a message promoted or cancelled before
			cancelled++
		}
	}
	if err := p.store.remove(ctx, there); err != nil {
		return 0, err
	}
	return cancelled, nil
}

// fence replaces the plan with an equal one under a new version. A promoter that read messages before
// this then fails to replace the plan, so it cannot promote anything cancelled now.
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
		}
		version := head.version
		head.version = newVersion()
		if swapped, err := p.store.swapPlan(ctx, version, head); err != nil || swapped {
			return head, err
		}
	}
}
