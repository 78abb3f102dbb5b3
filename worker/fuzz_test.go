package worker

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/rs/zerolog"
)

// FuzzHolderNote: the notes that handler sessions store. A note that no session wrote blocks nothing, and the stored note stays small.
func FuzzHolderNote(f *testing.F) {
	id := message(1, 1).ID
	whole, err := json.Marshal(holderNote{First: id, Starts: 2, Trying: id, Deaths: map[queue.ID]int{id: 1}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{string(whole), "", "{}", "null", "[]", `{"first":"x"}`, `{"deaths":{"x":1}}`, `{"starts":-1}`, `{"starts":9223372036854775807}`, `{"starts":1e99}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		q := queuetest.NewMemory()
		nop := zerolog.Nop()
		p := &poison{queue: q, typ: "t", log: &nop, batch: 10}
		if err := q.SetHolderNote(t.Context(), "t", stored); err != nil {
			t.Fatal(err)
		}
		if err := p.begin(t.Context()); err != nil {
			t.Fatalf("%q: %v", stored, err)
		}
		left, err := q.HolderNote(t.Context(), "t")
		var m holderNote
		if err = errors.Join(err, json.Unmarshal(left, &m)); err != nil || len(m.Deaths) > maxSuspects || m.Starts < 1 || !m.Trying.IsZero() {
			t.Fatalf("%q became %q, %v", stored, left, err)
		}
	})
}
