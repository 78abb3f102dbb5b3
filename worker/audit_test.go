package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/internal/ledger"
	"pgregory.net/rapid"
)

func auditRecord(a *Audit, kind storage.Kind, producer, n uint64) error {
	id := queue.NewID(time.UnixMilli(1_700_000_000_000+int64(n)), producer, n)
	return a.Record(storage.Record{Kind: kind, ID: id[:], Index: n})
}

// predecessor is the state after a file with messages 1 to 3 and 6 of producer 1, and 1 to 9 of producer 2.
func predecessor(t *testing.T) []byte {
	t.Helper()
	l := ledger.New(ledger.Options{})
	for _, m := range [][2]uint64{{1, 1}, {1, 2}, {1, 3}, {1, 6}, {2, 1}, {2, 2}, {2, 3}, {2, 4}, {2, 5}, {2, 6}, {2, 7}, {2, 8}, {2, 9}} {
		id := queue.NewID(time.UnixMilli(1), m[0], m[1])
		if _, _, err := l.Replay(storage.Record{ID: id[:]}); err != nil {
			t.Fatal(err)
		}
	}
	return l.State()
}

func TestAuditAcrossGenerations(t *testing.T) {
	for name, c := range map[string]struct {
		kind     storage.Kind
		messages [][2]uint64 // producer, n
		problem  string
		ranges   []Range // of producer 1
	}{
		"goes on":             {0, [][2]uint64{{1, 7}, {1, 8}, {3, 1}}, "", []Range{{7, 8}}},
		"a late message":      {storage.KindAfterGap, [][2]uint64{{1, 5}, {1, 7}}, "", []Range{{5, 5}, {7, 7}}},
		"a declared gap":      {storage.KindAfterGap, [][2]uint64{{1, 9}}, "", []Range{{9, 9}}},
		"a copy":              {0, [][2]uint64{{1, 3}}, "in a file before this one", []Range{{3, 3}}},
		"a copy, as declared": {storage.KindAfterGap, [][2]uint64{{1, 3}}, "in a file before this one", []Range{{3, 3}}},
		"twice in this file":  {0, [][2]uint64{{1, 7}, {1, 7}}, "in the file twice", []Range{{7, 7}}},
		"a hole":              {0, [][2]uint64{{1, 8}}, "messages 7 to 7", []Range{{8, 8}}},
		"a hole at the start": {0, [][2]uint64{{3, 2}}, "messages 1 to 1", nil},
	} {
		var a Audit
		if err := a.Restore(predecessor(t)); err != nil {
			t.Fatal(err)
		}
		for _, m := range c.messages {
			if err := auditRecord(&a, c.kind, m[0], m[1]); err != nil {
				t.Fatal(err)
			}
		}
		problems, n := a.Problems()
		if c.problem == "" && n != 0 || c.problem != "" && (n != 1 || !strings.Contains(problems[0].Error(), c.problem)) {
			t.Errorf("%s: %v", name, problems)
		}
		for _, p := range a.Producers() {
			if p.Number == 2 {
				t.Errorf("%s: a producer without a message in this file is listed", name)
			}
			if want := name == "goes on" || name == "twice in this file"; p.Number == 1 && (!slices.Equal(p.Ranges, c.ranges) || p.Contiguous() != want) {
				t.Errorf("%s: ranges %v, contiguous %v", name, p.Ranges, p.Contiguous())
			}
		}
	}
	var a Audit
	if err := a.Restore([]byte{99}); err == nil {
		t.Error("an unknown state was accepted")
	}
}

// Records that a repair gave up may have been of any producer: a hole after them is no violation, a later hole is.
func TestAuditBehindLostRecords(t *testing.T) {
	var a Audit
	for _, err := range []error{
		auditRecord(&a, 0, 1, 1),
		a.Record(storage.Record{Kind: storage.KindLost, ID: []byte{0}}),
		auditRecord(&a, 0, 1, 4),
		auditRecord(&a, 0, 2, 3),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if problems, n := a.Problems(); n != 0 {
		t.Errorf("%v", problems)
	}
	if err := auditRecord(&a, 0, 1, 6); err != nil {
		t.Fatal(err)
	}
	if _, n := a.Problems(); n != 1 {
		t.Errorf("%d problems, want the hole before 6", n)
	}
}

// Each record costs about the same, however many gaps its producer has.
func TestAuditOfManyGaps(t *testing.T) {
	const most = 800_000
	var a Audit
	record := func(n uint64) {
		if err := auditRecord(&a, storage.KindAfterGap, 1, n); err != nil {
			t.Fatal(err)
		}
	}
	for n := uint64(2); n <= most; n += 2 {
		record(n)
	}
	if got := a.Producers()[0].Ranges; len(got) != most/2 || got[1] != (Range{4, 4}) {
		t.Errorf("%d ranges, the second is %v", len(got), got[1])
	}
	for n := uint64(most - 1); n < most; n -= 2 { // to 1
		record(n)
	}
	if got := a.Producers()[0].Ranges; !slices.Equal(got, []Range{{1, most}}) || a.ranges != 1 {
		t.Errorf("with all numbers: %d ranges, counted as %d; the first is %v", len(got), a.ranges, got[0])
	}
}

// Ranges against a model that remembers each number.
func TestAuditRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Producer
		model := map[uint64]bool{}
		for _, n := range rapid.SliceOf(rapid.Uint64Range(1, 30)).Draw(t, "numbers") {
			p.add(n)
			model[n] = true
			var want []Range
			for n := uint64(1); n <= 30; n++ {
				if has := p.has(n); has != model[n] {
					t.Fatalf("%v: has %d: %v", p.Ranges, n, has)
				}
				switch {
				case model[n] && model[n-1]:
					want[len(want)-1].To = n
				case model[n]:
					want = append(want, Range{n, n})
				}
			}
			if !slices.Equal(p.Ranges, want) {
				t.Fatalf("%v, want %v", p.Ranges, want)
			}
		}
	})
}
