package worker

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// The dead go off the list of workers, and not the living, whatever a clock says.
func TestDeadMembersGoOffTheList(t *testing.T) {
	for _, ahead := range []time.Duration{0, 11 * time.Minute, -24 * time.Hour} {
		onRig(t, func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			beat := func(id string, n int64) {
				if err := r.queue.Queue.Heartbeat(context.WithoutCancel(ctx), queue.Member{Instance: id, Beat: n}); err != nil {
					t.Error(err)
				}
			}
			beat("dead", 1)
			beat("alive", 1)
			var beating sync.WaitGroup
			beating.Go(func() {
				for n := int64(2); wait.For(ctx, share.HeartbeatEvery) == nil; n++ {
					beat("alive", n)
				}
			})
			defer beating.Wait()
			defer cancel()
			q := &farewells{Queue: r.queue, ahead: ahead}
			p := r.start(func(c *Config) { c.Queue = q })
			time.Sleep(queue.MemberRetention - 2*share.HeartbeatEvery)
			want := ""
			if ahead > 0 {
				want = "dead"
			}
			if got := q.all(); got != want {
				t.Errorf("clock %v ahead: %q were taken off the list before their time, want %q", ahead, got, want)
			}
			time.Sleep(4 * share.HeartbeatEvery)
			if got := q.all(); got != "dead" {
				t.Errorf("clock %v ahead: %q were taken off the list", ahead, got)
			}
			p.stop()
		})
	}
}

// farewells is a queue that notes who is taken off the list, and whose clock is ahead.
type farewells struct {
	queue.Queue
	ahead time.Duration

	mu   sync.Mutex
	left []string
}

func (q *farewells) all() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return strings.Join(q.left, " ")
}

func (q *farewells) Leave(ctx context.Context, id string) error {
	q.mu.Lock()
	q.left = append(q.left, id)
	q.mu.Unlock()
	return q.Queue.Leave(ctx, id)
}

func (q *farewells) Members(ctx context.Context, after string, most int) ([]queue.Member, error) {
	members, err := q.Queue.Members(ctx, after, most)
	for i := range members {
		if id := members[i].Instance; id != "dead" && id != "alive" {
			members[i].Seen = members[i].Seen.Add(q.ahead)
		}
	}
	return members, err
}
