package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// sample is a file with everything that a file can contain: two complete regions, a torn batch, a batch that landed after a
// fence, a fence without an open record, checkpoints, skipped records, a declared gap, headers.
type sample struct {
	data    []byte
	report  *storage.Report
	records []storage.Record
	durable int64 // later records prove everything below durable
}

func newSample(t testing.TB) *sample {
	t.Helper()
	x, mem := newMemWorld(t, 512)
	if err := errors.Join(func() error {
		a, err := x.Open(mem)
		if err != nil {
			return err
		}
		recs := messages(6, 3)
		recs[0].Kind, recs[1].Kind = storage.KindSkipped, storage.KindAfterGap
		recs[2].Headers = []storage.Header{{Key: "a", Value: "b"}, {Key: "empty"}}
		if err := errors.Join(a.Writer.Append(recs), a.Ack(), a.Checkpoint()); err != nil {
			return err
		}
		// A dies in the middle of a write; a successor dies between its fence and its open record; A writes once more,
		// after that fence.
		cut := &storagetest.Tap{FS: mem, Before: func(c storagetest.Call) *storagetest.Fault {
			if c.Op == storagetest.OpDatasync {
				return &storagetest.Fault{Err: io.ErrUnexpectedEOF}
			}
			return nil
		}}
		x.Epoch++
		if _, err := x.OpenEpoch(cut, x.Epoch); err == nil {
			return errors.New("the successor did not die")
		}
		if err := a.Writer.Append(messages(9, 1)); !errors.Is(err, storage.ErrFenced) {
			return fmt.Errorf("A is not fenced: %v", err)
		}
		b, err := x.Open(mem)
		if err != nil {
			return err
		}
		if err := errors.Join(b.Writer.Append(messages(9, 2)), b.Writer.Append(messages(11, 1)), b.Ack(), b.Checkpoint(), b.Writer.Append(messages(12, 2)), b.Writer.Close()); err != nil {
			return err
		}
		c, err := x.Open(mem)
		if err != nil {
			return err
		}
		return c.Writer.Close()
	}()); err != nil {
		t.Fatal(err)
	}
	s := &sample{data: mem.ReadFile(x.Path())}
	s.report = verifyBytes(t, s.data)
	s.records, _ = salvage(t, s.data)
	s.durable = s.report.DurableEnd
	if s.report.Err() != nil || len(s.records) != 14 {
		t.Fatalf("the sample is not healthy: %d records, %v", len(s.records), s.report.Err())
	}
	return s
}

func verifyBytes(t testing.TB, b []byte) *storage.Report {
	t.Helper()
	rep, err := storage.VerifyBytes(b, storage.VerifyOptions{Deep: true})
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return rep
}

// salvage reads every readable record, continuing after damage, and returns the records and the errors.
func salvage(t testing.TB, b []byte) (recs []storage.Record, errs []error) {
	t.Helper()
	r, err := storage.OpenReader("sample.fpl", storage.ReaderOptions{FS: storage.BytesFS(b)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		rec, err := r.Next()
		switch {
		case err == io.EOF:
			return recs, errs
		case err != nil:
			errs = append(errs, err)
			if len(errs) > 1000 {
				t.Fatalf("the reader does not end: %v", err)
			}
		default:
			recs = append(recs, copyOf(rec))
		}
	}
}

func copyOf(r storage.Record) storage.Record {
	r.ID, r.Payload = bytes.Clone(r.ID), bytes.Clone(r.Payload)
	r.Headers = append([]storage.Header(nil), r.Headers...)
	return r
}

func equal(a, b storage.Record) bool {
	if len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i] != b.Headers[i] {
			return false
		}
	}
	return a.Kind == b.Kind && bytes.Equal(a.ID, b.ID) && bytes.Equal(a.Payload, b.Payload) && a.Time == b.Time && a.Index == b.Index && a.Epoch == b.Epoch
}

// void reports whether the byte at off is void for every reader.
func (s *sample) void(off int64) bool {
	for _, r := range s.report.Void {
		if off >= r.Offset && off < r.End {
			return true
		}
	}
	return false
}

// checkDamaged checks a damaged copy of the sample: no wrong record is returned, and damage to durable bytes is reported.
func (s *sample) checkDamaged(t *testing.T, data []byte, from, to int64) {
	t.Helper()
	recs, errs := salvage(t, data)
	for _, r := range recs {
		if r.Index >= uint64(len(s.records)) || !equal(r, s.records[r.Index]) {
			t.Fatalf("damage at %d: a wrong record was returned: %+v", from, r)
		}
	}
	rep := verifyBytes(t, data)
	reported := rep.Err() != nil
	if reported != (len(errs) > 0) || rep.Messages != uint64(len(recs)) {
		t.Fatalf("damage at %d: verify finds %d records and says %v, the reader %d and %v", from, rep.Messages, rep.Err(), len(recs), errs)
	}
	needed := false
	for off := from; off < to; off++ {
		needed = needed || off < s.durable && !s.void(off)
	}
	switch {
	case needed && !reported:
		t.Fatalf("damage in bytes %d to %d, below the durable end %d, is not reported; %d of %d records", from, to, s.durable, len(recs), len(s.records))
	case !needed && reported && to <= s.durable:
		t.Fatalf("damage in void bytes %d to %d is reported as %v", from, to, rep.Err())
	case !needed && to <= s.durable && len(recs) != len(s.records):
		t.Fatalf("damage in void bytes %d to %d costs records", from, to)
	case reported && !errors.Is(rep.Err(), storage.ErrIntegrity):
		t.Fatalf("%v is not an integrity error", rep.Err())
	}
}

// TestEveryBit flips each bit of a file, one at a time.
func TestEveryBit(t *testing.T) {
	race.Skip(t)
	s := newSample(t)
	data := bytes.Clone(s.data)
	step := 1
	if testing.Short() {
		step = 7
	}
	for bit := 4096 * 8; bit < len(data)*8; bit += step {
		data[bit/8] ^= 1 << (bit % 8)
		s.checkDamaged(t, data, int64(bit/8), int64(bit/8)+1)
		data[bit/8] ^= 1 << (bit % 8)
	}
}

// TestEveryBlock replaces each block with zeros, the content of another block, or noise.
func TestEveryBlock(t *testing.T) {
	s := newSample(t)
	for _, size := range []int{64, 512, 4096} {
		for from := 4096; from < len(s.data); from += size {
			to := min(from+size, len(s.data))
			for how, fill := range map[string][]byte{
				"zeros": make([]byte, to-from),
				"other": bytes.Repeat(s.data[4096:4096+64], size/64)[:to-from],
				"noise": bytes.Repeat([]byte{0xa5, 0x5a, 0xff}, size)[:to-from],
			} {
				data := append(append(bytes.Clone(s.data[:from]), fill...), s.data[to:]...)
				if bytes.Equal(data, s.data) {
					continue
				}
				t.Run(fmt.Sprintf("%s of %d at %d", how, size, from), func(t *testing.T) { s.checkChanged(t, data) })
			}
		}
	}
}

// checkChanged is checkDamaged for damage in several places.
func (s *sample) checkChanged(t *testing.T, data []byte) {
	t.Helper()
	first, last := int64(-1), int64(0)
	needed := false
	for i := range data {
		if data[i] != s.data[i] {
			if first < 0 {
				first = int64(i)
			}
			last = int64(i) + 1
			needed = needed || int64(i) < s.durable && !s.void(int64(i))
		}
	}
	recs, errs := salvage(t, data)
	for _, r := range recs {
		if r.Index >= uint64(len(s.records)) || !equal(r, s.records[r.Index]) {
			t.Fatalf("a wrong record was returned: %+v", r)
		}
	}
	// If the damage reaches the end of the file, the records that would prove it may be damaged, too.
	if needed && len(errs) == 0 && last < s.durable {
		t.Fatalf("damage in bytes %d to %d, below the durable end %d, is not reported", first, last, s.durable)
	}
	if !needed && last <= s.durable && (len(errs) > 0 || len(recs) != len(s.records)) {
		t.Fatalf("damage in void bytes %d to %d: %d records, %v", first, last, len(recs), errs)
	}
}

// TestEveryLength cuts the file at each length. The rest is a prefix; only the registry knows that the file was longer.
func TestEveryLength(t *testing.T) {
	s := newSample(t)
	for n := 4096; n < len(s.data); n++ {
		recs, errs := salvage(t, s.data[:n])
		for i, r := range recs {
			if !equal(r, s.records[i]) {
				t.Fatalf("length %d: record %d is %+v", n, i, r)
			}
		}
		if len(errs) > 0 {
			t.Fatalf("length %d: %v", n, errs)
		}
		if rep := verifyBytes(t, s.data[:n]); rep.Err() != nil || rep.Messages != uint64(len(recs)) {
			t.Fatalf("length %d: %+v", n, rep)
		}
	}
}

// TestGrowingFile grows a file byte by byte while a reader reads it: the reader returns the same records as one of the whole file.
func TestGrowingFile(t *testing.T) {
	s := newSample(t)
	mem := storagetest.NewMem(512)
	mem.WriteFile("/f", s.data[:4096])
	r, err := storage.OpenReader("/f", storage.ReaderOptions{FS: mem})
	must(t, err)
	defer r.Close()
	n := 0
	for size := 4096; size <= len(s.data); size++ {
		mem.WriteFile("/f", s.data[:size])
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("at length %d: %v", size, err)
			}
			if !equal(rec, s.records[n]) {
				t.Fatalf("at length %d: record %d is %+v", size, n, rec)
			}
			n++
		}
	}
	if n != len(s.records) {
		t.Errorf("%d of %d records", n, len(s.records))
	}
	if r.DurableEnd() != s.report.DurableEnd {
		t.Errorf("durable end %d, want %d", r.DurableEnd(), s.report.DurableEnd)
	}
	mem.WriteFile("/f", s.data[:len(s.data)-8])
	for range 2 {
		if _, err := r.Next(); !errors.As(err, new(*storage.CorruptError)) || !strings.Contains(err.Error(), "became shorter") {
			t.Errorf("the file became shorter: %v", err)
		}
	}
}

// TestReport checks the report of Verify about the sample.
func TestReport(t *testing.T) {
	s := newSample(t)
	rep := s.report
	if rep.Type != "orders" || rep.FirstIndex != 0 || rep.NextIndex != 14 || rep.Messages != 14 || rep.Skipped != 1 || rep.Gaps != 1 ||
		rep.Checkpoints != 3 || rep.Size != int64(len(s.data)) || rep.DurableEnd <= 4096 || rep.Created.IsZero() {
		t.Errorf("%+v", rep)
	}
	type region struct {
		epoch, first, next uint64
		opened             bool
	}
	var got []region
	for i, g := range rep.Regions {
		got = append(got, region{g.Epoch, g.First, g.Next, g.Opened})
		if g.Holder.Host == "" || g.Holder.PID == 0 || g.Holder.Wall.IsZero() || g.End <= g.Offset || i > 0 && g.Offset < rep.Regions[i-1].End {
			t.Errorf("region %d: %+v", i, g)
		}
	}
	want := []region{{1, 0, 6, true}, {2, 6, 9, true}, {3, 9, 9, false}, {4, 9, 14, true}, {5, 14, 14, true}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("regions %v, want %v", got, want)
	}
	if len(rep.Void) != 1 || rep.Void[0].Offset != rep.Regions[1].End || rep.Void[0].End != rep.Regions[3].Offset {
		t.Errorf("void %v", rep.Void)
	}
	if rep.Torn.End != 0 {
		t.Errorf("torn %v", rep.Torn)
	}
	var seen []uint64
	var done, total int64
	_, err := storage.VerifyBytes(s.data, storage.VerifyOptions{
		Visit:    func(r storage.Record) error { seen = append(seen, r.Index); return nil },
		Progress: func(d, n int64) { done, total = d, n },
	})
	if err != nil || len(seen) != 14 || seen[13] != 13 || done != total || total != int64(len(s.data)) {
		t.Errorf("visited %v, progress %d of %d, %v", seen, done, total, err)
	}
	stop := errors.New("stop")
	if _, err := storage.VerifyBytes(s.data, storage.VerifyOptions{Visit: func(storage.Record) error { return stop }}); err != stop {
		t.Errorf("Visit's error: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := storage.Verify(ctx, "f", storage.VerifyOptions{FS: storage.BytesFS(s.data)}); err != context.Canceled {
		t.Errorf("canceled: %v", err)
	}
	if _, err := storage.VerifyBytes(s.data, storage.VerifyOptions{Type: "audit"}); !errors.Is(err, storage.ErrRefused) {
		t.Errorf("another type: %v", err)
	}
}

// TestDuplicates: a writer does not check for duplicates; Verify with Deep finds IDs that occur twice.
func TestDuplicates(t *testing.T) {
	mem := storagetest.NewMem(4096)
	w := mustOpen(t, "/d", 1, storage.Options{FS: mem})
	mustAppend(t, w, messages(0, 5))
	mustAppend(t, w, messages(3, 3))
	must(t, w.Close())
	rep := mustVerify(t, mem, "/d/orders.fpl")
	if rep.DuplicateCount != 2 || len(rep.Duplicates) != 2 || string(rep.Duplicates[0].ID) != "id-000003" || rep.Duplicates[0].First != 3 || rep.Duplicates[0].Second != 5 {
		t.Errorf("%+v", rep.Duplicates)
	}
	if err := rep.Err(); !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "id-000003") {
		t.Errorf("%v", err)
	}
	shallow, err := storage.Verify(context.Background(), "/d/orders.fpl", storage.VerifyOptions{FS: mem})
	if err != nil || shallow.Err() != nil {
		t.Errorf("%v, %v", shallow.Err(), err)
	}
}

// TestRetracted: a reader has returned records that the device then refused. The successor reuses their indexes, and the reader
// reports that.
func TestRetracted(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	a, err := x.Open(mem)
	must(t, err)
	must(t, a.Ack())
	for range 6 {
		must(t, a.Append(3))
	}
	r, err := storage.OpenReader(x.Path(), storage.ReaderOptions{FS: mem})
	must(t, err)
	defer r.Close()
	n := 0
	for ; err == nil; n++ {
		_, err = r.Next()
	}
	mem.FailWriteback(x.Path(), nil)
	if err := a.Ack(); err == nil {
		t.Fatal("scenario: A's sync did not fail")
	}
	b, err := x.Open(mem)
	must(t, err)
	must(t, b.Append(1))
	must(t, b.Ack())
	_, err = r.Next()
	var gone *storage.RetractedError
	if !errors.As(err, &gone) || gone.First != b.Writer.NextIndex()-1 || gone.Next != uint64(n-1) {
		t.Fatalf("got %v", err)
	}
	if rec, err := r.Next(); err != nil || rec.Index != gone.First {
		t.Errorf("after the retraction: %+v, %v", rec, err)
	}
	if err := x.Finish(mem); err != nil {
		t.Error(err)
	}
}

// TestWriterRefusesDamage: a new writer refuses a file with damage in the range that it must read.
func TestWriterRefusesDamage(t *testing.T) {
	x, mem := newMemWorld(t, 512)
	a, err := x.Open(mem)
	must(t, err)
	must(t, errors.Join(a.Append(3), a.Ack(), a.Append(3), a.Ack(), a.Writer.Close()))
	data := mem.ReadFile(x.Path())
	data[strings.LastIndex(string(data[:strings.LastIndex(string(data), "FPB1")]), "FPB1")+200] ^= 1
	mem.WriteFile(x.Path(), data)
	_, err = x.Open(mem)
	var damage *storage.CorruptError
	if !errors.As(err, &damage) || !errors.Is(err, storage.ErrIntegrity) || damage.LostNext <= damage.LostFirst {
		t.Errorf("got %v", err)
	}
}

// TestReportedBytesAreAll: the reported ranges cover all damaged bytes, so restoring them restores the file, however many places
// are damaged, and even if the records that prove the damage are damaged themselves.
func TestReportedBytesAreAll(t *testing.T) {
	race.Skip(t)
	s := newSample(t)
	last := s.report.Regions[len(s.report.Regions)-1].Offset // the fence of the last region, which stays intact and proves the earlier records
	rng := rand.New(rand.NewPCG(4, 4))
	several := 0
	for round := range 3000 {
		data := bytes.Clone(s.data)
		for range 1 + rng.IntN(4) {
			at := 4096 + rng.Int64N(last-4096)
			if rng.IntN(2) == 0 {
				data[at] ^= 1 << rng.IntN(8)
			} else {
				clear(data[at:min(last, at+1+rng.Int64N(300))])
			}
		}
		rep := verifyBytes(t, data)
		reported := func(off int64) bool {
			for _, err := range rep.Corrupt {
				if c := (*storage.CorruptError)(nil); errors.As(err, &c) && off >= c.Offset && off < c.End {
					return true
				}
			}
			return false
		}
		for off := range last {
			if data[off] != s.data[off] && !s.void(off) && !reported(off) {
				t.Fatalf("round %d: byte %d is damaged but not reported: %v", round, off, rep.Corrupt)
			}
		}
		if len(rep.Corrupt) > 1 {
			several++
		}
		if recs, errs := salvage(t, data); len(errs) != len(rep.Corrupt) || uint64(len(recs)) != rep.Messages {
			t.Fatalf("round %d: the reader finds %d records and %v, verify %d and %v", round, len(recs), errs, rep.Messages, rep.Corrupt)
		}
	}
	if several < 100 {
		t.Errorf("only %d files had damage in several places", several)
	}
}

// TestGrowingDamage grows a damaged file piece by piece while a reader reads it. The reader reports no damage twice, and all the damage
// that a reader of the whole file finds.
func TestGrowingDamage(t *testing.T) {
	race.Skip(t)
	s := newSample(t)
	last := s.report.Regions[len(s.report.Regions)-1].Offset
	rng := rand.New(rand.NewPCG(5, 5))
	for round := range 300 {
		data := bytes.Clone(s.data)
		for range 1 + rng.IntN(3) {
			at := 4096 + rng.Int64N(last-4096)
			clear(data[at:min(last, at+1+rng.Int64N(200))])
		}
		mem := storagetest.NewMem(512)
		mem.WriteFile("/f", data[:4096])
		r, err := storage.OpenReader("/f", storage.ReaderOptions{FS: mem})
		must(t, err)
		var found []*storage.CorruptError
		for size := 4096; size <= len(data); size += 8 {
			mem.WriteFile("/f", data[:size])
			for err = nil; err != io.EOF; {
				_, err = r.Next()
				if c := (*storage.CorruptError)(nil); errors.As(err, &c) {
					found = append(found, c)
				}
			}
		}
		must(t, r.Close())
		rep := verifyBytes(t, data)
		for i, c := range found {
			for _, d := range found[:i] {
				if c.Offset < d.End && d.Offset < c.End || c.LostFirst < d.LostNext && d.LostFirst < c.LostNext {
					t.Fatalf("round %d: reported twice:\n%v\n%v\nof the whole file: %v", round, d, c, rep.Corrupt)
				}
			}
		}
		lost := func(errs []*storage.CorruptError) (n uint64) {
			for _, c := range errs {
				n += c.LostNext - c.LostFirst
			}
			return n
		}
		var whole []*storage.CorruptError
		for _, err := range rep.Corrupt {
			if c := (*storage.CorruptError)(nil); errors.As(err, &c) {
				whole = append(whole, c)
			}
		}
		if (len(found) > 0) != (len(whole) > 0) || lost(found) != lost(whole) {
			t.Fatalf("round %d: a growing file: %v\nthe whole: %v", round, found, whole)
		}
	}
}

// TestDamageUpToTheEnd: if nothing after damage is readable, the reported range extends to the end of the record that proves the damage,
// and the report names the messages before that.
func TestDamageUpToTheEnd(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.batch(messages(0, 2), 0)
	at := len(b.data)
	b.batch(messages(2, 3), 0)
	b.synced = int64(len(b.data))
	for range 2 {
		b.batch(messages(int(b.next), 2), 0)
		b.data[len(b.data)-20] ^= 1
	}
	b.data[at+150] ^= 1
	rep := verifyBytes(t, b.data)
	want := &storage.CorruptError{Path: "fuzz.fpl", Offset: int64(at), End: int64(len(b.data)), LostFirst: 2, LostNext: 7}
	if len(rep.Corrupt) != 1 {
		t.Fatal(rep.Corrupt)
	}
	got := *rep.Corrupt[0].(*storage.CorruptError)
	got.Reason = ""
	if got != *want {
		t.Errorf("got %+v, want %+v", got, *want)
	}
}
