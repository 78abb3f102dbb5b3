package messages

import (
	"context"

	"github.com/fencepost/fencepost/storage"
)

// Fill writes a file to about size bytes with the records that write appends, as a worker does, with checkpoints when they are due. The
// last tail bytes are after the last checkpoint; behind is the number of their records.
func Fill(ctx context.Context, w *storage.Writer, size, tail int64, write func() error) (behind uint64, err error) {
	until := func(end int64, checkpoints bool) error {
		for w.Size() < end {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := write(); err != nil {
				return err
			}
			if checkpoints && w.CheckpointDue() {
				if err := w.Checkpoint(nil); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := until(size-tail, true); err != nil {
		return 0, err
	}
	if err := w.Checkpoint(nil); err != nil {
		return 0, err
	}
	before := w.NextIndex()
	if err := until(size, false); err != nil {
		return 0, err
	}
	return w.NextIndex() - before, nil
}
