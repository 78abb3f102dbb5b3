package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// gate is a queue whose third Fetch has read the messages, and does not return until it is released.
type gate struct {
	queue.Queue
	fetches atomic.Int64
	waits   chan struct{} // closed when that Fetch waits
	letGo   chan struct{}
}

func (g *gate) Fetch(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]queue.Message, error) {
	msgs, err := g.Queue.Fetch(ctx, typ, after, limit)
	if g.fetches.Add(1) == 3 {
		close(g.waits)
		select {
		case <-g.letGo:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return msgs, err
}

// A type is paused and resumed while a fetch hangs. The handler's stage has seen the pause, and has given up the messages it did not
// handle; the fetch returns after the type was resumed, or right before. Either way everything is handled, in order.
func TestShortPauseWhileAFetchHangs(t *testing.T) {
	for _, failing := range []bool{false, true} {
		for _, resumedFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("failing=%v,resumedFirst=%v", failing, resumedFirst), func(t *testing.T) {
				onRig(t, func(t *testing.T, r *rig) { pauseWhileAFetchHangs(r, failing, resumedFirst) })
			})
		}
	}
}

func pauseWhileAFetchHangs(r *rig, failing, resumedFirst bool) {
	t := r.t
	const seen = share.HeartbeatEvery + time.Second // by then a pool knows about a pause
	var rec record
	inHandler, goOn := make(chan struct{}), make(chan struct{})
	first := true
	h := HandlerFunc(func(_ context.Context, _ Lease, msgs []queue.Message) error {
		if first {
			first = false
			close(inHandler)
			<-goOn
			if failing {
				return errors.New("not yet")
			}
		}
		rec.add(msgs...)
		return nil
	})
	pause := func(on bool) {
		t.Helper()
		if _, err := r.queue.PatchSettings(t.Context(), typ, queue.SettingsPatch{DrainPaused: &on}); err != nil {
			t.Fatal(err)
		}
	}
	g := &gate{Queue: r.queue, waits: make(chan struct{}), letGo: make(chan struct{})}
	r.publish(typ, 20) // in batches of 5: the handler has the first, the second one is ready, the third one is being fetched
	p := r.start(handle(h, func(c *Config) { c.Queue, c.Batch, c.RetryMin, c.RetryMax = g, 5, 10*time.Second, 10*time.Second }))
	<-inHandler
	<-g.waits
	pause(true)
	time.Sleep(seen)
	close(goOn)
	time.Sleep(200 * time.Millisecond)
	if n := len(rec.all()); n > 5 {
		t.Fatalf("%d messages were handled: the handler's stage has not seen the pause", n)
	}
	if resumedFirst {
		pause(false)
		time.Sleep(seen)
		close(g.letGo)
	} else {
		close(g.letGo)
		pause(false)
	}
	r.publish(typ, 20)
	time.Sleep(time.Minute)
	if n := r.pending(); n > 0 {
		t.Errorf("%d messages are pending a minute after the type was resumed", n)
	}
	if got := rec.all(); !slices.Equal(got, r.sent[typ]) {
		t.Errorf("%d messages were handled, %d published; they differ from %d on", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
	}
	p.stop()
}
