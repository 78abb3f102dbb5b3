package queue

import (
	"context"
	"time"
)

// PublishAt is Publish for a delayed message: at the given time, by the queue's clock, it is promoted
// to the end of its type. Messages that are due at the same time are promoted in the order in which
// they were published. A time in the past means as soon as possible.
//
// The ID is that of the delayed message; promotion gives it another. To cancel the message, pass a
// [ScheduleKey] of due, typ and the ID to CancelDelayed of the queue.
func (p *Publisher) PublishAt(ctx context.Context, due time.Time, typ string, payload []byte, headers map[string]string) (ID, error) {
	if first := time.UnixMilli(0); due.Before(first) { // a Message with the zero time would not be delayed
		due = first
	}
	r := p.PublishAll(ctx, []Message{{Type: typ, Payload: payload, Headers: headers, Due: due}})[0]
	return r.ID, r.Err
}

// PublishAfter is PublishAt for a time that is delay from now. For a message that you may cancel, call
// PublishAt with p.Now().Add(delay), because cancelling needs that time.
func (p *Publisher) PublishAfter(ctx context.Context, delay time.Duration, typ string, payload []byte, headers map[string]string) (ID, error) {
	return p.PublishAt(ctx, p.Now().Add(delay), typ, payload, headers)
}

// Now is the queue's clock, as read by NewPublisher and advanced by the time that has passed since.
func (p *Publisher) Now() time.Time { return p.clock.now() }

// delayUntil is the due time of an accepted message, zero for a normal one. A time in the past becomes
// now: so several messages with past times keep the order in which they were published.
func (p *Publisher) delayUntil(due time.Time) time.Time {
	if due.IsZero() { // the usual case: avoid reading the clock
		return due
	}
	if now := p.clock.now(); due.Before(now) {
		return now
	}
	return due
}

// streamKey is the key of a stream in Publisher.streams: a type has one stream for normal and one for
// delayed messages.
func streamKey(typ string, delayed bool) string {
	if delayed {
		return typ + "@" // not valid in a type name
	}
	return typ
}
