package queue

import "time"

// A loose message is not numbered: its n is 0. It is for programs that store messages in a transaction
// of their own, which may be aborted, or committed long after its messages got their IDs. With numbers,
// both would leave gaps for consumers to wait for.
//
//	                      numbered (Publisher)              loose (in a transaction)
//	producer number       of one publisher and type         of one message, random
//	n                     1, 2, 3 …                         0, and the header LooseHeader
//	order                 as published                      none; pending ones are fetched in ID order
//	a missing one         is waited for                     is not noticed
//	exactly once by       the last n in the file            the ID, which the file remembers

// LooseHeader is the header that marks a loose message. Its value is [LooseValue]. In a message whose
// number is not 0 it means nothing, so a dead letter can keep it when it is requeued.
const LooseHeader = "fencepost-loose"

// LooseValue is the value of LooseHeader.
const LooseValue = "1"

// Loose reports whether m is a loose message.
//
// rule: a number of 0 alone does not make a message loose. A foreign program may have written it by mistake, and perhaps twice.
func (m *Message) Loose() bool { return m.ID.N() == 0 && m.Headers[LooseHeader] == LooseValue }

// NewLooseID returns the ID of a loose message: the given time, a new random producer number, and the
// number 0.
func NewLooseID(t time.Time) ID { return NewID(t, newProducerNumber(), 0) }
