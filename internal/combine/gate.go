package combine

import (
	"sync"
	"time"
)

const (
	// patience is how long a command keeps others from being sent. On a busy server even a short one may take a few hundred milliseconds.
	patience = time.Second

	// A command in transit costs the server nothing. So a gate is wider by one for each onTheWay of the round trip.
	onTheWay = time.Millisecond
	widest   = 16
)

// Gate lets a few commands through at a time, in order of arrival. Create it with [NewGate].
type Gate struct {
	far func() time.Duration

	mu      sync.Mutex
	width   int
	through int // commands in flight, without those that are late
	line    []func()
}

// NewGate creates a Gate for width concurrent commands, and more if the server is far away: far returns the round-trip time.
func NewGate(width int, far func() time.Duration) *Gate { return &Gate{width: width, far: far} }

// enter calls f, in another goroutine, when its turn comes.
func (g *Gate) enter(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.line = append(g.line, f)
	g.open()
}

// open lets calls through while there is room. g.mu is held.
func (g *Gate) open() {
	for g.through < g.room() && len(g.line) > 0 {
		f := g.line[0]
		g.line[0] = nil
		g.line = g.line[1:]
		g.through++
		go g.pass(f)
	}
}

// room returns how many commands may be in flight.
//
// rule: a busy server is not a distant one. The duration of commands does not count: more of them would make it slower still.
func (g *Gate) room() int {
	return min(g.width+int(g.far()/onTheWay), max(g.width, widest))
}

func (g *Gate) pass(f func()) {
	// rule: an unanswered command does not block others for long.
	late := time.AfterFunc(patience, g.leave)
	f()
	if late.Stop() {
		g.leave()
	}
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.through--
	g.open()
}
