package combine

import (
	"sync"
	"time"
)

// patience is how long a command keeps others from being sent. On a busy server even a short one may take some hundred milliseconds.
const patience = time.Second

// Gate lets a few commands through at a time, in the order in which they came. Create it with [NewGate].
type Gate struct {
	width int

	mu      sync.Mutex
	through int // commands under way, without those that are late
	line    []func()
}

// NewGate creates a Gate for width commands at a time.
func NewGate(width int) *Gate { return &Gate{width: width} }

// enter calls f, in another goroutine, when it is its turn.
func (g *Gate) enter(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.line = append(g.line, f)
	g.open()
}

// open lets those through for whom there is room. g.mu is held.
func (g *Gate) open() {
	for g.through < g.width && len(g.line) > 0 {
		f := g.line[0]
		g.line[0] = nil
		g.line = g.line[1:]
		g.through++
		go g.pass(f)
	}
}

func (g *Gate) pass(f func()) {
	// rule: nobody waits for long behind a command without an answer.
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
