package share

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Which others a replica looks at. As long as they are few it looks at all of them in every round.
// If each of a thousand did that, a server would be asked for a million members every two seconds.
// So if there are more than windowSize, a replica looks at that many, plans as if there were no
// others, and after windowRounds turns to the next ones:
//
//	members by ID   ├────────┤ window ├────────────────────────────────────────┤
//	                            └──▶ after windowRounds: the next windowSize, after the last ID the first
//
// Each begins somewhere else. What one evens out among its hundred, the next one that overlaps with
// it sees, so that in the end all are within one of each other. Two looks at the same ones are
// needed: nobody is asked on the ground of one.
const (
	windowSize   = 100
	windowRounds = 3
)

// window is the part of the list of members that a replica looks at. Its zero value begins with all
// of them.
type window struct {
	partial bool         // there are more than windowSize
	after   string       // it has those behind this ID, …
	last    string       // … up to this one, if need be from the end of the list on to its beginning
	rounds  int          // how often it was looked at
	passes  [2]time.Time // when the last two passes over the whole list began
}

// look reads the members of the window, after it has moved on if it is time for that.
func (w *window) look(ctx context.Context, list func(ctx context.Context, after string, most int) ([]queue.Member, error)) ([]queue.Member, error) {
	if !w.partial {
		all, err := list(ctx, "", windowSize)
		if err != nil || len(all) < windowSize {
			return all, err
		}
		now := time.Now()
		// IDs of replicas are random, and look like this one.
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
	if len(members) < windowSize { // they have become few
		*w = window{}
		return members, nil
	}
	w.last = members[len(members)-1].Instance
	w.rounds++
	return members, nil
}

// covers tells whether a member with that ID would have been among those that were looked at last.
func (w *window) covers(id string) bool {
	switch {
	case !w.partial:
		return true
	case w.after < w.last:
		return w.after < id && id <= w.last
	}
	return w.after < id || id <= w.last
}

// remembered is how long what was read of a member counts that the window does not cover now: at
// least until it is looked at again.
func (w *window) remembered(now time.Time) time.Duration {
	if !w.partial {
		return 0
	}
	return now.Sub(w.passes[0]) + windowRounds*HeartbeatEvery
}
