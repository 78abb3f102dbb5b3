package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/internal/clock"
)

func TestWatch(t *testing.T) {
	boot, w := clock.Boot(), clock.Start()
	mono := time.Now()
	for time.Since(mono) < time.Millisecond {
	}
	if d := clock.Boot() - boot; d < time.Millisecond {
		t.Errorf("the boot clock advanced by %v in more than a millisecond", d)
	}
	if d := w.Elapsed(); d < time.Millisecond || d > time.Hour {
		t.Errorf("%v have passed", d)
	}
}

// TestServer: the time for what must not happen early, and the server's latest time.
func TestServer(t *testing.T) {
	const day = 24 * time.Hour
	none := time.Duration(1 << 62)
	type step struct {
		after  time.Duration // since the step before
		server time.Duration // how far ahead the server's clock is
		second time.Duration // how far ahead the second clock is
		agreed time.Duration // how far ahead the agreed time is
	}
	for name, steps := range map[string][]step{
		"right":                             {{0, 0, 0, 0}, {time.Hour, 0, 0, 0}},
		"a little ahead":                    {{0, clock.Tolerance, 0, clock.Tolerance}, {time.Hour, clock.Tolerance, 0, clock.Tolerance}},
		"behind":                            {{0, -day, 0, -day}, {time.Second, -day, 0, -day}},
		"goes back":                         {{0, 0, 0, 0}, {time.Second, -day, 0, -day}, {time.Second, 0, 0, 0}},
		"a moment ahead":                    {{0, 0, 0, 0}, {time.Second, 2 * day, 0, 0}, {time.Second, 0, 0, 0}},
		"a moment ahead, first":             {{0, 2 * day, 0, 0}, {time.Second, 2 * day, 0, 0}, {time.Second, 0, 0, 0}},
		"ahead, and the second clock, too":  {{0, 0, 0, 0}, {time.Second, 2 * day, 2 * day, 2 * day}},
		"ahead for long":                    {{0, 0, 0, 0}, {time.Second, day, 0, 0}, {clock.Patience - time.Second, day, 0, 0}, {time.Second, day, 0, day}, {time.Hour, day, 0, day}},
		"ahead from the start":              {{0, day, 0, 0}, {clock.Patience - time.Second, day, 0, 0}, {time.Second, day, 0, day}},
		"ahead, back, ahead":                {{0, 0, 0, 0}, {time.Second, day, 0, 0}, {clock.Patience - time.Second, 0, 0, 0}, {time.Second, day, 0, 0}, {time.Second, day, 0, 0}},
		"alone":                             {{0, 0, none, 0}, {time.Second, clock.Tolerance, none, clock.Tolerance}},
		"alone, a moment ahead":             {{0, 0, none, 0}, {time.Second, 2 * day, none, 0}, {time.Second, 0, none, 0}},
		"alone, ahead for long":             {{0, 0, none, 0}, {time.Second, day, none, 0}, {clock.Patience, day, none, day}},
		"the second one is far behind":      {{0, 0, -day, -day}, {clock.Patience, 0, -day, 0}, {time.Second, 0, -day, 0}},
		"the second one is far behind once": {{0, 0, 0, 0}, {time.Second, 0, -day, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s clock.Server
				for i, step := range steps {
					time.Sleep(step.after)
					second := time.Now().Add(step.second)
					if step.second == none {
						second = time.Time{}
					}
					s.Read(time.Now().Add(step.server), second)
					for _, later := range []time.Duration{0, time.Millisecond} {
						time.Sleep(later)
						if d := s.Agreed().Sub(time.Now().Round(0)); d != step.agreed {
							t.Errorf("step %d: agreed is %v ahead, want %v", i, d, step.agreed)
						}
						if d := s.Now().Sub(time.Now().Round(0)); d != step.server {
							t.Errorf("step %d: the server's is %v ahead, want %v", i, d, step.server)
						}
					}
				}
			})
		})
	}
}
