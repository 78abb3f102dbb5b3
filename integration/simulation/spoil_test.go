package simulation

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// spoil plays an operator's script that makes pending messages undecodable, and is soon undone. The storm is shorter than the gap timeout, so
// this must have no lasting effect.
func (w *world) spoil(storm context.Context) {
	for i := uint64(0); ; i++ {
		d := newDice(w.seed, number("spoil"), i)
		select {
		case <-time.After(d.upTo(2 * time.Second)):
		case <-storm.Done():
			for _, typ := range w.types {
				w.mend(typ)
			}
			return
		}
		typ := pick(d, w.types...)
		if d.chance(3000) {
			w.mend(typ)
			continue
		}
		for _, m := range w.pending(typ) {
			if d.chance(3000) {
				w.tell("%s %s is spoiled", typ, m.ID)
				w.queue().Spoil(typ, m.ID, "spoiled")
				w.mu.Lock()
				w.seen.Spoiled++
				w.mu.Unlock()
			}
		}
	}
}

// mend undoes spoil.
func (w *world) mend(typ string) {
	for _, m := range w.pending(typ) {
		if m.Incomplete {
			w.tell("%s %s is mended", typ, m.ID)
			w.queue().Spoil(typ, m.ID, "")
		}
	}
}

func (w *world) pending(typ string) []queue.Message {
	msgs, err := w.queue().Fetch(context.Background(), typ, queue.ID{}, queue.Limit{Messages: 10_000})
	if err != nil {
		panic(err)
	}
	return msgs
}
