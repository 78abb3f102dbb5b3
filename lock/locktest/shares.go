package locktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
)

// share is a hold for one of n permits.
func share(n int) lock.Hold {
	h := newHold(20 * time.Second)
	h.Permits = n
	return h
}

// ids prints the first digits of the IDs of entries.
func ids(entries []lock.Entry) string {
	var s []string
	for _, e := range entries {
		s = append(s, e.ID.String()[:6])
	}
	return strings.Join(s, " ")
}

// checkAsk: a request reaches the hold that it was meant for and no later one, and does not change the version: a changed version would
// make a dead holder appear alive.
func checkAsk(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	h, r := create(t, s, "n", 7)
	ok, err := s.Ask(ctx, "n", newHold(time.Second), "you")
	must(t, err)
	want(t, "asked another hold", ok, false)
	unchanged(t, s, r, "asking another hold")
	ok, err = s.Ask(ctx, "n", h, "maintenance “now”")
	must(t, err)
	want(t, "asked", ok, true)
	after := read(t, s, "n")
	want(t, "version after asking", after.Version, r.Version)
	want(t, "request", after.Hold.Asked, "maintenance “now”")
	asked, ok, err := s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "renewed", ok, true)
	want(t, "request in the answer", asked, "maintenance “now”")
	_, err = s.Release(ctx, "n", h, lock.NewVersion())
	must(t, err)
	next := newHold(time.Second)
	_, _, err = s.Acquire(ctx, "n", next, lock.NewVersion())
	must(t, err)
	asked, _, err = s.Renew(ctx, "n", next, lock.NewVersion())
	must(t, err)
	want(t, "request to the next holder", asked, "")
}

// checkForce: a forced release needs the ID of the hold, raises the token and records the removed hold and the reason.
func checkForce(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	h, r := create(t, s, "n", 7)
	ok, err := s.Force(ctx, "n", newHold(time.Second), "you", lock.NewVersion())
	must(t, err)
	want(t, "forced another hold", ok, false)
	unchanged(t, s, r, "forcing another hold")
	v := lock.NewVersion()
	ok, err = s.Force(ctx, "n", h, "it hangs", v)
	must(t, err)
	want(t, "forced", ok, true)
	after := read(t, s, "n")
	if after.Held() || after.Forced == nil || *after.Forced != (lock.Forced{ID: h.ID, Why: "it hangs"}) {
		t.Fatalf("after force: %+v", after)
	}
	want(t, "token after force", after.Token, int64(8))
	want(t, "version after force", after.Version, v)
	_, ok, err = s.Renew(ctx, "n", h, lock.NewVersion())
	must(t, err)
	want(t, "renewed after force", ok, false)
	token, ok, err := s.Acquire(ctx, "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "acquired after force", ok, true)
	want(t, "token of the next holder", token, int64(9))
}

// checkHandOver: a handoff needs the ID of the present hold, and cannot bypass the first in the queue.
func checkHandOver(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	h, r := create(t, s, "n", 7)
	_, ok, err := s.HandOff(ctx, "n", lock.NewHoldID(), newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "handed over another hold", ok, false)
	unchanged(t, s, r, "handing over another hold")
	next, v := newHold(3*time.Second), lock.NewVersion()
	token, ok, err := s.HandOff(ctx, "n", h.ID, next, v)
	must(t, err)
	want(t, "handed over", ok, true)
	want(t, "token", token, int64(8))
	r = read(t, s, "n")
	want(t, "hold", *r.Hold, next)
	want(t, "version", r.Version, v)
	_, ok, err = s.HandOff(ctx, "n", h.ID, newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "handed over twice", ok, false)
	// A waiter is in the queue: the lock goes to it.
	in := newHold(time.Second)
	_, ok, err = s.Enqueue(ctx, "n", lock.Entry{Hold: in, Version: lock.NewVersion()})
	must(t, err)
	want(t, "queued", ok, true)
	_, ok, err = s.HandOff(ctx, "n", next.ID, newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "handed over past the queue", ok, false)
	_, ok, err = s.HandOff(ctx, "n", next.ID, in, lock.NewVersion())
	must(t, err)
	want(t, "handed over to the first in the queue", ok, true)
	want(t, "queue", ids(read(t, s, "n").Queue), "")
}

// checkShares: there are at most as many shares as permits; they exclude an exclusive hold; each is renewed, asked, expired and released
// separately. The renewals of the other shares must not keep a dead one alive.
func checkShares(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	first := share(2)
	v := lock.NewVersion()
	ok, err := s.Create(ctx, "n", first, v)
	must(t, err)
	want(t, "created", ok, true)
	r := read(t, s, "n")
	if r.Hold != nil || len(r.Shares) != 1 || r.Shares[0] != (lock.Entry{Hold: first, Version: v}) {
		t.Fatalf("created: %+v", r)
	}
	// A request that arrives twice makes one share.
	_, ok, err = s.Acquire(ctx, "n", first, lock.NewVersion())
	must(t, err)
	want(t, "the same share again", ok, false)
	token, ok, err := s.Confirm(ctx, "n", first, 9, lock.NewVersion())
	must(t, err)
	want(t, "confirmed", ok, true)
	want(t, "first token", token, int64(10))

	second := share(2)
	token, ok, err = s.Acquire(ctx, "n", second, lock.NewVersion())
	must(t, err)
	want(t, "second share", ok, true)
	want(t, "second token", token, int64(11))
	_, ok, err = s.Acquire(ctx, "n", share(2), lock.NewVersion())
	must(t, err)
	want(t, "third share of two", ok, false)
	_, ok, err = s.Acquire(ctx, "n", newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "exclusive among shares", ok, false)
	_, ok, err = s.TakeOver(ctx, "n", read(t, s, "n").Version, newHold(time.Second), lock.NewVersion())
	must(t, err)
	want(t, "takeover among shares", ok, false)

	// Renewal and confirmation change only their own entry; a confirmed token belongs to no other share.
	before := read(t, s, "n")
	v = lock.NewVersion()
	_, ok, err = s.Renew(ctx, "n", second, v)
	must(t, err)
	want(t, "renewed", ok, true)
	r = read(t, s, "n")
	want(t, "version of the other entry", r.Shares[0].Version, before.Shares[0].Version)
	want(t, "version of the entry", r.Shares[1].Version, v)
	want(t, "version of the record", r.Version, v)
	token, ok, err = s.Confirm(ctx, "n", first, 3, lock.NewVersion())
	must(t, err)
	want(t, "confirmed again", ok, true)
	want(t, "token", token, int64(12))
	token, _, err = s.Confirm(ctx, "n", first, 99, lock.NewVersion())
	must(t, err)
	want(t, "raised token", token, int64(100))
	_, ok, err = s.Renew(ctx, "n", share(2), lock.NewVersion())
	must(t, err)
	want(t, "renewed an unknown share", ok, false)

	// A request to one share does not reach the other.
	ok, err = s.Ask(ctx, "n", second, "please")
	must(t, err)
	want(t, "asked", ok, true)
	asked, _, err := s.Renew(ctx, "n", first, lock.NewVersion())
	must(t, err)
	want(t, "request to the first", asked, "")
	asked, _, err = s.Renew(ctx, "n", second, lock.NewVersion())
	must(t, err)
	want(t, "request to the second", asked, "please")

	// An entry expires only if its version did not change.
	r = read(t, s, "n")
	_, _, err = s.Renew(ctx, "n", first, lock.NewVersion())
	must(t, err)
	ok, err = s.Expire(ctx, "n", r.Shares[0], lock.NewVersion())
	must(t, err)
	want(t, "expired a renewed share", ok, false)
	ok, err = s.Expire(ctx, "n", r.Shares[1], lock.NewVersion())
	must(t, err)
	want(t, "expired", ok, true)
	want(t, "shares", ids(read(t, s, "n").Shares), first.ID.String()[:6])
	ok, err = s.Release(ctx, "n", second, lock.NewVersion())
	must(t, err)
	want(t, "released an expired share", ok, false)
	third := share(2)
	_, ok, err = s.Acquire(ctx, "n", third, lock.NewVersion())
	must(t, err)
	want(t, "acquired the place", ok, true)
	ok, err = s.Force(ctx, "n", third, "hangs", lock.NewVersion())
	must(t, err)
	want(t, "forced", ok, true)
	ok, err = s.Release(ctx, "n", first, lock.NewVersion())
	must(t, err)
	want(t, "released", ok, true)
	r = read(t, s, "n")
	if r.Held() {
		t.Fatalf("still held after the last release: %+v", r)
	}
	// Now an exclusive hold; then a share takes over from it.
	alone := newHold(time.Second)
	_, ok, err = s.Acquire(ctx, "n", alone, lock.NewVersion())
	must(t, err)
	want(t, "exclusive", ok, true)
	_, ok, err = s.Acquire(ctx, "n", share(2), lock.NewVersion())
	must(t, err)
	want(t, "share beside an exclusive hold", ok, false)
	last := share(2)
	_, ok, err = s.TakeOver(ctx, "n", read(t, s, "n").Version, last, lock.NewVersion())
	must(t, err)
	want(t, "taken over by a share", ok, true)
	r = read(t, s, "n")
	if r.Hold != nil || ids(r.Shares) != last.ID.String()[:6] {
		t.Fatalf("taken over: %+v", r)
	}
}

// checkQueue: places keep their order when they are renewed, queue operations do not change the version of the record, and only the first
// may acquire or take over.
func checkQueue(t testing.TB, b Backend) {
	s := use(t, b)
	ctx := t.Context()
	entry := func() lock.Entry { return lock.Entry{Hold: newHold(time.Second), Version: lock.NewVersion()} }
	x, y, z := entry(), entry(), entry()
	_, ok, err := s.Enqueue(ctx, "n", x)
	must(t, err)
	want(t, "queued without a record", ok, false)
	ok, err = s.RenewPlace(ctx, "n", x)
	must(t, err)
	want(t, "renewed a place without a record", ok, false)
	h, before := create(t, s, "n", 7)
	for i, e := range []lock.Entry{x, y, z} {
		r, ok, err := s.Enqueue(ctx, "n", e)
		must(t, err)
		want(t, "queued", ok, true)
		if !slices.Equal(r.Queue, []lock.Entry{x, y, z}[:i+1]) || r.Name != "n" || r.Token != 7 || r.Version != before.Version || r.Hold == nil || *r.Hold != h {
			t.Fatalf("returned: %+v", r)
		}
	}
	y2 := y
	y2.Version = lock.NewVersion()
	_, ok, err = s.Enqueue(ctx, "n", y2)
	must(t, err)
	want(t, "queued twice", ok, false)
	if r := read(t, s, "n"); !slices.Equal(r.Queue, []lock.Entry{x, y, z}) {
		t.Fatalf("queue: %+v", r.Queue)
	}
	ok, err = s.RenewPlace(ctx, "n", y2)
	must(t, err)
	want(t, "renewed", ok, true)
	ok, err = s.RenewPlace(ctx, "n", entry())
	must(t, err)
	want(t, "renewed an unknown place", ok, false)
	r := read(t, s, "n")
	if !slices.Equal(r.Queue, []lock.Entry{x, y2, z}) {
		t.Fatalf("queue: %+v", r.Queue)
	}
	want(t, "version of the record", r.Version, before.Version)
	_, err = s.Release(ctx, "n", h, lock.NewVersion())
	must(t, err)
	for _, other := range []lock.Hold{y.Hold, newHold(time.Second), share(2)} {
		_, ok, err = s.Acquire(ctx, "n", other, lock.NewVersion())
		must(t, err)
		want(t, "acquired out of turn", ok, false)
		_, ok, err = s.TakeOver(ctx, "n", read(t, s, "n").Version, other, lock.NewVersion())
		must(t, err)
		want(t, "taken over out of turn", ok, false)
	}
	ok, err = s.Dequeue(ctx, "n", x.ID, lock.NewVersion())
	must(t, err)
	want(t, "removed with another version", ok, false)
	ok, err = s.Dequeue(ctx, "n", x.ID, x.Version)
	must(t, err)
	want(t, "removed", ok, true)
	_, ok, err = s.Acquire(ctx, "n", y.Hold, lock.NewVersion())
	must(t, err)
	want(t, "acquired in turn", ok, true)
	want(t, "queue", ids(read(t, s, "n").Queue), z.ID.String()[:6])
	ok, err = s.Dequeue(ctx, "n", z.ID, lock.Version{})
	must(t, err)
	want(t, "left", ok, true)
	ok, err = s.Dequeue(ctx, "n", z.ID, lock.Version{})
	must(t, err)
	want(t, "left twice", ok, false)
}

// checkConcurrentShares: of concurrent acquisitions as many succeed as there are permits, an entry expires once, and a waiter that enqueues
// several times concurrently gets one place.
func checkConcurrentShares(t testing.TB, b Backend) {
	const racers, permits = 8, 3
	stores := []lock.Store{use(t, b), use(t, b), use(t, b), use(t, b)}
	ctx := t.Context()
	for round := range 5 {
		name := fmt.Sprint("n", round)
		h, _ := create(t, stores[0], name, 1)
		_, err := stores[0].Release(ctx, name, h, lock.NewVersion())
		must(t, err)
		n := race(t, racers, func(i int) (bool, error) {
			_, ok, err := stores[i%4].Acquire(ctx, name, share(permits), lock.NewVersion())
			return ok, err
		})
		want(t, "shares", n, int64(permits))
		seen := read(t, stores[0], name).Shares
		want(t, "entries", len(seen), permits)
		n = race(t, racers, func(i int) (bool, error) {
			return stores[i%4].Expire(ctx, name, seen[0], lock.NewVersion())
		})
		want(t, "winners of expire", n, int64(1))
		id := newHold(time.Second)
		n = race(t, racers, func(i int) (bool, error) {
			_, ok, err := stores[i%4].Enqueue(ctx, name, lock.Entry{Hold: id, Version: lock.NewVersion()})
			return ok, err
		})
		want(t, "winners of enqueue", n, int64(1))
		want(t, "places of one waiter", len(read(t, stores[0], name).Queue), 1)
	}
}
