package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// TestJournalOfAnUnclearOutcome: a resumed run must send the batch again, unchanged.
func TestJournalOfAnUnclearOutcome(t *testing.T) {
	for last, changed := range map[queue.Status]bool{queue.Stored: true, queue.Unknown: false} {
		j := &journal{path: filepath.Join(t.TempDir(), "state"), input: filepath.Join(t.TempDir(), "input"), unlock: func() {}}
		if err := os.WriteFile(j.input, []byte("message 1\nmessage 2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
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

// TestChangedFlightIsRefused: messages that may be stored are sent again with their old numbers, so an input that now has different messages
// there is refused, even if its size, beginning and end are the same. Later messages may have changed.
func TestChangedFlightIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := &publishFlags{typ: "t", resume: filepath.Join(dir, "state"), format: cli.NewOneOf("lines")}
	ins := []input{{name: filepath.Join(dir, "input")}}
	const line = 1 << 19
	text := bytes.Repeat(append(bytes.Repeat([]byte{'x'}, line-1), '\n'), 8)
	write := func(change int) {
		t.Helper()
		b := bytes.Clone(text)
		b[change] = 'y'
		if err := os.WriteFile(ins[0].name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() error {
		j, err := f.openJournal(ins, nil)
		if err == nil {
			j.unlock()
		}
		return err
	}
	write(3 * line)
	j, err := f.openJournal(ins, nil)
	if err != nil {
		t.Fatal(err)
	}
	j.state.Queue = "sqlite://q.db"
	for i := range 5 {
		j.handOver(Position{Offset: int64(line * (i + 1)), Line: i + 1})
	}
	for range 3 {
		j.settled(queue.Result{Status: queue.Stored})
	}
	if err := j.save(queue.Checkpoint{Producer: 7, N: 3, InFlight: 1, Time: time.UnixMilli(1000)}); err != nil { // then it is killed
		t.Fatal(err)
	}
	j.unlock()
	if err := open(); err != nil {
		t.Errorf("nothing was changed: %v", err)
	}
	write(3*line + 1)
	if err := open(); err == nil || cli.Code(err) != cli.ExitUsage || !strings.Contains(err.Error(), "changed after line 3, where 1 messages may already be stored") {
		t.Errorf("a message in flight was changed: %v", err)
	}
	text[3*line] = 'y'
	for _, other := range []int{2*line + 5, 4*line + 5} { // before and after the message in flight
		write(other)
		if err := open(); err != nil {
			t.Errorf("byte %d was changed: %v", other, err)
		}
	}
}
