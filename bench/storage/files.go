package storage

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/storage"
)

// file is a Fencepost file to read or to take over.
type file struct {
	dir     string
	typ     string
	path    string
	records uint64 // in the file
	tail    uint64 // number of them after its last checkpoint
	epoch   uint64 // of its last writer
}

// buildFile makes a file of about size bytes, of which the last tail ones are after its last checkpoint.
func buildFile(ctx context.Context, dir, typ string, batch int, size, tail int64) (*file, error) {
	f := &file{dir: dir, typ: typ, epoch: 1}
	w, err := storage.Open(ctx, dir, typ, f.epoch, storage.Options{})
	if err != nil {
		return nil, err
	}
	f.path = w.Path()
	return f, errors.Join(f.fill(ctx, w, batch, size, tail), w.Close())
}

func (f *file) fill(ctx context.Context, w *storage.Writer, batch int, size, tail int64) (err error) {
	recs := records(newSource(batch))
	f.tail, err = messages.Fill(ctx, w, size, tail, func() error { return w.Append(recs) })
	f.records = w.NextIndex()
	return err
}

const (
	nameRead      = "read"
	nameReadCRC   = "read + CRC32C"
	nameVerify    = "verify"
	nameVerifyOne = "verify, one core"
	nameReader    = "Reader"
)

var readers = []string{nameRead, nameReadCRC, nameVerify, nameVerifyOne, nameReader}

// verified is the measurement of reading a file.
type verified struct {
	times     measure.Times
	bytes     int64
	elsewhere float64 // cores that other processes kept busy meanwhile
}

// measureVerify reads one file in several ways, from the page cache.
func measureVerify(ctx context.Context, o suite.Options, batch int) (v verified, err error) {
	dir, err := os.MkdirTemp(o.Dir, "verify")
	if err != nil {
		return v, err
	}
	defer os.RemoveAll(dir)
	size := int64(256 << 20)
	if o.Quick {
		size = 1 << 20
	}
	f, err := buildFile(ctx, dir, "verify", batch, size, 0)
	if err != nil {
		return v, err
	}
	buf := make([]byte, 1<<20)
	table := crc32.MakeTable(crc32.Castagnoli)
	work := map[string]func() error{
		nameRead: func() error { return f.read(buf, func([]byte) {}) },
		nameReadCRC: func() error {
			sum := uint32(0)
			return f.read(buf, func(p []byte) { sum = crc32.Update(sum, table, p) })
		},
		nameVerify: func() error { return f.verify(ctx) },
		nameVerifyOne: func() error {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			return f.verify(ctx)
		},
		nameReader: f.scan,
	}
	var runs []measure.Contender
	for _, name := range readers {
		runs = append(runs, measure.Contender{Name: name, Run: work[name]})
	}
	elsewhere := machine.Elsewhere()
	times, err := measure.Run(ctx, measure.Plan{Rounds: o.Rounds, Blocks: 1}, runs)
	return verified{times, size, elsewhere()}, err
}

// read reads the whole file and calls use with every piece.
func (f *file) read(buf []byte, use func([]byte)) error {
	r, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		n, err := r.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		use(buf[:n])
	}
}

func (f *file) verify(ctx context.Context) error {
	rep, err := storage.Verify(ctx, f.path, storage.VerifyOptions{})
	if err != nil {
		return err
	}
	if rep.Messages != f.records {
		return fmt.Errorf("verify saw %d records of %d", rep.Messages, f.records)
	}
	return rep.Err()
}

func (f *file) scan() error {
	r, err := storage.OpenReader(f.path, storage.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	seen := uint64(0)
	for {
		recs, err := r.NextBatch()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		seen += uint64(len(recs))
	}
	if seen != f.records {
		return fmt.Errorf("the reader saw %d records of %d", seen, f.records)
	}
	return nil
}

// Files before a takeover.
const (
	nameSmall   = "10 MiB"
	nameLarge   = "10 GiB"
	nameLongest = "64 MiB without checkpoint"
)

// measureOpen takes over files of different lengths, repeatedly. The small and the large one end at the same distance from
// their last checkpoint, so that only their length differs; a third one ends at the greatest possible distance.
func measureOpen(ctx context.Context, o suite.Options) (measure.Times, error) {
	dir, err := os.MkdirTemp(o.Dir, "open")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	kinds := []struct {
		name       string
		size, tail int64
	}{{nameSmall, 10 << 20, 10 << 20}, {nameLongest, 64 << 20, 64 << 20}, {nameLarge, 10 << 30, 10 << 20}}
	if !o.Large {
		kinds = kinds[:2]
	}
	var runs []measure.Contender
	for i, k := range kinds {
		size, tail := k.size, k.tail
		if o.Quick {
			size, tail = size>>6, tail>>6
		}
		o.Logf("building a file: %s", k.name)
		f, err := buildFile(ctx, filepath.Join(dir, fmt.Sprint(i)), "open", 1000, size, tail)
		if err != nil {
			return nil, err
		}
		runs = append(runs, f.takeOver(ctx, k.name))
	}
	o.Logf("takeover")
	blocks := 3
	if o.Quick {
		blocks = 1
	}
	return measure.Run(ctx, measure.Plan{Rounds: o.Rounds, Blocks: blocks}, runs)
}

// takeOver opens the file with a new epoch, as a worker does. The writer before it was closed outside the measured time.
func (f *file) takeOver(ctx context.Context, name string) measure.Contender {
	var w *storage.Writer
	return measure.Contender{
		Name: name,
		Prepare: func() error {
			if w == nil {
				return nil
			}
			return w.Close()
		},
		Run: func() (err error) {
			replayed := uint64(0)
			f.epoch++
			w, err = storage.Open(ctx, f.dir, f.typ, f.epoch, storage.Options{Replay: func(storage.Record) error { replayed++; return nil }})
			if err == nil && replayed != f.tail {
				err = fmt.Errorf("%d of %d records were replayed", replayed, f.tail)
			}
			return err
		},
	}
}
