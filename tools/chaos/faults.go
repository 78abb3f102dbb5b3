//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// fault is one kind of fault.
type fault struct {
	name    string
	mongodb bool     // it has no equivalent on the embedded backend
	stores  []string // only makes sense with files in these stores; nil: in any
	// do causes the fault, and undoes it before it returns: after its duration, or earlier when ctx ends. It returns what it
	// did; "" means that there was no target.
	do func(ctx context.Context, r *run, rng *rand.Rand) (what string, err error)
}

// The targets of faults.
const (
	holder    = "holder"
	standby   = "standby"
	producing = "producer"
)

// pick chooses a member for a role. It looks up the holder of a type; without a timely answer it takes any worker.
func (r *run) pick(ctx context.Context, rng *rand.Rand) (m *member, role string) {
	role = []string{holder, holder, standby, producing}[rng.IntN(4)]
	typ, any := r.types[rng.IntN(len(r.types))], r.workers[rng.IntN(len(r.workers))]
	if role == producing {
		return r.producers[rng.IntN(len(r.producers))], role
	}
	holding := r.holder(ctx, typ)
	switch {
	case holding == nil:
		return any, "worker"
	case role == holder:
		return holding, "holder of " + typ
	case any == holding:
		return any, "holder of " + typ
	}
	return any, "standby of " + typ
}

// lasting returns the duration of a fault that outlives leases: from half a lease to three.
func (r *run) lasting(rng *rand.Rand) time.Duration {
	return time.Duration((0.5 + 2.5*rng.Float64()) * float64(r.lease))
}

// short returns the duration of a fault that need not outlive leases.
func (r *run) short(rng *rand.Rand) time.Duration {
	return time.Duration((0.1 + 0.4*rng.Float64()) * float64(r.lease))
}

var (
	kill = fault{name: "kill", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		did, err := m.kill()
		if !did {
			return "", err
		}
		return fmt.Sprintf("SIGKILL %s, %s", m.name, role), nil
	}}

	freeze = fault{name: "freeze", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		d := r.lasting(rng)
		did, err := m.freeze()
		if err == nil {
			wait(ctx, d)
		}
		if terr := m.thaw(); err == nil {
			err = terr
		}
		if !did {
			return "", err
		}
		return fmt.Sprintf("freeze %s, %s, for %v", m.name, role, d), err
	}}

	network = fault{name: "network", mongodb: true, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		if m.link == nil {
			return "", nil
		}
		links, to := []*link{m.link}, "the server"
		if m.store != nil && m.store != m.link {
			switch rng.IntN(3) {
			case 0:
				links, to = []*link{m.store}, "the store"
			case 1:
				links, to = []*link{m.link, m.store}, "server and store"
			}
		}
		set := func(change func(*link)) {
			for _, l := range links {
				l.set(change)
			}
		}
		sever := func(stay bool) {
			for _, l := range links {
				l.sever(stay)
			}
		}
		d := r.lasting(rng)
		var what string
		switch rng.IntN(7) {
		case 0:
			what = "cut"
			sever(true)
		case 1:
			what = "silence both ways"
			set(func(l *link) { l.stalled = [2]bool{true, true} })
		case 2:
			what = "silence on the way there"
			set(func(l *link) { l.stalled[toServer] = true })
		case 3:
			what = "silence on the way back"
			set(func(l *link) { l.stalled[toClient] = true })
		case 4:
			delay := time.Duration(rng.Int64N(int64(r.lease / 4)))
			what = fmt.Sprintf("latency of %v", delay)
			set(func(l *link) { l.delay = delay })
		case 5:
			what = "connections reset, and closed late"
			set(func(l *link) { l.linger = r.lease })
			sever(false)
		case 6:
			what = "silence, then a cut"
			set(func(l *link) { l.stalled = [2]bool{true, true} })
			wait(ctx, d/2)
			sever(true)
		}
		wait(ctx, d)
		for _, l := range links {
			l.heal()
		}
		return fmt.Sprintf("%s between %s, %s, and %s for %v", what, m.name, role, to, d), nil
	}}

	answers = fault{name: "answers", mongodb: true, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		if m.link == nil {
			return "", nil
		}
		n := 1 + rng.IntN(5)
		if rng.IntN(2) == 0 {
			m.link.set(func(l *link) { l.drops = n })
			return fmt.Sprintf("%d answers to %s, %s, lost after their requests were executed", n, m.name, role), nil
		}
		late := r.lasting(rng)
		m.link.set(func(l *link) { l.lates, l.late = n, late })
		return fmt.Sprintf("%d requests of %s, %s, delivered %v late", n, m.name, role, late), nil
	}}

	serverPause = fault{name: "server", mongodb: true, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		if r.server == nil {
			return "", nil
		}
		// One at a time. A fault that has begun is undone, even if ctx has ended.
		if !r.harming.TryLock() {
			return "", nil
		}
		defer r.harming.Unlock()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		d := r.lasting(rng)
		if rng.IntN(3) > 0 {
			if err := r.server.Pause(bounded); err != nil {
				return "", err
			}
			wait(ctx, d)
			return fmt.Sprintf("server paused for %v", d), r.server.Unpause(bounded)
		}
		if err := r.server.Kill(bounded); err != nil {
			return "", err
		}
		wait(ctx, d/3)
		return fmt.Sprintf("server killed, and started again after %v", d/3), r.server.Start(bounded)
	}}

	release = fault{name: "locks", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		typ := r.types[rng.IntN(len(r.types))]
		if r.locks != nil && rng.IntN(2) == 0 {
			bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			deleted := false
			if err := r.administrator.Deleted(typ, func() (bool, error) {
				result, err := r.locks.DeleteOne(bounded, bson.D{{Key: "_id", Value: typ}})
				deleted = err == nil && result.DeletedCount > 0
				return deleted, err
			}); err != nil || !deleted {
				return "", nil // unreachable, or not locked yet
			}
			return "lock of " + typ + " deleted", nil
		}
		if err := r.fencepost(ctx, "locks", "release", "--force", "--why", "chaos", typ); err != nil {
			return "", nil
		}
		return "fencepost locks release --force " + typ, nil
	}}

	pause = fault{name: "types", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		typ := r.types[rng.IntN(len(r.types))]
		args := []string{"types", "pause", "--why", "chaos", typ}
		switch rng.IntN(3) {
		case 0:
			args = append(args, "--drain")
		case 1:
			args = append(args, "--publish")
		}
		d := r.lasting(rng)
		_ = r.fencepost(ctx, args...) // it may have taken effect even if it failed
		wait(ctx, d)
		// rule: a run resumes what it pauses, or nothing would be drained.
		resuming := context.WithoutCancel(ctx)
		err := r.fencepost(resuming, "types", "resume", typ)
		for try := 0; err != nil && try < 20; try++ {
			wait(resuming, 200*time.Millisecond)
			err = r.fencepost(resuming, "types", "resume", typ)
		}
		return fmt.Sprintf("fencepost %s, resumed after %v", args[1:], d), err
	}}

	scale = fault{name: "scale", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m := r.workers[rng.IntN(len(r.workers))]
		if rng.IntN(4) == 0 {
			for _, m := range r.workers {
				if ctx.Err() != nil {
					break
				}
				m.stop(stopWithin)
				if err := m.up(); err != nil {
					return "", err
				}
			}
			return "rolling restart", nil
		}
		d := r.lasting(rng)
		m.stop(stopWithin)
		wait(ctx, d)
		return fmt.Sprintf("%s stopped, started again after %v", m.name, d), m.up()
	}}

	unplug = fault{name: "unplug", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		d := r.lasting(rng)
		plug, err := m.unplug()
		if err != nil || plug == nil {
			return "", err // a producer, which has no host, or a host that is already off the network
		}
		wait(ctx, d)
		return fmt.Sprintf("host of %s, %s, off the network for %v", m.name, role, d), plug()
	}}

	stepDown = fault{name: "election", mongodb: true, do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		if !r.harming.TryLock() {
			return "", nil
		}
		defer r.harming.Unlock()
		// The connection may be lost with the answer.
		_ = r.locks.Database().Client().Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "force", Value: true}}).Err()
		wait(ctx, r.lasting(rng))
		return "primary stepped down", nil
	}}

	clockJump = fault{name: "clock", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		m, role := r.pick(ctx, rng)
		by := rng.Int64N(7201) - 3600
		if err := os.WriteFile(r.clock(m), fmt.Append(nil, by), 0o600); err != nil {
			return "", err
		}
		wait(ctx, r.short(rng))
		return fmt.Sprintf("wall clock of %s, %s, jumps to %+d s", m.name, role, by), nil
	}}

	diskFull = fault{name: "disk full", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		if r.disk == nil {
			return "", nil
		}
		d := r.lasting(rng)
		undo, err := r.disk.fill()
		if err != nil {
			return "", err
		}
		wait(ctx, d)
		return fmt.Sprintf("disk full for %v", d), undo()
	}}

	diskStuck = fault{name: "disk stuck", do: func(ctx context.Context, r *run, rng *rand.Rand) (string, error) {
		if r.disk == nil || !r.harming.TryLock() {
			return "", nil
		}
		defer r.harming.Unlock()
		once := func(d time.Duration) error {
			if err := r.disk.freeze(); err != nil {
				return err
			}
			wait(ctx, d)
			return r.disk.thaw()
		}
		if rng.IntN(2) == 0 {
			d := r.lasting(rng)
			return fmt.Sprintf("disk stuck for %v", d), once(d)
		}
		n := 3 + rng.IntN(8)
		for range n {
			if err := once(r.short(rng) / 3); err != nil {
				return "", err
			}
			wait(ctx, r.short(rng)/3)
		}
		return fmt.Sprintf("slow disk, stuck %d times for a moment", n), nil
	}}
)

// stopWithin bounds a clean stop: the workers' own grace period is shorter.
const stopWithin = time.Minute

// fencepost runs the product's own tool against the run's backend, without a link.
func (r *run) fencepost(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.programs.path("fencepost"), append(args, "--url", r.url)...)
	cmd.Env = r.env(nil)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fencepost %v: %w: %s", args, err, out)
	}
	return nil
}
