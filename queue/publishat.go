package queue

import (
	"context"
	"time"
)

// PublishAt is Publish for a message that becomes a normal one at the given time, by the queue's
// clock: at the end of its type, so its place in the order is that of all messages that are
// promoted then. What is due at the same time keeps the order in which it was published. A time in
// the past means: as soon as possible. See Message.Due.
//
// The ID is that of the delayed message, to find or cancel it; as a normal one it gets another.
func (p *Publisher) PublishAt(ctx context.Context, due time.Time, typ string, payload []byte, headers map[string]string) (ID, error) {
	if due.IsZero() {
		due = time.UnixMilli(0)
	}
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers, Due: due}})[0]
	return r.ID, r.Err
}

// PublishAfter is PublishAt for a time from now.
func (p *Publisher) PublishAfter(ctx context.Context, delay time.Duration, typ string, payload []byte, headers map[string]string) (ID, error) {
	return p.PublishAt(ctx, p.Now().Add(delay), typ, payload, headers)
}

// Now is the queue's clock, as read by NewPublisher and advanced by what has passed since.
func (p *Publisher) Now() time.Time { return p.clock.now() }

// delayUntil is the due time of an accepted message, zero for a normal one. What is past counts as
// now: so the due times of a run that was meant for the past are in the order of its messages.
func (p *Publisher) delayUntil(due time.Time) time.Time {
	if due.IsZero() { // as most are: reading a clock takes longer than all else that is done here
		return due
	}
	if now := p.clock.now(); due.Before(now) {
		return now
	}
	return due
}

// streamKey tells the stream of a type's delayed messages from that of the others.
func streamKey(typ string, delayed bool) string {
	if delayed {
		return typ + "@" // in no type name
	}
	return typ
}
