package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"github.com/rs/zerolog"
)

// OnError says what happens to a message that cannot be handled, or that the file cannot take.
type OnError int

const (
	// Block: it is tried for ever, and holds its type back. Nothing is lost and the order is kept; somebody has to look.
	Block OnError = iota
	// DeadLetter: after MaxAttempts it becomes a dead letter (fencepost dead ls), and those behind it go on.
	DeadLetter
)

// handlerSink hands the messages to Config.Handler.
type handlerSink struct {
	*session
	handler  Handler
	attempts map[queue.ID]int // of messages that have failed and are not settled
	handled  uint64
	poison   poison
	over     bool // the session is to end, and something is left that was not settled
}

func (h *handlerSink) open(ctx context.Context) error {
	h.ledger = ledger.New(ledger.Options{GapTimeout: h.pool.cfg.GapTimeout, Now: time.Now, Sweep: h.sweeps.Load, NoFile: true})
	return h.watchPoison(ctx)
}

func (h *handlerSink) ack(ctx context.Context, ids []queue.ID) error {
	return h.pool.cfg.Queue.Ack(ctx, h.typ, ids)
}

func (h *handlerSink) close(err error) error {
	h.endWatch(err)
	return err
}

func (h *handlerSink) describe(e *zerolog.Event) *zerolog.Event {
	return e.Uint64("handled", h.handled)
}

// stage hands batch after batch to the handler.
func (h *handlerSink) stage(ctx context.Context, in <-chan batch, out chan<- group) error {
	var due []queue.Message
	for next := range in {
		next.memory.give() // rule: what the handler has is the handler's. It may be slow, or wait for somebody to look.
		batch := next.msgs
		if h.over {
			// rule: nothing is judged any more: the ledger counts what is left as handled, and would take it for a copy.
			if err := send(ctx, out, group{batches: 1}); err != nil {
				return err
			}
			continue
		}
		seenAt, err := h.seenAt(ctx)
		if err != nil {
			return err
		}
		h.ledger.SetClock(seenAt)
		done := group{batches: 1}
		due = due[:0]
		for i := range batch {
			if _, ok := h.admit(&batch[i], &done); ok {
				due = append(due, batch[i])
			}
		}
		if err := h.buryRefused(ctx); err != nil {
			return err
		}
		h.tellHeld()
		if err := h.settle(ctx, due, &done, out); err != nil {
			return err
		}
		clear(due) // as the file does
		if err := send(ctx, out, done); err != nil {
			return err
		}
	}
	return nil
}

// settle hands msgs to the handler until each of them is settled, handled or put aside, and collects them in done. It gives up in
// between, without an error, when the session is to end: what is not settled stays in the queue.
func (h *handlerSink) settle(ctx context.Context, msgs []queue.Message, done *group, out chan<- group) error {
	retry := backoff{min: h.pool.cfg.RetryMin, max: h.pool.cfg.RetryMax}
	size := len(msgs) // of the next attempt
	for len(msgs) > 0 && !h.ending(ctx) {
		// For efficiency's sake only, as for the file: a handler whose effects must not come late fences them by the token.
		if err := h.lease.Check(0); err != nil {
			return err
		}
		size = min(size, len(msgs))
		if h.poison.careful > 0 {
			size = 1
			buried, err := h.buryKiller(ctx, &msgs[0])
			if err == nil && !buried {
				err = h.noteTrying(ctx, &msgs[0])
			}
			if err != nil {
				return err
			}
			if buried {
				msgs = msgs[1:]
				continue
			}
		}
		before := h.handled
		left, failed, err := h.attempt(ctx, msgs[:size], done)
		if err != nil {
			return err
		}
		settled := size - len(left)
		if h.poison.careful > 0 {
			h.noteReturned(ctx, settled)
			if err := send(ctx, out, group{ids: done.ids}); err != nil { // so that another death does not undo it
				return err
			}
			done.ids = nil
		}
		msgs = append(left, msgs[size:]...)
		if n := h.handled - before; n > 0 {
			h.emit(Event{Kind: Committed, Messages: int(n)})
		}
		if settled > 0 {
			retry.reset()
			size *= 2
		} else {
			size = max(size/2, 1) // perhaps they are too many, for the Timeout for example
		}
		if len(msgs) == 0 {
			return nil
		}
		if !failed && settled > 0 {
			continue
		}
		h.count(func(st *Stats) { st.Retries++ })
		// What is handled is acknowledged now: the pause may be long.
		if err := send(ctx, out, group{ids: done.ids}); err != nil {
			return err
		}
		done.ids = nil
		h.pause(ctx, retry.full())
	}
	h.over = len(msgs) > 0
	return ctx.Err()
}

// fenced is called when the destination refuses the token; nil means that the token was raised.
//
// rule: as with a file, the token is raised only while the lock is held: the store refuses whoever has a successor.
func (h *handlerSink) fenced(ctx context.Context, err error) error {
	var above *fencedAbove
	if !errors.As(err, &above) || above.seen < h.lease.Token() {
		return fmt.Errorf("the handler: %w", err)
	}
	h.log.Warn().Int64("seen", above.seen).Int64("token", h.lease.Token()).
		Msg("the handler's destination has seen a higher token than the lock grants, raising the lock's token")
	if _, err := h.lease.RaiseToken(ctx, above.seen); err != nil {
		return fmt.Errorf("raise the token of type %q above %d: %w", h.typ, above.seen, err)
	}
	return nil
}

// attempt hands msgs to the handler once, and returns those that are not settled, in order, and whether one of them failed.
func (h *handlerSink) attempt(ctx context.Context, msgs []queue.Message, done *group) (left []queue.Message, failed bool, _ error) {
	errs := narrow(ctx, h.handler, h.lease, msgs)
	if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, storage.ErrFenced) }); i >= 0 {
		// rule: a holder that has a successor judges no message.
		return msgs, false, h.fenced(ctx, errs[i])
	}
	for i, err := range errs {
		m := &msgs[i]
		switch {
		case err == nil:
			// rule: acknowledged only after the handler returned nil.
			h.settled(m, done)
			continue
		case errors.Is(err, ErrNotTried), ctx.Err() != nil: // rule: what a session that is over could not do is nobody's fault
		default:
			buried, err := h.failed(ctx, m, err)
			if err != nil {
				return nil, false, err
			}
			if buried {
				continue
			}
			failed = true
		}
		left = append(left, *m)
	}
	return left, failed, ctx.Err()
}

// settled counts m as handled.
func (h *handlerSink) settled(m *queue.Message, done *group) {
	done.ids = append(done.ids, m.ID)
	h.handled++
	h.count(func(st *Stats) { st.Handled++ })
	if n := h.attempts[m.ID]; n > 0 {
		delete(h.attempts, m.ID)
		h.log.Info().Stringer("id", m.ID).Int("attempts", n+1).Msg("handled a message that had failed")
	}
}

// failed counts a failure of m by itself, and puts it aside if it is over with it.
func (h *handlerSink) failed(ctx context.Context, m *queue.Message, err error) (buried bool, _ error) {
	if h.attempts == nil {
		h.attempts = map[queue.ID]int{}
	}
	h.attempts[m.ID]++
	h.noteFailing(err)
	n := h.attempts[m.ID]
	if n == 1 {
		event := h.log.Warn().Err(err).Stringer("id", m.ID)
		var p *PanicError
		if errors.As(err, &p) {
			event = event.Bytes("stack", p.Stack)
		}
		event.Msg("a message failed")
	}
	var permanent *permanentError
	if h.pool.cfg.OnError == Block || n < h.pool.cfg.MaxAttempts && !errors.As(err, &permanent) {
		return false, nil
	}
	delete(h.attempts, m.ID)
	return true, h.bury(ctx, queue.Letter{Message: *m, Reason: err.Error(), Attempts: n})
}

// bury puts messages aside. It does not give up before the session ends: until the letters are stored the messages stay.
func (s *session) bury(ctx context.Context, letters ...queue.Letter) error {
	for i := range letters {
		letters[i].Worker = s.pool.name
	}
	retry := backoff{min: watchMin, max: watchMax}
	var outage outage
	for outage.note(&s.log, s.pool.cfg.Queue.Bury(ctx, s.typ, letters), "put a message aside") {
		if err := sleep(ctx, retry.next()); err != nil {
			return fmt.Errorf("put message %s aside: %w", letters[0].ID, err)
		}
	}
	for i := range letters {
		l := letters[i]
		s.log.Warn().Stringer("id", l.ID).Int("attempts", l.Attempts).Str("reason", l.Reason).
			Msg("put a message aside as a dead letter; see fencepost dead ls")
		s.count(func(st *Stats) { st.Dead++ })
		s.emit(Event{Kind: Dead, Letter: &l})
	}
	return nil
}

// send hands a group to the ack stage.
func send(ctx context.Context, out chan<- group, g group) error {
	select {
	case out <- g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withTimeout bounds every call of h.
func withTimeout(h Handler, d time.Duration) Handler {
	if d == 0 {
		return h
	}
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("the handler took longer than the Timeout of %v", d))
		defer cancel()
		err := h.Handle(ctx, lease, msgs)
		if ctx.Err() == nil {
			return err
		}
		explain := func(err error) error {
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return err
		}
		batch, ok := err.(*BatchError)
		if !ok {
			return explain(err)
		}
		for i, err := range batch.Errs {
			batch.Errs[i] = explain(err)
		}
		return batch
	})
}
