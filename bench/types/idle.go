package types

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/server"
)

// States of the types of an idle replica, as they are shown.
const (
	stateNobody = "no replica"
	stateFree   = "nobody holds them"
	stateHolds  = "it holds them"
	stateOther  = "another one holds them"
)

// idle is the cost of a replica while nothing is published.
type idle struct {
	types, held int
	state       string
	queue, lock float64 // commands per second
	own, server float64 // cores that the replica and the server keep busy
	memory      float64 // bytes
}

func (i *idle) commands() float64 { return i.queue + i.lock }

// perType returns the memory per type, or per held type if the replica should hold all: some may have been lost.
func (i *idle) perType() float64 {
	if i.state == stateHolds {
		return i.memory / float64(max(i.held, 1))
	}
	return i.memory / float64(i.types)
}

// spans are the durations of the parts of the measurement of idle replicas.
type spans struct {
	settle time.Duration // until the effects of a start have ended
	calm   time.Duration // until a type that had messages counts as idle
	count  time.Duration
}

// patience bounds waits for events that must happen.
const patience = 15 * time.Minute

// serverProcesses are the programs of the servers that the tests use.
var serverProcesses = []string{"mongod", "mongos", "ferretdb", "postgres"}

// measureIdle also returns what the server does without any replica.
func (b *bench) measureIdle(ctx context.Context) (all []*idle, err error) {
	counts, s := []int{1, 16, 256, 2000, 10_000}, spans{settle: 5 * time.Second, calm: 35 * time.Second, count: 30 * time.Second}
	if b.o.Quick {
		counts, s = []int{1, 16}, spans{100 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond}
	}
	nobody := &idle{state: stateNobody}
	if err := count(ctx, s.count, nil, nobody); err != nil {
		return nil, err
	}
	all = []*idle{nobody}
	for _, n := range counts {
		b.o.Logf("idle: %d types", n)
		of, err := b.idle(ctx, n, s)
		if err != nil {
			return nil, fmt.Errorf("%d types: %w", n, err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// idle measures a replica whose types are free, then the same one when it holds them, then a second one beside it.
func (b *bench) idle(ctx context.Context, n int, s spans) (all []*idle, err error) {
	p, err := b.server.NewPlace(fmt.Sprintf("idle%d", n))
	if err != nil {
		return nil, err
	}
	if err := p.Clear(ctx); err != nil {
		return nil, err
	}
	g, err := startGroup(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.end()) }()
	if _, err := g.tell(order{Do: doOpen, URL: p.URI, Dir: p.Dir}); err != nil {
		return nil, err
	}
	before, err := g.tell(order{Do: doMemory})
	if err != nil {
		return nil, err
	}
	// step measures a replica in a state, after it had the time to reach it.
	step := func(state string, r int, wait time.Duration) error {
		if err := server.Sleep(ctx, wait); err != nil {
			return err
		}
		i := &idle{types: n, state: state}
		m, err := g[r].tell(order{Do: doMemory})
		if err != nil {
			return err
		}
		i.memory = float64(m.Memory) - float64(before[r].Memory)
		all = append(all, i)
		return count(ctx, s.count, g[r], i)
	}
	begin := func(r int) error { _, err := g[r].tell(order{Do: doStart, Types: n}); return err }
	if err := errors.Join(begin(0), step(stateFree, 0, s.settle)); err != nil {
		return nil, err
	}
	if err := errors.Join(p.Load(ctx, 1, names(n)...), appended(ctx, g[0], n)); err != nil {
		return nil, err
	}
	if err := step(stateHolds, 0, s.calm); err != nil {
		return nil, err
	}
	if err := errors.Join(begin(1), step(stateOther, 1, s.settle)); err != nil {
		return nil, err
	}
	for _, do := range []string{doStop, doClose} {
		if _, err := g.tell(order{Do: do}); err != nil {
			return nil, err
		}
	}
	for _, typ := range names(n) {
		p.Drained[typ] = 1
	}
	return all, errors.Join(p.Empty(ctx), p.Verify(ctx))
}

// appended waits until a replica has appended n messages.
func appended(ctx context.Context, r *process, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		a, err := r.tell(order{Do: doCount})
		if err != nil || a.Appended >= n {
			return err
		}
		// Rarely if there are many types: counting takes time.
		if err := server.Sleep(ctx, 10*time.Millisecond+time.Duration(n)*100*time.Microsecond); err != nil {
			return fmt.Errorf("waiting for %d messages, %d were appended: %w", n, a.Appended, err)
		}
	}
}

// count measures for a while what the replica, if there is one, and the server do.
func count(ctx context.Context, span time.Duration, r *process, i *idle) (err error) {
	var a, b answer
	if r != nil {
		if a, err = r.tell(order{Do: doSample}); err != nil {
			return err
		}
	}
	begin, busy := time.Now(), machine.Busy(serverProcesses...)
	if err := server.Sleep(ctx, span); err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	i.server = busy() / took
	if r == nil {
		return nil
	}
	if b, err = r.tell(order{Do: doSample}); err != nil {
		return err
	}
	i.held, i.queue, i.lock = b.Held, float64(b.Queue-a.Queue)/took, float64(b.Lock-a.Lock)/took
	i.own = (b.CPU - a.CPU) / took
	return nil
}
