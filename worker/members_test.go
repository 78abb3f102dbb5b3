package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker/internal/share"
)

// Dead workers are removed from the list, and living ones are not, whatever a clock says.
func TestDeadMembersGoOffTheList(t *testing.T) {
	for _, ahead := range []time.Duration{0, 11 * time.Minute, -24 * time.Hour} {
		onRig(t, func(t *testing.T, r *rig) {
			if err := r.queue.Queue.Heartbeat(t.Context(), queue.Member{Instance: "dead", Beat: 1}); err != nil {
				t.Fatal(err)
			}
			defer r.beat(queue.Member{Instance: "alive"})()
			q := &farewells{Queue: r.queue, ahead: ahead}
			p := r.start(func(c *Config) { c.Queue = q })
			time.Sleep(queue.MemberRetention - 2*share.HeartbeatEvery)
			want := ""
			if ahead > 0 {
				want = "dead"
			}
			if got := q.all(); got != want {
				t.Errorf("clock %v ahead: %q were removed from the list too early, want %q", ahead, got, want)
			}
			time.Sleep(4 * share.HeartbeatEvery)
			if got := q.all(); got != "dead" {
				t.Errorf("clock %v ahead: %q were removed from the list", ahead, got)
			}
			p.stop()
		})
	}
}

// others returns n replicas that write heartbeats, do nothing else, and serve the types of a pattern.
func others(n int, pattern string) (all []queue.Member) {
	for i := range n {
		all = append(all, queue.Member{Instance: fmt.Sprint("other", i), Types: []string{pattern}})
	}
	return all
}

// beat makes other replicas known, and keeps them alive until it is ended.
func (r *rig) beat(members ...queue.Member) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	beatAll := func(n int64) {
		for _, m := range members {
			m.Beat = n
			if err := r.queue.Queue.Heartbeat(context.WithoutCancel(ctx), m); err != nil {
				r.t.Error(err)
			}
		}
	}
	beatAll(1)
	var beating sync.WaitGroup
	beating.Go(func() {
		for n := int64(2); wait.For(ctx, share.HeartbeatEvery) == nil; n++ {
			beatAll(n)
		}
	})
	return func() {
		cancel()
		beating.Wait()
	}
}

// farewells is a queue that records which members are removed from the list, and whose clock is ahead.
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

// A pool checks a few of the locks that others hold at a time.
func TestLocksOfOthersAreLookedAtAFewAtATime(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		types := r.publishMany(20 * maxLooks)
		for _, typ := range types {
			r.locks.Edit(typ, func(rec *lock.Record) bool {
				rec.Token, rec.Hold = 1, &lock.Hold{ID: lock.HoldID{1}, Lease: time.Hour, Why: lockReason("other")}
				return true
			})
		}
		defer r.beat(queue.Member{Instance: "other", Types: types, Held: types, Idle: types})() // no pool asks for idle types
		var trying most
		r.locks.Around(func(c locktest.Call) (after func()) {
			if c.Op == locktest.Read || c.Op == locktest.Acquire {
				trying.during(10 * time.Millisecond)
			}
			return func() {}
		})
		p := r.start(func(c *Config) { c.Types = types })
		time.Sleep(time.Minute)
		if n := trying.highest.Load(); n != maxLooks {
			t.Errorf("%d locks were checked concurrently, want %d", n, maxLooks)
		}
		p.stop()
	})
}

// Pools of files and pools of handlers share the messages of a type if both serve it. Each says so once.
func TestPoolsThatPutMessagesElsewhere(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		handling := func(types ...string) func(*Config) {
			return func(c *Config) {
				c.Types, c.To = types, Handling{Handler: Each(func(context.Context, Lease, queue.Message) error { return nil })}
			}
		}
		r.start(nil)
		r.start(nil)
		r.start(handling("audit"))
		time.Sleep(time.Minute)
		const says = "give them different types"
		if strings.Contains(r.log.String(), says) {
			t.Fatal("without a reason")
		}
		p := r.start(handling("audit", "ord*"))
		r.publish(typ, 10)
		time.Sleep(time.Minute)
		var by []string // the pools that log it
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, says) {
				if !strings.Contains(line, `"type":"orders"`) {
					t.Errorf("of another type: %s", line)
				}
				by = append(by, strings.Split(line, `"worker":"`)[1][:12])
			}
		}
		if !slices.Contains(by, p.Status().Instance) {
			t.Errorf("logged by %q, and not by %s", by, p.Status().Instance)
		}
		slices.Sort(by)
		if n := len(by); len(slices.Compact(by)) != n {
			t.Errorf("logged by %q: more than once by one of them", by)
		}
	})
}
