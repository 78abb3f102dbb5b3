package queuetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/fencepost/fencepost/queue"
)

// Oracle checks the guarantees of a publisher: it observes the messages that become visible in a queue and the outcomes
// that the publisher reports, and finds contradictions. Payloads must be distinct. It is safe for concurrent use.
type Oracle struct {
	mu       sync.Mutex
	streams  map[streamKey]uint64 // highest n that became visible
	visible  map[string][]queue.ID
	reported []report
	faults   []error
}

type streamKey struct {
	typ      string
	producer uint64
}

type report struct {
	source, typ, payload string
	result               queue.Result
}

// Observe must be called for every message that becomes visible, in that order, for example as Memory.OnStore.
func (o *Oracle) Observe(m queue.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams == nil {
		o.streams, o.visible = map[streamKey]uint64{}, map[string][]queue.ID{}
	}
	key := streamKey{m.Type, m.ID.Producer()}
	switch n, last := m.ID.N(), o.streams[key]; {
	case n == last+1:
		o.streams[key] = n
	case n > last+1:
		// The consumer would hold n back, and declare a gap if the publisher stalled here.
		o.fault("%s: n=%d of producer %016x became visible when %d had not been", m.Type, n, key.producer, last+1)
		o.streams[key] = n
	}
	name := m.Type + "/" + string(m.Payload)
	for _, id := range o.visible[name] {
		if id != m.ID {
			o.fault("%s: payload %.40q is stored under two IDs, %v and %v", m.Type, m.Payload, id, m.ID)
		}
	}
	o.visible[name] = append(o.visible[name], m.ID)
}

// Report must be called with the outcome of every message. For each source, which is a goroutine that publishes, the
// calls must be in the order in which it passed the messages in.
func (o *Oracle) Report(source, typ string, payload []byte, r queue.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reported = append(o.reported, report{source, typ, string(payload), r})
}

// Check compares the reported outcomes with the messages that were observed, and returns the contradictions. Call it when no insert can
// still be executed.
func (o *Oracle) Check() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	type sourceKey struct{ source, typ string }
	last := map[sourceKey]queue.ID{} // the last Stored one
	for _, r := range o.reported {
		ids := o.visible[r.typ+"/"+r.payload]
		switch r.result.Status {
		case queue.Stored:
			if len(ids) == 0 {
				o.fault("%s: payload %.40q was reported stored and is not in the queue", r.typ, r.payload)
			} else if ids[0] != r.result.ID {
				o.fault("%s: payload %.40q was reported stored as %v and is in the queue as %v", r.typ, r.payload, r.result.ID, ids[0])
			}
			key := sourceKey{r.source, r.typ}
			if r.result.ID.Compare(last[key]) <= 0 {
				o.fault("%s: payload %.40q has ID %v, which does not sort after its predecessor's %v", r.typ, r.payload, r.result.ID, last[key])
			}
			last[key] = r.result.ID
		case queue.Rejected:
			if len(ids) > 0 {
				o.fault("%s: payload %.40q was reported rejected and is in the queue as %v", r.typ, r.payload, ids[0])
			}
			if r.result.Err == nil || !r.result.ID.IsZero() {
				o.fault("%s: rejected payload %.40q: ID %v, error %v", r.typ, r.payload, r.result.ID, r.result.Err)
			}
		case queue.Unknown:
			if !errors.Is(r.result.Err, queue.ErrUnknown) || r.result.ID.IsZero() {
				o.fault("%s: unknown payload %.40q: ID %v, error %v", r.typ, r.payload, r.result.ID, r.result.Err)
			}
			if len(ids) > 0 && ids[0] != r.result.ID {
				o.fault("%s: payload %.40q was reported unknown as %v and is in the queue as %v", r.typ, r.payload, r.result.ID, ids[0])
			}
		default:
			o.fault("%s: payload %.40q: no outcome", r.typ, r.payload)
		}
	}
	return errors.Join(o.faults...)
}

// fault records a violation.
func (o *Oracle) fault(format string, args ...any) {
	if len(o.faults) < 10 {
		o.faults = append(o.faults, fmt.Errorf(format, args...))
	}
}
