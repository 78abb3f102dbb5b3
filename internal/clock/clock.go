// Package clock measures elapsed time and the current time although wall clocks may be set at any moment.
package clock

import (
	"sync"
	"time"
)

// Watch measures how much time has passed since it was started. It never runs ahead, whatever happens to wall clocks, and continues while
// the machine sleeps (on Linux).
type Watch struct {
	mono   time.Time
	asleep time.Duration
}

// inaccuracy bounds the error of the measured time that the machine slept: measuring it reads two clocks.
const inaccuracy = 20 * time.Millisecond

// Start starts a Watch.
func Start() Watch { return Watch{mono: time.Now(), asleep: asleep()} }

// StartAgo returns a Watch that was started d ago.
func StartAgo(d time.Duration) Watch {
	w := Start()
	w.mono = w.mono.Add(-d)
	return w
}

// Elapsed returns the time since the start.
func (w Watch) Elapsed() time.Duration {
	elapsed := time.Since(w.mono) // by a clock that stops while the machine sleeps
	if slept := asleep() - w.asleep; slept > inaccuracy {
		elapsed += slept - inaccuracy // at least
	}
	return elapsed
}

// How far a Server trusts a reading that is ahead.
const (
	// Tolerance is how far ahead a reading may be to be trusted at once.
	Tolerance = time.Minute
	// Patience is how long readings must be further ahead than that before they are trusted.
	Patience = 10 * time.Minute
)

// Server is the wall clock of a server as one process knows it. Safe for concurrent use.
type Server struct {
	mu     sync.Mutex
	read   reading
	agreed reading
	ahead  Watch // since when readings have been ahead of agreed; zero: they are not
}

// reading is a time and the time elapsed since it was read.
type reading struct {
	at    time.Time
	since Watch
}

func (r reading) now() time.Time { return r.at.Add(r.since.Elapsed()) }

// Read records the server's current time. second is the time of an independent clock; zero means none.
func (s *Server) Read(at, second time.Time) {
	at, second = at.Round(0), second.Round(0) // wall clocks are compared
	s.mu.Lock()
	defer s.mu.Unlock()
	now := Start()
	s.read = reading{at, now}
	// rule: nothing happens early because one clock is ahead. A reading is trusted if another clock agrees with it, or the time passed
	// since the last trusted reading does, or once readings have been ahead for Patience. One that goes back is trusted at once: then
	// things happen late.
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

// Now returns the last reading plus the time elapsed since.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read.now()
}

// Agreed returns the time for events that must not happen early: the last trusted reading plus the time elapsed since.
func (s *Server) Agreed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agreed.now()
}
