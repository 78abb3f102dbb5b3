package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// TestJournalOfAnUnclearOutcome: whoever goes on has to send the batch again, as it was.
func TestJournalOfAnUnclearOutcome(t *testing.T) {
	for last, changed := range map[queue.Status]bool{queue.Stored: true, queue.Unknown: false} {
		j := &journal{path: filepath.Join(t.TempDir(), "state"), unlock: func() {}}
		j.state.Queue = "sqlite://q.db"
		for line := 1; line <= 2; line++ {
			j.handOver(Position{Offset: int64(10 * line), Line: line})
		}
		if err := j.save(queue.Checkpoint{Producer: 7, N: 40, InFlight: 2, Time: time.UnixMilli(1000)}); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(j.path)
		if err != nil {
			t.Fatal(err)
		}
		j.settled(queue.Result{Status: queue.Stored})
		j.settled(queue.Result{Status: last})
		if err := j.finish(); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(j.path)
		if err != nil {
			t.Fatal(err)
		}
		if (string(before) != string(after)) != changed {
			t.Errorf("the last message is %v; before:\n%s\nafter:\n%s", last, before, after)
		}
	}
}
