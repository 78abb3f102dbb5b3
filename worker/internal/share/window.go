package share

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// The window is the range of members that a replica reads. With few members, it reads all of them in
// every round. If each of a thousand replicas did that, the server would return a million members every
// two seconds. So with windowSize members or more, a replica reads that many, plans as if there were no
// others, and moves on after windowRounds rounds:
//
//	members by ID   ├────────┤ window ├────────────────────────────────────────┤
//	                            └──▶ after windowRounds: the next windowSize; after the last ID, the first
//
// Each replica starts at a random position, so windows overlap and balancing spreads from one window to
// the next: in the end the loads of all replicas are within one of each other. A window stays for
// several rounds because no holder is asked for a type on the basis of a single read.
const (
	windowSize   = 128
	windowRounds = 3
)

// window is the part of the sorted list of members that a replica reads. The zero value contains all of
// them.
type window struct {
	partial bool         // there are at least windowSize members
	after   string       // it contains the members after this Instance …
	last    string       // … up to this one; it may wrap around at the end of the list
	rounds  int          // how often it was read
	passes  [2]time.Time // when the last two passes over the whole list began
}

// look reads the members of the window, moving it first if it has been read windowRounds times.
func (w *window) look(ctx context.Context, list func(ctx context.Context, after string, most int) ([]queue.Member, error)) ([]queue.Member, error) {
	if !w.partial {
		all, err := list(ctx, "", windowSize)
		if err != nil || len(all) < windowSize {
			return all, err
		}
		now := time.Now()
		// Instances of replicas are random, and have this form.
		*w = window{partial: true, after: fmt.Sprintf("%012x", rand.N(int64(1)<<48)), passes: [2]time.Time{now, now}}
	}
	if w.rounds == windowRounds {
		if w.last <= w.after {
			w.passes = [2]time.Time{w.passes[1], time.Now()}
		}
		w.after, w.rounds = w.last, 0
	}
	members, err := list(ctx, w.after, windowSize)
	if err != nil {
		return nil, err
	}
	if missing := windowSize - len(members); missing > 0 {
		first, err := list(ctx, "", missing)
		if err != nil {
			return nil, err
		}
		for _, m := range first {
			if m.Instance <= w.after {
				members = append(members, m)
			}
		}
	}
	if len(members) < windowSize { // few enough are left to read all
		*w = window{}
		return members, nil
	}
	w.last = members[len(members)-1].Instance
	w.rounds++
	return members, nil
}

// covers reports whether the window contains the position of id in the list, whether or not there is
// such a member.
func (w *window) covers(id string) bool {
	switch {
	case !w.partial:
		return true
	case w.after < w.last:
		return w.after < id && id <= w.last
	}
	return w.after < id || id <= w.last
}

// remembered returns how long the last heartbeat of a member outside the window counts: at least until
// it is read again.
func (w *window) remembered(now time.Time) time.Duration {
	if !w.partial {
		return 0
	}
	return now.Sub(w.passes[0]) + windowRounds*HeartbeatEvery
}
