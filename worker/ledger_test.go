package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
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
	l, c := testLedger()
	expect(t, l, message(1, 1), appendNow)
	expect(t, l, message(1, 5), hold)
	c.t = c.t.Add(30 * time.Second)
	expect(t, l, message(1, 6), hold)
	expect(t, l, message(1, 4), appendAfterGap)
	expect(t, l, message(1, 5), appendNow)
	expect(t, l, message(1, 6), appendNow)
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

// Producers are forgotten when there are too many, those first that have been silent for longest, and none that may have something pending.
func TestProducersAreBounded(t *testing.T) {
	l, _ := testLedger()
	sweep := uint64(1)
	l.sweep = func() uint64 { return sweep }
	l.mostProducers = 100
	for p := range uint64(100) {
		expect(t, l, message(p+1, 1), appendNow)
		l.last[p+1].since = epoch.Add(time.Duration(p) * time.Second)
	}
	late := func(producer, n uint64) *queue.Message {
		m := message(producer, n)
		m.ID = queue.NewID(epoch.Add(time.Hour), producer, n)
		return m
	}
	expect(t, l, late(1000, 1), appendNow)
	if n, full := l.boundProducers(); n != 0 || !full {
		t.Fatalf("forgot %d in the sweep in which all were heard of, full %v: copies of them may be pending", n, full)
	}
	sweep++
	expect(t, l, message(5, 1), duplicate)              // its acknowledgement was lost
	if n, full := l.boundProducers(); n != 0 || !full { // the walk has not come behind the others
		t.Fatalf("forgot %d before the sweep has passed their messages, full %v", n, full)
	}
	expect(t, l, late(7, 3), hold) // it goes on, and something is missing
	expect(t, l, late(1001, 1), appendNow)
	if n, full := l.boundProducers(); n != 12 || full || len(l.last) != 90 {
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
	l.sweep = func() uint64 { return sweep }
	l.mostProducers = 100
	for n := uint64(2); n <= 120; n += 2 {
		expect(t, l, message(1, n), hold)
		c.t = c.t.Add(time.Minute)
		expect(t, l, message(1, n), appendAfterGap)
	}
	sweep++
	for p := range uint64(50) {
		expect(t, l, message(p+2, 500), hold)
	}
	c.t = c.t.Add(time.Minute)
	for p := range uint64(50) {
		expect(t, l, message(p+2, 500), appendAfterGap)
	}
	if n, full := l.boundProducers(); n != 1 || full != false || l.missing != 50 || l.last[1] != nil {
		t.Errorf("forgot %d, %d gaps are left, full %v; want the first producer forgotten", n, l.missing, full)
	}
}

// fullLedger has as much of everything as there may be, in numbers that take as many bytes as publishers can make them take.
func fullLedger() *ledger {
	l := newLedger(time.Minute, time.Now)
	seenAt := epoch.AddDate(300, 0, 0).UnixMilli()
	const high = 1 << 42 // of a number
	at := func(producer, n uint64) queue.ID { return queue.NewID(time.UnixMilli(seenAt), producer, n) }
	for p := range uint64(maxProducers) {
		l.note(at(p<<32+1, 1), seenAt)
		l.last[p<<32+1].n = 2 * high // behind all that was skipped
	}
	e := l.last[1]
	for i := range uint64(maxSkippedSpans) {
		e.skipped = append(e.skipped, span{high + 2*i, high + 2*i})
	}
	l.skipped = maxSkippedSpans
	for i := range uint64(maxDelayedSpans) {
		l.delayed.note(at(i<<32+1, high), seenAt)
	}
	l.keys.window = time.Hour
	l.keys.now = seenAt - 1000 // so all keys are from the future, which takes most
	for i := range uint64(maxKeys) {
		l.keys.note(strconv.FormatUint(i, 10), at(1, i))
	}
	l.keys.forget()
	return l
}

func TestFullStateFits(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	l := fullLedger()
	state := l.state()
	if len(state) > storage.MaxState {
		t.Errorf("a state with all there may be has %d bytes, a file takes %d", len(state), storage.MaxState)
	}
	l.keys = keys{window: time.Hour, most: maxKeys, now: 1 << 47}
	for i := range uint64(maxKeys + 1) {
		l.keys.note(strconv.FormatUint(i, 10), queue.NewID(time.UnixMilli(1<<45), 1, i))
	}
	l.keys.forget()
	if state = l.state(); len(state) > storage.MaxState {
		t.Errorf("a state with all there may be, and no key from the future, has %d bytes, a file takes %d", len(state), storage.MaxState)
	}
	restored, _ := testLedger()
	if err := restored.restore(state); err != nil {
		t.Errorf("a full state is refused: %v", err)
	}
}

// What no worker writes is refused by the memory that it would take, whatever it is made of. What earlier versions have written is read.
func TestStateThatNoWorkerWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	fill := func(b []byte, entry []byte) []byte { // to the largest state there is
		count := (storage.MaxState - len(b) - 20) / len(entry)
		b = binary.AppendUvarint(b, uint64(count))
		return append(b, bytes.Repeat(entry, count)...)
	}
	numbered := func(b []byte, most int, tail []byte) []byte {
		count := min((storage.MaxState-len(b)-20)/(8+len(tail)), most)
		b = binary.AppendUvarint(b, uint64(count))
		for p := range uint64(count) {
			b = append(binary.LittleEndian.AppendUint64(b, p), tail...)
		}
		return b
	}
	ms := binary.AppendUvarint(nil, uint64(epoch.UnixMilli()))
	producer := slices.Concat([]byte{5}, ms, ms, []byte{0, 0}) // n, at, seenAt, no gaps, nothing skipped
	for name, tc := range map[string]struct {
		state []byte
		fits  bool
	}{
		"gaps":      {fill(append([]byte{4, 1}, make([]byte, 8+3)...), []byte{1, 1}), false},
		"skipped":   {fill(append([]byte{4, 1}, make([]byte, 8+4)...), []byte{1, 1}), false},
		"producers": {numbered([]byte{4}, 1<<30, make([]byte, 5)), false},
		"delayed":   {numbered([]byte{4, 0, 0}, 1<<30, make([]byte, 2)), false},
		"keys":      {append(numbered([]byte{4, 0}, 1<<30, append(make([]byte, 8), 1)), 0), false},
		"a million producers of an earlier version": {append(numbered([]byte{4}, 1_340_000, producer), 0, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := testLedger()
			before := heap()
			err := l.restore(tc.state)
			took := int(heap()-before) + len(tc.state) // what it takes when it is read, and the state itself
			if took > 256<<20 {
				t.Errorf("a state of %d bytes takes %d MiB", len(tc.state), took>>20)
			}
			if tc.fits != (err == nil) || err != nil && (!errors.Is(err, errState) || !strings.Contains(err.Error(), "220 MiB") || !strings.Contains(err.Error(), "backup")) {
				t.Errorf("%v", err)
			}
			runtime.KeepAlive(l)
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManyProducersAreDrained: each message is of another producer, as of a program that makes a publisher for each. Whoever opens a file takes in
// what is behind its last checkpoint, so there is one before that is much, also when every session is killed.
func TestManyProducersAreDrained(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	onRig(t, func(t *testing.T, r *rig) {
		const n = max(maxProducers, maxGrowth) + 30_000
		msgs := make([]queue.Message, n)
		for i := range msgs {
			msgs[i].Type, msgs[i].ID = typ, queue.NewID(epoch.Add(time.Duration(i)*time.Millisecond), uint64(i+1), 1)
		}
		r.insert(msgs...)
		p := r.start(func(c *Config) { c.UntilEmpty, c.Batch = true, 5000 })
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if s := p.Stats(); s.Appended != n || s.Forgotten < 30_000 || s.Forgotten > 60_000 {
			t.Errorf("appended %d, forgot %d", s.Appended, s.Forgotten)
		}
		for _, text := range []string{"many producers", "more producers than the file remembers"} {
			if c := strings.Count(r.log.String(), text); c != 1 {
				t.Errorf("the log says %d times %q", c, text)
			}
		}
		rep, err := storage.Verify(context.Background(), testFile, storage.VerifyOptions{FS: r.disk})
		if err != nil || rep.Checkpoints != 2 { // one on the way, one at the end
			t.Errorf("%d checkpoints, %v", rep.Checkpoints, err)
		}
	})
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
