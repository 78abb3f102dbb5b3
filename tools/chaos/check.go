//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/fencepost/fencepost/queue"
)

// entry is one message of a file, as a reader prints it.
type entry struct {
	Index    uint64 `json:"index"`
	ID       string `json:"id"`
	Epoch    uint64 `json:"epoch"`
	AfterGap bool   `json:"after_gap"`
	Payload  string `json:"payload"`
}

// readEntries reads the output of `fencepost cat --format json`.
func readEntries(out []byte) ([]entry, error) {
	var all []entry
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var e entry
		if err := d.Decode(&e); err == io.EOF {
			return all, nil
		} else if err != nil {
			return all, fmt.Errorf("after %d messages: %w", len(all), err)
		}
		all = append(all, e)
	}
}

// most bounds how many violations of one kind are listed individually.
const most = 5

// violations collects violations, the first few of each kind in full.
type violations struct {
	list  []string
	kinds map[string]int
}

func (v *violations) addf(kind, format string, args ...any) {
	if v.kinds == nil {
		v.kinds = map[string]int{}
	}
	if v.kinds[kind]++; v.kinds[kind] <= most {
		v.list = append(v.list, kind+": "+fmt.Sprintf(format, args...))
	}
}

// all returns the violations found, nil if there are none.
func (v *violations) all() []string {
	out := slices.Clone(v.list)
	for kind, n := range v.kinds {
		if n > most {
			out = append(out, fmt.Sprintf("%s: %d in all", kind, n))
		}
	}
	slices.Sort(out)
	return out
}

// checkType compares the file of a type, given as its messages from all generations, with what the producers recorded:
//
//   - every confirmed message is present once; an unknown one at most once; a refused one not at all; and nothing else;
//   - each byte of each payload is right;
//   - the confirmed messages of a producer are in the order in which it sent them, and so are all messages of one producer number;
//   - indexes are contiguous from 0, epochs never go back, and no gap is declared: no message was deleted.
func checkType(typ string, known ledger, file []entry, v *violations) {
	checkSequence(typ, file, v)
	type place struct {
		stream
		n int
	}
	at := map[place]uint64{}
	last := map[stream]int{} // the confirmed message seen last
	for _, e := range file {
		s, n, ok := parsePayload([]byte(e.Payload))
		if !ok || s.typ != typ || n > len(known[s]) {
			v.addf("foreign", "%s, index %d: no producer sent %.60q", typ, e.Index, e.Payload)
			continue
		}
		if e.Payload != string(s.payload(n)) {
			v.addf("corrupt", "%s, index %d: %.60q is not what %s sent", typ, e.Index, e.Payload, s.producer)
			continue
		}
		if first, twice := at[place{s, n}]; twice {
			v.addf("doubled", "%s: message %d of %s has indexes %d and %d", typ, n, s.producer, first, e.Index)
			continue
		}
		at[place{s, n}] = e.Index
		switch known[s][n-1] {
		case refused:
			v.addf("refused", "%s, index %d: message %d of %s, which was refused", typ, e.Index, n, s.producer)
		case confirmed:
			if n < last[s] {
				v.addf("order", "%s, index %d: message %d of %s after its %d", typ, e.Index, n, s.producer, last[s])
			}
			last[s] = n
		}
	}
	for s, outcomes := range known {
		if s.typ != typ {
			continue
		}
		for i, o := range outcomes {
			if _, there := at[place{s, i + 1}]; o == confirmed && !there {
				v.addf("lost", "%s: message %d of %s was confirmed and is missing", typ, i+1, s.producer)
			}
		}
	}
}

// checkSequence checks what the messages of a file say about their order: indexes, epochs, gaps, and the numbers in their IDs.
func checkSequence(typ string, file []entry, v *violations) {
	counters := map[uint64]uint64{} // the counter seen last, of each producer number
	var epoch uint64
	for i, e := range file {
		if e.Index != uint64(i) {
			v.addf("index", "%s: message %d has index %d", typ, i, e.Index)
		}
		if e.Epoch < epoch {
			v.addf("epoch", "%s, index %d: epoch %d after epoch %d", typ, e.Index, e.Epoch, epoch)
		}
		epoch = e.Epoch
		if e.AfterGap {
			v.addf("gap", "%s, index %d: a gap is declared before it", typ, e.Index)
		}
		id, err := queue.ParseID(e.ID)
		if err != nil {
			v.addf("corrupt", "%s, index %d: ID %q", typ, e.Index, e.ID)
			continue
		}
		if last := counters[id.Producer()]; id.N() <= last {
			v.addf("order", "%s, index %d: counter %d of producer number %016x after its %d", typ, e.Index, id.N(), id.Producer(), last)
		}
		counters[id.Producer()] = id.N()
	}
}
