package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// Letters chooses dead letters. The zero value chooses all.
type Letters struct {
	Types  []string // of these types only; none: of all
	IDs    []queue.ID
	Reason string    // only those whose reason contains this
	Since  time.Time // only those that became dead letters at this time or later …
	Before time.Time // … and before this one
}

// Each calls f with every chosen letter, by type and ID.
func (s Letters) Each(ctx context.Context, q queue.DeadLetterReader, f func(queue.DeadLetter) error) error {
	types := s.Types
	if len(types) == 0 {
		types = []string{""} // all
	}
	for _, typ := range types {
		if err := s.eachOf(ctx, q, typ, f); err != nil {
			return err
		}
	}
	return nil
}

// eachOf is Each for one type.
func (s Letters) eachOf(ctx context.Context, q queue.DeadLetterReader, typ string, f func(queue.DeadLetter) error) error {
	for l, err := range queue.DeadLetters(ctx, q, queue.DeadLetterFilter{Type: typ, IDs: s.IDs, Reason: s.Reason, Since: s.Since, Before: s.Before}) {
		if err == nil {
			err = f(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Requeue publishes the chosen letters as new messages and removes them, type by type. It takes the letters that exist when it begins with the
// type. A letter that cannot be published stays, and the error is a PartialError.
func (s Letters) Requeue(ctx context.Context, b *fencepost.Backend, turn Turn, tell Progress) (o Outcome, err error) {
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	if err != nil {
		return o, err
	}
	var failed error // the first
	err = s.act(ctx, b, turn, &o, func(ctx context.Context, letters []queue.DeadLetter) error {
		n, err := queue.Requeue(ctx, b.Queue, p, letters)
		o.Done += n
		o.Left += len(letters) - n
		if failed == nil {
			failed = err
		}
		tell(o)
		return nil
	})
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = p.Close(closeCtx) // the outcomes are known, or permanently unknown
	if err == nil && failed != nil {
		err = &PartialError{failed}
	}
	return o, err
}

// Remove permanently removes the chosen letters with their messages.
func (s Letters) Remove(ctx context.Context, b *fencepost.Backend, turn Turn, tell Progress) (o Outcome, err error) {
	err = s.act(ctx, b, turn, &o, func(ctx context.Context, letters []queue.DeadLetter) error {
		ids := map[string][]queue.ID{}
		for _, l := range letters {
			ids[l.Type] = append(ids[l.Type], l.ID)
		}
		for typ, ids := range ids {
			if err := b.Queue.RemoveDeadLetters(ctx, typ, ids); err != nil {
				return err
			}
			o.Done += len(ids)
		}
		tell(o)
		return nil
	})
	return o, err
}

// act works type by type, and calls do with the chosen letters in portions.
func (s Letters) act(ctx context.Context, b *fencepost.Backend, turn Turn, o *Outcome, do func(context.Context, []queue.DeadLetter) error) error {
	types := s.Types
	if len(types) == 0 {
		var err error
		if types, err = b.Queue.Types(ctx); err != nil {
			return err
		}
	}
	missing := map[queue.ID]bool{}
	for _, id := range s.IDs {
		missing[id] = true
	}
	choose := func(l queue.DeadLetter) {
		o.Chosen++
		delete(missing, l.ID)
	}
	acted := false
	for _, typ := range types {
		one := errors.New("there is one")
		err := s.eachOf(ctx, b.Queue, typ, func(queue.DeadLetter) error { return one })
		if err == nil {
			continue // nothing to change, so no lock is needed
		}
		if errors.Is(err, one) {
			err = turn.Take(ctx, b, typ, func(ctx context.Context) error { return s.actOn(ctx, b, typ, choose, do) })
		}
		switch {
		case err == nil:
			acted = true
		case acted && errors.Is(err, lock.ErrHeld):
			return &PartialError{fmt.Errorf("the dead letters of type %s and of the types after it remain: %w", typ, err)}
		default:
			return err
		}
	}
	for id := range missing {
		o.Missing = append(o.Missing, id)
	}
	slices.SortFunc(o.Missing, queue.ID.Compare)
	return nil
}

// actOn works on one type.
//
// rule: the letters are chosen under the lock. Letters chosen earlier may already have been requeued or removed.
func (s Letters) actOn(ctx context.Context, b *fencepost.Backend, typ string, choose func(queue.DeadLetter), do func(context.Context, []queue.DeadLetter) error) error {
	// rule: letters that die during the change are not chosen, in particular messages that were requeued and died again.
	chosen := map[queue.ID]bool{}
	err := s.eachOf(ctx, b.Queue, typ, func(l queue.DeadLetter) error {
		choose(l)
		chosen[l.ID] = true
		return nil
	})
	if err != nil {
		return err
	}
	const letters, bytes = 500, 8 << 20
	var portion []queue.DeadLetter
	size := 0
	flush := func() error {
		// rule: no portion is begun without the lock.
		if len(portion) == 0 || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := do(ctx, portion)
		portion, size = portion[:0], 0
		return err
	}
	err = s.eachOf(ctx, b.Queue, typ, func(l queue.DeadLetter) error {
		if !chosen[l.ID] {
			return nil
		}
		portion = append(portion, l)
		if size += l.Size(); len(portion) == letters || size >= bytes {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}
