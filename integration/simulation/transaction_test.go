package simulation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// transact publishes in transactions. Each begins, assigns the IDs of its messages, and up to half a storm later is committed or aborted.
// A commit is one step; handling a lost answer is the driver's task.
func (w *world) transact(storm context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	end, _ := storm.Deadline()
	for i := 0; ; i++ {
		d := newDice(w.seed, number("transaction"), uint64(i))
		select {
		case <-time.After(d.upTo(w.storm / 8)):
		case <-storm.Done():
			return
		}
		var msgs []*message
		for k := range d.between(1, 3) {
			m := &message{producer: fmt.Sprintf("transaction %d.%d", i, k)} // one producer for each: there is no order
			payload := fmt.Sprintf("transaction %d.%d", i, k)
			if m.bad = d.chance(w.bad); m.bad {
				payload = "bad " + payload
			}
			m.Type, m.Payload = pick(d, w.types...), []byte(payload)
			m.ID, m.Headers = queue.NewID(time.Now(), d.next(), 0), map[string]string{queue.LooseHeader: queue.LooseValue}
			msgs = append(msgs, m)
		}
		open.Go(func() {
			time.Sleep(d.upTo(min(w.storm/2, max(time.Until(end), 0))))
			w.endTransaction(msgs, d.chance(8000))
		})
	}
}

// endTransaction commits or aborts a transaction.
func (w *world) endTransaction(msgs []*message, commit bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Transactions++
	for _, m := range msgs {
		w.sent = append(w.sent, m)
		if m.result = (queue.Result{Status: queue.Rejected}); !commit {
			continue
		}
		m.result, m.safe = queue.Result{Status: queue.Stored, ID: m.ID}, w.restored
		if err := w.database.Insert(context.Background(), m.Type, []queue.Message{m.Message}); err != nil {
			panic(err)
		}
		w.tellLocked(fmt.Sprintf("%s %s is committed", m.Type, m.ID))
	}
}
