package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"pgregory.net/rapid"
)

// fullLedger returns a ledger with the maximum of every kind of entry, with numbers that take as many bytes as publishers can make them take.
func fullLedger() *Ledger {
	l := New(Options{GapTimeout: time.Minute, Now: time.Now})
	seenAt := epoch.AddDate(300, 0, 0).UnixMilli()
	const high = 1 << 42 // of a number
	at := func(producer, n uint64) queue.ID { return queue.NewID(time.UnixMilli(seenAt), producer, n) }
	for p := range uint64(maxProducers) {
		recordAt(l, at(p<<32+1, 1), seenAt)
		l.last[p<<32+1].n = 2 * high // above all skipped numbers
	}
	e := l.last[1]
	for i := range uint64(MaxSkipped) {
		e.skipped = append(e.skipped, span{high + 2*i, high + 2*i})
	}
	l.skipped = MaxSkipped
	for i := range uint64(MaxDelayed) {
		l.delayed.Record(at(i<<32+1, high), seenAt)
	}
	for p := range uint64(MaxLoose) {
		id := at(p<<32+2, 0)
		recordAt(l, id, seenAt)
		l.recordSkipped(id)
	}
	l.keys.window = time.Hour
	l.keys.now = seenAt - 1000 // so all keys are from the future, which takes the most space
	for i := range uint64(MaxKeys) {
		l.keys.record(strconv.FormatUint(i, 10), at(1, i))
	}
	l.TrimHistory()
	return l
}

func TestFullStateFits(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	l := fullLedger()
	state := l.State()
	if len(state) > storage.MaxState {
		t.Errorf("a full state has %d bytes, a file takes %d", len(state), storage.MaxState)
	}
	l.keys = keys{window: time.Hour, most: MaxKeys, now: 1 << 47}
	for i := range uint64(MaxKeys + 1) {
		l.keys.record(strconv.FormatUint(i, 10), queue.NewID(time.UnixMilli(1<<45), 1, i))
	}
	l.TrimHistory()
	if state = l.State(); len(state) > storage.MaxState {
		t.Errorf("a full state without keys from the future has %d bytes, a file takes %d", len(state), storage.MaxState)
	}
	restored, _ := testLedger()
	if err := restored.Restore(state); err != nil {
		t.Errorf("a full state is refused: %v", err)
	}
}

// A state that no worker writes is refused because of the memory it would take, whatever its content. States of earlier versions are read.
func TestStateThatNoWorkerWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("much computation and no concurrency")
	}
	fill := func(b []byte, entry []byte) []byte { // up to the size of the largest state
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
			err := l.Restore(tc.state)
			took := int(heap()-before) + len(tc.state) // the decoded state and the encoded one
			if took > 256<<20 {
				t.Errorf("a state of %d bytes takes %d MiB", len(tc.state), took>>20)
			}
			if tc.fits != (err == nil) || err != nil && (!errors.Is(err, ErrState) || !strings.Contains(err.Error(), "220 MiB") || !strings.Contains(err.Error(), "backup")) {
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

func TestLedgerStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, c := testLedger()
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) [2]uint64 {
			return [2]uint64{rapid.Uint64Range(1, 4).Draw(t, "producer"), rapid.Uint64Range(1, 9).Draw(t, "n")}
		}), 0, 40).Draw(t, "messages")
		for i, s := range steps {
			c.t = c.t.Add(20 * time.Second)
			m := message(s[0], s[1])
			if v := admit(l, m, int64(i)); v < Duplicate && s[1]%3 == 0 {
				l.recordSkipped(m.ID)
			}
		}
		restored, _ := testLedger()
		if err := restored.Restore(l.State()); err != nil {
			t.Fatal(err)
		}
		if a, b := l.State(), restored.State(); !slices.Equal(a, b) {
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
		for cut := range l.State() {
			if restored.Restore(l.State()[:cut]) == nil {
				t.Fatalf("a state cut to %d bytes was accepted", cut)
			}
		}
	})
}

// States written by earlier versions are readable: without the times of the last IDs, no message is taken for a reused number.
func TestEarlierStatesAreRead(t *testing.T) {
	key := hashKey("order-17")
	last := message(5, 9)
	body := binary.LittleEndian.AppendUint64([]byte{1}, 5)                // one producer
	body = append(body, 9)                                                // n
	body = binary.AppendUvarint(body, uint64(epoch.UnixMilli()))          // seenAt
	body = append(body, 1, 3, 4)                                          // one gap, from 3 to 4
	keys := append([]byte{1}, key[:]...)                                  // one key
	keys = binary.AppendUvarint(keys, uint64(last.ID.Time().UnixMilli())) // and its message's time
	for version, state := range map[int][]byte{1: append([]byte{1}, body...), 2: slices.Concat([]byte{2}, body, keys)} {
		l, _ := testLedger()
		l.keys.window = time.Hour
		if err := l.Restore(state); err != nil {
			t.Fatalf("version %d: %v\n%s", version, err, hex.Dump(state))
		}
		e := l.last[5]
		if e == nil || e.n != 9 || e.at != 0 || e.seenAt != epoch.UnixMilli() || !slices.Equal(e.missing, []span{{3, 4}}) {
			t.Errorf("version %d: %+v", version, e)
		}
		copyOf := *message(6, 1)
		copyOf.Headers = map[string]string{queue.KeyHeader: "order-17"}
		if l.keys.copied(&copyOf) != (version == 2) {
			t.Errorf("version %d: the key is known: %v", version, version != 2)
		}
		later := queue.Message{Type: "t", ID: queue.NewID(last.ID.Time().Add(time.Hour), 5, 9)}
		expect(t, l, &later, Duplicate) // as before: the time is unknown
		expect(t, l, message(5, 10), Append)
		later.ID = queue.NewID(last.ID.Time().Add(time.Hour), 5, 9)
		expect(t, l, &later, Reused)
	}
	third := binary.LittleEndian.AppendUint64([]byte{3, 1}, 5)
	third = binary.AppendUvarint(append(third, 9), uint64(ms(last.ID)))       // n and the time of its ID
	third = binary.AppendUvarint(third, uint64(epoch.UnixMilli()))            // seenAt
	third = binary.LittleEndian.AppendUint64(append(third, 0, 0, 1), 6)       // no gap, no key, one publisher of delayed messages
	third = append(binary.AppendUvarint(third, uint64(epoch.UnixMilli())), 0) // seenAt, no span
	l, _ := testLedger()
	if err := l.Restore(third); err != nil || l.last[5].n != 9 || l.last[5].at != ms(last.ID) || l.last[5].skipped != nil || l.delayed.of[6] == nil {
		t.Errorf("version 3: %+v, %v", l.last[5], err)
	}
	expect(t, l, last, Duplicate)
	if err := l.Restore([]byte{5, 0, 0, 0}); err == nil || !strings.Contains(err.Error(), "version 5") {
		t.Errorf("a state of a later version: %v", err)
	}
}

// Ranges may come from a damaged or foreign state. One beyond its producer's last number would swallow future messages, and searches in
// ranges that are not ascending find nothing.
func TestRangesThatNoWorkerWrites(t *testing.T) {
	producer := binary.LittleEndian.AppendUint64(nil, 5)
	missing := func(ranges ...byte) []byte { // of a producer whose last number is 9
		return slices.Concat([]byte{stateVersion, 1}, producer, []byte{9, 6, 7, byte(len(ranges) / 2)}, ranges, []byte{0, 0, 0})
	}
	skipped := func(ranges ...byte) []byte {
		return slices.Concat([]byte{stateVersion, 1}, producer, []byte{9, 6, 7, 0, byte(len(ranges) / 2)}, ranges, []byte{0, 0})
	}
	delayed := func(ranges ...byte) []byte {
		return slices.Concat([]byte{stateVersion, 0, 0, 1}, producer, []byte{7, byte(len(ranges) / 2)}, ranges)
	}
	for kind, state := range map[string]func(...byte) []byte{"missing": missing, "skipped": skipped, "delayed": delayed} {
		for name, ranges := range map[string][]byte{"beyond the last number": {8, 10}, "far beyond": {20, 20}, "out of order": {4, 5, 1, 2},
			"overlapping": {1, 4, 3, 5}, "the same twice": {2, 3, 2, 3}, "the wrong way round": {5, 4}} {
			l, _ := testLedger()
			err := l.Restore(state(ranges...))
			if kind == "delayed" && strings.Contains(name, "beyond") { // there is no last number
				if err != nil {
					t.Errorf("%s, %s: %v", kind, name, err)
				}
			} else if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "a range from") {
				t.Errorf("%s, %s: %v", kind, name, err)
			}
		}
		l, _ := testLedger()
		if err := l.Restore(state(1, 2, 4, 4)); err != nil {
			t.Errorf("%s: ranges in order are refused: %v", kind, err)
		}
	}
}
