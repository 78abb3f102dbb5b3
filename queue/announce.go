package queue

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// When a publisher notifies workers of stored messages. A type with steady traffic has a worker that
// polls it anyway, so notifications of it are rare. A type that was quiet is announced at once.
const (
	announceLinger  = 2 * time.Millisecond   // collects types whose messages are stored at the same moment into one notification
	announceEvery   = 250 * time.Millisecond // between two notifications of a publisher
	announceAgain   = time.Second            // between two that name the same type
	announceTimeout = 2 * time.Second        // of one notification
	announceClosing = 500 * time.Millisecond // how long Close waits for the last one
)

// announcer notifies workers of the types for which a publisher has stored messages. It has a goroutine
// only while there is something to announce. Safe for concurrent use.
//
// rule: nothing waits for a notification, and a failed one is not retried: it is a hint, and workers find messages without it.
type announcer struct {
	to      Notifier
	ctx     context.Context // of all notifications
	cancel  context.CancelFunc
	closing chan struct{} // closed by close: announce what is left at once
	wg      sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running bool                 // the goroutine runs
	untold  map[string]bool      // types with messages that were not yet announced
	told    map[string]time.Time // when a type was announced, if less than announceAgain ago
	sent    uint64               // notifications that succeeded
	failed  uint64               // … and that failed
}

// newAnnouncer returns an announcer; the end of ctx cancels its notifications.
func newAnnouncer(ctx context.Context, to Notifier) *announcer {
	a := &announcer{to: to, closing: make(chan struct{}), untold: map[string]bool{}, told: map[string]time.Time{}}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// note records that a type has new messages.
func (a *announcer) note(typ string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.untold[typ] = true
	if !a.running {
		a.running = true
		a.wg.Go(a.run)
	}
}

// run sends notifications until nothing is left to announce.
func (a *announcer) run() {
	for pause := announceLinger; ; {
		wait.Unless(a.closing, pause)
		types, next := a.take(time.Now())
		if len(types) == 0 && next == 0 {
			return
		}
		if pause = next; len(types) > 0 {
			a.tell(types)
			pause = announceEvery
		}
	}
}

// take returns the types to announce now. If there are none, next is how long to wait for the first
// one, or 0 if nothing is left: then run ends.
func (a *announcer) take(now time.Time) (types []string, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for typ, at := range a.told {
		if now.Sub(at) >= announceAgain {
			delete(a.told, typ)
		}
	}
	for typ := range a.untold {
		if at, lately := a.told[typ]; lately && !a.closed {
			// rule: it is announced later. A worker may have read the type before its last message was stored, and would find that only
			// in its next sweep.
			if wait := at.Add(announceAgain).Sub(now); next == 0 || wait < next {
				next = wait
			}
			continue
		}
		types = append(types, typ)
		delete(a.untold, typ)
		a.told[typ] = now
	}
	a.running = len(types) > 0 || next > 0
	return types, next
}

// tell sends one notification. An error is only counted.
func (a *announcer) tell(types []string) {
	ctx, cancel := context.WithTimeout(a.ctx, announceTimeout)
	defer cancel()
	err := a.to.Notify(ctx, types)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.sent++
	} else {
		a.failed++
	}
}

// close announces what is left, and waits for at most announceClosing. note must no longer be called.
func (a *announcer) close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.closing)
	}
	a.mu.Unlock()
	t := time.AfterFunc(announceClosing, a.cancel)
	defer t.Stop()
	a.wg.Wait()
	a.cancel()
}
