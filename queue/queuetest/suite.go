// Package queuetest tests queue backends, and provides test doubles for code that uses a queue.
//
//   - [Run] is the conformance suite, which a new backend calls from one of its tests. [RunSpoiled] and [RunUnfit] add messages that
//     another program has stored or damaged.
//   - [Memory] is a queue without a server, in the virtual time of testing/synctest.
//   - [Faulty] injects faults into any queue: lost answers, late requests, refusals.
//   - [Oracle] checks the guarantees of a publisher against the contents of the queue.
package queuetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// ctxGrace is how long an operation may take to return after its context has ended.
const ctxGrace = 2 * time.Second

// Run runs the conformance suite. fresh makes an empty store, and returns a function that opens a queue on it. The suite opens several
// queues on the same store, as several processes would, and does not close them. A backend that cannot be opened twice may return the
// same queue each time.
func Run(t *testing.T, fresh func(t *testing.T) (open func(t *testing.T) queue.Queue)) {
	one := func(test func(t *testing.T, q queue.Queue)) func(*testing.T) {
		return func(t *testing.T) { test(t, fresh(t)(t)) }
	}
	t.Run("InsertTwiceStoresOnce", one(testInsertTwice))
	t.Run("InsertRepeatAfterPrefix", one(testInsertAfterPrefix))
	t.Run("InsertRepeatAfterAck", one(testInsertAfterAck))
	t.Run("InsertRefusesInvalid", one(testInsertInvalid))
	t.Run("InsertNothing", one(testInsertNothing))
	t.Run("FetchOrderAndBounds", one(testFetchOrder))
	t.Run("FetchSeparatesTypes", one(testTypesApart))
	t.Run("FetchLimits", one(testFetchLimits))
	t.Run("LimitsCountHeaders", one(testLimitsCountHeaders))
	t.Run("FetchIsRepeatable", one(testFetchRepeatable))
	t.Run("Payloads", one(testPayloads))
	t.Run("LargestMessages", one(testLargest))
	t.Run("Headers", one(testHeaders))
	t.Run("Loose", one(testLoose))
	t.Run("Ack", one(testAck))
	t.Run("AckThousands", one(testAckThousands))
	t.Run("Depth", one(testDepth))
	t.Run("Types", one(testTypes))
	t.Run("InvalidArguments", one(testInvalidArguments))
	t.Run("Clock", one(testClock))
	t.Run("EndedContext", one(testEndedContext))
	t.Run("Closed", one(testClosed))
	t.Run("FileRegistry", one(testFileRegistry))
	several := func(test func(t *testing.T, open func(t *testing.T) queue.Queue)) func(*testing.T) {
		return func(t *testing.T) { test(t, fresh(t)) }
	}
	t.Run("FileRegistryRace", several(testFileRace))
	t.Run("AckFile", several(testAckFile))
	t.Run("FileSuccession", one(testFileSuccession))
	t.Run("FileSuccessionRace", several(testFileSuccessionRace))
	t.Run("FileSuccessionUnderFaults", one(testFileSuccessionFaults))
	t.Run("Bury", one(testBury))
	t.Run("BuryRefusesInvalid", one(testBuryInvalid))
	t.Run("BuryLargestMessages", one(testBuryLargest))
	t.Run("BuryUnderFaults", one(testBuryFaults))
	t.Run("Letters", one(testLetters))
	t.Run("Requeue", one(testRequeue))
	t.Run("HolderNotes", several(testHolderNotes))
	t.Run("Settings", several(testSettings))
	t.Run("SettingsOfSeveralAtOnce", several(testSettingsRace))
	t.Run("Members", several(testMembers))
	t.Run("Notifications", several(testNotifications))
	t.Run("NotificationsMissed", several(testNotificationsMissed))
	t.Run("NotificationsConcurrently", several(testNotificationsConcurrently))
	t.Run("PendingTypes", one(testPendingTypes))
	t.Run("Pending", one(testPending))
	t.Run("PromotionTypes", one(testPromotionTypes))
	t.Run("ConcurrentPublishersAndConsumer", several(testConcurrent))
	t.Run("OrderIsVisibleInOrder", several(testVisibleInOrder))
	t.Run("PublisherUnderLostAnswers", several(testPublisher))
	t.Run("Delayed", one(testDelayed))
	t.Run("DelayedNeverEarly", one(testDelayedNeverEarly))
	t.Run("DelayedLongAgo", one(testDelayedLongAgo))
	t.Run("DelayRefusesInvalid", one(testDelayInvalid))
	t.Run("DelayedLargest", one(testDelayedLargest))
	t.Run("CancelDelayed", one(testCancelDelayed))
	t.Run("PromoteConcurrently", several(testPromoteConcurrently))
	t.Run("DelayedUnderLostAnswers", several(testDelayedUnderLostAnswers))
}

var epoch = time.UnixMilli(1_700_000_000_000)

// id is the ID of the n-th message of a producer; messages of later milliseconds sort after it.
func id(ms int, producer, n uint64) queue.ID {
	return queue.NewID(epoch.Add(time.Duration(ms)*time.Millisecond), producer, n)
}

// numbered makes the messages from to to of one producer.
func numbered(typ string, from, to int) []queue.Message {
	var msgs []queue.Message
	for n := from; n <= to; n++ {
		msgs = append(msgs, queue.Message{Type: typ, ID: id(n/3, 7, uint64(n)), Payload: fmt.Appendf(nil, "message %d", n)})
	}
	return msgs
}

// ids returns the IDs of messages.
func ids(msgs []queue.Message) []queue.ID {
	out := make([]queue.ID, len(msgs))
	for i, m := range msgs {
		out[i] = m.ID
	}
	return out
}

// mustInsert inserts messages, and fails the test if that fails.
func mustInsert(t *testing.T, q queue.Queue, typ string, msgs []queue.Message) {
	t.Helper()
	if err := q.Insert(t.Context(), typ, msgs); err != nil {
		t.Fatalf("Insert(%s, %d messages): %v", typ, len(msgs), err)
	}
}

// mustFetch fetches messages, and fails the test if that fails.
func mustFetch(t *testing.T, q queue.Queue, typ string, after queue.ID, limit queue.Limit) []queue.Message {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), typ, after, limit)
	if err != nil {
		t.Fatalf("Fetch(%s): %v", typ, err)
	}
	return msgs
}

// fetchAll returns all pending messages of a type.
func fetchAll(t *testing.T, q queue.Queue, typ string) []queue.Message {
	t.Helper()
	return mustFetch(t, q, typ, queue.ID{}, queue.Limit{Messages: 100_000})
}

// mustAck acknowledges messages, and fails the test if that fails.
func mustAck(t *testing.T, q queue.Queue, typ string, ids []queue.ID) {
	t.Helper()
	if err := q.Ack(t.Context(), typ, ids); err != nil {
		t.Fatalf("Ack(%s, %d): %v", typ, len(ids), err)
	}
}

// wantMessages compares everything that a backend has to keep.
func wantMessages(t *testing.T, got, want []queue.Message) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d messages, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := got[i], want[i]
		if g.ID != w.ID || g.Type != w.Type || g.Incomplete || !bytes.Equal(g.Payload, w.Payload) {
			t.Fatalf("message %d: got %s %v %s, want %s %v %s", i, g.Type, g.ID, short(g), w.Type, w.ID, short(w))
		}
		if len(g.Headers) != len(w.Headers) {
			t.Fatalf("message %d: got %d headers, want %d", i, len(g.Headers), len(w.Headers))
		}
		for k, v := range w.Headers {
			if gv, ok := g.Headers[k]; !ok || gv != v {
				t.Fatalf("message %d: header %.40q is %.40q, want %.40q", i, k, gv, v)
			}
		}
	}
}

// short describes a message for an error.
func short(m queue.Message) string {
	return fmt.Sprintf("%d bytes %.40q incomplete=%v", len(m.Payload), m.Payload[:min(len(m.Payload), 40)], m.Incomplete)
}

// testDepth: the count is exact up to the given maximum, says if there are more, and always names the oldest message.
func testDepth(t *testing.T, q queue.Queue) {
	want := func(most int, d queue.Depth) {
		t.Helper()
		if got, err := q.Depth(t.Context(), "orders", most); err != nil || got != d {
			t.Errorf("Depth(%d) = %+v, %v, want %+v", most, got, err, d)
		}
	}
	want(10, queue.Depth{})
	want(0, queue.Depth{})
	msgs := numbered("orders", 1, 25)
	mustInsert(t, q, "orders", msgs)
	mustInsert(t, q, "orders0", numbered("orders0", 1, 3))
	first := msgs[0].ID
	want(0, queue.Depth{Pending: 0, Capped: true, Oldest: first})
	want(1, queue.Depth{Pending: 1, Capped: true, Oldest: first})
	want(24, queue.Depth{Pending: 24, Capped: true, Oldest: first})
	want(25, queue.Depth{Pending: 25, Oldest: first})
	want(26, queue.Depth{Pending: 25, Oldest: first})
	want(math.MaxInt, queue.Depth{Pending: 25, Oldest: first})
	mustAck(t, q, "orders", ids(msgs[:10]))
	want(100, queue.Depth{Pending: 15, Oldest: msgs[10].ID})
	mustInsert(t, q, "orders", numbered("orders", 26, 130))
	want(100, queue.Depth{Pending: 100, Capped: true, Oldest: msgs[10].ID})
	want(math.MaxInt, queue.Depth{Pending: 120, Oldest: msgs[10].ID})
}

// testTypes: registered types are listed forever, others while they have messages. Registering twice is no error.
func testTypes(t *testing.T, q queue.Queue) {
	want := func(types ...string) {
		t.Helper()
		if got, err := q.Types(t.Context()); err != nil || !slices.Equal(got, types) {
			t.Errorf("Types = %v, %v, want %v", got, err, types)
		}
	}
	want()
	for range 2 {
		if err := q.RegisterType(t.Context(), "registered"); err != nil {
			t.Fatal(err)
		}
	}
	want("registered")
	for _, typ := range cousins { // published without registration
		mustInsert(t, q, typ, numbered(typ, 1, 2))
	}
	all := append(slices.Clone(cousins), "registered")
	slices.Sort(all)
	want(all...)
	for _, typ := range cousins {
		mustAck(t, q, typ, ids(numbered(typ, 1, 2)))
	}
	want("registered")
	mustInsert(t, q, "registered", numbered("registered", 1, 2))
	want("registered")
}

// testInvalidArguments: every operation refuses invalid type names and limits, with the same errors in all backends.
func testInvalidArguments(t *testing.T, q queue.Queue) {
	ctx := t.Context()
	for _, limit := range []queue.Limit{{}, {Messages: -1}, {Messages: 1, Bytes: -1}} {
		if _, err := q.Fetch(ctx, "orders", queue.ID{}, limit); err == nil {
			t.Errorf("Fetch with limit %+v must fail", limit)
		}
	}
	if _, err := q.ForeignKeys(ctx, "orders", "", 0); err == nil {
		t.Error("no more than 0 foreign keys must fail")
	}
	if _, err := q.Depth(ctx, "orders", -1); err == nil {
		t.Error("Depth(-1) must fail")
	}
	for _, typ := range []string{"", "Orders", "a/b", "a#b", "a\x00"} {
		_, fetch := q.Fetch(ctx, typ, queue.ID{}, queue.Limit{Messages: 1})
		_, depth := q.Depth(ctx, typ, 1)
		_, _, file := q.RegistryEntry(ctx, typ)
		_, register := q.RegisterFile(ctx, typ, queue.RegistryEntry{})
		_, update := q.UpdateFile(ctx, typ, queue.RegistryEntry{})
		_, ackFile := q.AckFile(ctx, typ, queue.RegistryEntry{}, nil)
		_, _, succeed := q.SucceedFile(ctx, typ, [16]byte{}, queue.RegistryEntry{})
		_, dead := q.DeadLetters(ctx, typ, queue.ID{}, queue.Limit{Messages: 1})
		bury := q.MoveToDeadLetters(ctx, typ, []queue.DeadLetter{{Message: queue.Message{ID: id(1, 1, 1)}}})
		_, note := q.HolderNote(ctx, typ)
		setNote := q.SetHolderNote(ctx, typ, nil)
		remove := q.RemoveDeadLetters(ctx, typ, []queue.ID{id(1, 1, 1)})
		_, settings := q.Settings(ctx, typ)
		_, change := q.PatchSettings(ctx, typ, queue.SettingsPatch{DrainPaused: new(true)})
		_, foreign := q.ForeignKeys(ctx, typ, "", 1)
		_, removeForeign := q.RemoveForeignKeys(ctx, typ, nil)
		for i, err := range []error{foreign, removeForeign, settings, change, fetch, depth, file, register, update, ackFile, succeed, dead, bury, remove, note, setNote, q.Ack(ctx, typ, []queue.ID{id(1, 1, 1)}), q.RegisterType(ctx, typ)} {
			if !errors.Is(err, queue.ErrInvalidType) {
				t.Errorf("operation %d on type %q: %v", i, typ, err)
			}
		}
	}
}

// testClock: the queue's clock is near that of this machine, and does not go backwards between two reads.
func testClock(t *testing.T, q queue.Queue) {
	last, err := q.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(last).Abs(); d > time.Hour {
		t.Errorf("the queue's clock differs from this machine's by %v: fix one of them, or the test's server", d)
	}
	for range 100 {
		now, err := q.Now(t.Context())
		if err != nil || now.Before(last) {
			t.Fatalf("%v after %v, %v", now, last, err)
		}
		last = now
	}
}

// operations returns all operations, for tests of their common behaviour.
func operations(q queue.Queue) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Insert": func(ctx context.Context) error { return q.Insert(ctx, "orders", numbered("orders", 1, 3)) },
		"Fetch": func(ctx context.Context) error {
			_, err := q.Fetch(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1})
			return err
		},
		"Ack":          func(ctx context.Context) error { return q.Ack(ctx, "orders", []queue.ID{id(1, 1, 1)}) },
		"RegisterType": func(ctx context.Context) error { return q.RegisterType(ctx, "orders") },
		"Types":        func(ctx context.Context) error { _, err := q.Types(ctx); return err },
		"Depth":        func(ctx context.Context) error { _, err := q.Depth(ctx, "orders", 1); return err },
		"File":         func(ctx context.Context) error { _, _, err := q.RegistryEntry(ctx, "orders"); return err },
		"RegisterFile": func(ctx context.Context) error {
			_, err := q.RegisterFile(ctx, "orders", queue.RegistryEntry{})
			return err
		},
		"UpdateFile": func(ctx context.Context) error {
			_, err := q.UpdateFile(ctx, "orders", queue.RegistryEntry{})
			return err
		},
		"AckFile": func(ctx context.Context) error {
			_, err := q.AckFile(ctx, "orders", queue.RegistryEntry{}, []queue.ID{id(1, 1, 1)})
			return err
		},
		"SucceedFile": func(ctx context.Context) error {
			_, _, err := q.SucceedFile(ctx, "orders", [16]byte{}, queue.RegistryEntry{})
			return err
		},
		"Now": func(ctx context.Context) error { _, err := q.Now(ctx); return err },
		"Bury": func(ctx context.Context) error {
			return q.MoveToDeadLetters(ctx, "orders", lettersOf(numbered("orders", 1, 3)))
		},
		"Dead": func(ctx context.Context) error {
			_, err := q.DeadLetters(ctx, "orders", queue.ID{}, queue.Limit{Messages: 1})
			return err
		},
		"HolderNote":    func(ctx context.Context) error { _, err := q.HolderNote(ctx, "orders"); return err },
		"SetHolderNote": func(ctx context.Context) error { return q.SetHolderNote(ctx, "orders", []byte("{}")) },
		"RemoveDead":    func(ctx context.Context) error { return q.RemoveDeadLetters(ctx, "orders", []queue.ID{id(1, 1, 1)}) },
		"Settings":      func(ctx context.Context) error { _, err := q.Settings(ctx, "orders"); return err },
		"AllSettings":   func(ctx context.Context) error { _, err := q.AllSettings(ctx); return err },
		"ChangeSettings": func(ctx context.Context) error {
			_, err := q.PatchSettings(ctx, "orders", queue.SettingsPatch{DrainPaused: new(true)})
			return err
		},
		"Heartbeat":     func(ctx context.Context) error { return q.Heartbeat(ctx, queue.Member{Instance: "w"}) },
		"Members":       func(ctx context.Context) error { _, err := q.Members(ctx, "", 0); return err },
		"Leave":         func(ctx context.Context) error { return q.Leave(ctx, "w") },
		"Notify":        func(ctx context.Context) error { return q.Notify(ctx, []string{"orders"}) },
		"Notifications": func(ctx context.Context) error { _, err := q.Notifications(ctx, nil); return err },
		"PendingTypes":  func(ctx context.Context) error { _, err := q.PendingTypes(ctx); return err },
		"Pending":       func(ctx context.Context) error { _, err := q.Pending(ctx, []string{"orders"}, 1); return err },
		"Foreign":       func(ctx context.Context) error { _, err := q.ForeignKeys(ctx, "orders", "", 1); return err },
		"RemoveForeign": func(ctx context.Context) error { _, err := q.RemoveForeignKeys(ctx, "orders", nil); return err },
	}
}

// testEndedContext: every operation returns the error of an ended context at once, whatever the server does.
func testEndedContext(t *testing.T, q queue.Queue) {
	for name, op := range operations(q) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err := op(ctx)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
		if d := time.Since(begin); d > ctxGrace {
			t.Errorf("%s took %v to notice", name, d)
		}
		var ie *queue.InsertError
		if name == "Insert" && (!errors.As(err, &ie) || !ie.Refused) {
			t.Errorf("%s: nothing was sent, so it is refused: %v", name, err)
		}
	}
	if got := fetchAll(t, q, "orders"); len(got) != 0 {
		t.Errorf("%d messages stored with an ended context", len(got))
	}
}

// testClosed: after Close every operation returns queue.ErrClosed. Closing twice is no error.
func testClosed(t *testing.T, q queue.Queue) {
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for name, op := range operations(q) {
		err := op(t.Context())
		if !errors.Is(err, queue.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
		var ie *queue.InsertError
		if name == "Insert" && (!errors.As(err, &ie) || !ie.Refused) {
			t.Errorf("%s: a closed queue refuses: %v", name, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
