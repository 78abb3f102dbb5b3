package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// A message that kills the process cannot be caught: nobody is left to count its failures. So the handler's session leaves a
// mark in the queue when it begins: the first pending message, and how many sessions in a row began with it. A session that
// begins where the one before it began is suspicious, and careful: it hands over one message at a time, and notes which one
// before. If sessions die twice while they have the same message by itself, it is that message. See docs/decisions/0003.

const (
	aloneDeaths = 2  // how often a message may end the process by itself
	maxSuspects = 16 // messages that are remembered for having done so
)

// mark is the note from one session to the next, stored as JSON.
type mark struct {
	First  queue.ID         `json:"first"`  // the first pending message when the session began
	Starts int              `json:"starts"` // sessions in a row that began with it
	Trying queue.ID         `json:"trying"` // the message that is being handled by itself
	Deaths map[queue.ID]int `json:"deaths"` // how often sessions ended while they tried a message, and no session has seen the end of it
}

// poison is the watch of one session.
type poison struct {
	mark    mark
	careful int // this many more messages are handed over by themselves
}

// watchPoison begins it, with one read and one write.
func (h *handlerSink) watchPoison(ctx context.Context) error {
	q := h.pool.cfg.Queue
	stored, err := q.Mark(ctx, h.typ)
	if err != nil {
		return err
	}
	depth, err := q.Depth(ctx, h.typ, 1)
	if err != nil {
		return err
	}
	var before mark
	if len(stored) > 0 && json.Unmarshal(stored, &before) != nil {
		before = mark{} // of a later version, or foreign: only a note
	}
	now := mark{First: depth.Oldest, Starts: 1, Deaths: before.Deaths}
	if before.First == now.First {
		now.Starts = max(before.Starts+1, 1)
	}
	if now.Deaths == nil || len(now.Deaths) >= maxSuspects {
		now.Deaths = map[queue.ID]int{}
	}
	if !before.Trying.IsZero() {
		now.Deaths[before.Trying]++
	}
	if now.Starts > 1 || len(now.Deaths) > 0 {
		// What killed the process was in the batch that the handler had; what was fetched ahead of it was not.
		h.poison.careful = 3 * h.pool.cfg.Batch
		h.log.Warn().Int("starts", now.Starts).Msg("the session before this one got nowhere: handling messages one by one for a while")
	}
	h.poison.mark = now
	return h.setMark(ctx)
}

// buryKiller puts m aside if it has killed the process often enough.
func (h *handlerSink) buryKiller(ctx context.Context, m *queue.Message) (buried bool, err error) {
	n := h.poison.mark.Deaths[m.ID]
	if n < aloneDeaths || h.pool.cfg.OnError == Block {
		return false, nil
	}
	delete(h.poison.mark.Deaths, m.ID)
	return true, h.bury(ctx, queue.Letter{Message: *m, Attempts: n,
		Reason: fmt.Sprintf("%d times the worker's process ended while it handled this message by itself", n)})
}

func (h *handlerSink) setMark(ctx context.Context) error {
	b, err := json.Marshal(h.poison.mark)
	if err != nil {
		return err
	}
	return h.pool.cfg.Queue.SetMark(ctx, h.typ, b)
}

// noteTrying notes, durably, that m is handed over by itself.
func (h *handlerSink) noteTrying(ctx context.Context, m *queue.Message) error {
	h.poison.mark.Trying = m.ID
	retry := backoff{min: watchMin, max: watchMax}
	var outage outage
	for outage.note(&h.log, h.setMark(ctx), "note which message is being handled") {
		if err := sleep(ctx, retry.next()); err != nil {
			return err
		}
	}
	return nil
}

// noteReturned notes that the handler came back, and settled so many messages. The next note stores it.
func (h *handlerSink) noteReturned(ctx context.Context, settled int) {
	p := &h.poison
	delete(p.mark.Deaths, p.mark.Trying)
	p.mark.Trying = queue.ID{}
	if p.careful = max(p.careful-settled, 0); p.careful > 0 {
		return
	}
	p.mark = mark{}
	if err := h.setMark(ctx); err != nil {
		h.log.Debug().Err(err).Msg("mark not cleared") // it names a message that is settled
	}
}

// endWatch leaves a clean mark. A session that lost its lock leaves it alone: there may be a successor, which has its own.
func (h *handlerSink) endWatch(err error) {
	p := &h.poison
	if p.careful == 0 || errors.Is(err, lock.ErrLost) {
		return
	}
	p.mark = mark{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := h.setMark(ctx); err != nil {
		h.log.Debug().Err(err).Msg("mark not cleared")
	}
}
