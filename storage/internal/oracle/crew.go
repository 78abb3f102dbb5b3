package oracle

import (
	"slices"

	"github.com/fencepost/fencepost/storage"
)

// Crew is several sessions in one world. They take turns in a random order of the test.
type Crew struct {
	World   *World
	Holders []*Holder
	Killed  []*Holder // their writers are still open
}

// Open begins a session, and adds it to the crew if that succeeds.
func (c *Crew) Open(fsys storage.FS) error {
	h, err := c.World.Open(fsys)
	if err == nil {
		c.Holders = append(c.Holders, h)
	}
	return err
}

// Step calls do with one session, perhaps one that was fenced off long ago. draw returns a number below n.
func (c *Crew) Step(draw func(n int) int, do func(*Holder) error) error {
	if len(c.Holders) == 0 {
		return nil
	}
	h := c.Holders[draw(len(c.Holders))]
	if h.Busy { // it is in the middle of a call
		return nil
	}
	h.Busy = true
	defer func() { h.Busy = false }()
	return do(h)
}

// Kill ends the process of one session: it takes no further steps.
func (c *Crew) Kill(draw func(n int) int) {
	if len(c.Holders) > 0 {
		i := draw(len(c.Holders))
		c.Killed = append(c.Killed, c.Holders[i])
		c.Holders = slices.Delete(c.Holders, i, i+1)
	}
}

// KillAll ends the processes of all sessions.
func (c *Crew) KillAll() { c.Killed, c.Holders = append(c.Killed, c.Holders...), nil }
