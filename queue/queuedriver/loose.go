package queuedriver

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// MakeLoose returns copies of messages in the form in which they are stored in a transaction: each with
// an ID of the given time and with queue.LooseHeader. A backend calls it before it sends anything; the
// error says which message breaks a limit.
func MakeLoose(msgs []queue.Message, at time.Time) ([]queue.Message, error) {
	out := make([]queue.Message, len(msgs))
	for i, m := range msgs {
		switch {
		case !m.Due.IsZero():
			return nil, fmt.Errorf("message %d: a delayed message cannot be published in a transaction; use Publisher.PublishAt after the commit", i)
		case !m.ID.IsZero():
			return nil, fmt.Errorf("message %d: it has an ID; it gets one when it is published", i)
		case m.Incomplete:
			return nil, fmt.Errorf("message %d: %w", i, queue.ErrIncomplete)
		}
		headers := maps.Clone(m.Headers) // rule: a map that the caller shares between messages and goroutines is never written to
		if headers == nil {
			headers = map[string]string{}
		}
		headers[queue.LooseHeader] = queue.LooseValue
		m.Headers, m.ID = headers, queue.NewLooseID(at)
		// rule: a message is checked with the header that it gets
		if err := m.Validate(); err != nil {
			var size *queue.SizeError
			if errors.As(err, &size) && size.What != "payload" {
				return nil, fmt.Errorf("message %d, with the header %s: %w", i, queue.LooseHeader, err)
			}
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		out[i] = m
	}
	return out, nil
}
