package lock

import (
	"time"
)

// startWatching asks the store for hints, when somebody waits for the first time.
//
// rule: nothing depends on hints: every wait has its poll as a floor.
func (l *Locker) startWatching() {
	w, ok := l.store.(Watcher)
	if !ok {
		return
	}
	l.watchOnce.Do(func() {
		l.wg.Add(1) // by somebody who is counted
		go l.watch(w)
	})
}

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
