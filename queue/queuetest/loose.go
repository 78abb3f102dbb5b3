package queuetest

import (
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// testLoose checks that a backend treats loose messages as it treats others: a worker recognizes them by number and header.
func testLoose(t *testing.T, q queue.Queue) {
	const typ = "orders"
	loose, err := queuedriver.MakeLoose([]queue.Message{{Type: typ, Payload: []byte("loose a"), Headers: map[string]string{"k": "v"}}, {Type: typ}, {Type: typ, Payload: []byte("loose c")}}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	foreign := queue.Message{Type: typ, ID: queue.NewID(epoch, 3, 0), Payload: []byte("a number of 0, and no header")}
	all := slices.Concat(loose, []queue.Message{foreign}, numbered(typ, 1, 2))
	slices.SortFunc(all, func(a, b queue.Message) int { return a.ID.Compare(b.ID) })
	mustInsert(t, q, typ, numbered(typ, 1, 2))
	mustInsert(t, q, typ, append(slices.Clone(loose), foreign))
	mustInsert(t, q, typ, loose) // is idempotent by ID
	wantMessages(t, fetchAll(t, q, typ), all)
	wantMessages(t, mustFetch(t, q, typ, all[2].ID, queue.Limit{Messages: 2}), all[3:5])
	wantMessages(t, mustFetch(t, q, typ, loose[0].ID.Prev(), queue.Limit{Messages: 1}), loose[:1])
	for _, m := range fetchAll(t, q, typ) {
		if want := m.ID != foreign.ID && m.ID.N() == 0; m.Loose() != want || (m.Unfit() == "") != (m.ID != foreign.ID) {
			t.Errorf("%s: loose %v, unfit %q", short(m), m.Loose(), m.Unfit())
		}
	}
	if d, err := q.Depth(t.Context(), typ, 10); err != nil || d != (queue.Depth{Pending: 6, Oldest: all[0].ID}) {
		t.Errorf("depth %+v, %v, want 6, the oldest %v", d, err, all[0].ID)
	}
	f := queue.RegistryEntry{FileID: [16]byte{1}, Epoch: 1}
	if _, err := q.RegisterFile(t.Context(), typ, f); err != nil {
		t.Fatal(err)
	}
	if ok, err := q.AckFile(t.Context(), typ, f, ids(loose[:1])); err != nil || !ok {
		t.Errorf("AckFile: %v, %v", ok, err)
	}
	if err := q.MoveToDeadLetters(t.Context(), typ, lettersOf(loose[1:2])); err != nil {
		t.Error(err)
	}
	mustAck(t, q, typ, ids(loose[2:]))
	left := append(numbered(typ, 1, 2), foreign)
	slices.SortFunc(left, func(a, b queue.Message) int { return a.ID.Compare(b.ID) })
	wantMessages(t, fetchAll(t, q, typ), left)
	if p, err := queue.Purge(t.Context(), q, typ, time.Time{}, false); err != nil || p.Messages != 3 || len(fetchAll(t, q, typ)) != 0 {
		t.Errorf("purged %+v, %v; want 3 messages", p, err)
	}
	letters, err := q.DeadLetters(t.Context(), typ, queue.ID{}, queue.Limit{Messages: 10})
	if err != nil || len(letters) != 1 {
		t.Fatalf("%d dead letters, %v", len(letters), err)
	}
	wantMessages(t, []queue.Message{letters[0].Message}, loose[1:2])
}
