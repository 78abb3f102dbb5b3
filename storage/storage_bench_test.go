//go:build linux

package storage_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/storage"
)

// Every benchmark measures the package and, alternately in the same run, the minimum that any program would have to do for
// the same bytes; the ratio is the result (metric "x-raw", higher is better).

const payloadSize = 256

func benchRecords(n int) []storage.Record {
	recs := make([]storage.Record, n)
	payload := make([]byte, payloadSize)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for i := range recs {
		recs[i] = storage.Record{ID: fmt.Appendf(nil, "%020d", i), Time: time.Now().UnixNano(), Payload: payload}
	}
	return recs
}

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// appendRaw does what a program without any framing would do.
func appendRaw(b *testing.B, f *os.File, p []byte, durable bool) {
	if _, err := f.Write(p); err != nil {
		b.Fatal(err)
	}
	if durable {
		if err := fdatasync(f); err != nil {
			b.Fatal(err)
		}
	}
}

// samples are measured times. Their median says more than their sum: one slow commit of the journal, which is unrelated to
// either side, takes as long as hundreds of others.
type samples []time.Duration

func (s *samples) add(d time.Duration) { *s = append(*s, d) }

func (s samples) median() float64 {
	slices.Sort(s)
	return s[len(s)/2].Seconds()
}

func BenchmarkAppend(b *testing.B) {
	for _, durable := range []bool{false, true} {
		for _, n := range []int{1, 16, 256, 1000} {
			name := fmt.Sprintf("sync=%v/batch=%d", durable, n)
			b.Run(name, func(b *testing.B) { benchAppend(b, n, durable) })
		}
	}
}

func benchAppend(b *testing.B, n int, durable bool) {
	dir := b.TempDir()
	recs := benchRecords(n)
	w := mustOpen(b, dir, 1, storage.Options{})
	defer w.Close()
	raw, err := os.OpenFile(filepath.Join(dir, "raw"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer raw.Close()
	before := w.Size()
	mustAppend(b, w, recs)
	mustSync(b, w)
	bytes := make([]byte, w.Size()-before) // exactly as many bytes as a batch takes in the file
	b.SetBytes(int64(len(bytes)))
	b.ReportAllocs()
	var ours, theirs samples
	// Sync after at most 256 MiB, so that the kernel's own writeback does not affect the result.
	reset := max(1, 256<<20/len(bytes))
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		if err := w.Append(recs); err != nil {
			b.Fatal(err)
		}
		if durable {
			if _, err := w.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(start)
		b.StopTimer()
		ours.add(took)
		start = time.Now()
		appendRaw(b, raw, bytes, durable)
		theirs.add(time.Since(start))
		if i%reset == reset-1 && !durable {
			mustSync(b, w)
			fdatasync(raw)
		}
		b.StartTimer()
	}
	b.ReportMetric(theirs.median()/ours.median(), "x-raw")
	b.ReportMetric(float64(n)/ours.median(), "records/s")
}

// benchFile returns the path of a file of about size bytes.
func benchFile(b *testing.B, batch int, size int64) string {
	b.Helper()
	dir := b.TempDir()
	w := mustOpen(b, dir, 1, storage.Options{})
	recs := benchRecords(batch)
	for w.Size() < size {
		mustAppend(b, w, recs)
		if w.CheckpointDue() {
			if err := w.Checkpoint(nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	// The distance from the last checkpoint to the end, which an Open reads, is the same for every size.
	if err := w.Checkpoint(nil); err != nil {
		b.Fatal(err)
	}
	for i := 0; i < 10_000; i += batch {
		mustAppend(b, w, recs)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return w.Path()
}

// readRaw reads the whole file in pieces of 1 MiB.
func readRaw(b *testing.B, path string, buf []byte) {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Read(buf); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, batch := range []int{1, 16, 256, 1000} {
		for _, mode := range []string{"plain", "visit", "deep"} {
			b.Run(fmt.Sprintf("batch=%d/%s", batch, mode), func(b *testing.B) { benchVerify(b, batch, mode) })
		}
	}
}

func benchVerify(b *testing.B, batch int, mode string) {
	const size = 128 << 20
	path := benchFile(b, batch, size)
	b.SetBytes(size)
	b.ReportAllocs()
	buf := make([]byte, 1<<20)
	var o storage.VerifyOptions
	records := uint64(0)
	switch mode {
	case "visit":
		o.Visit = func(r storage.Record) error { records += uint64(len(r.ID)); return nil }
	case "deep":
		o.Deep = true
	}
	var ours, theirs samples
	for b.Loop() {
		start := time.Now()
		rep, err := storage.Verify(context.Background(), path, o)
		if err != nil || mode != "deep" && rep.Err() != nil {
			b.Fatal(rep, err)
		}
		took := time.Since(start)
		b.StopTimer()
		ours.add(took)
		start = time.Now()
		readRaw(b, path, buf)
		theirs.add(time.Since(start))
		b.StartTimer()
	}
	b.ReportMetric(theirs.median()/ours.median(), "x-raw")
}

func BenchmarkRead(b *testing.B) {
	for _, batch := range []int{1, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			const size = 64 << 20
			path := benchFile(b, batch, size)
			buf := make([]byte, 1<<20)
			b.SetBytes(size)
			b.ReportAllocs()
			var ours, theirs samples
			for b.Loop() {
				start := time.Now()
				readFile(b, path)
				took := time.Since(start)
				b.StopTimer()
				ours.add(took)
				start = time.Now()
				readRaw(b, path, buf)
				theirs.add(time.Since(start))
				b.StartTimer()
			}
			b.ReportMetric(theirs.median()/ours.median(), "x-raw")
		})
	}
}

func readFile(b *testing.B, path string) {
	r, err := storage.OpenReader(path, storage.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for {
		if _, err := r.NextBatch(); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens files of very different lengths: the time must not depend on the length.
func BenchmarkOpen(b *testing.B) {
	for _, size := range []int64{1 << 20, 70 << 20, 700 << 20} {
		b.Run(fmt.Sprintf("MiB=%d", size>>20), func(b *testing.B) {
			path := benchFile(b, 1000, size)
			epoch := uint64(1)
			for b.Loop() {
				epoch++
				w := mustOpen(b, filepath.Dir(path), epoch, storage.Options{})
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
