package queue_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// TestSequence: IDs grow, whatever the clock says, and a sequence that stood still for long begins anew.
func TestSequence(t *testing.T) {
	var s queue.Sequence
	at := time.UnixMilli(1_700_000_000_000)
	first := s.Next(at)
	back := s.Next(at.Add(-time.Second))
	if first.N() != 1 || back.N() != 2 || back.Producer() != first.Producer() || back.Compare(first) <= 0 {
		t.Errorf("%v and then %v, a second before", first, back)
	}
	at = at.Add(time.Minute)
	if next := s.Next(at); next.N() != 3 || next.Producer() != first.Producer() {
		t.Errorf("number %d of %016x after a minute, want 3 of %016x", next.N(), next.Producer(), first.Producer())
	}
	if back := s.Next(at.Add(-10 * time.Minute)); back.N() != 4 || back.Producer() != first.Producer() || !back.Time().Equal(at) {
		t.Errorf("number %d of %016x at %v, by a clock that is ten minutes behind, want 4 of %016x at %v", back.N(), back.Producer(), back.Time(), first.Producer(), at)
	}
	late := s.Next(at.Add(time.Minute + time.Millisecond))
	if late.N() != 1 || late.Producer() == first.Producer() {
		t.Errorf("number %d of %016x after more than a minute without any", late.N(), late.Producer())
	}
	if back := s.Next(at.Add(-10 * time.Minute)); back.N() != 1 || back.Producer() == late.Producer() {
		t.Errorf("number %d of %016x, by a clock that is eleven minutes behind", back.N(), back.Producer())
	}
}

// TestDelayedHeader: the header names the delayed message, and counts only in the message that it was made for.
func TestDelayedHeader(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	delayed, as, other := queue.NewID(at, 1, 7), queue.NewID(at.Add(time.Hour), 2, 1), queue.NewID(at.Add(time.Hour), 3, 1)
	given := map[string]string{"k": "v"}
	headers := queue.PromotedHeaders(given, delayed, as)
	if !maps.Equal(given, map[string]string{"k": "v"}) || headers["k"] != "v" || len(headers) != 2 {
		t.Errorf("%q became %q", given, headers)
	}
	value := headers[queue.DelayedHeader]
	if id, ok := queue.DelayedID(value, as); !ok || id != delayed {
		t.Errorf("%q is of %v, %v", value, id, ok)
	}
	for _, wrong := range []struct {
		value string
		as    queue.ID
	}{{value, other}, {"", as}, {delayed.String(), as}, {value + " ", as}, {"x " + as.String(), as}, {delayed.String() + "  " + as.String(), as}} {
		if id, ok := queue.DelayedID(wrong.value, wrong.as); ok {
			t.Errorf("%q counts for %v, as %v", wrong.value, wrong.as, id)
		}
	}
}

// TestDelayedHeaderHasRoom: every delayed message that is accepted has room for it, to the byte.
func TestDelayedHeaderHasRoom(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	id, as := queue.NewID(at, 1, 1), queue.NewID(at, 2, 1)
	m := queue.Message{Type: "orders", ID: id, Due: at}
	for room := 81; room <= 82; room++ {
		m.Headers = map[string]string{"k": strings.Repeat("v", queue.MaxHeaders-1-room)}
		_, err := queue.CheckDelay([]queue.Message{m})
		promoted := queue.Message{Type: "orders", ID: as, Headers: queue.PromotedHeaders(m.Headers, id, as)}
		_, named := promoted.Headers[queue.DelayedHeader]
		if fits := room == 82; (err == nil) != fits || named != fits || promoted.Validate() != nil || !fits && !errors.Is(err, queue.ErrTooLarge) {
			t.Errorf("%d bytes of room: accepted: %v, named: %v, promoted: %v", room, err, named, promoted.Validate())
		}
	}
}
