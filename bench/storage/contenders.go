package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/storage"
)

// contender is a log to be measured.
type contender interface {
	// prepare gets ready to append the records of the source, outside the measured time.
	prepare(s *source)
	// append appends records [from, to) of the source as one batch, durable or not as it was opened.
	append(from, to int) error
	// close ends writing. Only readBack is called afterwards.
	close() error
	// readBack reads the log from its files and calls check with every record, in order.
	readBack(check func(entry []byte) error) error
}

// setup configures how to open a contender.
type setup struct {
	dir     string // empty, of its own
	durable bool   // every append is on the device when it returns
	batch   int    // records
	source  *source
}

type opener struct {
	name string
	open func(setup) (contender, error)
}

const (
	nameRaw       = "raw"
	nameControl   = "raw again"
	nameFencepost = "fencepost"
)

var openers = []opener{
	{nameRaw, openRaw},
	{nameControl, openRaw}, // its distance from 1 is what the machine adds to every ratio of this run
	{nameFencepost, openFencepost},
	{"tidwall/wal", openTidwall},
	{"raft-wal", openRaftWAL},
	{"etcd wal", openEtcd},
}

// Parts of openers.
var (
	measured = openers[1:] // compared with raw
	logs     = openers[2:]
	peers    = openers[3:]
)

// rawFile is the yardstick: the bytes of a Fencepost batch, appended with one write and made durable with one fdatasync.
type rawFile struct {
	f       *os.File
	bytes   []byte
	durable bool
	batches int
}

func openRaw(s setup) (contender, error) {
	b, err := batchBytes(s)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "raw"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &rawFile{f: f, bytes: b, durable: s.durable}, nil
}

// batchBytes returns the bytes of one batch in a Fencepost file.
func batchBytes(s setup) ([]byte, error) {
	w, err := storage.Open(context.Background(), s.dir, "scratch", 1, storage.Options{})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	before := w.Size()
	if err := w.Append(records(s.source)[:s.batch]); err != nil {
		return nil, err
	}
	b := make([]byte, w.Size()-before)
	f, err := os.Open(w.Path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_, err = f.ReadAt(b, before)
	return b, err
}

func (r *rawFile) prepare(*source) {}

func (r *rawFile) append(int, int) error {
	r.batches++
	if _, err := r.f.Write(r.bytes); err != nil || !r.durable {
		return err
	}
	return unix.Fdatasync(int(r.f.Fd()))
}

func (r *rawFile) close() error { return nil }

// readBack checks the bytes itself: without framing they are no records.
func (r *rawFile) readBack(func([]byte) error) error {
	defer r.f.Close()
	if _, err := r.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	b := make([]byte, len(r.bytes))
	for i := range r.batches {
		if _, err := io.ReadFull(r.f, b); err != nil || !bytes.Equal(b, r.bytes) {
			return fmt.Errorf("write %d of %d is not in the file (%v)", i, r.batches, err)
		}
	}
	if n, err := r.f.Read(b); err != io.EOF {
		return fmt.Errorf("%d bytes too many (%v)", n, err)
	}
	return nil
}

// fencepost is driven as by a worker: Append, Sync, and a checkpoint when one is due. A checkpoint syncs, so without
// durability it waits for the end of a block.
type fencepost struct {
	w       *storage.Writer
	recs    []storage.Record
	durable bool
}

func openFencepost(s setup) (contender, error) {
	w, err := storage.Open(context.Background(), s.dir, "bench", 1, storage.Options{})
	if err != nil {
		return nil, err
	}
	return &fencepost{w: w, recs: records(s.source), durable: s.durable}, nil
}

// records returns the entries of the source as Fencepost's records. They are views, and change when the source moves on.
func records(s *source) []storage.Record {
	recs := make([]storage.Record, len(s.entries))
	for i, e := range s.entries {
		recs[i].ID, recs[i].Payload = e[:idSize:idSize], e[idSize+timeSize:]
		recs[i].Time = int64(binary.LittleEndian.Uint64(e[idSize:]))
	}
	return recs
}

func (f *fencepost) prepare(s *source) {
	for i := range f.recs {
		f.recs[i].Time = baseTime + int64(s.first) + int64(i)
	}
}

func (f *fencepost) append(from, to int) error {
	if err := f.w.Append(f.recs[from:to]); err != nil || !f.durable {
		return err
	}
	if _, err := f.w.Sync(); err != nil || !f.w.CheckpointDue() {
		return err
	}
	return f.w.Checkpoint(nil)
}

func (f *fencepost) endBlock() error {
	if !f.w.CheckpointDue() {
		return nil
	}
	return f.w.Checkpoint(nil)
}

func (f *fencepost) close() error { return f.w.Close() }

func (f *fencepost) readBack(check func([]byte) error) error {
	r, err := storage.OpenReader(f.w.Path(), storage.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	var e []byte
	for {
		recs, err := r.NextBatch()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range recs {
			e = append(e[:0], recs[i].ID...)
			e = binary.LittleEndian.AppendUint64(e, uint64(recs[i].Time))
			if err := check(append(e, recs[i].Payload...)); err != nil {
				return err
			}
		}
	}
}
