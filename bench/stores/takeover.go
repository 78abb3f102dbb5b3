package stores

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/storage"
)

// takeOvers are the times of opening files of two lengths in one kind of store. Both files end at the same distance from their
// last checkpoint, so that only their length differs.
type takeOvers struct {
	*kind
	times measure.Times
}

const (
	nameSmall = "10 MiB"
	nameLarge = "1 GiB"
	tail      = 10 << 20
)

// file is a file to take over.
type file struct {
	fs     storage.FS
	dir    string
	epoch  uint64
	behind uint64 // records after its last checkpoint
}

func (b *bench) measureTakeOver(ctx context.Context, k *kind) (t takeOvers, err error) {
	t.kind = k
	var runs []measure.Contender
	for _, c := range []struct {
		name string
		size int64
	}{{nameSmall, tail}, {nameLarge, 1 << 30}} {
		size, behind := c.size, int64(tail)
		if b.o.Quick {
			size, behind = size>>8, behind>>8
		}
		if c.name == nameLarge && !b.o.Large {
			continue
		}
		p, err := b.server.NewPlace(fmt.Sprintf("open%d", b.next()))
		if err != nil {
			return t, err
		}
		if _, err := b.files(ctx, k, p); err != nil {
			return t, err
		}
		b.o.Logf("%s: building a file of %s", k.name, c.name)
		f := &file{fs: p.FS, dir: p.Dir}
		if err := f.build(ctx, size, behind); err != nil {
			return t, err
		}
		runs = append(runs, f.takeOver(ctx, c.name))
	}
	t.times, err = measure.Run(ctx, measure.Plan{Rounds: b.few(), Blocks: 1}, runs)
	return t, err
}

func (f *file) open(ctx context.Context, replay func(storage.Record) error) (*storage.Writer, error) {
	f.epoch++
	return storage.Open(ctx, f.dir, oneType, f.epoch, storage.Options{FS: f.fs, Replay: replay})
}

// build writes a file of about size bytes, as by a worker that syncs four batches at a time. The last tail bytes are after the
// last checkpoint.
func (f *file) build(ctx context.Context, size, tail int64) error {
	w, err := f.open(ctx, nil)
	if err != nil {
		return err
	}
	return errors.Join(f.fill(ctx, w, size, tail), w.Close())
}

func (f *file) fill(ctx context.Context, w *storage.Writer, size, tail int64) (err error) {
	next, batches := 0, 0
	f.behind, err = messages.Fill(ctx, w, size, tail, func() error {
		records := make([]storage.Record, messages.BatchSize)
		for i := range records {
			records[i] = storage.Record{ID: fmt.Appendf(nil, "%020d", next), Time: int64(next), Payload: messages.Payload(next)}
			next++
		}
		if err := w.Append(records); err != nil {
			return err
		}
		if batches++; batches%4 != 0 {
			return nil
		}
		_, err := w.Sync()
		return err
	})
	return err
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
			w, err = f.open(ctx, func(storage.Record) error { replayed++; return nil })
			if err == nil && replayed != f.behind {
				err = fmt.Errorf("%d of %d records were replayed", replayed, f.behind)
			}
			return err
		},
	}
}
