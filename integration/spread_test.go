package integration

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Three workers share the types, within one of each other. When one is killed the others take over, and every message is in its file
// once, in order.
func TestWorkersShareTypes(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	const types, batch = 12, 4
	var names []string
	for i := range types {
		names = append(names, fmt.Sprintf("t%02d", i))
	}
	be, closeIt := open(t, b)
	defer closeIt()
	pub, err := queue.NewPublisher(t.Context(), be.Queue, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close(context.Background())
	sent := 0
	publish := func() { // not by one program per type: while they start, the first types become idle
		t.Helper()
		var msgs []queue.Message
		for range batch {
			sent++
			for _, typ := range names {
				msgs = append(msgs, queue.Message{Type: typ, Payload: fmt.Appendf(nil, "message %d", sent)})
			}
		}
		for i, r := range pub.PublishAll(t.Context(), msgs) {
			if r.Status != queue.Stored {
				t.Fatalf("message %d is %v: %v", i, r.Status, r.Err)
			}
		}
	}
	publish()
	workers := map[int]*process{} // by PID
	for i := range 3 {
		p := start(t, fmt.Sprintf("worker %d", i), "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--log-format", "json") // a short lease would be lost on a busy machine, and types move for that
		workers[p.Process.Pid] = p
	}
	balanced := func() bool {
		held, all := map[int]int{}, 0
		for _, l := range heldLocks(t, b) {
			held[l.PID]++
			all++
		}
		var n []int
		for pid := range workers {
			n = append(n, held[pid])
		}
		return all == types && slices.Max(n)-slices.Min(n) <= 1
	}
	published := time.Now()
	eventually(t, 5*time.Minute, "the workers hold the types evenly", func() bool {
		if time.Since(published) > 5*time.Second { // types without messages do not count
			publish()
			published = time.Now()
		}
		time.Sleep(200 * time.Millisecond)
		return balanced()
	})

	for pid, p := range workers {
		p.Process.Kill()
		<-p.done
		delete(workers, pid)
		break
	}
	publish()
	eventually(t, runTimeout, "everything is drained", func() bool {
		for _, n := range pending(t, b) {
			if n > 0 {
				return false
			}
		}
		return true
	})
	for _, p := range workers {
		p.signal(t, syscall.SIGTERM)
	}
	for _, p := range workers {
		if code := p.wait(t, time.Minute); code != 0 {
			t.Errorf("%s ended with %d", p.name, code)
		}
	}
	for _, typ := range names {
		got := payloads(t, b, typ)
		for i, m := range got {
			if want := fmt.Sprintf("message %d", i+1); string(m) != want {
				t.Fatalf("%s: message %d of the file is %q, want %q", typ, i, m, want)
			}
		}
		if len(got) != sent {
			t.Errorf("%s: %d messages in the file, want %d", typ, len(got), sent)
		}
	}
}
