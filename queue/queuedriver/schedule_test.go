package queuedriver_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// TestSequence: IDs grow, whatever the clock says, and a sequence that has rested takes a new producer number: by the measured time, or by
// the clock if no promoter has measured it.
func TestSequence(t *testing.T) {
	var s queuedriver.Sequence
	at, passed := time.UnixMilli(1_700_000_000_000), time.Hour
	var last queue.ID
	next := func(what string, now time.Time, watched, anew bool) {
		t.Helper()
		id := s.Next(queuedriver.Moment{Now: now, Passed: passed, Watched: watched})
		if id.Compare(last) <= 0 || last.Producer() != id.Producer() && !last.IsZero() && !id.Time().After(last.Time()) {
			t.Errorf("%s: %v after %v", what, id, last)
		}
		if anew != (id.Producer() != last.Producer()) || anew != (id.N() == 1) {
			t.Errorf("%s: number %d of %016x after %d of %016x", what, id.N(), id.Producer(), last.N(), last.Producer())
		}
		last = id
	}
	next("the first", at, true, true)
	next("a second before", at.Add(-time.Second), false, false)
	at = at.Add(time.Minute)
	next("a minute", at, false, false)
	next("the clock is far behind", at.Add(-100*time.Hour), false, false)
	next("more than a minute, by the clock", at.Add(time.Minute+time.Millisecond), true, false)
	at = at.Add(time.Minute + time.Millisecond)
	next("more than a minute, and no promoter has watched", at.Add(time.Minute+time.Millisecond), false, true)
	passed += time.Minute
	next("a minute has passed", at.Add(-time.Hour), true, false)
	passed += time.Minute + time.Millisecond
	next("more than a minute has passed", at.Add(-time.Hour), true, true)
	passed += time.Minute + time.Millisecond
	next("once more, without having watched", at.Add(-2*time.Hour), false, true)
	if m := (queuedriver.Moment{Now: last.Time().Add(time.Hour), Passed: passed + time.Hour}); s.Stale(m) {
		t.Error("it need not be kept, after an hour")
	}
	if m := (queuedriver.Moment{Now: last.Time().Add(-time.Hour), Passed: passed + 100*time.Hour}); s.Stale(m) {
		t.Error("it need not be kept, while the clock is behind its last ID")
	}
	if m := (queuedriver.Moment{Now: last.Time().Add(25 * time.Hour), Passed: passed + time.Hour}); !s.Stale(m) {
		t.Error("it has to be kept for longer than a day")
	}
}

// TestDelayedHeader: the header names the delayed message, and is valid only in the message that it was made for.
func TestDelayedHeader(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	delayed, as, other := queue.NewID(at, 1, 7), queue.NewID(at.Add(time.Hour), 2, 1), queue.NewID(at.Add(time.Hour), 3, 1)
	given := map[string]string{"k": "v"}
	headers := queuedriver.PromotedHeaders(given, delayed, as)
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
		_, err := queuedriver.CheckDelay([]queue.Message{m})
		promoted := queue.Message{Type: "orders", ID: as, Headers: queuedriver.PromotedHeaders(m.Headers, id, as)}
		_, named := promoted.Headers[queue.DelayedHeader]
		if fits := room == 82; (err == nil) != fits || named != fits || promoted.Validate() != nil || !fits && !errors.Is(err, queue.ErrTooLarge) {
			t.Errorf("%d bytes of room: accepted: %v, named: %v, promoted: %v", room, err, named, promoted.Validate())
		}
	}
}
