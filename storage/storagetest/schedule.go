package storagetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/internal/oracle"
)

// schedules runs several sessions whose operations interleave and have any fate.
func (e *explorer) schedules(t *testing.T) {
	n := 100
	switch {
	case isLong():
		n *= 10
	case e.Most > 0:
		n = max(1, e.Most/4)
	}
	for seed := range n {
		p := e.New(t)
		x := oracle.New(p.Dir)
		x.Published = 30
		s := &schedule{e: e, rng: rand.New(rand.NewPCG(uint64(seed), 1)), p: p, Crew: oracle.Crew{World: x}}
		s.d = e.lv(p, context.Background(), Hooks{Before: s.before}.orNothing())
		err := s.run()
		if err != nil {
			for _, done := range s.done {
				t.Log(done)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// schedule is the state of one random run.
type schedule struct {
	oracle.Crew
	e     *explorer
	rng   *rand.Rand
	p     Place
	d     Disturbed // shared by all sessions
	depth int
	done  []string
	err   error // the first unexpected one
}

func (s *schedule) run() error {
	for range 20 + s.rng.IntN(60) {
		if s.action(); s.err != nil {
			return s.err
		}
	}
	s.depth = 2 // from now on nothing is disturbed
	for _, h := range s.Holders {
		h.Close()
	}
	err := s.World.Finish(s.p.fs())
	for _, h := range s.Killed {
		h.Close() // performs its remaining operations, late
	}
	if deliverAll(s.d); err == nil {
		err = s.World.Finish(s.p.fs())
	}
	return err
}

// action performs a random action. Actions that are frequent in real sessions are more likely.
func (s *schedule) action() {
	switch s.rng.IntN(16) {
	case 0, 1:
		s.open()
	case 2, 3, 4, 5:
		k := 1 + s.rng.IntN(4)
		s.step("append", func(h *oracle.Holder) error { return h.Append(k) })
	case 6, 7, 8:
		s.step("ack", (*oracle.Holder).Ack)
	case 9:
		s.step("checkpoint", (*oracle.Holder).Checkpoint)
	case 10:
		s.step("rotate", (*oracle.Holder).Rotate)
	case 11:
		if s.rng.IntN(2) == 0 {
			s.step("compact", (*oracle.Holder).Compact)
		} else {
			s.step("merge", (*oracle.Holder).Merge)
		}
	case 12:
		s.step("close", func(h *oracle.Holder) error { return h.Writer.Close() })
	case 13:
		s.keep()
	case 14:
		s.tell("kill")
		s.Kill(s.rng.IntN)
		s.World.Published += 3
	case 15:
		s.deliver()
		if s.p.Crash != nil && s.rng.IntN(2) == 0 {
			s.crash()
		}
	}
}

// before lets other sessions run in the middle of an operation, and decides its fate.
func (s *schedule) before(o Operation) Fate {
	if o.Reads || s.depth > 1 { // reads may come from another goroutine
		return Made
	}
	s.depth++
	defer func() { s.depth-- }()
	fate := Made
	switch s.rng.IntN(40) {
	case 1:
		s.open()
	case 2, 3:
		s.step("append", func(h *oracle.Holder) error { return h.Append(1) })
	case 4:
		s.step("ack", (*oracle.Holder).Ack)
	case 5:
		s.deliver()
	case 6:
		fate = Old
	case 7:
		fate = Full
	case 8:
		fate = Lost
	case 9:
		fate = Unanswered
	case 10, 11, 12:
		fate = Late
	case 13:
		s.keep()
	}
	if fate != Made {
		s.tell(fmt.Sprintf("%s is %s", o.Name, fate))
	}
	return fate
}

func (s *schedule) tell(what string) {
	s.done = append(s.done, fmt.Sprintf("%*s%s", 2*s.depth, "", what))
}

func (s *schedule) open() {
	s.tell("open")
	s.expect("open", s.Open(s.d.FS))
}

func (s *schedule) step(what string, do func(*oracle.Holder) error) {
	s.tell(what)
	s.expect(what, s.Step(s.rng.IntN, do))
}

// keep removes all old files. It may fail before the type is registered.
func (s *schedule) keep() {
	s.tell("keep")
	if err := s.World.Keep(s.p.fs(), s.p.fs()); s.World.Registered {
		s.expect("keep", err)
	}
}

func (s *schedule) deliver() {
	if n := s.d.Late(); n > 0 {
		s.tell("a late operation is made")
		s.d.Deliver(s.rng.IntN(n))
	}
}

// crash cuts the power, which ends all sessions.
func (s *schedule) crash() {
	s.tell("power failure")
	s.p.Crash()
	s.KillAll()
}

// expect keeps the first error that no fault of this test explains.
func (s *schedule) expect(what string, err error) {
	ok := err == nil || errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrClosed) || errors.Is(err, storage.ErrNoSpace) ||
		errors.As(err, new(*storage.PoisonedError)) || !s.e.requests && errors.Is(err, syscall.EIO)
	if !ok && s.err == nil {
		s.err = fmt.Errorf("%s: %w", what, err)
	}
}
