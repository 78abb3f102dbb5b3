package ledger

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// message returns producer's n-th message, published n ms after the epoch.
func message(producer, n uint64) *queue.Message {
	return &queue.Message{Type: "t", ID: queue.NewID(epoch.Add(time.Duration(n)*time.Millisecond), producer, n)}
}

// clock is a monotonic clock that tests advance by hand.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func testLedger() (*Ledger, *clock) {
	c := &clock{epoch}
	return New(Options{GapTimeout: 30 * time.Second, Now: c.now}), c
}

// admit is Admit at a time of the queue's clock, in ms. recordAt is the same for record.
func admit(l *Ledger, m *queue.Message, at int64) Verdict {
	l.SetClock(at)
	return l.Admit(m)
}

func recordAt(l *Ledger, id queue.ID, at int64) {
	l.SetClock(at)
	l.record(id)
}

func expect(t *testing.T, l *Ledger, m *queue.Message, want Verdict) {
	t.Helper()
	if got := admit(l, m, 1); got != want {
		t.Fatalf("Admit(producer %d, n %d) = %v, want %v", m.ID.Producer(), m.ID.N(), got, want)
	}
}

func TestLedgerAppendsInOrderAndRefusesCopies(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, message(1, 1), Append)
	expect(t, l, message(1, 2), Append)
	expect(t, l, message(2, 1), Append)
	expect(t, l, message(1, 1), Duplicate)
	expect(t, l, message(1, 2), Duplicate)
	expect(t, l, message(1, 3), Append)
}

func TestLedgerHoldsBackUntilTheMissingMessageArrives(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 1), Append)
	expect(t, l, message(1, 3), Hold)
	expect(t, l, message(1, 4), Hold)
	if first, ok := l.firstHeld(); !ok || first != message(1, 3).ID {
		t.Fatalf("firstHeld = %v, %v; want message 3", first, ok)
	}
	c.t = c.t.Add(29 * time.Second)
	expect(t, l, message(1, 3), Hold)
	expect(t, l, message(1, 2), Append)
	if _, ok := l.firstHeld(); ok {
		t.Fatal("still holding back although the missing message has arrived")
	}
	expect(t, l, message(1, 3), Append)
	expect(t, l, message(1, 4), Append)
}

func TestLedgerDeclaresAGapAfterTheTimeoutAndTakesTheMissingMessageLate(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 1), Append)
	expect(t, l, message(1, 5), Hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 5), AppendAfterGap)
	expect(t, l, message(1, 6), Append)
	expect(t, l, message(1, 3), AppendLate) // a confirmed message that turns up late is not lost …
	expect(t, l, message(1, 3), Duplicate)  // … and not doubled
	expect(t, l, message(1, 2), AppendLate)
	expect(t, l, message(1, 4), AppendLate)
	expect(t, l, message(1, 4), Duplicate)
	if gaps := l.last[1].missing; len(gaps) != 0 {
		t.Fatalf("gaps left over: %v", gaps)
	}
}

// The timeout may expire in the middle of a walk, or during a walk that begins in the middle.
func TestLedgerEndsAGapWithTheFirstMessageThatWaits(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 1), Append)
	expect(t, l, message(1, 5), Hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 6), Hold)
	expect(t, l, message(1, 4), AppendAfterGap)
	expect(t, l, message(1, 5), Append)
	expect(t, l, message(1, 6), Append)
}

func TestLedgerEndsAGapAlthoughTheFirstMessageThatWaitedIsGone(t *testing.T) {
	l, c := testLedger()
	sweep := uint64(1)
	l.Sweep = func() uint64 { return sweep }
	expect(t, l, message(1, 5), Hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 6), Hold)
	if l.overdue() {
		t.Fatal("complete messages are taken for incomplete ones")
	}
	sweep++
	expect(t, l, message(1, 6), AppendAfterGap)
	expect(t, l, message(1, 7), Append)
}

func TestLedgerUnknownProducerThatStartsLateWaitsToo(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(9, 7), Hold)
	c.t = c.t.Add(31 * time.Second)
	expect(t, l, message(9, 7), AppendAfterGap)
}

func TestLedgerNeverAppendsIncompleteMessages(t *testing.T) {
	l, c := testLedger()
	incomplete := message(1, 1)
	incomplete.Incomplete = true
	expect(t, l, incomplete, Hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, incomplete, Hold)
	if !l.overdue() {
		t.Fatal("an incomplete message that waits for an hour is not overdue")
	}
	expect(t, l, message(1, 1), Append)
	expect(t, l, incomplete, Duplicate) // an incomplete copy is acknowledged

	expect(t, l, message(1, 3), Hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, message(1, 3), AppendAfterGap)
	// The gap has skipped it, but it is in the queue and not in the file. As a Duplicate it would be acknowledged and lost, although it only needs a repair.
	missing := message(1, 2)
	missing.Incomplete = true
	expect(t, l, missing, Hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, missing, Hold)
	if first, ok := l.firstHeld(); !ok || first != missing.ID || !l.overdue() {
		t.Fatalf("firstHeld = %v, %v, overdue = %v; want message 2, and that it is overdue", first, ok, l.overdue())
	}
	expect(t, l, message(1, 2), AppendLate) // it did not count as appended
	expect(t, l, missing, Duplicate)
}

// The report of a gap must be accurate: messages that are in the queue but undecodable are not gone.
func TestLedgerTellsWhatIsGoneFromWhatIsIncomplete(t *testing.T) {
	spoiled := func(n uint64) *queue.Message {
		m := message(1, n)
		m.Incomplete = true
		return m
	}
	for name, tc := range map[string]struct {
		incomplete  []uint64
		next        uint64
		gone, unfit uint64
		says        string
	}{
		"gone":       {nil, 4, 2, 0, "are gone from the queue"},
		"incomplete": {[]uint64{2, 3}, 4, 0, 2, "are in the queue, but cannot be appended"},
		"both":       {[]uint64{3}, 4, 1, 1, "some earlier messages of this producer are gone"},
		"behind it":  {[]uint64{5}, 4, 2, 0, "are gone from the queue"},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := testLedger()
			expect(t, l, message(1, 1), Append)
			for range 2 {
				for _, n := range tc.incomplete {
					expect(t, l, spoiled(n), Hold)
				}
			}
			expect(t, l, message(1, tc.next), Hold)
			c.t = c.t.Add(30 * time.Second)
			expect(t, l, message(1, tc.next), AppendAfterGap)
			if gap := l.LastGap(); gap != (Gap{tc.gone, tc.unfit}) || !strings.Contains(gap.String(), tc.says) {
				t.Errorf("%d are gone, %d are incomplete, %q; want %d, %d, %q", gap.Gone, gap.Unfit, gap, tc.gone, tc.unfit, tc.says)
			}
			for _, n := range tc.incomplete { // and they have waited long enough
				if n < tc.next {
					expect(t, l, spoiled(n), Hold)
				}
			}
			if tc.unfit > 0 && !l.overdue() {
				t.Error("messages that have already waited before the gap have to wait again")
			}
		})
	}
}

// A message that no other message waits for starts no gap timeout: messages that are missing later get their own.
func TestLedgerWaitsForMissingMessagesBesideAStuckOne(t *testing.T) {
	stuck := map[string]*queue.Message{"without a number": message(1, 0), "in a gap that was declared": message(1, 2),
		"with a reused number": {Type: "t", ID: queue.NewID(epoch.Add(time.Hour), 1, 1)}}
	for name, m := range stuck {
		t.Run(name, func(t *testing.T) {
			m.Incomplete = true
			l, c := testLedger()
			expect(t, l, message(1, 1), Append)
			expect(t, l, message(1, 3), Hold)
			c.t = c.t.Add(time.Hour)
			expect(t, l, message(1, 3), AppendAfterGap)
			expect(t, l, m, Hold)
			c.t = c.t.Add(time.Hour)
			expect(t, l, m, Hold)
			expect(t, l, message(1, 5), Hold)
			c.t = c.t.Add(29 * time.Second)
			expect(t, l, message(1, 5), Hold)
			expect(t, l, message(1, 4), Append)
			expect(t, l, message(1, 5), Append)
			expect(t, l, m, Hold)
		})
	}
}

// Without a file, a message waits for incomplete ones as it does with a file.
func TestLedgerWithoutAFileWaitsForIncompleteMessages(t *testing.T) {
	l, c := testLedger()
	sweep := uint64(1)
	l.Sweep, l.NoFile = func() uint64 { return sweep }, true
	first := message(1, 1)
	first.Incomplete = true
	for range 3 {
		expect(t, l, first, Hold)
		expect(t, l, message(1, 2), Hold)
		sweep++
	}
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, first, Hold)
	expect(t, l, message(1, 2), AppendAfterGap)
	expect(t, l, message(1, 3), Append)
	expect(t, l, first, Hold)
	first.Incomplete = false
	expect(t, l, first, AppendLate)
	// It waits only until they are repaired.
	second := message(2, 5)
	second.Incomplete = true
	expect(t, l, second, Hold)
	expect(t, l, message(2, 6), Hold)
	for range 2 {
		sweep++
		second.Incomplete = false
		admit(l, second, 1)
		admit(l, message(2, 6), 1)
	}
	expect(t, l, second, Duplicate)
	expect(t, l, message(2, 7), Append)
}

// A message newer than its producer's last one is not a copy of an earlier one, so it must not be acknowledged even when it is incomplete.
func TestLedgerHoldsAReusedNumberThatIsNotComplete(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, message(1, 1), Append)
	expect(t, l, message(1, 2), Append)
	incomplete := &queue.Message{Type: "t", ID: queue.NewID(epoch.Add(time.Hour), 1, 1), Incomplete: true}
	expect(t, l, incomplete, Hold)
	complete := *incomplete
	complete.Incomplete = false
	expect(t, l, &complete, Reused)
}

func TestLedgerLeavesMessagesWithoutACounterInTheQueue(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 0), Hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, message(1, 0), Hold)
}

func TestLedgerForgetsOnlySilentProducers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := testLedger()
		admit(l, message(1, 1), 1)
		admit(l, message(2, 1), 1)
		admit(l, message(3, 1), 1)
		time.Sleep(2 * time.Second)
		admit(l, message(2, 2), 1)
		admit(l, message(3, 1), 1) // a Duplicate is a sign of life
		time.Sleep(3 * time.Second)
		if n := l.Forget(1, 4*time.Second); n != 1 {
			t.Fatalf("forgot %d producers, want 1", n)
		}
		expect(t, l, message(2, 2), Duplicate)
		expect(t, l, message(3, 1), Duplicate)
		expect(t, l, message(1, 1), Append)
	})
}

// A skipped message has no copy in the file; it is put aside however often it is delivered. If it has become incomplete, it is held until it
// is repaired: it is not in the file and may not be among the dead letters.
func TestLedgerPutsAsideAgainWhatWasSkipped(t *testing.T) {
	l, _ := testLedger()
	for n := range uint64(3) {
		expect(t, l, message(1, n+1), Append)
	}
	l.recordSkipped(message(1, 2).ID)
	for range 2 {
		expect(t, l, message(1, 1), Duplicate)
		expect(t, l, message(1, 2), PutAside)
		expect(t, l, message(1, 3), Duplicate)
	}
	part := *message(1, 2)
	part.Incomplete = true
	expect(t, l, &part, Hold)
}

// Memory and checkpoints are bounded: the ranges of producers that have been silent longest are forgotten first, and the lowest ranges of each.
func TestSkippedNumbersAreBounded(t *testing.T) {
	l, _ := testLedger()
	l.mostSkipped = 100
	for i := range uint64(101) {
		id := message(i%3, 2*(i/3)+1).ID // every second number: a range for each
		recordAt(l, id, int64(i%3))
		l.recordSkipped(id)
		if early := l.trimSkipped(); early != (i == 100) {
			t.Fatalf("forgotten behind %d messages: %v", i+1, early)
		}
	}
	if silent, next, last := len(l.last[0].skipped), len(l.last[1].skipped), len(l.last[2].skipped); l.skipped != 75 || silent != 8 || next != 34 || last != 33 {
		t.Errorf("%d ranges are left: %d, %d and %d", l.skipped, silent, next, last)
	}
	if first := l.last[0].skipped[0].From; first != 53 {
		t.Errorf("the earliest number that is left is %d", first)
	}
	for producer := range uint64(2) {
		l.last[producer].since = time.Now().Add(-time.Hour)
	}
	l.Forget(1002, time.Minute)
	if l.last[1] != nil || l.skipped != 33 {
		t.Errorf("%d ranges are left", l.skipped)
	}
}

// If there are too many producers, those that have been silent longest are forgotten first, but none that may have pending messages.
func TestProducersAreBounded(t *testing.T) {
	l, _ := testLedger()
	sweep := uint64(1)
	l.Sweep = func() uint64 { return sweep }
	l.mostProducers = 100
	for p := range uint64(100) {
		expect(t, l, message(p+1, 1), Append)
		l.last[p+1].since = epoch.Add(time.Duration(p) * time.Second)
	}
	late := func(producer, n uint64) *queue.Message {
		m := message(producer, n)
		m.ID = queue.NewID(epoch.Add(time.Hour), producer, n)
		return m
	}
	expect(t, l, late(1000, 1), Append)
	if n, full := l.TrimProducers(); n != 0 || !full {
		t.Fatalf("forgot %d in the sweep in which all were seen, full %v: copies of their messages may be pending", n, full)
	}
	sweep++
	expect(t, l, message(5, 1), Duplicate)             // its acknowledgement was lost
	if n, full := l.TrimProducers(); n != 0 || !full { // the walk has not passed the others' messages
		t.Fatalf("forgot %d before the sweep has passed their messages, full %v", n, full)
	}
	expect(t, l, late(7, 3), Hold) // it continues, and a message is missing
	expect(t, l, late(1001, 1), Append)
	if n, full := l.TrimProducers(); n != 12 || full || len(l.last) != 90 {
		t.Fatalf("forgot %d, %d are left, full %v; want 90 left", n, len(l.last), full)
	}
	for p, want := range map[uint64]bool{1: false, 2: false, 5: true, 7: true, 14: false, 15: true, 100: true, 1000: true, 1001: true} {
		if l.last[p] != nil != want {
			t.Errorf("producer %d is remembered: %v, want %v", p, !want, want)
		}
	}
}

// A range of missing numbers counts as a producer.
func TestGapsAreBounded(t *testing.T) {
	l, c := testLedger()
	sweep := uint64(1)
	l.Sweep = func() uint64 { return sweep }
	l.mostProducers = 100
	for n := uint64(2); n <= 120; n += 2 {
		expect(t, l, message(1, n), Hold)
		c.t = c.t.Add(time.Minute)
		expect(t, l, message(1, n), AppendAfterGap)
	}
	sweep++
	for p := range uint64(50) {
		expect(t, l, message(p+2, 500), Hold)
	}
	c.t = c.t.Add(time.Minute)
	for p := range uint64(50) {
		expect(t, l, message(p+2, 500), AppendAfterGap)
	}
	if n, full := l.TrimProducers(); n != 1 || full != false || l.missing != 50 || l.last[1] != nil {
		t.Errorf("forgot %d, %d gaps are left, full %v; want the first producer forgotten", n, l.missing, full)
	}
}

// Whatever messages arrive, in any order and any number of times, none is appended twice, and without a declared gap a producer's
// messages are appended in order.
func TestLedgerAppendsEachMessageAtMostOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, c := testLedger()
		times := map[queue.ID]int{}
		last := map[uint64]uint64{}
		for range rapid.IntRange(0, 200).Draw(t, "deliveries") {
			m := message(rapid.Uint64Range(1, 3).Draw(t, "producer"), rapid.Uint64Range(1, 12).Draw(t, "n"))
			c.t = c.t.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			if rapid.Bool().Draw(t, "restart") {
				next, _ := testLedger()
				next.Now = c.now
				if err := next.Restore(l.State()); err != nil {
					t.Fatal(err)
				}
				next.held = l.held // as if the gap timeout had kept running; a real restart only waits longer
				l = next
			}
			v := admit(l, m, 0)
			if v == Duplicate && times[m.ID] == 0 {
				t.Fatalf("%v refused as a copy, but it was never appended", m.ID)
			}
			if v == Hold || v == Duplicate {
				continue
			}
			if times[m.ID]++; times[m.ID] > 1 {
				t.Fatalf("%v appended twice", m.ID)
			}
			p, n := m.ID.Producer(), m.ID.N()
			if v == Append && n != last[p]+1 {
				t.Fatalf("n = %d of producer %d appended after %d without a declared gap", n, p, last[p])
			}
			last[p] = max(last[p], n)
		}
	})
}
