package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// A producer known only from the file is forgotten when it is old by the queue's clock and enough others were seen later. For one that the pool
// has seen, or has watched for retention, only the pool's own clock counts.
func TestWhoIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, retention = spareProducers + 100, 24 * time.Hour
		l, _ := testLedger()
		day := retention.Milliseconds()
		for p := range uint64(n) {
			admit(l, message(p, 1), int64(p))
			l.delayed.Record(queue.NewID(epoch, p, 1), int64(p))
		}
		if l.Forget(10*day, retention); len(l.last) != n || len(l.delayed.of) != n {
			t.Fatalf("%d producers are left, although all were seen just now", len(l.last))
		}
		read, _ := testLedger()
		restore := func() {
			t.Helper()
			if err := read.Restore(l.State()); err != nil {
				t.Fatal(err)
			}
		}
		restore()
		if read.Forget(day, retention); len(read.last) != n {
			t.Errorf("%d of %d producers are left, although none is silent by any clock", len(read.last), n)
		}
		if read.AnySilent(day, retention) || !read.AnySilent(10*day, retention) {
			t.Error("the silent producers and the forgotten ones differ")
		}
		read.Forget(10*day, retention)
		if read.AnySilent(10*day, retention) {
			t.Error("a silent producer was not forgotten")
		}
		if len(read.last) != spareProducers || read.last[99] != nil || read.last[100] == nil {
			t.Errorf("%d producers are left", len(read.last))
		}
		if len(read.delayed.of) != spareProducers || read.delayed.of[99] != nil || read.delayed.of[100] == nil || read.delayed.spans != spareProducers {
			t.Errorf("%d publishers of delayed messages are left, with %d spans", len(read.delayed.of), read.delayed.spans)
		}

		// The pool lives longer than its short sessions.
		for _, same := range []bool{true, false} {
			restore()
			time.Sleep(retention - time.Second)
			if read.Forget(0, retention); len(read.last) != n {
				t.Errorf("%d producers are left before their time", len(read.last))
			}
			before := Lives{read.last, read.loose, read.delayed.of}
			if !same { // another pool has appended a message
				admit(l, message(n-1, 2), 0)
				l.delayed.Record(queue.NewID(epoch, n-1, 2), 0)
			}
			next, _ := testLedger()
			if err := next.Restore(l.State()); err != nil {
				t.Fatal(err)
			}
			next.Recall(before)
			time.Sleep(2 * time.Second)
			next.Forget(0, retention)
			if want := map[bool]int{true: 0, false: 1}[same]; len(next.last) != want || len(next.delayed.of) != want {
				t.Errorf("%d and %d producers are left, want %d", len(next.last), len(next.delayed.of), want)
			}
		}
	})
}

// Each of the lists of a ledger can have a silent producer.
func TestAnySilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const retention = time.Hour
		ledgers := map[string]*Ledger{}
		for _, of := range []string{"nobody", "producers", "delayed", "loose"} {
			ledgers[of], _ = testLedger()
		}
		admit(ledgers["producers"], message(1, 1), 0)
		ledgers["delayed"].delayed.Record(queue.NewID(epoch, 1, 1), 0)
		ledgers["loose"].loose[1] = &looseEntry{life: life{since: time.Now()}}
		for _, later := range []bool{false, true} {
			for of, l := range ledgers {
				if got, want := l.AnySilent(0, retention), later && of != "nobody"; got != want {
					t.Errorf("%s, later %t: %t", of, later, got)
				}
			}
			time.Sleep(retention + time.Second)
		}
	})
}
