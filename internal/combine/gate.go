package combine

import (
	"sync"
	"time"
)

const (
	// patience is how long a command keeps others from being sent. On a busy server even a short one may take some hundred milliseconds.
	patience = time.Second

	// A command in transit takes nothing from the server. So a gate is wider by one for each onTheWay that a packet takes to it and back.
	onTheWay = time.Millisecond
	widest   = 16
)

// Gate lets a few commands through at a time, in the order in which they came. Create it with [NewGate].
type Gate struct {
	far func() time.Duration

	mu      sync.Mutex
	width   int
	through int // commands under way, without those that are late
	line    []func()
}

// NewGate creates a Gate for width commands at a time, and more if the server is far away: far is how long a packet takes to it and back.
func NewGate(width int, far func() time.Duration) *Gate { return &Gate{width: width, far: far} }

// enter calls f, in another goroutine, when it is its turn.
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

// room is how many commands may be under way.
//
// rule: a server that is busy is not far away. How long commands take does not count: more of them would make it slower still.
func (g *Gate) room() int {
	return min(g.width+int(g.far()/onTheWay), max(g.width, widest))
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
