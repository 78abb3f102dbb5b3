package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// specimen is a file that a killed Writer left on the real file system: batches that a later record proves durable, followed by
// batches that nothing proves durable.
type specimen struct {
	x       *world
	data    []byte
	durable int64
	ends    []int64 // of the records, in order; the first is the end of the header
	records uint64
}

func newSpecimen(t *testing.T) *specimen {
	t.Helper()
	x := newWorld(filepath.Join(t.TempDir(), "files"))
	x.Published = 40
	h, err := x.Open(storage.OS())
	must(t, err)
	must(t, h.Begin())
	must(t, steps(appends(h, 2), h.Ack, appends(h, 1), appends(h, 3), appends(h, 2)))
	data, err := os.ReadFile(x.Path())
	must(t, err)
	must(t, h.Writer.Close())
	s := &specimen{x: x, data: data, ends: []int64{4096}}
	rep := verifyBytes(t, data)
	s.durable, s.records = rep.DurableEnd, rep.Messages
	for p := 4096; p < len(data); {
		head := p
		if bytes.Equal(data[p:p+16], data[32:48]) {
			head += 16
		}
		p = head + (int(binary.LittleEndian.Uint16(data[head+38:]))+int(binary.LittleEndian.Uint32(data[head+40:]))+7)&^7
		s.ends = append(s.ends, int64(p))
	}
	if last := s.ends[len(s.ends)-1]; last != int64(len(data)) || rep.Err() != nil || s.durable < s.ends[len(s.ends)-4] || s.durable > s.ends[len(s.ends)-3] {
		t.Fatalf("records end at %d, durable are %d, %v", s.ends, s.durable, rep.Err())
	}
	return s
}

// end returns the end of the last whole record if the file ends at n.
func (s *specimen) end(n int64) int64 {
	i, found := slices.BinarySearch(s.ends, n)
	if !found {
		i--
	}
	return s.ends[max(i, 0)]
}

// TestTruncated cuts a file at each length. Cut within its header, the file is damaged or foreign. Cut after it, the file is
// healthy, with a torn tail if the cut is within a record: only the registry knows that it was longer, and then no writer opens it.
func TestTruncated(t *testing.T) {
	s := newSpecimen(t)
	registered := s.x.Entry
	must(t, s.x.Check(storage.OS()))
	for n := range int64(len(s.data)) {
		if n < s.ends[len(s.ends)-4]-200 && n%61 != 0 {
			continue
		}
		rep, err := storage.VerifyBytes(s.data[:n], storage.VerifyOptions{Deep: true})
		if n < 4096 {
			var damaged *storage.HeaderError
			var foreign *storage.ForeignFileError
			if rep != nil || n >= 8 && !errors.As(err, &damaged) || n < 8 && !errors.As(err, &damaged) && !errors.As(err, &foreign) {
				t.Fatalf("%d bytes: %v", n, err)
			}
			continue
		}
		end := s.end(n)
		if end == s.ends[1] {
			end = s.ends[0] // a fence alone does not count
		}
		want := storage.Range{}
		if end < n {
			want = storage.Range{Offset: end, End: n}
		}
		if err != nil || rep.Err() != nil || rep.Torn != want || len(rep.Void) > 0 {
			t.Fatalf("%d bytes: torn %v, want %v; %v, %v", n, rep.Torn, want, err, rep.Err())
		}
	}
	// When it was closed, the writer registered its durable index.
	for i, n := range s.ends {
		must(t, os.WriteFile(s.x.Path(), s.data[:n], 0o600))
		x := s.x.Clone()
		x.Entry = registered
		h, err := x.Open(storage.OS())
		complete := n == int64(len(s.data))
		if complete != (err == nil) || err != nil && !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("cut after record %d, at %d of %d: Open returned %v", i, n, len(s.data), err)
		}
		h.Close()
	}
}

// TestFlipped flips a bit of each byte of a file, and each bit of its first header fields and of one record header. In durable bytes the
// result is a corruption error that names the place; in other bytes it is a torn tail.
func TestFlipped(t *testing.T) {
	s := newSpecimen(t)
	var bits []int
	for i := range s.data {
		switch {
		case i < 104, int64(i) >= s.ends[2] && int64(i) < s.ends[2]+96: // a batch's header
			for b := range 8 {
				bits = append(bits, i*8+b)
			}
		case i < 4096-8 && i%13 != 0: // zeros, most of them
		default:
			bits = append(bits, i*8+i%8)
		}
	}
	for _, bit := range bits {
		at := int64(bit / 8)
		s.data[at] ^= 1 << (bit % 8)
		s.flipped(t, at)
		s.data[at] ^= 1 << (bit % 8)
	}
}

func (s *specimen) flipped(t *testing.T, at int64) {
	t.Helper()
	rep, err := storage.VerifyBytes(s.data, storage.VerifyOptions{Deep: true})
	if at < 4096 {
		var damaged *storage.HeaderError
		var newer *storage.VersionError
		version := (at == 8 || at == 9) && errors.As(err, &newer) // the major version is checked before the checksum
		if rep != nil || !version && !errors.As(err, &damaged) {
			t.Fatalf("header byte %d: %v", at, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("byte %d: %v", at, err)
	}
	if at >= s.durable {
		if want := (storage.Range{Offset: s.end(at), End: int64(len(s.data))}); rep.Err() != nil || rep.Torn != want || rep.Messages >= s.records {
			t.Fatalf("byte %d, above the known durable end: torn %v, want %v; %v", at, rep.Torn, want, rep.Err())
		}
		return
	}
	var damage *storage.CorruptError
	if !errors.As(rep.Err(), &damage) || !errors.Is(rep.Err(), storage.ErrIntegrity) || damage.Offset > at || damage.End <= at || damage.Offset != s.end(at) ||
		len(rep.Corrupt) != 1 || rep.Messages+damage.LostNext-damage.LostFirst != s.records {
		t.Fatalf("byte %d: %d of %d messages, %v", at, rep.Messages, s.records, rep.Err())
	}
	if !strings.Contains(rep.Err().Error(), fmt.Sprint(damage.Offset)) {
		t.Fatalf("byte %d: %q does not name the offset", at, rep.Err())
	}
}

// TestMissingIndex: indexes are contiguous, or the gap is reported: with the missing messages if a later record proves that they
// existed, and otherwise as a torn tail.
func TestMissingIndex(t *testing.T) {
	for _, proved := range []bool{false, true} {
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		b.batch(messages(0, 2), 0)
		from := int64(len(b.data))
		b.next += 3
		b.batch(messages(5, 2), 0)
		if b.synced = int64(len(b.data)); proved {
			b.batch(messages(7, 1), 0)
		}
		rep := verifyBytes(t, b.data)
		var gap *storage.CorruptError
		switch {
		case !proved && (rep.Err() != nil || rep.Messages != 2 || rep.Torn != storage.Range{Offset: from, End: int64(len(b.data))}):
			t.Errorf("not proved: %d messages, torn %v, %v", rep.Messages, rep.Torn, rep.Err())
		case proved && (!errors.As(rep.Err(), &gap) || gap.Offset != from || gap.LostFirst != 2 || gap.LostNext != 7 || rep.Messages != 3):
			t.Errorf("proved: %d messages, %v", rep.Messages, rep.Err())
		}
	}
}

// TestMissingEnd: the next writer has read the last records of a region, so they are reported as missing if they rot.
func TestMissingEnd(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.batch(messages(0, 2), 0)
	from := int64(len(b.data))
	b.batch(messages(2, 3), 0)
	to := int64(len(b.data))
	b.region(4, 4000, storage.Holder{ID: "test"})
	b.batch(messages(5, 1), 0)
	b.data[to-20] ^= 1
	rep := verifyBytes(t, b.data)
	var damage *storage.CorruptError
	if !errors.As(rep.Err(), &damage) || damage.Offset != from || damage.End != to || damage.LostFirst != 2 || damage.LostNext != 5 || rep.Messages != 3 {
		t.Errorf("%d messages, %v; damaged are bytes %d to %d", rep.Messages, rep.Err(), from, to)
	}
}

// TestExchangedRecord: a record that is good by itself, but not the one that the next writer read there, is damage before that
// writer's region; the region itself is still read.
func TestExchangedRecord(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	from := len(b.data)
	other := *b
	other.data = bytes.Clone(b.data)
	b.batch(messages(0, 2), 0)
	recs := messages(0, 2)
	recs[0].Payload[0] ^= 1
	other.batch(recs, 0)
	b.region(4, 4000, storage.Holder{ID: "test"})
	b.batch(messages(2, 1), 0)
	copy(b.data[from:], other.data[from:])
	rep := verifyBytes(t, b.data)
	var damage *storage.CorruptError
	if !errors.As(rep.Err(), &damage) || damage.Offset > int64(from) || damage.End != int64(len(other.data)) || rep.Messages != 3 || len(rep.Corrupt) != 1 {
		t.Errorf("%d messages, %v; exchanged were bytes %d to %d", rep.Messages, rep.Err(), from, len(other.data))
	}
}

// TestWhatDoesNotFitIsVoid: a record that is good by itself, and at its stated offset, counts only if it continues its region, and a region
// counts only if it has an epoch of its own.
func TestWhatDoesNotFitIsVoid(t *testing.T) {
	seal := func(b *builder) { b.add("FPS1", storage.SealBody(storage.FileID{7}, 2, "size limit"), 0, 0, 0) }
	for name, add := range map[string]func(b *builder){
		"a region of the same epoch": func(b *builder) { b.region(3, 3001, storage.Holder{ID: "another"}) },
		"a batch of another session": func(b *builder) { b.session++ },
		"a batch of another epoch":   func(b *builder) { b.epoch-- },
		"a batch of another chain":   func(b *builder) { b.chain ^= 1 },
		"a batch after a seal":       seal,
		"a region after a seal":      func(b *builder) { seal(b); b.region(4, 4000, storage.Holder{ID: "another"}) },
		"an open record of another fence": func(b *builder) {
			before := *b
			for epoch := range uint64(2) { // two fences
				b.region(4+epoch, 4000, storage.Holder{ID: "another"})
				b.data, b.end, b.chain, b.anchor = b.data[:b.synced], before.end, before.chain, before.anchor
			}
			b.add("FPO1", storage.OpenBody(before.end, before.end, 0), 0, 0, 0)
		},
	} {
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		b.batch(messages(0, 2), 0)
		add(b)
		b.batch(messages(2, 1), 0)
		if rep := verifyBytes(t, b.data); rep.Err() != nil || rep.Messages != 2 {
			t.Errorf("%s: %d messages, want 2; %v", name, rep.Messages, rep.Err())
		}
	}
}

// announce appends a record header that is good by itself and announces a body that is missing or incomplete.
func announce(data []byte, magic string, stored, raw, count uint32, flags uint16, body []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	seed := crc32.Checksum(data[16:32], table)
	at := len(data)
	if magic != "FPB1" {
		data = append(data, data[32:48]...)
	}
	h := make([]byte, 96)
	copy(h, magic)
	le := binary.LittleEndian
	le.PutUint64(h[8:], uint64(at))
	le.PutUint64(h[16:], 3)
	le.PutUint32(h[32:], count)
	le.PutUint16(h[36:], flags)
	le.PutUint16(h[38:], 96)
	le.PutUint32(h[40:], stored)
	le.PutUint32(h[44:], raw)
	le.PutUint64(h[48:], 4096)
	le.PutUint64(h[72:], 3000)
	le.PutUint32(h[4:], crc32.Update(crc32.Update(seed, table, h[:4]), table, h[8:]))
	return append(append(data, h...), body...)
}

// TestMemoryIsBounded: an announced body costs no memory unless it is present, and compressed bodies together cost the memory for
// one body of the announced size.
func TestMemoryIsBounded(t *testing.T) {
	race.Skip(t)
	const mib = 1 << 20
	region := func() *builder {
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		return b
	}
	alone := announce(region().data, "FPB1", 64*mib, 64*mib, 1<<20, 0, make([]byte, 4096))
	many := region().data
	for range 2000 {
		many = announce(many, "FPB1", 64*mib, 64*mib, 1<<20, 0, nil)
		many = announce(many, "FPC1", 64*mib, 64*mib, 0, 0, nil)
	}
	counts := region()
	for i := range 200 {
		counts.add("FPB1", storage.BatchBody(messages(i, 1)), 1<<20, 0, 0) // one record where 2^20 are announced
	}
	bombs := region()
	bomb := storage.Compress(make([]byte, 64*mib))
	for range 3 {
		bombs.addRaw("FPB1", bomb, 1, 1, 0, 64*mib)
	}
	liars := region()
	for range 200 {
		liars.addRaw("FPB1", bomb, 1, 1, 0, 1*mib) // 64 MiB where 1 MiB is announced
	}
	for _, c := range []struct {
		name string
		data []byte
		most uint64
	}{
		{"a body of 64 MiB that is not there", alone, 2 * mib},
		{"thousands of them", many, 8 * mib},
		{"counts of 2^20", counts.data, 4 * mib},
		{"bodies of 64 MiB, compressed", bombs.data, 110 * mib},
		{"bodies of 64 MiB that should have one", liars.data, 24 * mib},
	} {
		for who, do := range map[string]func() error{
			"verify": func() error {
				_, err := storage.VerifyBytes(c.data, storage.VerifyOptions{Deep: true})
				return err
			},
			"read": func() error {
				r, err := storage.OpenReader("f", storage.ReaderOptions{FS: storage.BytesFS(c.data)})
				if err != nil {
					return err
				}
				defer r.Close()
				for {
					if _, err := r.NextBatch(); err == io.EOF {
						return nil
					} else if err != nil && !errors.Is(err, storage.ErrIntegrity) {
						return err
					}
				}
			},
		} {
			must(t, do()) // warm-up: some memory is allocated once per process
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			must(t, do())
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > c.most {
				t.Errorf("%s: %s allocates %d KiB for a file of %d KiB, want at most %d", c.name, who, got>>10, len(c.data)>>10, c.most>>10)
			}
		}
	}
}

// TestHuntIsLinear: after the end of a region, each of 400,000 headers that are good by themselves announces a body up to the end of
// the file. The bodies add up to 8 TB, whose checksums take minutes; those that the scan's budget allows take milliseconds.
func TestHuntIsLinear(t *testing.T) {
	headers, size := uint32(400_000), uint32(96)
	if race.Enabled {
		headers /= 10
	}
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.batch(messages(0, 2), 0)
	data := b.data
	for left := headers * size; left > 0; left -= size {
		data = announce(data, "FPB1", left-size, left-size, 1, 0, nil)
	}
	done := make(chan *storage.Report, 1)
	go func() {
		rep, _ := storage.VerifyBytes(data, storage.VerifyOptions{})
		done <- rep
	}()
	select {
	case rep := <-done:
		if rep.Err() != nil || rep.Messages != 2 {
			t.Errorf("%d messages, want 2; %v", rep.Messages, rep.Err())
		}
	case <-time.After(30 * time.Second): // a hundred times as long as it takes
		t.Error("no end after 30 s")
	}
}

// TestWalkBackIsLinear: a reader of the end of a file, or of an index in it, walks back from the end. The size of the file bounds
// the bytes it reads on the way, whatever the content, and the result is correct.
func TestWalkBackIsLinear(t *testing.T) {
	begun := func(records uint64) *builder {
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		b.batch(messages(0, int(records)), 0)
		return b
	}
	announced := begun(2).data // checkpoints that announce a body up to the end of the file, but have none
	for left := uint32(8000 * 112); left > 0; left -= 112 {
		announced = announce(announced, "FPC1", left-112, left-112, 0, 0, nil)
	}
	small := begun(2) // a chain of checkpoints with nothing between them
	for range 4000 {
		small.add("FPC1", storage.CheckpointBody(small.anchor, nil), 0, 0, 0)
	}
	for name, data := range map[string][]byte{"announced": announced, "nested": nestedCheckpoints(begun(2), 1500), "small": small.data} {
		read := int64(0)
		fsys := &storagetest.Tap{FS: storage.BytesFS(data), Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpRead {
				read += c.Len
			}
			return nil
		}}
		for who, look := range map[string]func() error{
			"ReadLink": func() error {
				if l := storage.ReadLink(fsys, "orders.fpl"); l.Err != nil || l.Next != 2 {
					return fmt.Errorf("next %d, %w", l.Next, l.Err)
				}
				return nil
			},
			"OpenReader": func() error {
				r, err := storage.OpenReader("orders.fpl", storage.ReaderOptions{FS: fsys, From: 1})
				if err != nil {
					return err
				}
				defer r.Close()
				if rec, err := r.Next(); err != nil || rec.Index != 1 {
					return fmt.Errorf("index %d, %w", rec.Index, err)
				}
				_, err = r.Next()
				if err == io.EOF {
					return nil
				}
				return fmt.Errorf("no end: %w", err)
			},
		} {
			read = 0
			if err := look(); err != nil {
				t.Errorf("%s, %s: %v", name, who, err)
			}
			if most := 20 * int64(len(data)); read > most {
				t.Errorf("%s, %s: %d bytes were read of a file of %d", name, who, read, len(data))
			}
		}
	}
}

// nestedCheckpoints appends n whole checkpoints. The state of each one contains the next, which names it as its predecessor.
func nestedCheckpoints(b *builder, n int) []byte {
	const each = 128 // marker, header, offset of the previous one, no marks, length of the state; and zeros before the next one
	at := int64(len(b.data))
	var rec []byte
	for i := n - 1; i >= 0; i-- {
		prev := int64(0)
		if i > 0 {
			prev = at + int64(i-1)*each
		}
		state := rec
		if i < n-1 {
			state = append(make([]byte, each-112-len(storage.CheckpointBody(0, rec))+len(rec)), rec...)
		}
		rec, _ = storage.BuildRecord(b.data[:4096], storage.RecordSpec{Magic: "FPC1", Offset: at + int64(i)*each, Epoch: b.epoch, Session: b.session,
			Base: b.next, DurableEnd: b.synced, Anchor: b.anchor, Chain: b.chain, Body: storage.CheckpointBody(prev, state)})
	}
	return append(b.data, rec...)
}
