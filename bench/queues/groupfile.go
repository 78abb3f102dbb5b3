package queues

import (
	"sync"

	"github.com/fencepost/fencepost/bench/internal/messages"
)

// groupFile lets many workers append to one file, each waiting until its message is durable: those that come while a write
// is being synced share the next one. It is more than River's or Asynq's users would write as a rule, so that their
// many workers do not wait for one fdatasync each.
type groupFile struct {
	j *messages.Journal

	mu      sync.Mutex
	cond    *sync.Cond
	waiting []byte // not being written yet
	batch   int    // number of the batch that waiting is
	durable int    // batches below it are durable
	busy    bool   // somebody writes
	err     error
}

func newGroupFile(j *messages.Journal) *groupFile {
	g := &groupFile{j: j}
	g.cond = sync.NewCond(&g.mu)
	return g
}

// append returns when p is durable.
func (g *groupFile) append(p []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, p...)
	mine := g.batch
	for g.err == nil && g.durable <= mine {
		if g.busy {
			g.cond.Wait()
			continue
		}
		g.busy = true
		buf, n := g.waiting, g.batch
		g.waiting = nil
		g.batch++
		g.mu.Unlock()
		err := g.j.Append(buf)
		g.mu.Lock()
		g.busy, g.durable, g.err = false, n+1, err
		g.cond.Broadcast()
	}
	return g.err
}
