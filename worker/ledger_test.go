package worker

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// message is producer's n-th message, published n ms after the epoch.
func message(producer, n uint64) *queue.Message {
	return &queue.Message{Type: "t", ID: queue.NewID(epoch.Add(time.Duration(n)*time.Millisecond), producer, n)}
}

// clock is a monotonic clock that tests move by hand.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func testLedger() (*ledger, *clock) {
	c := &clock{epoch}
	return newLedger(30*time.Second, c.now), c
}

func expect(t *testing.T, l *ledger, m *queue.Message, want verdict) {
	t.Helper()
	if got := l.judge(m, 1); got != want {
		t.Fatalf("judge(producer %d, n %d) = %v, want %v", m.ID.Producer(), m.ID.N(), got, want)
	}
}

func TestLedgerAppendsInOrderAndRefusesCopies(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, message(1, 2), appendNow)
	expect(t, l, message(2, 1), appendNow)
	expect(t, l, message(1, 1), duplicate)
	expect(t, l, message(1, 2), duplicate)
	expect(t, l, message(1, 3), appendNow)
}

func TestLedgerHoldsBackUntilTheMissingMessageArrives(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, message(1, 3), hold)
	expect(t, l, message(1, 4), hold)
	if first, ok := l.firstHeld(); !ok || first != message(1, 3).ID {
		t.Fatalf("firstHeld = %v, %v; want message 3", first, ok)
	}
	c.t = c.t.Add(29 * time.Second)
	expect(t, l, message(1, 3), hold)
	expect(t, l, message(1, 2), appendNow)
	if _, ok := l.firstHeld(); ok {
		t.Fatal("still holding back although the missing message came")
	}
	expect(t, l, message(1, 3), appendNow)
	expect(t, l, message(1, 4), appendNow)
}

func TestLedgerDeclaresAGapAfterTheTimeoutAndTakesTheMissingMessageLate(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, message(1, 5), hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 5), appendAfterGap)
	expect(t, l, message(1, 6), appendNow)
	expect(t, l, message(1, 3), appendLate) // a confirmed message that turns up late is not lost …
	expect(t, l, message(1, 3), duplicate)  // … and not doubled
	expect(t, l, message(1, 2), appendLate)
	expect(t, l, message(1, 4), appendLate)
	expect(t, l, message(1, 4), duplicate)
	if gaps := l.last[1].missing; len(gaps) != 0 {
		t.Fatalf("gaps left over: %v", gaps)
	}
}

// The timeout may be over in the middle of a walk, or in one that begins in the middle.
func TestLedgerEndsAGapWithTheFirstMessageThatWaits(t *testing.T) {
	for _, mutant := range []bool{false, true} {
		l, c := testLedger()
		l.anyEndsGap = mutant
		expect(t, l, message(1, 1), appendNow)
		expect(t, l, message(1, 5), hold)
		c.t = c.t.Add(30 * time.Second)
		if mutant {
			expect(t, l, message(1, 6), appendAfterGap)
			expect(t, l, message(1, 5), appendLate) // overtaken
			continue
		}
		expect(t, l, message(1, 6), hold)
		expect(t, l, message(1, 4), appendAfterGap)
		expect(t, l, message(1, 5), appendNow)
		expect(t, l, message(1, 6), appendNow)
	}
}

func TestLedgerEndsAGapAlthoughTheFirstMessageThatWaitedIsGone(t *testing.T) {
	l, c := testLedger()
	sweep := uint64(1)
	l.sweep = func() uint64 { return sweep }
	expect(t, l, message(1, 5), hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 6), hold)
	if l.overdue() {
		t.Fatal("complete messages are taken for ones that never will be")
	}
	sweep++
	expect(t, l, message(1, 6), appendAfterGap)
	expect(t, l, message(1, 7), appendNow)
}

func TestLedgerUnknownProducerThatStartsLateWaitsToo(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(9, 7), hold)
	c.t = c.t.Add(31 * time.Second)
	expect(t, l, message(9, 7), appendAfterGap)
}

func TestLedgerNeverAppendsIncompleteMessages(t *testing.T) {
	l, c := testLedger()
	incomplete := message(1, 1)
	incomplete.Incomplete = true
	expect(t, l, incomplete, hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, incomplete, hold)
	if !l.overdue() {
		t.Fatal("an incomplete message that waits for an hour is not overdue")
	}
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, incomplete, duplicate) // its remains are acknowledged

	expect(t, l, message(1, 3), hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, message(1, 3), appendAfterGap)
	// The gap has skipped it, but it is in the queue and not in the file. A duplicate would be acknowledged: lost, when all it needs is a repair.
	missing := message(1, 2)
	missing.Incomplete = true
	expect(t, l, missing, hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, missing, hold)
	if first, ok := l.firstHeld(); !ok || first != missing.ID || !l.overdue() {
		t.Fatalf("firstHeld = %v, %v, overdue = %v; want message 2, and that it is overdue", first, ok, l.overdue())
	}
	expect(t, l, message(1, 2), appendLate) // it was not taken for appended
	expect(t, l, missing, duplicate)
}

// What is said of a gap has to be true: messages that are there, but cannot be decoded, are not gone.
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
			expect(t, l, message(1, 1), appendNow)
			for range 2 {
				for _, n := range tc.incomplete {
					expect(t, l, spoiled(n), hold)
				}
			}
			expect(t, l, message(1, tc.next), hold)
			c.t = c.t.Add(30 * time.Second)
			expect(t, l, message(1, tc.next), appendAfterGap)
			if l.gone() != tc.gone || l.unfit != tc.unfit || !strings.Contains(l.gapText(), tc.says) {
				t.Errorf("%d are gone, %d are incomplete, %q; want %d, %d, %q", l.gone(), l.unfit, l.gapText(), tc.gone, tc.unfit, tc.says)
			}
			for _, n := range tc.incomplete { // and they have waited for long enough
				if n < tc.next {
					expect(t, l, spoiled(n), hold)
				}
			}
			if tc.unfit > 0 && !l.overdue() {
				t.Error("messages that had their time in front of the gap have to wait again")
			}
		})
	}
}

// A message that nobody waits for starts no gap's clock: what is missing later gets its own gap timeout.
func TestLedgerWaitsForMissingMessagesBesideAStuckOne(t *testing.T) {
	stuck := map[string]*queue.Message{"without a number": message(1, 0), "in a gap that was declared": message(1, 2),
		"with a reused number": {Type: typ, ID: queue.NewID(epoch.Add(time.Hour), 1, 1)}}
	for name, m := range stuck {
		t.Run(name, func(t *testing.T) {
			m.Incomplete = true
			l, c := testLedger()
			expect(t, l, message(1, 1), appendNow)
			expect(t, l, message(1, 3), hold)
			c.t = c.t.Add(time.Hour)
			expect(t, l, message(1, 3), appendAfterGap)
			expect(t, l, m, hold)
			c.t = c.t.Add(time.Hour)
			expect(t, l, m, hold)
			expect(t, l, message(1, 5), hold)
			c.t = c.t.Add(29 * time.Second)
			expect(t, l, message(1, 5), hold)
			expect(t, l, message(1, 4), appendNow)
			expect(t, l, message(1, 5), appendNow)
			expect(t, l, m, hold)
		})
	}
}

// Without a file it waits for incomplete messages as with one.
func TestLedgerWithoutAFileWaitsForIncompleteMessages(t *testing.T) {
	l, c := testLedger()
	sweep := uint64(1)
	l.sweep, l.noFile = func() uint64 { return sweep }, true
	first := message(1, 1)
	first.Incomplete = true
	for range 3 {
		expect(t, l, first, hold)
		expect(t, l, message(1, 2), hold)
		sweep++
	}
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, first, hold)
	expect(t, l, message(1, 2), appendAfterGap)
	expect(t, l, message(1, 3), appendNow)
	expect(t, l, first, hold)
	first.Incomplete = false
	expect(t, l, first, appendLate)
	// And no longer than until they are repaired.
	second := message(2, 5)
	second.Incomplete = true
	expect(t, l, second, hold)
	expect(t, l, message(2, 6), hold)
	for range 2 {
		sweep++
		second.Incomplete = false
		l.judge(second, 1)
		l.judge(message(2, 6), 1)
	}
	expect(t, l, second, duplicate)
	expect(t, l, message(2, 7), appendNow)
}

// What is younger than the last message of its producer is none of those before, so it may not be acknowledged when it is not complete, either.
func TestLedgerHoldsAReusedNumberThatIsNotComplete(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, message(1, 2), appendNow)
	incomplete := &queue.Message{Type: typ, ID: queue.NewID(epoch.Add(time.Hour), 1, 1), Incomplete: true}
	expect(t, l, incomplete, hold)
	complete := *incomplete
	complete.Incomplete = false
	expect(t, l, &complete, reused)
}

func TestLedgerLeavesMessagesWithoutACounterInTheQueue(t *testing.T) {
	l, c := testLedger()
	expect(t, l, message(1, 0), hold)
	c.t = c.t.Add(time.Hour)
	expect(t, l, message(1, 0), hold)
}

func TestLedgerForgetsOnlySilentProducers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := testLedger()
		l.judge(message(1, 1), 1)
		l.judge(message(2, 1), 1)
		l.judge(message(3, 1), 1)
		time.Sleep(2 * time.Second)
		l.judge(message(2, 2), 1)
		l.judge(message(3, 1), 1) // a duplicate is a sign of life
		time.Sleep(3 * time.Second)
		if n := l.forget(1, 4*time.Second); n != 1 {
			t.Fatalf("forgot %d producers, want 1", n)
		}
		expect(t, l, message(2, 2), duplicate)
		expect(t, l, message(3, 1), duplicate)
		expect(t, l, message(1, 1), appendNow)
	})
}

// What was skipped has no copy in the file; it is put aside however often it comes. One that somebody has spoiled is held until it is
// repaired: it is neither in the file nor, perhaps, among the dead letters.
func TestLedgerPutsAsideAgainWhatWasSkipped(t *testing.T) {
	l, _ := testLedger()
	for n := range uint64(3) {
		expect(t, l, message(1, n+1), appendNow)
	}
	l.noteSkipped(message(1, 2).ID)
	for range 2 {
		expect(t, l, message(1, 1), duplicate)
		expect(t, l, message(1, 2), putAside)
		expect(t, l, message(1, 3), duplicate)
	}
	part := *message(1, 2)
	part.Incomplete = true
	expect(t, l, &part, hold)
}

// Memory and checkpoints are bounded: producers that have been silent for longest are forgotten first, and of each one its earliest messages.
func TestSkippedNumbersAreBounded(t *testing.T) {
	l, _ := testLedger()
	l.mostSkipped = 100
	for i := range uint64(101) {
		id := message(i%3, 2*(i/3)+1).ID // every second number: a range for each
		l.note(id, int64(i%3))
		l.noteSkipped(id)
		if early := l.boundSkipped(); early != (i == 100) {
			t.Fatalf("forgotten behind %d messages: %v", i+1, early)
		}
	}
	if silent, next, last := len(l.last[0].skipped), len(l.last[1].skipped), len(l.last[2].skipped); l.skipped != 75 || silent != 8 || next != 34 || last != 33 {
		t.Errorf("%d ranges are left: %d, %d and %d", l.skipped, silent, next, last)
	}
	if first := l.last[0].skipped[0].from; first != 53 {
		t.Errorf("the earliest number that is left is %d", first)
	}
	for producer := range uint64(2) {
		l.last[producer].since = time.Now().Add(-time.Hour)
	}
	l.forget(1002, time.Minute)
	if l.last[1] != nil || l.skipped != 33 {
		t.Errorf("%d ranges are left", l.skipped)
	}
}

func TestLedgerStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, c := testLedger()
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]uint64 {
			return [2]uint64{rapid.Uint64Range(1, 4).Draw(t, "producer"), rapid.Uint64Range(1, 9).Draw(t, "n")}
		}), 0, 40).Draw(t, "messages")
		for i, s := range steps {
			c.t = c.t.Add(20 * time.Second)
			m := message(s[0], s[1])
			if v := l.judge(m, int64(i)); v < duplicate && s[1]%3 == 0 {
				l.noteSkipped(m.ID)
			}
		}
		restored, _ := testLedger()
		if err := restored.restore(l.state()); err != nil {
			t.Fatal(err)
		}
		if a, b := l.state(), restored.state(); !slices.Equal(a, b) {
			t.Fatalf("state changed by a round trip:\n%x\n%x", a, b)
		}
		for producer, e := range l.last {
			if r := restored.last[producer]; r == nil || r.n != e.n || !slices.Equal(r.missing, e.missing) || !slices.Equal(r.skipped, e.skipped) {
				t.Fatalf("producer %d: %+v became %+v", producer, e, r)
			}
		}
		if restored.skipped != l.skipped {
			t.Fatalf("%d skipped ranges became %d", l.skipped, restored.skipped)
		}
		for cut := range l.state() {
			if restored.restore(l.state()[:cut]) == nil {
				t.Fatalf("a state cut to %d bytes was accepted", cut)
			}
		}
	})
}

// Whatever arrives in whatever order and however often, nothing is appended twice, and without a declared gap a producer's
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
				next.now = c.now
				if err := next.restore(l.state()); err != nil {
					t.Fatal(err)
				}
				next.held = l.held // as if the gap's clock had gone on; a real restart only waits longer
				l = next
			}
			v := l.judge(m, 0)
			if v == duplicate && times[m.ID] == 0 {
				t.Fatalf("%v refused as a copy, but it was never appended", m.ID)
			}
			if v == hold || v == duplicate {
				continue
			}
			if times[m.ID]++; times[m.ID] > 1 {
				t.Fatalf("%v appended twice", m.ID)
			}
			p, n := m.ID.Producer(), m.ID.N()
			if v == appendNow && n != last[p]+1 {
				t.Fatalf("n = %d of producer %d appended after %d without a declared gap", n, p, last[p])
			}
			last[p] = max(last[p], n)
		}
	})
}

func FuzzLedgerState(f *testing.F) {
	l, _ := testLedger()
	l.judge(message(1, 1), 1)
	f.Add(l.state())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _ := testLedger()
		if l.restore(b) != nil {
			return
		}
		again, _ := testLedger()
		if err := again.restore(l.state()); err != nil || !slices.Equal(again.state(), l.state()) {
			t.Fatalf("an accepted state does not survive a round trip: %v", err)
		}
	})
}
