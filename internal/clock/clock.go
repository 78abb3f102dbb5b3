// Package clock tells how much time has passed, and what time it is, where wall clocks may be set at any moment.
package clock

import (
	"sync"
	"time"
)

// Watch measures how much time has passed since it was started. It never runs ahead, whatever happens to wall clocks, and does not stand still
// while the machine sleeps (on Linux).
type Watch struct {
	mono   time.Time
	asleep time.Duration
}

// inaccuracy is how wrong it may be how long the machine has slept: that takes the reading of two clocks.
const inaccuracy = 20 * time.Millisecond

// Start starts a Watch.
func Start() Watch { return Watch{mono: time.Now(), asleep: asleep()} }

// Elapsed is the time since the start.
func (w Watch) Elapsed() time.Duration {
	elapsed := time.Since(w.mono) // by a clock that stands still while the machine sleeps
	if slept := asleep() - w.asleep; slept > inaccuracy {
		elapsed += slept - inaccuracy // at least
	}
	return elapsed
}

// How much a Server believes a reading that is ahead.
const (
	// Tolerance is how far ahead a reading may be to be believed at once.
	Tolerance = time.Minute
	// Patience is how long readings have to be further ahead than that until they are believed.
	Patience = 10 * time.Minute
)

// Server is the wall clock of a server as one process knows it. Safe for concurrent use.
type Server struct {
	mu     sync.Mutex
	read   reading
	agreed reading
	ahead  Watch // since when readings have been ahead of agreed; zero: they are not
}

// reading is a time and what has passed since it was read.
type reading struct {
	at    time.Time
	since Watch
}

func (r reading) now() time.Time { return r.at.Add(r.since.Elapsed()) }

// Read notes what the server's clock says now. second is what an independent clock says; zero: there is none.
func (s *Server) Read(at, second time.Time) {
	at, second = at.Round(0), second.Round(0) // wall clocks are compared
	s.mu.Lock()
	defer s.mu.Unlock()
	now := Start()
	s.read = reading{at, now}
	// rule: nothing happens early because one clock is ahead. A reading is believed if another clock says so too, or what has passed since the last one
	// that was believed; or when it has been so for long. One that goes back is believed at once: then things happen late.
	first := s.agreed.at.IsZero()
	switch {
	case !second.IsZero() && at.Sub(second) <= Tolerance, first && second.IsZero(), !first && at.Sub(s.agreed.now()) <= Tolerance:
		s.agreed, s.ahead = s.read, Watch{}
	case first:
		s.agreed, s.ahead = reading{second, now}, now
	case s.ahead == Watch{}:
		s.ahead = now
	case s.ahead.Elapsed() >= Patience:
		s.agreed, s.ahead = s.read, Watch{}
	}
}

// Now is the last reading, advanced by what has passed since.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read.now()
}

// Agreed is the time for what must not happen early: the last reading that was believed, advanced by what has passed since.
func (s *Server) Agreed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agreed.now()
}
