package queues

import (
	"sync"

	"github.com/fencepost/fencepost/bench/internal/messages"
)

// groupFile lets many workers append to one file, each waiting until its message is durable: those that arrive while a
// write is being synced share the next one. This is more than users of River or Asynq would usually write; it avoids one
// fdatasync for each of their many workers.
type groupFile struct {
	j *messages.Journal

	mu      sync.Mutex
	cond    *sync.Cond
	waiting []byte // not being written yet
	batch   int    // number of the batch in waiting
	durable int    // batches below it are durable
	busy    bool   // a worker is writing
	err     error
}

func newGroupFile(j *messages.Journal) *groupFile {
	g := &groupFile{j: j}
	g.cond = sync.NewCond(&g.mu)
	return g
}

// append returns once p is durable.
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
