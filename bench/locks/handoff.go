package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fencepost/fencepost/bench/internal/measure"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// handOffContenders, the yardstick first.
var handOffContenders = []string{nameInsert, nameFencepost}

// hold is how long the lock is held between two hand-offs, on average, and how many hand-offs are measured in a block.
type hold struct {
	name  string
	mean  time.Duration
	count int
}

// shortHold is the name of the short one.
const shortHold = "20 ms"

// cell identifies one measurement of hand-offs.
type cell struct {
	contender string
	waiters   int
	hold      string
}

// handOffs are the results, by round.
type handOffs struct {
	waiters   []int
	holds     []hold
	latencies map[cell][][]time.Duration
	commands  map[cell][]float64 // per grant
}

func (h *handOffs) ratios(waiters int, hold string) (ratios []float64) {
	classic, ours := h.latencies[cell{nameInsert, waiters, hold}], h.latencies[cell{nameFencepost, waiters, hold}]
	for i := range classic {
		ratios = append(ratios, measure.Summarize(millis(classic[i])).Median/measure.Summarize(millis(ours[i])).Median)
	}
	return ratios
}

func (h *handOffs) all(c cell) []float64 { return millis(slices.Concat(h.latencies[c]...)) }

func millis(ds []time.Duration) (ms []float64) {
	for _, d := range ds {
		ms = append(ms, d.Seconds()*1e3)
	}
	return ms
}

// measureHandOffs runs all cells in random order, round after round.
func (b *bench) measureHandOffs(ctx context.Context) (h handOffs, err error) {
	h = handOffs{
		waiters:   []int{1, 8, 32},
		holds:     []hold{{shortHold, 20 * time.Millisecond, 14}, {"600 ms", 600 * time.Millisecond, 6}},
		latencies: map[cell][][]time.Duration{}, commands: map[cell][]float64{},
	}
	rounds := max(1, b.o.Rounds/3)
	if b.o.Quick {
		h.waiters, h.holds, rounds = []int{1, 2}, []hold{{shortHold, 20 * time.Millisecond, 3}}, 1
	}
	c, err := b.newCrew(ctx, handOffContenders, make([]terms, 1+slices.Max(h.waiters))...)
	if err != nil {
		return h, err
	}
	defer c.stop()
	block := 0
	for round := range rounds {
		b.o.Logf("hand-off: round %d of %d", round+1, rounds)
		type job struct {
			cell
			hold hold
		}
		var jobs []job
		for _, n := range h.waiters {
			for _, hold := range h.holds {
				for _, contender := range handOffContenders {
					jobs = append(jobs, job{cell{contender, n, hold.name}, hold})
				}
			}
		}
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		for _, j := range jobs {
			block++
			took, commands, err := c.handOffs(ctx, j.contender, fmt.Sprintf("hand-off-%d", block), j.waiters, j.hold)
			if err != nil {
				return h, fmt.Errorf("hand-off, %s, %d waiters: %w", j.contender, j.waiters, err)
			}
			h.latencies[j.cell] = append(h.latencies[j.cell], took)
			h.commands[j.cell] = append(h.commands[j.cell], commands)
		}
	}
	return h, nil
}

// notMeasured returns how many hand-offs pass before those that count: each process has had the lock once. The measured lock
// circulates, because its waiters take places in a queue once they have seen that.
func notMeasured(waiters int) int { return 1 + waiters }

// handOffs passes a lock from worker to worker. It returns the times from the call of Release to the next grant, and how many
// commands all workers together sent to the server per grant.
//
// A worker that has passed the lock on waits for it again at once, so the number of waiters is constant.
func (c *crew) handOffs(ctx context.Context, contender, name string, waiters int, h hold) (took []time.Duration, commands float64, err error) {
	acquire := func(i int) error { return c.tell(i, "acquire %s %s", name, contender) }
	granted, err := c.queueUp(ctx, acquire, waiters)
	if err != nil {
		return nil, 0, err
	}
	var before int64
	skipped := notMeasured(waiters)
	for i := range skipped + h.count {
		if i == skipped {
			if before, err = c.commands(ctx, 1+waiters); err != nil {
				return nil, 0, err
			}
		}
		if err := errors.Join(server.Sleep(ctx, h.mean/2+rand.N(h.mean)), c.quiet()); err != nil {
			return nil, 0, err
		}
		last := granted
		var d time.Duration
		if granted, d, err = c.handOff(ctx, last.from); err != nil {
			return nil, 0, err
		}
		if contender == nameFencepost && granted.b <= last.b {
			return nil, 0, fmt.Errorf("token %d after %d", granted.b, last.b)
		}
		if i >= skipped {
			took = append(took, d)
		}
		if err := acquire(last.from); err != nil {
			return nil, 0, err
		}
	}
	after, err := c.commands(ctx, 1+waiters)
	if err != nil {
		return nil, 0, err
	}
	for i := range 1 + waiters {
		if i == granted.from {
			continue
		}
		if err := c.ask(ctx, i, "cancel", "cancelled"); err != nil {
			return nil, 0, err
		}
	}
	if err := c.ask(ctx, granted.from, "release", "released"); err != nil {
		return nil, 0, err
	}
	return took, float64(after-before) / float64(h.count), c.quiet()
}

// ask tells a worker something, and waits for its answer.
func (c *crew) ask(ctx context.Context, i int, what, answer string) error {
	if err := c.tell(i, what); err != nil {
		return err
	}
	_, err := c.hear(ctx, i, answer, answerTimeout)
	return err
}

// queueUp lets the first worker acquire the lock, and then the others wait for it.
func (c *crew) queueUp(ctx context.Context, acquire func(i int) error, waiters int) (granted message, err error) {
	if err := acquire(0); err != nil {
		return granted, err
	}
	if granted, err = c.hear(ctx, 0, "granted", answerTimeout); err != nil {
		return granted, err
	}
	// They start at random times, so that contenders that poll at a fixed interval do not all poll simultaneously.
	const spread = 200 * time.Millisecond
	for i := 1; i <= waiters; i++ {
		if err := errors.Join(server.Sleep(ctx, rand.N(2*spread/time.Duration(waiters))), acquire(i)); err != nil {
			return granted, err
		}
	}
	return granted, server.Sleep(ctx, spread)
}

// handOff lets the holder release the lock, and returns the next grant and how long it took.
func (c *crew) handOff(ctx context.Context, holder int) (granted message, took time.Duration, err error) {
	if err := c.tell(holder, "release"); err != nil {
		return granted, 0, err
	}
	if granted, err = c.hear(ctx, anyone, "granted", answerTimeout); err != nil {
		return granted, 0, err
	}
	released, err := c.hear(ctx, holder, "released", answerTimeout)
	if err == nil && granted.a < released.a {
		err = fmt.Errorf("two holders: granted %v before the release", time.Duration(released.a-granted.a))
	}
	return granted, time.Duration(granted.a - released.a), err
}

// quiet fails on an unexpected message: a worker got the lock while another one had it.
func (c *crew) quiet() error {
	for {
		select {
		case m := <-c.said:
			c.backlog = append(c.backlog, m)
			continue
		default:
		}
		if len(c.backlog) > 0 {
			return fmt.Errorf("two holders, or a confused worker: worker %d says %q", c.backlog[0].from, c.backlog[0].text)
		}
		return nil
	}
}
