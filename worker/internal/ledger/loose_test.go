package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"pgregory.net/rapid"
)

// loose returns a message of a transaction, published producer ms after the epoch.
func loose(producer uint64) *queue.Message {
	return &queue.Message{Type: "t", ID: queue.NewID(epoch.Add(time.Duration(producer%1000)*time.Millisecond), producer, 0),
		Headers: map[string]string{queue.LooseHeader: queue.LooseValue}}
}

func TestLedgerAppendsLooseMessagesOnceAndInAnyOrder(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, loose(9), Append)
	expect(t, l, loose(3), Append)
	expect(t, l, message(1, 1), Append)
	expect(t, l, loose(9), Duplicate)
	expect(t, l, loose(3), Duplicate)
	unreadable := loose(3)
	unreadable.Headers, unreadable.Incomplete = nil, true
	expect(t, l, unreadable, Duplicate)
	if len(l.loose) != 2 || l.Producers() != 1 || l.Growth() != 3 {
		t.Errorf("%d loose messages, %d producers, grown by %d", len(l.loose), l.Producers(), l.Growth())
	}
}

// A number of 0 alone does not make a message loose, and an undecodable message has not arrived yet.
func TestLedgerHoldsWhatOnlyLooksLoose(t *testing.T) {
	for name, spoil := range map[string]func(m *queue.Message){
		"without the header":         func(m *queue.Message) { m.Headers = nil },
		"with another value":         func(m *queue.Message) { m.Headers[queue.LooseHeader] = "true" },
		"that cannot be decoded":     func(m *queue.Message) { m.Incomplete = true },
		"with a header of our other": func(m *queue.Message) { m.Headers = map[string]string{queue.DelayedHeader: "1"} },
	} {
		l, _ := testLedger()
		m := loose(5)
		spoil(m)
		for range 2 {
			expect(t, l, m, Hold)
		}
		if held := l.Held(); held == nil || held.First != m.ID {
			t.Errorf("%s: held %+v", name, held)
		}
		expect(t, l, loose(5), Append) // repaired
	}
}

// Publishers draw producer numbers at random. If one does not, its message is put aside, neither taken for a copy nor appended beside the other.
func TestLedgerPutsAsideWhatSharesAProducerNumber(t *testing.T) {
	l, _ := testLedger()
	expect(t, l, loose(5), Append)
	other := loose(5)
	other.ID = queue.NewID(other.ID.Time().Add(time.Millisecond), 5, 0)
	earlier := loose(5)
	earlier.ID = queue.NewID(other.ID.Time().Add(-time.Hour), 5, 0)
	for range 2 {
		expect(t, l, other, Reused)
		expect(t, l, earlier, Reused)
		expect(t, l, message(5, 1), Reused)
		expect(t, l, message(5, 7), Reused)
	}
	expect(t, l, loose(5), Duplicate)
	unreadable := message(5, 1)
	unreadable.Incomplete = true
	expect(t, l, unreadable, Hold)
	expect(t, l, message(6, 1), Append)
	expect(t, l, loose(6), Reused)
	expect(t, l, message(6, 2), Append)
	if again, _ := testLedger(); again.Restore(l.State()) != nil {
		t.Error("the state is not readable")
	}
}

func TestLedgerPutsLooseMessagesAsideAgain(t *testing.T) {
	l, _ := testLedger()
	m := loose(5)
	expect(t, l, m, Append)
	l.Skip(m)
	expect(t, l, m, PutAside)
	restored, _ := testLedger()
	if err := restored.Restore(l.State()); err != nil {
		t.Fatal(err)
	}
	expect(t, restored, m, PutAside)
	unreadable := *m
	unreadable.Incomplete, unreadable.Headers = true, nil
	expect(t, restored, &unreadable, Hold)
	expect(t, restored, m, PutAside)
}

// A file, a queue and the transactions that feed it. Transactions are committed long after others that began later. Ledgers die at any point and
// are rebuilt from the last checkpoint and the records after it. Acknowledgements are lost. More messages arrive than are remembered. If none was
// forgotten, the database is restored to an earlier state and a full sweep begins. In every case each message gets into the file once, as itself or as a skip entry.
func TestLooseMessagesAreAppendedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 12
		sweep, place := uint64(0), uint64(0) // of the walk over the pending messages
		forgotten := false
		var l *Ledger
		begin := func(state []byte, records []storage.Record) {
			l, _ = testLedger()
			l.Sweep, l.mostLoose = func() uint64 { return sweep }, 4
			sweep, place = sweep+1, 0
			if err := l.Restore(state); err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if _, _, err := l.Replay(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		empty, _ := testLedger()
		state, kept := empty.State(), 0
		begin(state, nil)
		var file []storage.Record
		committed, pending, inFile := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"commit", "commit", "walk", "walk", "walk", "go back", "ack", "ack", "sweep", "checkpoint", "die", "set back"}).Draw(t, "step") {
			case "commit":
				p := rapid.Uint64Range(1, most).Draw(t, "producer")
				pending[p] = pending[p] || !committed[p]
				committed[p] = true
			case "walk":
				for range rapid.IntRange(1, 5).Draw(t, "messages") {
					for place++; place <= most && !pending[place]; place++ {
					}
					if place > most {
						break
					}
					switch v, m := admit(l, loose(place), 1), loose(place); v {
					case Append:
						if inFile[place] {
							t.Fatalf("message %d is appended a second time", place)
						}
						r := storage.Record{ID: m.ID[:]}
						if place%4 == 0 {
							MakeSkipEntry(&r, "refused", false)
							l.Skip(m)
						}
						file, inFile[place] = append(file, r), true
					case Duplicate, PutAside:
						if !inFile[place] || (v == PutAside) != (place%4 == 0) {
							t.Fatalf("message %d is judged %v, in the file: %v", place, v, inFile[place])
						}
					default:
						t.Fatalf("message %d is judged %v", place, v)
					}
				}
				l.TrimHistory()
				n, _ := l.TrimLoose()
				forgotten = forgotten || n > 0
			case "go back":
				place = rapid.Uint64Range(0, place).Draw(t, "place")
			case "ack":
				for _, r := range file {
					if rapid.Bool().Draw(t, "acknowledged") {
						delete(pending, queue.ID(r.ID).Producer())
					}
				}
			case "sweep":
				sweep, place = sweep+1, 0
			case "checkpoint":
				state, kept = l.State(), len(file)
			case "die":
				begin(state, file[kept:])
			case "set back":
				if !forgotten {
					pending = maps.Clone(committed)
					sweep, place = sweep+1, 0 // a running sweep does not meet messages that return behind its position
				}
			}
		}
	})
}

// Messages that may be pending are remembered, however many there are. Those that a later full sweep did not meet are forgotten, oldest first.
func TestLooseMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := testLedger()
		sweep := uint64(1)
		l.Sweep = func() uint64 { return sweep }
		l.mostLoose = 100
		for p := range uint64(150) {
			time.Sleep(time.Second)
			expect(t, l, loose(p+1), Append)
		}
		if n, full := l.TrimLoose(); n != 0 || !full || len(l.loose) != 150 {
			t.Fatalf("%d of 150 were forgotten, full: %v; no sweep has begun since they were seen", n, full)
		}
		sweep++
		expect(t, l, loose(30), Duplicate) // the sweep has come so far
		if n, full := l.TrimLoose(); n != 29 || !full || l.loose[29] != nil || l.loose[30] == nil {
			t.Fatalf("%d were forgotten, full: %v; those before the sweep's position cannot be pending, the others may be", n, full)
		}
		expect(t, l, loose(140), Duplicate)
		if n, full := l.TrimLoose(); n != 31 || full || len(l.loose) != 90 || l.loose[30] == nil || l.loose[140] == nil || l.loose[150] == nil || l.loose[61] != nil {
			t.Fatalf("%d were forgotten, full: %v, %d are left", n, full, len(l.loose))
		}
		for p := range uint64(10) { // up to the bound nothing is forgotten
			expect(t, l, loose(p+200), Append)
		}
		if n, _ := l.TrimLoose(); n != 0 {
			t.Errorf("%d were forgotten, although the bound is not exceeded", n)
		}
	})
}

// Loose messages age like producers, and do not count against the bound of producers.
func TestLooseMessagesAreForgottenAfterTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := testLedger()
		const retention = 24 * time.Hour
		at := epoch.UnixMilli()
		for p := range uint64(5) {
			admit(l, loose(p+1), at)
			admit(l, message(p+1001, 1), at)
		}
		time.Sleep(retention - time.Second)
		admit(l, loose(2), at) // it is pending again
		if n := l.Forget(at, retention); n != 0 || len(l.loose) != 5 {
			t.Fatalf("%d producers were forgotten, %d loose messages are left", n, len(l.loose))
		}
		before := l.Lives()
		next, _ := testLedger()
		if err := next.Restore(l.State()); err != nil {
			t.Fatal(err)
		}
		next.Recall(before)
		time.Sleep(2 * time.Second)
		next.Forget(at, retention)
		if len(next.loose) != 1 || next.loose[2] == nil || len(next.last) != 0 {
			t.Errorf("%d loose messages and %d producers are left, want the one that was seen lately", len(next.loose), len(next.last))
		}
	})
}

// Earlier versions read records of loose messages as those of producers with the number 0, without a time, and write them like that.
func TestLooseMessagesInAStateOfAnEarlierVersion(t *testing.T) {
	entry := func(tail ...byte) []byte {
		return slices.Concat([]byte{stateVersion, 1}, binary.LittleEndian.AppendUint64(nil, 5), tail, []byte{0, 0})
	}
	for name, c := range map[string]struct {
		state []byte
		want  Verdict
	}{
		"appended":  {entry(0, 0, 7, 0, 0), Duplicate},
		"put aside": {entry(0, 0, 7, 0, 1, 0, 0), PutAside},
	} {
		l, _ := testLedger()
		if err := l.Restore(c.state); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		expect(t, l, loose(5), c.want)
		expect(t, l, message(5, 1), Reused)
		if !slices.Equal(l.State()[:9], c.state[:9]) {
			t.Errorf("%s: it is written as\n%x", name, l.State())
		}
	}
	l, _ := testLedger()
	if err := l.Restore(entry(0, 6, 7, 1, 0, 0, 0)); !errors.Is(err, ErrState) || !strings.Contains(fmt.Sprint(err), "before the loose one") {
		t.Errorf("numbers before a loose message: %v", err)
	}
}

// No worker writes such files, but whatever a ledger reads, it has one entry per producer number.
func TestReplayOfSharedProducerNumbers(t *testing.T) {
	for _, order := range [][]*queue.Message{{loose(5), message(5, 1)}, {message(5, 1), loose(5)}} {
		l, _ := testLedger()
		for _, m := range order {
			if _, _, err := l.Replay(storage.Record{ID: m.ID[:], Kind: storage.KindSkipped}); err != nil {
				t.Fatal(err)
			}
		}
		again, _ := testLedger()
		if err := again.Restore(l.State()); err != nil || len(again.last) != 1 || len(again.loose) != 0 {
			t.Errorf("%d producers and %d loose messages, %v", len(again.last), len(again.loose), err)
		}
	}
}
