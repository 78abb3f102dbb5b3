package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

type delayedLine struct {
	Type, ID  string
	InSeconds float64 `json:"in_seconds"`
}

func delayedLines(t *testing.T, b backend, args ...string) (rows []delayedLine) {
	t.Helper()
	r := mustRun(t, nil, "fencepost", append([]string{"scheduled", "ls", "--url", b.url, "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		t.Fatalf("scheduled ls: %v\n%s", err, r.stdout)
	}
	return rows
}

// TestDelayedMessagesSurviveAKilledScheduler: thousands of messages become due while the worker that promotes them is killed. Each is in
// its file once, in order, except those that were removed before.
func TestDelayedMessagesSurviveAKilledScheduler(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		const n = 4000
		var lines strings.Builder
		for i := range n {
			fmt.Fprintf(&lines, "order %d\n", i)
		}
		scheduled := func(args ...string) []string {
			return append([]string{"scheduled", args[0], "--url", b.url}, args[1:]...)
		}
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "audit", "--delay", "1h", "-m", "a", "-m", "b", "-m", "c")
		mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "orders", "--delay", "2s")
		r := mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "past", "--at", "2020-01-31T15:04:05Z", "-m", "p")
		if !strings.Contains(r.stderr, "past") {
			t.Errorf("publish --at: %v", r)
		}
		if p := pending(t, b); p["orders"] != 0 || p["audit"] != 0 {
			t.Errorf("pending before anybody promotes: %v", p)
		}
		rows := delayedLines(t, b, "--type", "audit")
		if len(rows) != 3 || rows[0].InSeconds < 3000 {
			t.Fatalf("%+v", rows)
		}
		if r := mustRun(t, nil, "fencepost", scheduled("ls", "-n", "2")...); strings.Count(r.stdout, "\n") != 3 || !strings.Contains(r.stderr, "more than 2") {
			t.Errorf("ls: %v", r)
		}
		if r := mustRun(t, nil, "fencepost", scheduled("rm", "--type", "audit", "--dry-run")...); !strings.Contains(r.stderr, "3 messages match, nothing was changed") {
			t.Errorf("rm --dry-run: %v", r)
		}
		if r := mustRun(t, nil, "fencepost", scheduled("rm", rows[0].ID, "--yes")...); r.stdout != "removed=1\n" {
			t.Errorf("rm: %v", r)
		}
		if r := run(t, nil, "fencepost", scheduled("rm", rows[0].ID, rows[1].ID, "--yes")...); r.code != partial || r.stdout != "removed=1\n" {
			t.Errorf("rm of one that is there and one that is not: %v", r)
		}

		worker := func(name string) *process {
			return start(t, name, "worker", "--url", b.url, "--dir", b.dir, "--all-types", "--log-format", "json")
		}
		first := worker("first worker")
		eventually(t, time.Minute, "the first messages are promoted", func() bool {
			_, err := os.Stat(filepath.Join(b.dir, "orders.fpl"))
			return err == nil
		})
		first.signal(t, syscall.SIGKILL)
		second := worker("second worker")
		eventually(t, 2*time.Minute, "everything that is due is promoted and appended", func() bool {
			// The order matters: messages become pending before they stop being delayed.
			if len(delayedLines(t, b)) != 1 {
				return false
			}
			p := pending(t, b)
			return p["orders"] == 0 && p["past"] == 0
		})
		second.signal(t, syscall.SIGTERM)
		second.wait(t, time.Minute)
		got := payloads(t, b, "orders")
		if joined := string(bytes.Join(got, []byte("\n"))) + "\n"; joined != lines.String() {
			t.Errorf("%d messages in the file, want %d in order", len(got), n)
		}
		if got := payloads(t, b, "past"); len(got) != 1 {
			t.Errorf("%d messages that were due long ago", len(got))
		}
		refused(t, run(t, nil, "fencepost", scheduled("ls", "--type", "orders")...), nothing, "no delayed message")
		if r := mustRun(t, nil, "fencepost", scheduled("rm", "--all", "--yes")...); r.stdout != "removed=1\n" {
			t.Errorf("rm --all: %v", r)
		}
		refused(t, run(t, nil, "fencepost", scheduled("rm", "--all", "--yes")...), nothing, "no delayed message")
	})
}

func TestBadScheduledCommands(t *testing.T) {
	b := embedded(t)
	mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--message", "m")
	id := queue.NewID(queue.ID{}.Time(), 1, 1).String()
	for _, c := range []struct {
		args  []string
		words string
	}{
		{[]string{"fencepost", "scheduled", "rm"}, "--all"},
		{[]string{"fencepost", "scheduled", "rm", "--all", "--type", "t"}, "--all"},
		{[]string{"fencepost", "scheduled", "rm", "--all", id}, "--all"},
		{[]string{"fencepost", "scheduled", "rm", "xyz"}, "scheduled ls"},
		{[]string{"fencepost", "scheduled", "ls", "--type", "T"}, `"T"`},
		{[]string{"fencepost", "scheduled", "ls", "--count", "0"}, "--count"},
		{[]string{"fencepost", "scheduled", "ls", "x"}, `"x"`},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--delay", "10m", "--at", "2026-01-31T15:04:05Z"}, "cannot be combined"},
		{[]string{"producer", "publish", "--type", "t", "--resume", "state", "--delay", "10m", "scheduled_test.go"}, "--resume"},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--delay", "-10m"}, "negative"},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--delay", "10"}, "10m"},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--delay", "soon"}, "10m"},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--at", "10m"}, "2026-01-31T15:04:05Z"},
		{[]string{"producer", "publish", "--type", "t", "-m", "m", "--at", "2026-13-31T15:04:05Z"}, "2026-01-31T15:04:05Z"},
	} {
		refused(t, run(t, nil, c.args[0], append(c.args[1:], "--url", b.url)...), usage, c.words)
	}
}
