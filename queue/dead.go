package queue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
)

// MaxReason is the longest DeadLetter.Reason, in bytes; MoveToDeadLetters truncates longer ones.
const MaxReason = 4 << 10

// DeadLetter is a message that was given up, so that the messages after it can proceed. It keeps the
// message's type and ID.
type DeadLetter struct {
	Message
	Reason   string    // why it was given up
	Attempts int       // how often it was tried
	Worker   string    // which worker gave it up
	Time     time.Time // when, by the backend's clock, to the millisecond; set by MoveToDeadLetters
	Damaged  string    // set by DeadLetters if one of the fields above cannot be decoded: names it; says nothing about the message itself
}

// Size is how much a dead letter counts towards byte limits: its message, Reason and Worker.
func (l *DeadLetter) Size() int { return l.Message.Size() + len(l.Reason) + len(l.Worker) }

// DeadLetterStore is the role of a Queue that keeps dead letters. They stay until they are requeued or
// removed.
type DeadLetterStore interface {
	// MoveToDeadLetters moves messages of one type to the dead letters: it stores them there,
	// durably, then removes them from the messages. It is idempotent by ID: a dead letter that
	// already exists stays unchanged. After an error, which may be unclear, call it again with the
	// same letters. Meanwhile a message may be in both places, but never in neither.
	MoveToDeadLetters(ctx context.Context, typ string, letters []DeadLetter) error

	// DeadLetters returns dead letters of a type with ID > after (the zero ID = from the start), in
	// ID order.
	DeadLetters(ctx context.Context, typ string, after ID, limit Limit) ([]DeadLetter, error)

	// RemoveDeadLetters removes dead letters, durably. IDs that do not exist are no error.
	RemoveDeadLetters(ctx context.Context, typ string, ids []ID) error
}

// DeadLetterFilter selects dead letters. The zero value selects all.
type DeadLetterFilter struct {
	Type   string    // of this type only
	IDs    []ID      // only these
	Reason string    // only those whose reason contains this
	Since  time.Time // only those that became dead letters at this time or later …
	Before time.Time // … and before this one
}

// matches checks the parts of the filter that DeadLetters cannot select by key.
func (f *DeadLetterFilter) matches(l *DeadLetter) bool {
	return strings.Contains(l.Reason, f.Reason) && !l.Time.Before(f.Since) && (f.Before.IsZero() || l.Time.Before(f.Before))
}

// deadLetterPage bounds one read of DeadLetters.
var deadLetterPage = Limit{Messages: 200, Bytes: 8 << 20}

// DeadLetterReader is what [DeadLetters] needs of a queue.
type DeadLetterReader interface {
	Types(ctx context.Context) ([]string, error)
	DeadLetters(ctx context.Context, typ string, after ID, limit Limit) ([]DeadLetter, error)
}

// DeadLetterRemover is what [Requeue] needs of a queue.
type DeadLetterRemover interface {
	RemoveDeadLetters(ctx context.Context, typ string, ids []ID) error
}

// DeadLetters iterates over the dead letters that f selects, in the order of type and ID. It reads
// them in pages, so it does not see a snapshot. An error ends the iteration.
func DeadLetters(ctx context.Context, q DeadLetterReader, f DeadLetterFilter) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		types := []string{f.Type}
		if f.Type == "" {
			var err error
			if types, err = q.Types(ctx); err != nil {
				yield(DeadLetter{}, err)
				return
			}
		}
		for _, typ := range types {
			if !deadLettersOf(ctx, q, typ, &f, yield) {
				return
			}
		}
	}
}

// deadLettersOf yields the dead letters of one type; false ends the whole iteration.
func deadLettersOf(ctx context.Context, q DeadLetterReader, typ string, f *DeadLetterFilter, yield func(DeadLetter, error) bool) bool {
	page := func(after ID, limit Limit) (found []DeadLetter, ok bool) {
		found, err := q.DeadLetters(ctx, typ, after, limit)
		if err != nil {
			yield(DeadLetter{}, err)
		}
		return found, err == nil
	}
	if f.IDs != nil {
		ids := slices.Clone(f.IDs)
		slices.SortFunc(ids, ID.Compare)
		for _, id := range slices.Compact(ids) {
			found, ok := page(id.Prev(), Limit{Messages: 1})
			if !ok || len(found) == 1 && found[0].ID == id && f.matches(&found[0]) && !yield(found[0], nil) {
				return false
			}
		}
		return true
	}
	for after := (ID{}); ; {
		found, ok := page(after, deadLetterPage)
		if !ok {
			return false
		}
		if len(found) == 0 {
			return true
		}
		for i := range found {
			if f.matches(&found[i]) && !yield(found[i], nil) {
				return false
			}
		}
		after = found[len(found)-1].ID
	}
}

// Bounds of the removal at the end of Requeue. It is retried, because a letter that is not removed may
// be published twice.
const (
	removeAttempts = 5
	removeTimeout  = 10 * time.Second
)

// Requeue publishes dead letters as new messages, after all others of their type, and removes each
// dead letter once its message is stored. Letters of a type keep their order. It returns how many were
// published and removed.
//
// No crash or error loses a letter, because it is removed only after its new message is stored. But a
// crash in between, or an unknown outcome, may leave a letter whose message is already stored.
// Requeueing it again publishes it a second time, under another ID, so it is not recognized as a copy.
//
// Requeue takes no lock, so two calls with the same letters publish them twice. Hold [AdminLock] from
// before you read the letters until Requeue returns, and pass a ctx that ends if the lock is lost: then
// Requeue sends no more messages.
func Requeue(ctx context.Context, q DeadLetterRemover, p *Publisher, letters []DeadLetter) (requeued int, err error) {
	msgs := make([]Message, len(letters))
	for i := range letters {
		msgs[i] = letters[i].Message
	}
	stored := map[string][]ID{}
	var errs []error
	stays, staysWhy := 0, error(nil) // how many letters stay, and why the first one does: the others usually have the same error
	for i, r := range p.PublishAll(ctx, msgs) {
		l := &letters[i]
		if r.Status == Stored {
			stored[l.Type] = append(stored[l.Type], l.ID)
			continue
		}
		if stays++; stays == 1 {
			staysWhy = fmt.Errorf("dead letter %s of type %s stays: %w", l.ID, l.Type, r.Err)
		}
	}
	switch {
	case stays == 1:
		errs = append(errs, staysWhy)
	case stays > 1:
		errs = append(errs, fmt.Errorf("%d dead letters stay; the first: %w", stays, staysWhy))
	}
	// Remove even if ctx has ended: a published letter that stays would be published twice.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	for typ, ids := range stored {
		if err := removeDeadLetters(ctx, q, typ, ids); err != nil {
			errs = append(errs, fmt.Errorf("%d dead letters of type %s were published again and may still be listed, from %s to %s; remove them, "+
				"requeueing them would publish them twice: %w", len(ids), typ, ids[0], ids[len(ids)-1], err))
			continue
		}
		requeued += len(ids)
	}
	return requeued, errors.Join(errs...)
}

// removeDeadLetters removes dead letters, with a few retries.
func removeDeadLetters(ctx context.Context, q DeadLetterRemover, typ string, ids []ID) (err error) {
	for attempt := range removeAttempts {
		if err = q.RemoveDeadLetters(ctx, typ, ids); err == nil || ctx.Err() != nil {
			return err
		}
		wait.Unless(ctx.Done(), minRepeatWait<<attempt)
	}
	return err
}
