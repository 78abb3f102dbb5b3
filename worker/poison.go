package worker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/rs/zerolog"
)

// A message that kills the process (a crash, an out-of-memory kill) cannot be counted by that
// process. So a handler's session stores a holder note in the queue when it begins: the first pending
// message, and how many sessions in a row began with it. If a session begins where the previous one
// began, the previous one was probably killed. So the new session passes one message at a time to the
// handler, and before each stores which one it is. A message during which two sessions died is the
// culprit. See docs/decisions/0003.

const (
	aloneDeaths = 2  // a message is a killer after this many deaths of the process while it was handled by itself
	maxSuspects = 16 // messages whose deaths are counted; with more, the count starts anew
)

// holderNote is what one session tells the next, stored as JSON.
type holderNote struct {
	First  queue.ID         `json:"first"`  // the first pending message when the session began
	Starts int              `json:"starts"` // sessions in a row that began with it
	Trying queue.ID         `json:"trying"` // the message that is being handled by itself …
	By     string           `json:"by"`     // … and the instance of the pool that handles it
	Deaths map[queue.ID]int `json:"deaths"` // how often a session ended while it handled a message by itself; messages that returned are removed
}

// notes is the part of queue.Queue that stores the holder note.
type notes interface {
	HolderNote(ctx context.Context, typ string) ([]byte, error)
	SetHolderNote(ctx context.Context, typ string, note []byte) error
	Depth(ctx context.Context, typ string, most int) (queue.Depth, error)
}

// poison watches, in one session, for messages that kill the process.
type poison struct {
	queue notes
	typ   string
	log   *zerolog.Logger
	batch int // messages that the handler has at a time, at most

	instance string // of this pool, which is alive

	note     holderNote
	oneByOne int // how many more messages are passed to the handler one at a time
}

// begin reads the note of the previous session and stores that of this one.
func (p *poison) begin(ctx context.Context) error {
	stored, err := p.queue.HolderNote(ctx, p.typ)
	if err != nil {
		return err
	}
	depth, err := p.queue.Depth(ctx, p.typ, 1)
	if err != nil {
		return err
	}
	var before holderNote
	if len(stored) > 0 && json.Unmarshal(stored, &before) != nil {
		before = holderNote{} // written by a later version or another program: ignore it
	}
	now := holderNote{First: depth.Oldest, Starts: 1, Deaths: before.Deaths}
	if before.First == now.First && !now.First.IsZero() { // a session that began without messages could make no progress
		now.Starts = max(before.Starts+1, 1)
	}
	if now.Deaths == nil || len(now.Deaths) >= maxSuspects {
		now.Deaths = map[queue.ID]int{}
	}
	if !before.Trying.IsZero() && before.By != p.instance { // if By is this pool, its session lost the lock, and no process died
		now.Deaths[before.Trying]++
	}
	if now.Starts > 1 || len(now.Deaths) > 0 {
		// The killer, if there is one, was in the batch that the handler had: it is within the first
		// messages.
		p.oneByOne = 3 * p.batch
		p.log.Warn().Int("starts", now.Starts).Msg("the previous session made no progress: handling messages one at a time for a while")
	}
	p.note = now
	return p.store(ctx)
}

// killer reports whether a message has ended the process often enough to become a dead letter, and how
// often.
func (p *poison) killer(id queue.ID) (deaths int, killer bool) {
	deaths = p.note.Deaths[id]
	return deaths, deaths >= aloneDeaths
}

// buried ends the count of a message that becomes a dead letter.
func (p *poison) buried(id queue.ID) { delete(p.note.Deaths, id) }

// store writes the whole note, so writing it twice does no harm.
func (p *poison) store(ctx context.Context) error {
	b, err := json.Marshal(p.note)
	if err != nil {
		return err
	}
	return p.queue.SetHolderNote(ctx, p.typ, b)
}

// trying stores durably, before a message is handed over by itself, which one it is.
func (p *poison) trying(ctx context.Context, id queue.ID) error {
	p.note.Trying, p.note.By = id, p.instance
	return p.store(ctx)
}

// returned records that the handler has returned, having settled this many messages, so the message
// did not kill the process. This is stored with the next note, or at once if that may take a while.
func (p *poison) returned(ctx context.Context, settled int) {
	delete(p.note.Deaths, p.note.Trying)
	p.note.Trying = queue.ID{}
	switch p.oneByOne = max(p.oneByOne-settled, 0); {
	case p.oneByOne == 0:
		p.note = holderNote{}
	case settled > 0:
		return
	}
	if err := p.store(ctx); err != nil {
		p.log.Debug().Err(err).Msg("holder note not cleared")
	}
}

// end clears the note at the end of a session. A session that lost its lock, or was fenced, must not: it
// could overwrite the note of a successor.
func (p *poison) end(err error) {
	if p.oneByOne == 0 || errors.Is(err, lock.ErrLost) || errors.Is(err, storage.ErrFenced) {
		return
	}
	p.note = holderNote{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := p.store(ctx); err != nil {
		p.log.Debug().Err(err).Msg("holder note not cleared")
	}
}
