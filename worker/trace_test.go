package worker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/storagetest"
)

// Trace sees every message once, before its batch is written; the function that it returns is called once the batch would survive a
// power failure.
func TestTraceFollowsBatchesToTheDisk(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 500)
		var seen []string
		open, ended := 0, 0
		trace := func(_ context.Context, lease Lease, msgs []*queue.Message) func(error) {
			if lease.Name() != typ || lease.Token() == 0 {
				t.Errorf("lease of %s with token %d", lease.Name(), lease.Token())
			}
			open++
			from := len(seen)
			for _, m := range msgs {
				seen = append(seen, string(m.Payload))
			}
			to := len(seen)
			if got := contents(t, r.disk, testFile); len(got) > from {
				t.Errorf("%d messages are in the file when the batch after %d begins", len(got), from)
			}
			return func(err error) {
				open--
				ended++
				after := r.disk.Clone()
				after.Crash(storagetest.Crash{})
				if got := contents(t, after, testFile); err != nil || len(got) < to {
					t.Errorf("the batch up to %d was reported as ended (%v), and %d messages are on the disk", to, err, len(got))
				}
			}
		}
		p := r.start(func(c *Config) { c.Batch = 50; inFiles(func(f *Files) { f.Trace = trace })(c) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if ended != 10 {
			t.Errorf("%d batches were reported as ended while the session continues", ended)
		}
		p.stop()
		r.complete(typ)
		if !slices.Equal(seen, r.sent[typ]) || open != 0 || ended != 10 {
			t.Errorf("saw %d messages in %d batches, %d of them are open", len(seen), ended, open)
		}
	})
}

func TestTraceIsToldOfFailures(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		r.disk.SetFree(0)
		r.publishWith(typ, 1, func(int) string { return string(make([]byte, 1<<20)) })
		var errs []error
		trace := func(context.Context, Lease, []*queue.Message) func(error) {
			return func(err error) { errs = append(errs, err) }
		}
		p := r.start(inFiles(func(f *Files) { f.Trace = trace }))
		time.Sleep(time.Minute)
		r.disk.SetFree(1 << 30)
		time.Sleep(time.Minute)
		p.stop()
		r.complete(typ)
		if n := len(errs); n < 2 || !errors.Is(errs[0], storage.ErrNoSpace) || errs[n-1] != nil {
			t.Errorf("reported %v, want at least one full disk and a success at the end", errs)
		}
	})
}

// A Trace may return nil to ignore a batch.
func TestTraceMayReturnNothing(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		if err := r.drain(inFiles(func(f *Files) {
			f.Trace = func(context.Context, Lease, []*queue.Message) func(error) { return nil }
		})); err != nil {
			t.Fatal(err)
		}
		r.complete(typ)
	})
}
