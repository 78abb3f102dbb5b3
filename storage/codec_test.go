package storage_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
	"pgregory.net/rapid"
)

// TestCompressedIsRead: Reader, Verify and the next writer read any mix of batches, compressible or not, large or small, as it
// was written.
func TestCompressedIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fsys := storagetest.NewMem(512)
		o := storage.Options{FS: fsys, Compress: true}
		var want []storage.Record
		for epoch := uint64(1); epoch <= 2; epoch++ {
			replayed := 0
			o.Replay = func(r storage.Record) error {
				if !equal(r, want[replayed]) {
					t.Fatalf("replayed %v, want %v", r, want[replayed])
				}
				replayed++
				return nil
			}
			w, err := storage.Open(context.Background(), "/", "orders", epoch, o)
			if err != nil {
				t.Fatal(err)
			}
			if replayed != len(want) {
				t.Fatalf("replayed %d of %d", replayed, len(want))
			}
			for range rapid.IntRange(1, 4).Draw(t, "batches") {
				recs := messages(len(want), rapid.IntRange(1, 60).Draw(t, "records"))
				for i := range recs {
					if rapid.Bool().Draw(t, "random") {
						recs[i].Payload = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload")
					}
					if rapid.IntRange(0, 9).Draw(t, "header") == 0 {
						recs[i].Headers = []storage.Header{{Key: "k", Value: "v"}}
					}
				}
				if err := w.Append(recs); err != nil {
					t.Fatal(err)
				}
				for i := range recs {
					recs[i].Index, recs[i].Epoch = uint64(len(want)), epoch
					want = append(want, recs[i])
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		rep, err := storage.Verify(context.Background(), "/orders.fpl", storage.VerifyOptions{FS: fsys, Deep: true})
		if err != nil || rep.Err() != nil || rep.Messages != uint64(len(want)) {
			t.Fatalf("verify: %v, %v, %d messages", err, rep.Err(), rep.Messages)
		}
		r, err := storage.OpenReader("/orders.fpl", storage.ReaderOptions{FS: fsys})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := range want {
			rec, err := r.Next()
			if err != nil || !equal(rec, want[i]) {
				t.Fatalf("record %d: %v, %v; want %v", i, rec, err, want[i])
			}
		}
	})
}

// TestCompressionIsDecidedByGain: a batch that compression does not shrink by a tenth is stored as it is.
func TestCompressionIsDecidedByGain(t *testing.T) {
	noise := messages(0, 100)
	for i := range noise {
		noise[i].Payload = make([]byte, 200)
		rand.Read(noise[i].Payload)
	}
	for _, test := range []struct {
		name     string
		recs     []storage.Record
		compress bool
		smaller  bool
	}{
		{"text", messages(0, 500), true, true},
		{"text, off", messages(0, 500), false, false},
		{"noise", noise, true, false},
		{"too small", messages(0, 2), true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			w := mustOpen(t, dir, 1, storage.Options{Compress: test.compress})
			before := w.Size()
			mustAppend(t, w, test.recs)
			grown, plain := w.Size()-before, int64(96+len(storage.BatchBody(test.recs))+7)&^7
			if smaller := grown < plain; smaller != test.smaller || !smaller && grown != plain {
				t.Errorf("the batch takes %d bytes, plain %d", grown, plain)
			}
			must(t, w.Close())
			if got := readAll(t, nil, filepath.Join(dir, "orders.fpl")); len(got) != len(test.recs) {
				t.Errorf("read %d records", len(got))
			}
		})
	}
}

// TestBadCompression: a body with a good checksum that does not decompress to raw_len bytes is damage from before the
// checksum; a body is never decompressed beyond its announced length.
func TestBadCompression(t *testing.T) {
	recs := messages(0, 200)
	body := storage.BatchBody(recs)
	packed := storage.Compress(body)
	bomb := storage.Compress(make([]byte, 32<<20))
	for _, test := range []struct {
		name   string
		stored []byte
		raw    int
	}{
		{"not zstd", []byte("compressed"), 100},
		{"cut", packed[:len(packed)-3], len(body)},
		{"announces less", packed, len(body) - 1},
		{"announces more", packed, len(body) + 1},
		{"bomb", bomb, 4096},
		{"a window of 72 MiB", windowed(0x81, body), len(body)},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBuilder()
			b.region(3, 3000, storage.Holder{ID: "test"})
			b.addRaw("FPB1", test.stored, uint32(len(recs)), 1, recs[0].Time, uint32(test.raw))
			rep, err := storage.VerifyBytes(b.data, storage.VerifyOptions{})
			must(t, err)
			if len(rep.Corrupt) != 1 || !errors.Is(rep.Err(), storage.ErrIntegrity) {
				t.Fatalf("verify: %v", rep.Corrupt)
			}
			r, err := storage.OpenReader("f", storage.ReaderOptions{FS: storage.BytesFS(b.data)})
			must(t, err)
			defer r.Close()
			if _, err := r.Next(); !errors.Is(err, storage.ErrIntegrity) {
				t.Errorf("read: %v", err)
			}
		})
	}
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.packedBatch(recs)
	b.addRaw("FPB1", windowed(0x80, body), uint32(len(recs)), 1, recs[0].Time, uint32(len(body))) // of 64 MiB
	all := readAll(t, storage.BytesFS(b.data), "f")
	if len(all) != 2*len(recs) || !bytes.Equal(all[7].Payload, recs[7].Payload) || !bytes.Equal(all[207].Payload, recs[7].Payload) {
		t.Errorf("read %d records of the good ones", len(all))
	}
}

// windowed returns a zstd frame with a window descriptor, see RFC 8878, 3.1.1.1.2, and its content in an uncompressed block.
func windowed(descriptor byte, content []byte) []byte {
	n := len(content)<<3 | 1
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, byte(n), byte(n >> 8), byte(n >> 16)}, content...)
}

// TestLargeBatchComesInPieces: the size of the decoded pieces of a batch is bounded, however many records or headers it has, and nothing is
// returned unless the whole batch decodes.
func TestLargeBatchComesInPieces(t *testing.T) {
	race.Skip(t)
	headers := make([]storage.Record, 40)
	for i := range headers {
		headers[i] = storage.Record{ID: []byte{1}, Headers: make([]storage.Header, storage.MaxHeaders+1)}
	}
	for name, recs := range map[string][]storage.Record{"headers": headers, "records": messages(0, 100_000)} {
		t.Run(name, func(t *testing.T) {
			body := storage.BatchBody(recs)
			for _, cut := range []int{0, 1} {
				flags := uint16(0)
				if name == "headers" {
					flags = 8
				}
				b := newBuilder()
				b.region(3, 3000, storage.Holder{ID: "test"})
				b.addRaw("FPB1", body[:len(body)-cut], uint32(len(recs)), flags, recs[0].Time, uint32(len(body)-cut))
				r, err := storage.OpenReader("f", storage.ReaderOptions{FS: storage.BytesFS(b.data)})
				must(t, err)
				defer r.Close()
				read, pieces := 0, 0
				piece, err := r.NextBatch()
				for ; err == nil; piece, err = r.NextBatch() {
					cost := 0
					for i := range piece {
						if piece[i].Index != uint64(read) {
							t.Fatalf("index %d, want %d", piece[i].Index, read)
						}
						read++
						cost += 104 + 32*len(piece[i].Headers)
					}
					if cost > 11<<20 { // 8 MiB and one more record
						t.Fatalf("a piece of %d records takes %d bytes", len(piece), cost)
					}
					pieces++
				}
				switch {
				case cut == 0 && (err != io.EOF || read != len(recs) || pieces < 2):
					t.Errorf("read %d of %d records in %d pieces, %v", read, len(recs), pieces, err)
				case cut == 1 && (read > 0 || !errors.Is(err, storage.ErrIntegrity) || !strings.Contains(err.Error(), "find out which program wrote these bytes")): // not the disk: the checksum is right
					t.Errorf("read %d records of a batch that does not decode, %v", read, err)
				}
			}
		})
	}
}

// TestClaimedLengthTakesNoMemory: a batch of ten bytes that claims to decompress to 64 MiB costs no memory.
func TestClaimedLengthTakesNoMemory(t *testing.T) {
	b := newBuilder()
	b.region(3, 3000, storage.Holder{ID: "test"})
	b.addRaw("FPB1", storage.Compress(make([]byte, 1<<20))[:10], 1, 1, 0, storage.MaxBatchBytes)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rep, err := storage.VerifyBytes(b.data, storage.VerifyOptions{})
	must(t, err)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; len(rep.Corrupt) != 1 || took > 32<<20 {
		t.Errorf("%v; %d bytes were allocated", rep.Corrupt, took)
	}
}
