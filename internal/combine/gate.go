package combine

import (
	"sync"
	"time"
)

const (
	// patience is how long a command keeps others from being sent. On a busy server even a short one may take some hundred milliseconds.
	patience = time.Second

	// A command that travels takes nothing of the server. So a gate is wider by one for each onTheWay that even the fastest of some
	// commands takes.
	onTheWay = time.Millisecond
	watched  = 32 // commands
	widest   = 32
)

// Gate lets a few commands through at a time, in the order in which they came. Create it with [NewGate].
type Gate struct {
	mu      sync.Mutex
	width   int
	far     int // how much wider it is because the server is far away
	through int // commands under way, without those that are late
	line    []func()

	fastest time.Duration // of the commands since far was last set …
	seen    int           // … which are so many
}

// NewGate creates a Gate for width commands at a time, and more if the server is far away.
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
	for g.through < min(g.width+g.far, widest) && len(g.line) > 0 {
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
	began := time.Now()
	f()
	g.took(time.Since(began))
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

// took notes how long a command took.
func (g *Gate) took(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == 0 || d < g.fastest {
		g.fastest = d
	}
	if g.seen++; g.seen == watched {
		g.far, g.seen = int(g.fastest/onTheWay), 0
	}
}
