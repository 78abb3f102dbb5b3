package combine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// server doubles its arguments. Each command takes a while.
type server struct {
	takes time.Duration
	far   time.Duration // how far away it is

	mu       sync.Mutex
	commands [][]int
	ended    int // commands whose context had ended
	unclear  map[int]bool
	fails    error
	settled  []int
	now      int // commands in flight …
	most     int // … and the most so far
}

func (s *server) command(ctx context.Context, asked ...int) error {
	s.mu.Lock()
	s.commands = append(s.commands, asked)
	takes := s.takes
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	defer s.change(func() { s.now-- })
	select {
	case <-time.After(takes):
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.fails
	case <-ctx.Done():
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		return ctx.Err()
	}
}

func (s *server) distance() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.far
}

// sent returns the commands so far.
func (s *server) sent() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// change changes the server's behaviour.
func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) one(ctx context.Context, q int) (int, error) { return 2 * q, s.command(ctx, q) }

func (s *server) many(ctx context.Context, asked []int) []Answer[int] {
	if err := s.command(ctx, asked...); err != nil {
		return All(len(asked), Answer[int]{Err: err})
	}
	answers := make([]Answer[int], len(asked))
	for i, q := range asked {
		answers[i] = Answer[int]{Value: 2 * q, Again: s.unclear[q]}
	}
	return answers
}

func (s *server) settle(_ context.Context, q int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = append(s.settled, q)
	return -q, nil
}

func (s *server) combiner(width, most int) *Combiner[int, int] {
	return New(NewGate(width, s.distance), Options[int, int]{One: s.one, Many: s.many, Settle: s.settle, Most: most})
}

// ask makes the calls 1 … n, one after another, and returns the answers.
func ask(t *testing.T, c *Combiner[int, int], n int) (answers []int, errs []error, wait func()) {
	t.Helper()
	answers, errs = make([]int, n+1), make([]error, n+1)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i+1], errs[i+1] = c.Do(t.Context(), i+1) })
		synctest.Wait()
	}
	return answers, errs, all.Wait
}

func TestCallsThatWaitShareACommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * time.Millisecond}
		answers, errs, wait := ask(t, s.combiner(1, 3), 8)
		wait()
		for i := range answers {
			if answers[i] != 2*i || errs[i] != nil {
				t.Errorf("%d: %d, %v", i, answers[i], errs[i])
			}
		}
		if got := fmt.Sprint(s.sent()); got != "[[1] [2 3 4] [5 6 7] [8]]" {
			t.Errorf("commands %s", got)
		}
	})
}

// No call lingers: one that finds the gate open is sent at once.
func TestACallAloneIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * time.Millisecond}
		_, _, wait := ask(t, s.combiner(2, 3), 2)
		if got := fmt.Sprint(s.sent()); got != "[[1] [2]]" {
			t.Errorf("commands %s", got)
		}
		wait()
	})
}

func TestAnUnclearAnswerIsSettledByEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * time.Millisecond, unclear: map[int]bool{3: true}}
		answers, _, wait := ask(t, s.combiner(1, 3), 4)
		wait()
		if !slices.Equal(answers, []int{0, 2, 4, -3, 8}) || !slices.Equal(s.settled, []int{3}) {
			t.Errorf("answers %v, settled %v", answers, s.settled)
		}
	})
}

func TestAnErrorIsThatOfThoseInTheCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * time.Millisecond}
		_, errs, wait := ask(t, s.combiner(1, 2), 5)
		time.Sleep(15 * time.Millisecond) // the second one is in flight
		s.change(func() { s.fails = errors.New("down") })
		time.Sleep(10 * time.Millisecond)
		s.change(func() { s.fails = nil })
		wait()
		for i, err := range errs {
			if (err != nil) != (i == 2 || i == 3) {
				t.Errorf("%d: %v", i, err)
			}
		}
	})
}

// TestCallersThatGo: a caller that goes does not end the command of the others; when all have gone it ends; nothing is sent for those
// that went before.
func TestCallersThatGo(t *testing.T) {
	for _, tc := range []struct {
		name     string
		goes     []int
		after    time.Duration
		commands string
		ended    int
	}{
		{"one, under way", []int{2}, 15 * time.Millisecond, "[[1] [2 3]]", 0},
		{"all, under way", []int{2, 3}, 15 * time.Millisecond, "[[1] [2 3]]", 1},
		{"one, before", []int{2}, 5 * time.Millisecond, "[[1] [3]]", 0},
		{"all, before", []int{2, 3}, 5 * time.Millisecond, "[[1]]", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{takes: 10 * time.Millisecond}
				c := s.combiner(1, 3)
				var all sync.WaitGroup
				for i := 1; i <= 3; i++ {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					gone := slices.Contains(tc.goes, i)
					if gone {
						time.AfterFunc(tc.after, cancel)
					}
					all.Go(func() {
						if got, err := c.Do(ctx, i); gone != errors.Is(err, context.Canceled) || !gone && got != 2*i {
							t.Errorf("%d: %d, %v", i, got, err)
						}
					})
					synctest.Wait()
				}
				all.Wait()
				time.Sleep(time.Second)
				ended := 0
				s.change(func() { ended = s.ended })
				if got := fmt.Sprint(s.sent()); got != tc.commands || ended != tc.ended {
					t.Errorf("commands %s, %d ended", got, ended)
				}
			})
		})
	}
}

// TestACommandWithoutAnAnswer: it does not block others for long, and does not widen the gate when it ends.
func TestACommandWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 10 * patience}
		c := s.combiner(1, 1)
		began := time.Now()
		_, _, wait := ask(t, c, 1)
		s.change(func() { s.takes = 10 * time.Millisecond })
		if got, err := c.Do(t.Context(), 2); got != 4 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
		if took := time.Since(began); took > 2*patience {
			t.Errorf("waited for %v", took)
		}
		wait()
		s.change(func() { s.commands = nil })
		_, _, wait = ask(t, c, 3)
		if sent := s.sent(); len(sent) != 1 {
			t.Errorf("%v at the same time through a gate for one", sent)
		}
		wait()
	})
}

// Kinds take turns at a gate.
func TestKindsShareAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &server{takes: time.Millisecond}, &server{takes: time.Millisecond}
		gate := NewGate(1, a.distance)
		ca := New(gate, Options[int, int]{One: a.one, Many: a.many, Most: 2})
		cb := New(gate, Options[int, int]{One: b.one, Many: b.many, Most: 2})
		_, _, waitA := ask(t, ca, 7)
		_, _, waitB := ask(t, cb, 1)
		time.Sleep(2500 * time.Microsecond)
		if ofA, ofB := a.sent(), b.sent(); len(ofA) != 2 || len(ofB) != 1 {
			t.Errorf("commands %v and %v", ofA, ofB)
		}
		waitA()
		waitB()
	})
}

func TestConcurrentCalls(t *testing.T) {
	s := &server{unclear: map[int]bool{7: true}}
	c := s.combiner(2, 5)
	var all sync.WaitGroup
	var answered atomic.Int32
	for i := 1; i <= 400; i++ {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				cancel()
			}
			got, err := c.Do(ctx, i)
			switch {
			case err == nil && (got == 2*i || got == -i && i == 7):
				answered.Add(1)
			case err == nil || !errors.Is(err, context.Canceled):
				t.Errorf("%d: %d, %v", i, got, err)
			}
		})
	}
	all.Wait()
	if answered.Load() < 320 {
		t.Errorf("%d answers", answered.Load())
	}
}

// TestAServerThatIsFarAway: a command that waits for the network does not occupy the gate, once the distance is known. And the gate
// becomes narrow again.
func TestAServerThatIsFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 20 * time.Millisecond, far: 20 * time.Millisecond}
		gate := NewGate(1, s.distance)
		kinds := s.kinds(gate, 10)
		const callers, calls = 20, 50
		if took, alone := askAll(t, kinds, callers, calls), calls*s.takes; took > alone*3/2 {
			t.Errorf("took %v, and %v without waiting for others", took, alone)
		}
		s.change(func() { s.takes, s.far = onTheWay/2, onTheWay/2 })
		if room := gate.room(); room != 1 {
			t.Errorf("wide %d for a server that is near", room)
		}
	})
}

// TestABusyServerIsNotFarAway: commands that take long do not widen a gate.
func TestABusyServerIsNotFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 20 * time.Millisecond}
		const callers, calls = 20, 5
		askAll(t, s.kinds(NewGate(1, s.distance), callers), callers, calls)
		if s.most != 1 {
			t.Errorf("%d commands at the same time", s.most)
		}
	})
}

// kinds returns n kinds of calls that share a gate.
func (s *server) kinds(gate *Gate, n int) (kinds []*Combiner[int, int]) {
	for range n {
		kinds = append(kinds, New(gate, Options[int, int]{One: s.one, Many: s.many, Most: 8}))
	}
	return kinds
}

// askAll lets each caller make calls, one after another, and returns how long that takes.
func askAll(t *testing.T, kinds []*Combiner[int, int], callers, calls int) time.Duration {
	t.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range calls {
				if got, err := kinds[(i+n)%len(kinds)].Do(t.Context(), i); got != 2*i || err != nil {
					t.Errorf("%d: %d, %v", i, got, err)
				}
			}
		})
	}
	all.Wait()
	return time.Since(began)
}
