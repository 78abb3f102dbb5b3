package simulation

import (
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
)

// mutant drops a rule of the product.
type mutant struct {
	lockOptions  func(*lock.Options)
	workerConfig func(*worker.Config)
	pub          func(*queue.Publisher)
	backend      func(queue.Queue) queue.Queue
}

func (m *mutant) lock(o *lock.Options) {
	if m.lockOptions != nil {
		m.lockOptions(o)
	}
}

func (m *mutant) config(c *worker.Config) {
	if m.workerConfig != nil {
		m.workerConfig(c)
	}
}

func (m *mutant) publisher(p *queue.Publisher) {
	if m.pub != nil {
		m.pub(p)
	}
}

func (m *mutant) queue(w *world) queue.Queue {
	if m.backend != nil {
		return m.backend(w.queue)
	}
	return w.queue
}
