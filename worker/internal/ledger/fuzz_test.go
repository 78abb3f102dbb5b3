package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// stateSeeds returns checkpoint states of all versions, with every kind of entry.
func stateSeeds() (states [][]byte) {
	l, c := testLedger()
	at := epoch.UnixMilli()
	l.keys.window = time.Hour
	states = append(states, l.State())
	for _, n := range []uint64{1, 2, 4, 9} {
		m := message(1, n)
		admit(l, m, at)
		c.t = c.t.Add(time.Minute)
		admit(l, m, at+1)
		l.keys.record(fmt.Sprint(n%3), m.ID)
		l.delayed.Record(message(7, 2*n).ID, 5)
	}
	l.recordSkipped(message(1, 4).ID)
	for _, producer := range []uint64{11, 12} {
		admit(l, loose(producer), at)
	}
	l.recordSkipped(loose(12).ID)
	admit(l, message(2, 1), at+2)
	l.keys.record("future", message(3, 3_600_000).ID)
	states = append(states, l.State())
	producer := binary.LittleEndian.AppendUint64(nil, 5)
	for version, tail := range map[byte][]byte{
		stateVersionFirst: {9, 7, 1, 2, 3},                                                      // n, seenAt, one gap
		stateVersionKeys:  append(append([]byte{9, 7, 0, 1}, make([]byte, 15)...), 1, 8),        // and one key
		stateVersionTimes: append(append([]byte{9, 6, 7, 0, 0, 1}, producer...), 7, 1, 2, 2),    // and times, and delayed messages
		stateVersion:      append(append([]byte{9, 6, 7, 0, 1, 4, 5, 0, 1}, producer...), 7, 0), // and skipped numbers
		stateVersion + 1:  {0, 0, 0},
	} {
		states = append(states, slices.Concat([]byte{version, 1}, producer, tail))
	}
	one := slices.Concat(producer, []byte{9, 6, 7, 1, 1, 2, 1, 4, 5})
	for _, tail := range [][]byte{{0, 6, 7, 0, 0}, {0, 0, 7, 0, 1, 0, 0}, {0, 6, 7, 1, 0, 0, 0}} { // loose messages, the last one with numbers before it
		states = append(states, slices.Concat([]byte{stateVersion, 1}, producer, tail, []byte{0, 0}))
	}
	return append(states, slices.Concat([]byte{stateVersion, 2}, one, one, []byte{0, 0}), // a producer twice
		slices.Concat([]byte{stateVersionFirst, 1}, producer, []byte{9, 7, 1, 8, 10}),      // a missing number above the last one
		slices.Concat([]byte{stateVersionFirst, 1}, producer, []byte{9, 7, 2, 4, 5, 2, 3}), // ranges out of order
		slices.Concat([]byte{stateVersion, 0, 0, 2}, producer, []byte{7, 1, 1, 2}, producer, []byte{7, 1, 4, 5}),
		slices.Concat([]byte{stateVersion, 0, 2}, make([]byte, 15), []byte{1, 0}, make([]byte, 15), []byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0}), // a time below zero
		[]byte{stateVersionFirst, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
}

// FuzzLedgerState decodes checkpoint states of all versions. An accepted state survives a round trip and takes memory in proportion to its
// size; its ledger has correct counts and continues to work.
func FuzzLedgerState(f *testing.F) {
	for _, state := range stateSeeds() {
		f.Add(state)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _ := testLedger()
		spent := 0
		err := l.RestoreWithin(b, func(n int) error {
			spent = n
			return nil
		})
		if spent > SpanMemory/2*(len(b)+20) {
			t.Fatalf("%d bytes of memory for a state of %d", spent, len(b))
		}
		if err != nil {
			if !errors.Is(err, ErrState) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, _ := testLedger()
		if err := again.Restore(l.State()); err != nil || !slices.Equal(again.State(), l.State()) {
			t.Fatalf("an accepted state does not survive a round trip: %v\n%x\n%x", err, l.State(), again.State())
		}
		missing, skipped, spans := 0, 0, 0
		for _, e := range l.last {
			missing, skipped = missing+len(e.missing), skipped+len(e.skipped)
		}
		for _, e := range l.delayed.of {
			spans += len(e.ns)
		}
		if l.missing != missing || l.skipped != skipped || l.delayed.spans != spans {
			t.Fatalf("counts %d, %d and %d ranges, and has %d, %d and %d", l.missing, l.skipped, l.delayed.spans, missing, skipped, spans)
		}
		for producer, e := range l.last {
			if e.n >= queue.MaxN || producer == 0 {
				continue
			}
			m := &queue.Message{Type: "t", ID: queue.NewID(epoch, producer, e.n+1)}
			if v := admit(l, m, 1); v != Append {
				t.Fatalf("the next message of producer %x, number %d, is judged %v", producer, e.n+1, v)
			}
			if v := admit(l, m, 1); v != Duplicate {
				t.Fatalf("and once more %v", v)
			}
		}
		for producer, e := range l.loose {
			m := loose(producer)
			m.ID = queue.NewID(time.UnixMilli(e.at), producer, 0)
			if v := admit(l, m, 1); e.at < 1<<48 && (v != Duplicate && !e.skipped || v != PutAside && e.skipped) {
				t.Fatalf("the loose message %x, which is in the file, is judged %v", producer, v)
			}
		}
		l.keys.window = time.Hour
		l.keys.forget()
		l.mostLoose, l.walk, l.walked = 1, 1, 1<<48
		l.TrimLoose()
		l.mostSkipped, l.mostProducers, l.delayed.most = 1, 1, 1
		l.trimSkipped()
		l.TrimProducers()
		l.delayed.trim()
		l.Forget(epoch.UnixMilli(), time.Hour)
		if l.skipped < 0 || l.missing < 0 || l.delayed.spans < 0 {
			t.Fatalf("counts %d, %d and %d ranges", l.missing, l.skipped, l.delayed.spans)
		}
	})
}
