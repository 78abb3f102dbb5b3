package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// No input may make a decoder panic, hang, or allocate beyond the limits. The fuzz targets run on their seeds in every
// test run; `make fuzz` searches further: docs/fuzzing.md.

// fixup writes correct checksums and offsets into everything in b that looks like a record, so that the fuzzer gets past
// those checks.
func fixup(b []byte) {
	if len(b) < 4096 {
		return
	}
	copy(b, "\x89FPL\r\n\x1a\n")
	rehash(b[:4096])
	table := crc32.MakeTable(crc32.Castagnoli)
	seed := crc32.Checksum(b[16:32], table)
	for p := 4096; p+96 <= len(b); p += 8 {
		h := b[p:]
		if bytes.Equal(h[:16], b[32:48]) && len(h) >= 112 {
			h = h[16:]
		} else if string(h[:4]) != "FPB1" {
			continue
		}
		binary.LittleEndian.PutUint64(h[8:], uint64(p))
		size := (int(binary.LittleEndian.Uint16(h[38:])) + int(binary.LittleEndian.Uint32(h[40:])) + 7) &^ 7
		if size >= 96 && size <= len(h) {
			binary.LittleEndian.PutUint32(h[88:], crc32.Update(seed, table, h[96:size]))
		}
		binary.LittleEndian.PutUint32(h[4:], crc32.Update(crc32.Update(seed, table, h[:4]), table, h[8:96]))
	}
}

func FuzzVerify(f *testing.F) {
	s := newSample(f)
	f.Add(s.data, false)
	f.Add(s.data, true)
	f.Add(s.data[:4096], true)
	f.Add(s.data[:len(s.data)/2], true)
	f.Add(append(bytes.Clone(s.data), s.data[4096:]...), true)
	sealed := newBuilder()
	sealed.region(3, 3000, storage.Holder{ID: "test"})
	sealed.batch(messages(0, 2), 0)
	sealed.add("FPS1", storage.SealBody(storage.FileID{7}, 2, "size limit"), 0, 0, 0)
	sealed.add("FPB1", []byte("compressed"), 5, 1, 0)
	f.Add(sealed.data, true)
	packed := newBuilder()
	packed.region(3, 3000, storage.Holder{ID: "test"})
	packed.packedBatch(messages(0, 200))
	f.Add(packed.data, true)
	f.Add([]byte(nil), false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix {
			b = bytes.Clone(b)
			fixup(b)
		}
		rep, err := storage.VerifyBytes(b, storage.VerifyOptions{Deep: true, Visit: func(r storage.Record) error {
			if len(r.ID) == 0 || len(r.ID) > storage.MaxID || len(r.Payload) > storage.MaxPayload {
				t.Fatalf("record %+v", r)
			}
			return nil
		}})
		if err != nil {
			if !errors.Is(err, storage.ErrRefused) && !errors.Is(err, storage.ErrIntegrity) {
				t.Fatalf("verify: %v", err)
			}
			return
		}
		if rep.Size != int64(len(b)) || rep.Torn.End > rep.Size || rep.Err() == nil && rep.NextIndex != rep.FirstIndex+rep.Messages {
			t.Fatalf("report %+v", rep)
		}
		// A reader from the start and one from the middle also end, and the first one sees the same number of records.
		seen := readToEnd(t, b, 0)
		readToEnd(t, b, rep.NextIndex/2+1)
		if rep.Err() == nil && seen != rep.Messages {
			t.Fatalf("verify counts %d records, the reader %d", rep.Messages, seen)
		}
	})
}

func readToEnd(t *testing.T, b []byte, from uint64) (n uint64) {
	r, err := storage.OpenReader("fuzz.fpl", storage.ReaderOptions{FS: storage.BytesFS(b), From: from})
	if err != nil {
		if from == 0 {
			t.Fatalf("open: %v", err)
		}
		return 0
	}
	defer r.Close()
	for range len(b) { // every step needs bytes
		recs, err := r.NextBatch()
		if err == io.EOF {
			return n
		}
		n += uint64(len(recs))
	}
	t.Fatal("the reader does not end")
	return 0
}

func FuzzFileHeader(f *testing.F) {
	good := storage.NewHeaderBytes("orders", storage.FileID{1}, [16]byte{2})
	f.Add(good)
	f.Add(good[:100])
	f.Add(bytes.Repeat([]byte{0}, 4096))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if err := storage.DecodeFileHeader(b[:min(len(b), 4096)]); err != nil && !errors.Is(err, storage.ErrRefused) && !errors.Is(err, storage.ErrIntegrity) {
			t.Fatal(err)
		}
		if len(b) >= 4096 {
			storage.DecodeFileHeader(rehash(b[:4096]))
		}
	})
}

func FuzzBodies(f *testing.F) {
	recs := messages(0, 2)
	recs[1].Headers = []storage.Header{{Key: "k", Value: "v"}, {}}
	f.Add(storage.BatchBody(recs), uint32(2), uint16(8))
	f.Add(storage.BatchBody(messages(0, 3)), uint32(3), uint16(0))
	f.Add(storage.OpenBody(4096, 5000, 0), uint32(1), uint16(0))
	f.Add(storage.FenceBody(storage.Holder{ID: "x", Host: "y", PID: 1}), uint32(1), uint16(0))
	f.Add(storage.CheckpointBody(4096, []byte("state")), uint32(1), uint16(0))
	f.Add(storage.SealBody(storage.FileID{1}, 2, "r"), uint32(1), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, count uint32, flags uint16) {
		if err := storage.DecodeAnchors(b); err != nil {
			t.Fatal(err)
		}
		got, err := storage.DecodeBodies(b, count%storage.MaxBatchRecords, flags)
		if err != nil {
			return
		}
		total := 0
		for _, r := range got {
			total += len(r.ID) + len(r.Payload)
		}
		if total > len(b) {
			t.Fatalf("%d bytes out of %d", total, len(b))
		}
		if len(got) == 0 {
			return
		}
		has := slices.ContainsFunc(got, func(r storage.Record) bool { return len(r.Headers) > 0 })
		again, err := storage.DecodeBodies(storage.BatchBody(got), uint32(len(got)), map[bool]uint16{true: 8}[has])
		for i := range again {
			again[i].Time += got[0].Time
		}
		if err != nil || !slices.EqualFunc(again, got, equal) {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}

// FuzzCompressed builds a batch with good checksums, any compressed body, and any announced length and count.
func FuzzCompressed(f *testing.F) {
	body := storage.BatchBody(messages(0, 200))
	f.Add(storage.Compress(body), uint32(len(body)), uint32(200))
	f.Add(append(storage.Compress(body), storage.Compress(body)...), uint32(2*len(body)), uint32(400))
	f.Add(storage.Compress(make([]byte, 1<<20)), uint32(1000), uint32(1))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xff}, uint32(0), uint32(1))
	f.Fuzz(func(t *testing.T, stored []byte, raw, count uint32) {
		raw, count = raw%(1<<20), 1+count%storage.MaxBatchRecords
		b := newBuilder()
		b.region(3, 3000, storage.Holder{ID: "test"})
		b.addRaw("FPB1", stored, count, 1, 0, raw)
		seen, bytes := uint64(0), 0
		rep, err := storage.VerifyBytes(b.data, storage.VerifyOptions{Visit: func(r storage.Record) error {
			seen++
			bytes += len(r.ID) + len(r.Payload)
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if bytes > int(raw) || rep.Messages != seen || rep.Err() == nil && seen != uint64(count) || rep.Err() != nil && seen != 0 {
			t.Fatalf("%d of %d records, %d of %d bytes, %v", seen, count, bytes, raw, rep.Err())
		}
		// A reader returns the whole batch or none of it.
		r, err := storage.OpenReader("fuzz.fpl", storage.ReaderOptions{FS: storage.BytesFS(b.data)})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		read := 0
		recs, err := r.NextBatch()
		for err == nil {
			read += len(recs)
			recs, err = r.NextBatch()
		}
		if (err == io.EOF) != (rep.Err() == nil) || err == io.EOF && read != int(count) || err != io.EOF && (read > 0 || !errors.Is(err, storage.ErrIntegrity)) {
			t.Fatalf("read %d of %d records, %v; verify says %v", read, count, err, rep.Err())
		}
	})
}

// FuzzParseName: an accepted name is the only name of its type and generation, and contains no path.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{"orders.fpl", "orders@0002.fpl", "orders@2.fpl", "orders@0001.fpl", "a.b@12345.fpl", "../x.fpl", "@0002.fpl", "a@18446744073709551615.fpl", ".fpl",
		"a@+002.fpl", "a@00002.fpl"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		typ, generation, ok := storage.ParseName(name)
		if ok && (storage.GenerationName(typ, generation) != name || generation < 1 || strings.ContainsAny(name, "/\\") || strings.HasPrefix(name, ".")) {
			t.Fatalf("%q is generation %d of %q, which is %q", name, generation, typ, storage.GenerationName(typ, generation))
		}
	})
}
