package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Middleware is called with the messages of every Publish, PublishAt, PublishAll and Send before the
// publisher processes them. It may add headers, replace payloads, refuse messages, and learn
// their outcomes. See [PublisherOptions].Use.
//
// It runs in the caller's goroutine, with the caller's context, concurrently with other calls. It
// cannot change the type or the order of messages, or publish them twice. So the publisher's guarantees
// hold whatever a middleware does: messages have no numbers yet, and a refused message leaves no gap.
type Middleware func(ctx context.Context, out *Outgoing)

// Outgoing holds the messages of one call on their way to the publisher. A Middleware may use it only
// until it returns. Not safe for concurrent use.
type Outgoing struct {
	msgs    []Message
	cloned  []bool // by message: the headers are our copy; nil: none is
	refused []error
	settled []func([]Result)
}

// Len is the number of messages, at least 1.
func (o *Outgoing) Len() int { return len(o.msgs) }

// Message returns message i of the call, as earlier Middlewares have left it. It has no ID yet. Do not
// modify Payload and Headers: they may be the caller's.
func (o *Outgoing) Message(i int) Message { return o.msgs[i] }

// SetHeader adds a header to message i, or replaces it. The caller's map is not modified.
func (o *Outgoing) SetHeader(i int, key, value string) {
	if o.cloned == nil {
		o.cloned = make([]bool, len(o.msgs))
	}
	m := &o.msgs[i]
	switch {
	case m.Headers == nil:
		m.Headers = map[string]string{}
	case !o.cloned[i]: // rule: a map that the caller shares between messages and goroutines is never written to
		m.Headers = maps.Clone(m.Headers)
	}
	o.cloned[i] = true
	m.Headers[key] = value
}

// SetPayload replaces the payload of message i, for example to compress or encrypt it. The publisher
// copies payload.
func (o *Outgoing) SetPayload(i int, payload []byte) { o.msgs[i].Payload = payload }

// Refuse settles message i as Rejected with err, unless it is already refused. It is not published.
func (o *Outgoing) Refuse(i int, err error) {
	if o.refused == nil {
		o.refused = make([]error, len(o.msgs))
	}
	if err == nil {
		err = errors.New("refused by a middleware")
	}
	if o.refused[i] == nil {
		o.refused[i] = err
	}
}

// Settled registers f, which is called exactly once, with the outcomes of all messages of the call,
// before the caller gets them. Functions are called in the reverse order of registration. For Publish
// and PublishAll f runs in the caller's goroutine. For Send it runs where done is called, under the
// same rules: it must be quick, and must not call the publisher. f must not change or keep the
// results.
func (o *Outgoing) Settled(f func([]Result)) { o.settled = append(o.settled, f) }

// outgoing passes msgs to the middleware. The slice must not be the caller's.
func (p *Publisher) outgoing(ctx context.Context, msgs []Message) *Outgoing {
	o := &Outgoing{msgs: msgs}
	for _, use := range p.opt.Use {
		use(ctx, o)
	}
	return o
}

// report passes the outcomes to the middleware.
func (o *Outgoing) report(results []Result) {
	for _, f := range slices.Backward(o.settled) {
		f(results)
	}
}

// refusal is the outcome of message i if it is refused, else nil. Without middleware o is nil.
func (o *Outgoing) refusal(i int) error {
	if o == nil || o.refused == nil || o.refused[i] == nil {
		return nil
	}
	return fmt.Errorf("publish: not sent: %w", o.refused[i])
}

// publishThrough is PublishAll with middleware.
func (p *Publisher) publishThrough(ctx context.Context, msgs []Message) []Result {
	o := p.outgoing(ctx, slices.Clone(msgs))
	results := p.publishAll(ctx, o.msgs, o)
	o.report(results)
	return results
}

// sendThrough is Send with middleware.
func (p *Publisher) sendThrough(ctx context.Context, m Message, done func(Result)) error {
	o := p.outgoing(ctx, []Message{m})
	r := p.send(ctx, o.msgs[0], o, func(r Result) {
		o.report([]Result{r})
		if done != nil {
			done(r)
		}
	})
	if r.Err != nil {
		o.report([]Result{r})
	}
	return r.Err
}
