package lock

import (
	"time"
)

// startWatching subscribes to the store's hints ([Watcher]) when a goroutine of this Locker waits for
// the first time. The caller is counted in l.wg.
//
// rule: nothing depends on hints: every wait also polls.
func (l *Locker) startWatching() {
	w, ok := l.store.(Watcher)
	if !ok {
		return
	}
	l.watchOnce.Do(func() {
		l.wg.Add(1) // safe during Close: the caller is counted
		go l.watch(w)
	})
}

// watch passes hints on to the waiters, and reconnects with backoff, until the Locker closes or the
// first connection shows that the server does not support hints.
func (l *Locker) watch(w Watcher) {
	defer l.wg.Done()
	retry := newJitter(time.Minute)
	for first := true; l.open.Err() == nil; first = false {
		names, err := w.Watch(l.open)
		if err != nil && first {
			return
		}
		if err == nil {
			begin := l.valid()
			for name := range names {
				l.stats.hints.Add(1)
				l.queues.hint(name)
			}
			if l.valid()-begin > time.Minute {
				retry.Reset()
			}
		}
		pause(l.open.Done(), time.Second+retry.Next())
	}
}
