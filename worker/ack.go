package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// The ack stage is the end of a message's path: messages that are durable in the file, or handled, are
// deleted from the queue.
//
//	append.go: fsync ──group──▶ registry of files: durable up to here ──▶ deletion from the queue

const maxAckIDs = 5000 // messages per acknowledgement

// ackStage removes settled messages from the queue. It retries until the lease is lost or the context of
// Run ends (on a stop, after the grace period); meanwhile a failing acknowledgement blocks the pipeline.
func (s *session) ackStage(ctx context.Context, in <-chan group) error {
	var outage outage
	for {
		var g group
		var ok bool
		select {
		case g, ok = <-in:
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		// All groups that are ready share one acknowledgement, as batches share one fsync.
		for more := true; more && len(g.ids) < maxAckIDs; {
			var next group
			select {
			case next, more = <-in:
				g.ids, g.batches = append(g.ids, next.ids...), g.batches+next.batches
			default:
				more = false
			}
		}
		for ids := range slices.Chunk(g.ids, maxAckIDs) {
			if err := s.acknowledge(ctx, ids, &outage); err != nil {
				return err
			}
		}
		s.inflight.add(-g.batches)
	}
}

// acknowledge removes settled messages from the queue, retrying until it succeeds, the writer is
// fenced, or the session has ended.
func (s *session) acknowledge(ctx context.Context, ids []queue.ID, outage *outage) error {
	return s.insist(ctx, outage, "acknowledge", func() error {
		began := time.Now()
		// rule: a stop cancels no acknowledgement: those in progress are finished within the grace period.
		err := s.sink.ack(ctx, ids)
		s.observe(StepAck, began, len(ids), err)
		return err
	})
}

// ack raises the durable index in the registry of files, then removes the messages from the queue.
//
// rule: the registry knows of a record before its message is acknowledged. Otherwise a copy of the file made a moment earlier would pass for the
// file, and the message would be lost.
func (s fileSink) ack(ctx context.Context, ids []queue.ID) error {
	keep, err := s.keepFile(ctx)
	if err != nil {
		return err
	}
	defer keep()
	e := s.writer().Entry() // its durable index covers the records of these messages or, for copies, of their originals
	ok, err := s.pool.cfg.Queue.AckFile(ctx, s.typ, queueFile(e), ids)
	if err == nil && !ok {
		err = fmt.Errorf("%w: the registry of files no longer names %s, file %s, with epoch %d; nothing was acknowledged", storage.ErrFenced, s.writer().Path(), e.FileID, e.Epoch)
	}
	if err == nil {
		s.registered.Store(&e)
	}
	return err
}

// keepFile prevents a rotation of the file until done is called: the ack stage must register the
// durable index of the very file that the registry names.
func (s *session) keepFile(ctx context.Context) (done func(), err error) {
	select {
	case s.filing <- struct{}{}:
		return func() { <-s.filing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sendGroup sends a group to the ack stage.
func sendGroup(ctx context.Context, out chan<- group, g group) error {
	select {
	case out <- g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
