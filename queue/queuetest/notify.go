package queuetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// listener reads notifications as a worker does: each read continues where the previous one ended.
type listener struct {
	t    *testing.T
	q    queue.Queue
	mark queue.NotificationMark
}

// read returns what is new, and moves the mark. Notifications must not change the mark that it was given.
func (l *listener) read() queue.Notifications {
	l.t.Helper()
	before := maps.Clone(l.mark)
	n, err := l.q.Notifications(l.t.Context(), l.mark)
	if err != nil {
		l.t.Fatal(err)
	}
	if !maps.Equal(before, l.mark) {
		l.t.Error("Notifications has changed the mark that it was given")
	}
	if n.Next == nil {
		l.t.Fatal("there is no next mark")
	}
	l.mark = n.Next
	return n
}

// want reads, and compares the types and whether some were missed.
func (l *listener) want(missed bool, types ...string) {
	l.t.Helper()
	n := l.read()
	slices.Sort(n.Types)
	if n.Missed != missed || !slices.Equal(n.Types, types) {
		l.t.Errorf("%v, missed %v; want %v, %v", n.Types, n.Missed, types, missed)
	}
}

// mustNotify notifies, and fails the test if that fails.
func mustNotify(t *testing.T, q queue.Queue, types ...string) {
	t.Helper()
	if err := q.Notify(t.Context(), types); err != nil {
		t.Fatalf("Notify(%d types): %v", len(types), err)
	}
}

// testNotifications: a reader gets each type that was notified since its mark, once per read, and nothing twice. Its first read says that
// it may have missed some.
func testNotifications(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	l := &listener{t: t, q: open(t)}
	l.want(true) // earlier notifications are unknown
	l.want(false)
	mustNotify(t, q)
	l.want(false)
	mustNotify(t, q, "orders", "audit-1")
	late := &listener{t: t, q: open(t), mark: l.mark}
	l.want(false, "audit-1", "orders")
	l.want(false)
	for range 20 { // enough that each of the backend's logs has some
		mustNotify(t, q, "orders")
		mustNotify(t, open(t), "refunds")
	}
	l.want(false, "orders", "refunds")
	late.want(false, "audit-1", "orders", "refunds")
	for _, typ := range []string{"", "Orders", "a/b", "a\x00", "$a"} {
		if err := q.Notify(t.Context(), []string{"orders", typ}); !errors.Is(err, queue.ErrInvalidType) {
			t.Errorf("type %q: %v", typ, err)
		}
	}
	l.want(false)
	if types, err := q.Types(t.Context()); err != nil || len(types) != 0 {
		t.Errorf("Types = %v, %v: a notification must not register a type", types, err)
	}
}

// testNotificationsMissed: a reader that comes too late for some notifications learns that it missed them.
func testNotificationsMissed(t *testing.T, open func(t *testing.T) queue.Queue) {
	q := open(t)
	l := &listener{t: t, q: q}
	l.read()
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("type-%05d", i))
	}
	mustNotify(t, q, many...)
	n := l.read()
	if !n.Missed || len(n.Types) == 0 || len(n.Types) == len(many) || slices.ContainsFunc(n.Types, func(typ string) bool { return !slices.Contains(many, typ) }) {
		t.Errorf("%d types of %d at once, missed %v", len(n.Types), len(many), n.Missed)
	}
	mustNotify(t, q, "orders")
	l.want(false, "orders")
	for _, typ := range many[:300] { // one by one, more than a single log keeps
		mustNotify(t, q, typ)
	}
	if n := l.read(); !n.Missed && len(n.Types) < 300 {
		t.Errorf("%d of 300 notifications were read, missed %v", len(n.Types), n.Missed)
	}
}

// testNotificationsConcurrently: of several concurrent notifiers, each is heard.
func testNotificationsConcurrently(t *testing.T, open func(t *testing.T) queue.Queue) {
	l := &listener{t: t, q: open(t)}
	l.read()
	heard, want := map[string]bool{}, map[string]bool{}
	var all sync.WaitGroup
	for i := range 4 {
		q := open(t)
		for j := range 15 {
			want[fmt.Sprintf("type-%d-%d", i, j)] = true
		}
		all.Go(func() {
			for j := range 15 {
				if err := q.Notify(context.Background(), []string{fmt.Sprintf("type-%d-%d", i, j)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		n := l.read()
		if n.Missed {
			t.Error("60 notifications are too many")
		}
		for _, typ := range n.Types {
			heard[typ] = true
		}
	}
	if !maps.Equal(heard, want) {
		t.Errorf("%d types were heard of %d", len(heard), len(want))
	}
}

// testPendingTypes: the types that have messages are found without any notification, because notifications may be lost.
func testPendingTypes(t *testing.T, q queue.Queue) {
	want := func(types ...string) {
		t.Helper()
		slices.Sort(types)
		if got, err := q.PendingTypes(t.Context()); err != nil || !slices.Equal(got, types) {
			t.Errorf("PendingTypes = %v, %v, want %v", got, err, types)
		}
	}
	want()
	if err := q.RegisterType(t.Context(), "registered"); err != nil {
		t.Fatal(err)
	}
	if err := q.MoveToDeadLetters(t.Context(), "dead", lettersOf(numbered("dead", 1, 2))); err != nil {
		t.Fatal(err)
	}
	mustNotify(t, q, "notified")
	want()
	for _, typ := range cousins {
		mustInsert(t, q, typ, numbered(typ, 1, 150))
	}
	want(cousins...)
	mustAck(t, q, cousins[0], ids(numbered(cousins[0], 1, 150)))
	want(cousins[1:]...)
}

// testPending: Pending finds which of the given types have messages, however many messages and other types exist.
func testPending(t *testing.T, q queue.Queue) {
	pending := func(most int, types ...string) []string {
		t.Helper()
		got, err := q.Pending(t.Context(), types, most)
		if err != nil || !slices.IsSorted(got) || len(got) > most {
			t.Errorf("Pending = %v, %v, want at most %d, sorted", got, err, most)
		}
		return got
	}
	want := func(got []string, types ...string) {
		t.Helper()
		slices.Sort(types)
		if !slices.Equal(got, types) {
			t.Errorf("Pending = %v, want %v", got, types)
		}
	}
	want(pending(1))
	want(pending(9, cousins...))
	for i := range 40 { // more than fit into a page, with other types between them
		typ := fmt.Sprintf("many.%02d", i)
		mustInsert(t, q, typ, numbered(typ, 1, []int{1, 3, 120}[i%3]))
	}
	for _, typ := range cousins {
		mustInsert(t, q, typ, numbered(typ, 1, 150))
	}
	var odd, all []string
	for i := range 45 {
		all = append(all, fmt.Sprintf("many.%02d", i))
		if i%2 == 1 && i < 40 {
			odd = append(odd, all[i])
		}
	}
	want(pending(99, all...), all[:40]...)
	want(pending(99, odd...), odd...)
	want(pending(99, all[40:]...))
	want(pending(99, append(all[38:], cousins...)...), append(cousins, all[38], all[39])...)
	want(pending(9, all[3], all[3], all[44]), all[3])
	for most := 1; most <= 12; most++ {
		if got := pending(most, all...); len(got) != most || slices.ContainsFunc(got, func(typ string) bool { return !slices.Contains(all[:40], typ) }) {
			t.Errorf("%v, want %d of those that have messages", got, most)
		}
	}
	for _, typ := range all[:39] {
		mustAck(t, q, typ, ids(numbered(typ, 1, 120)))
	}
	want(pending(1, all...), all[39])
	if _, err := q.Pending(t.Context(), []string{"orders"}, 0); err == nil {
		t.Error("most is 0")
	}
	if _, err := q.Pending(t.Context(), []string{"Orders"}, 1); !errors.Is(err, queue.ErrInvalidType) {
		t.Errorf("an invalid type: %v", err)
	}
}

// testPromotionTypes: a promotion names the types that got messages.
func testPromotionTypes(t *testing.T, q queue.Queue) {
	for i, typ := range []string{"orders", "refunds", "orders"} {
		msg := queue.Message{Type: typ, ID: id(i, 9, uint64(i+1)), Payload: []byte("x"), Due: time.Now().Add(-time.Hour)}
		if err := q.Delay(t.Context(), []queue.Message{msg}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range [][]string{{"orders", "refunds"}, nil} {
		p, err := q.Promote(t.Context(), queue.Limit{Messages: 10})
		slices.Sort(p.Types)
		if err != nil || !slices.Equal(p.Types, want) {
			t.Errorf("Promote names %v, %v, want %v", p.Types, err, want)
		}
	}
}
