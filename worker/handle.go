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

// handlerSink is the sink of a session that passes the messages to the Handler.
type handlerSink struct {
	*session
	handler Handler
	retries retries
	handled uint64
	poison  poison
	over    bool // the session is to end, and some messages were not settled
}

// open starts with an empty ledger, because without a file it is unknown which messages earlier sessions
// handled. Within the session the ledger keeps the order, and prevents any message from being handled twice.
func (h *handlerSink) open(ctx context.Context) error {
	h.poison = poison{queue: h.pool.cfg.Queue, typ: h.typ, log: &h.log, batch: h.pool.cfg.Batch, instance: h.pool.instance}
	h.ledger = ledger.New(ledger.Options{GapTimeout: h.pool.cfg.GapTimeout, Now: time.Now, Sweep: h.sweeps.Load, NoFile: true})
	return h.poison.begin(ctx)
}

// ack removes the messages from the queue. It needs no registry of files.
func (h *handlerSink) ack(ctx context.Context, ids []queue.ID) error {
	return h.pool.cfg.Queue.Ack(ctx, h.typ, ids)
}

func (h *handlerSink) close(err error) error {
	h.poison.end(err)
	return err
}

func (h *handlerSink) describe(e *zerolog.Event) *zerolog.Event {
	return e.Uint64("handled", h.handled)
}

// stage passes batch after batch to the handler.
func (h *handlerSink) stage(ctx context.Context, in <-chan batch, out chan<- group) error {
	var due []queue.Message
	for next := range in {
		next.memory.give() // rule: what the handler has takes no memory from others. The handler may be slow, or wait for an operator.
		batch := next.msgs
		if h.over {
			// rule: no more messages are judged: the ledger counts the unsettled ones as handled, and would take them for copies.
			if err := sendGroup(ctx, out, group{batches: 1}); err != nil {
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
		settled := len(due)+len(done.ids) > 0
		h.trimLoose(settled)
		h.trimProducers(settled, "more producers than a session remembers: those that have been silent for longest are forgotten early. If a forgotten producer repeats "+
			"a handled message, it is handled twice; if it publishes a new one, that waits for another sweep over the backlog")
		if err := h.buryRefused(ctx); err != nil {
			return err
		}
		h.tellHeld()
		if err := h.settle(ctx, due, &done, out); err != nil {
			return err
		}
		clear(due) // as with a file, an idle session keeps nothing of its last batch
		if err := sendGroup(ctx, out, done); err != nil {
			return err
		}
	}
	return nil
}

// settle passes msgs to the handler until each of them is settled, which means handled or a dead
// letter, and collects the handled ones in done. When the session is to end it stops without an
// error: unsettled messages stay in the queue.
func (h *handlerSink) settle(ctx context.Context, msgs []queue.Message, done *group, out chan<- group) error {
	h.retries.pause.Reset()
	size := len(msgs) // of the next attempt
	for len(msgs) > 0 && !h.ending(ctx) {
		// This only saves useless work, as for a file. A handler that must have no effect after the end
		// of its lease compares tokens at the destination.
		if err := h.lease.Check(0); err != nil {
			return err
		}
		size = min(size, len(msgs))
		if h.poison.oneByOne > 0 {
			size = 1
			if buried, err := h.buryOrTry(ctx, &msgs[0]); err != nil {
				return err
			} else if buried {
				msgs = msgs[1:]
				continue
			}
		}
		left, failed, err := h.attemptAndTell(ctx, msgs[:size], done, out)
		if err != nil {
			return err
		}
		settled := size - len(left)
		msgs = append(left, msgs[size:]...)
		if settled > 0 {
			h.retries.pause.Reset()
			size *= 2
		} else {
			size = max(size/2, 1) // the batch may be too large, for example for the Timeout
		}
		if len(msgs) == 0 {
			return nil
		}
		if !failed && settled > 0 {
			continue
		}
		if err := sendNow(ctx, out, done); err != nil { // the pause may be long
			return err
		}
		h.pause(ctx, h.retries.pause.Spread())
		if !h.ending(ctx) {
			h.count(func(st *Stats) { st.Retries++ })
		}
	}
	h.over = len(msgs) > 0
	return ctx.Err()
}

// attemptAndTell is attempt, and tells others what was settled: subscribers and, if messages are handled one by one, the queue.
func (h *handlerSink) attemptAndTell(ctx context.Context, msgs []queue.Message, done *group, out chan<- group) (left []queue.Message, failed bool, err error) {
	before := h.handled
	if left, failed, err = h.attempt(ctx, msgs, done); err != nil {
		return nil, false, err
	}
	if h.poison.oneByOne > 0 {
		h.poison.returned(ctx, len(msgs)-len(left))
		if err := sendNow(ctx, out, done); err != nil { // so that they are not handled again if the process is killed
			return nil, false, err
		}
	}
	if n := h.handled - before; n > 0 {
		h.emit(Event{Kind: Committed, Messages: int(n)})
	}
	return left, failed, nil
}

// sendNow sends the settled messages of a batch to the ack stage before the rest of the batch is settled.
func sendNow(ctx context.Context, out chan<- group, done *group) error {
	err := sendGroup(ctx, out, group{ids: done.ids})
	done.ids = nil
	return err
}

// buryOrTry makes m a dead letter if it has killed the process often enough. Otherwise it notes that m is about to be handled by
// itself: see poison.go.
func (h *handlerSink) buryOrTry(ctx context.Context, m *queue.Message) (buried bool, err error) {
	deaths, killer := h.poison.killer(m.ID)
	if !killer || h.pool.cfg.OnError == Block {
		return false, h.insist(ctx, &outage{}, "note which message is being handled", func() error { return h.poison.trying(ctx, m.ID) })
	}
	h.poison.buried(m.ID)
	return true, h.bury(ctx, queue.DeadLetter{Message: *m, Attempts: deaths,
		Reason: fmt.Sprintf("%d times the worker's process ended, or lost its lock, while it handled this message by itself", deaths)})
}

// fenced handles the answer of a destination that refuses the token. nil means that the token was
// raised, and that the messages can be passed to the handler again.
//
// rule: as with a file, the token is raised only while the lock is held: the lock store refuses a holder that has a successor.
func (h *handlerSink) fenced(ctx context.Context, err error) error {
	var above *fencedAbove
	if !errors.As(err, &above) || above.seen < h.lease.Token() {
		return fmt.Errorf("the handler: %w", err)
	}
	granted := h.lease.Token()
	raised, err := h.lease.RaiseToken(ctx, above.seen)
	if err != nil {
		return fmt.Errorf("raise the token of type %q above %d: %w", h.typ, above.seen, err)
	}
	h.pool.book.note(h.typ, func(r *typeRecord) { r.Token = raised })
	h.log.Warn().Int64("seen", above.seen).Int64("token", granted).Int64("raised", raised).
		Msg("the handler's destination has seen a higher token than the lock granted, so the lock's token was raised")
	return nil
}

// attempt passes msgs to the handler once. It returns the unsettled ones, in order, and whether any
// message failed.
func (h *handlerSink) attempt(ctx context.Context, msgs []queue.Message, done *group) (left []queue.Message, failed bool, _ error) {
	ctx = withEnds(ctx, func() bool { return h.ending(ctx) })
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
		case errors.Is(err, ErrNotTried), ctx.Err() != nil: // rule: no message is blamed for the end of its session
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

// settled adds m to done, and counts it as handled.
func (h *handlerSink) settled(m *queue.Message, done *group) {
	done.ids = append(done.ids, m.ID)
	h.handled++
	h.count(func(st *Stats) { st.Handled++ })
	if n := h.retries.settled(m.ID); n > 0 {
		h.log.Info().Stringer("id", m.ID).Int("attempts", n+1).Msg("handled a message that had failed")
	}
}

// failed counts a failure of m, and makes m a dead letter if it must not be retried.
func (h *handlerSink) failed(ctx context.Context, m *queue.Message, err error) (buried bool, _ error) {
	h.noteFailing(err)
	n, over := h.retries.failed(m.ID, err)
	if n == 1 {
		event := h.log.Warn().Err(err).Stringer("id", m.ID)
		var p *PanicError
		if errors.As(err, &p) {
			event = event.Bytes("stack", p.Stack)
		}
		consequence := ""
		if h.pool.cfg.OnError == Block {
			consequence = "; its type waits until it succeeds, because OnError is Block; DeadLetter puts such messages aside"
		}
		event.Msg("a message failed" + consequence)
	}
	if !over {
		return false, nil
	}
	return true, h.bury(ctx, queue.DeadLetter{Message: *m, Reason: err.Error(), Attempts: n})
}

// errNoReturn is observed as the error of a call that panicked or ended its goroutine.
var errNoReturn = errors.New("the handler did not return")

// observed wraps h to report every call to Config.Observe, and to Status while it runs.
func (s *session) observed(h Handler) Handler {
	return HandlerFunc(func(ctx context.Context, lease Lease, msgs []queue.Message) error {
		began := time.Now()
		s.pool.book.handling(s.typ, true)
		err := errNoReturn
		defer func() { // also when it panics
			s.pool.book.handling(s.typ, false)
			s.observe(StepHandle, began, len(msgs), err)
		}()
		err = h.Handle(ctx, lease, msgs)
		return err
	})
}
