//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// Faults of the store that holds the files, and of the network to it.

// linked are the stores that workers reach through a link.
var linked = []string{"mongodb", "s3"}

// storing returns a worker, the holder of a type if it can be looked up.
func (r *run) storing(ctx context.Context, rng *rand.Rand) (m *member, role string) {
	typ, any := r.types[rng.IntN(len(r.types))], r.workers[rng.IntN(len(r.workers))]
	if m := r.holder(ctx, typ); m != nil {
		return m, "holder of " + typ
	}
	return any, "worker"
}

// ways returns the links of a member: to the server and to the store, if it has them.
func (m *member) ways() (links []*link) {
	for _, l := range []*link{m.link, m.store} {
		if l != nil {
			links = append(links, l)
		}
	}
	return links
}

// storeLinks chooses the link between the store and one worker, or all of them. name says which.
func (r *run) storeLinks(rng *rand.Rand) (links []*link, name string) {
	whom, name := r.workers, "all"
	if i := rng.IntN(2 * len(r.workers)); i < len(r.workers) {
		whom, name = r.workers[i:i+1], r.workers[i].name
	}
	for _, m := range whom {
		links = append(links, m.store)
	}
	return links, name
}

var (
	// late detains creates of a holder, and disturbs it while they are in flight. They are delivered up to three leases later.
	late = fault{name: "late creates", stores: linked, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.storing(ctx, rng)
		n, d := 1+rng.IntN(3), r.lasting(rng)
		what := []string{"kill", "freeze", "cut", "pause", "none"}[rng.IntN(5)]
		if what == "pause" {
			// The create waits before the store, on its connection, while the worker is frozen.
			m.store.set(func(l *link) { l.stalled[toServer] = true })
		} else {
			m.store.set(func(l *link) { l.creates, l.late = n, d })
			r.await(ctx, r.lease, func(context.Context) bool { return m.store.detained() })
		}
		var err error
		switch what {
		case "kill":
			_, err = m.kill()
		case "freeze", "pause":
			if _, err = m.freeze(); err == nil {
				wait(ctx, d)
			}
			err = errors.Join(err, m.thaw())
		case "cut":
			for _, l := range m.ways() {
				l.sever(true)
			}
			wait(ctx, d)
		case "none":
			wait(ctx, d)
		}
		for _, l := range m.ways() {
			l.heal()
		}
		return fmt.Sprintf("up to %d creates of %s, %s, delivered after %v (%s)", n, m.name, role, d, what), err
	}}

	storeAnswers = fault{name: "store answers", stores: linked, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.storing(ctx, rng)
		n := 1 + rng.IntN(5)
		if rng.IntN(2) == 0 {
			m.store.set(func(l *link) { l.spoils = n })
			return fmt.Sprintf("%d creates of %s, %s, executed and answered with an error", n, m.name, role), nil
		}
		m.store.set(func(l *link) { l.drops = n })
		return fmt.Sprintf("%d answers to %s, %s, lost after their requests to the store were executed", n, m.name, role), nil
	}}

	storeTrouble = fault{name: "store trouble", stores: linked, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		t, d := []trouble{unavailable, revoked, full}[rng.IntN(3)], r.lasting(rng)
		to, whom := r.storeLinks(rng)
		for _, l := range to {
			l.set(func(l *link) { l.deny = t })
		}
		wait(ctx, d)
		for _, l := range to {
			l.set(func(l *link) { l.deny = none })
		}
		return fmt.Sprintf("%s, for %s, for %v", t, whom, d), nil
	}}

	storeGone = fault{name: "store gone", stores: linked, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		d := r.lasting(rng)
		if rng.IntN(20) == 0 {
			d, ctx = time.Minute, context.WithoutCancel(ctx) // longer than any client retries, whatever the plan says
		}
		how := rng.IntN(4)
		to, whom := r.storeLinks(rng)
		for _, l := range to {
			switch how {
			case 0:
				l.sever(true)
			case 1:
				l.set(func(l *link) { l.stalled = [2]bool{true, true} })
			default:
				l.set(func(l *link) { l.stalled[how-2] = true })
			}
		}
		wait(ctx, d)
		for _, l := range to {
			l.heal()
		}
		what := []string{"cut", "silent both ways", "silent on the way there", "silent on the way back"}[how]
		return fmt.Sprintf("the way to the store %s for %s for %v", what, whom, d), nil
	}}

	storeSlow = fault{name: "store slow", stores: linked, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		delay, d := time.Duration(rng.Int64N(int64(r.lease/4))), r.lasting(rng)
		to, whom := r.storeLinks(rng)
		for _, l := range to {
			l.set(func(l *link) { l.delay = delay })
		}
		wait(ctx, d)
		for _, l := range to {
			l.set(func(l *link) { l.delay = 0 })
		}
		return fmt.Sprintf("latency of %v between the store and %s for %v", delay, whom, d), nil
	}}

	gatewayDown = fault{name: "gateway", stores: []string{"s3"}, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		if !r.objects.CanFail() || !r.harming.TryLock() {
			return "", nil
		}
		defer r.harming.Unlock()
		i, d := rng.IntN(len(r.objects.Targets)), r.lasting(rng)
		what, do := "frozen", r.objects.Freeze
		if rng.IntN(2) == 0 {
			what, do, d = "killed, and started again", r.objects.Kill, d/3
		}
		undo, err := do(i)
		if err != nil {
			return "", err
		}
		wait(ctx, d)
		return fmt.Sprintf("gateway %d %s, after %v", i+1, what, d), undo()
	}}

	readOnly = fault{name: "read-only", stores: []string{"shared"}, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.storing(ctx, rng)
		if m.node == nil || !r.harming.TryLock() {
			return "", nil
		}
		defer r.harming.Unlock()
		d := r.lasting(rng)
		var err error
		if !r.await(ctx, r.lease, func(context.Context) bool {
			err = m.node.ReadOnly(r.data, true)
			return err == nil || !errors.Is(err, syscall.EBUSY)
		}) {
			return "", nil // it writes all the time
		}
		if err != nil {
			return "", err
		}
		wait(ctx, d)
		return fmt.Sprintf("directory read-only for %s, %s, for %v", m.name, role, d), m.node.ReadOnly(r.data, false)
	}}
)
