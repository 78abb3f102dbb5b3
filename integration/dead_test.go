package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// bury publishes n messages of a type and makes them dead letters.
func bury(t *testing.T, b backend, typ string, n int, reason string) {
	t.Helper()
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "%s %d\n", typ, i)
	}
	mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", typ)
	be, closeIt := open(t, b)
	defer closeIt()
	msgs, err := be.Queue.Fetch(t.Context(), typ, queue.ID{}, queue.Limit{Messages: n + 1})
	if err != nil || len(msgs) != n {
		t.Fatalf("%d messages, %v", len(msgs), err)
	}
	var letters []queue.DeadLetter
	for _, m := range msgs {
		letters = append(letters, queue.DeadLetter{Message: m, Reason: reason, Attempts: 5, Worker: "a worker"})
	}
	if err := be.Queue.MoveToDeadLetters(t.Context(), typ, letters); err != nil {
		t.Fatal(err)
	}
}

type deadRow struct{ Type, ID, Reason, Payload string }

func deadRows(t *testing.T, b backend, args ...string) (rows []deadRow) {
	t.Helper()
	r := mustRun(t, nil, "fencepost", append([]string{"dead", "ls", "--url", b.url, "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		t.Fatalf("dead ls: %v\n%s", err, r.stdout)
	}
	return rows
}

// TestDeadCommands: an operator inspects dead letters, requeues some, which workers then append, and removes the others.
func TestDeadCommands(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		dead := func(args ...string) []string {
			return append([]string{"dead", args[0], "--url", b.url}, args[1:]...)
		}
		bury(t, b, "orders", 700, "connection refused")
		bury(t, b, "audit", 3, "bad\nformat")
		rows := deadRows(t, b)
		if len(rows) != 703 || rows[0].Type != "audit" || rows[3].Reason != "connection refused" {
			t.Fatalf("%d rows, the first: %+v", len(rows), rows[0])
		}
		if n := len(deadRows(t, b, "--type", "audit", "--type", "orders", "--reason", "format", "--since", "1h")); n != 3 {
			t.Errorf("%d rows match", n)
		}
		r := mustRun(t, nil, "fencepost", dead("ls", "--count", "2")...)
		if strings.Count(r.stdout, "\n") != 3 || !strings.Contains(r.stdout, "bad …") || !strings.Contains(r.stderr, "more than 2") {
			t.Errorf("ls: %v", r)
		}
		r = mustRun(t, nil, "fencepost", dead("show", rows[0].ID)...)
		if !strings.Contains(r.stdout, "audit 0\n") || !strings.Contains(r.stdout, "a worker") {
			t.Errorf("show: %v", r)
		}
		if r := mustRun(t, nil, "fencepost", dead("show", "-o", "raw", rows[0].ID)...); r.stdout != "audit 0" {
			t.Errorf("show raw: %v", r)
		}
		var row deadRow
		if err := json.Unmarshal([]byte(mustRun(t, nil, "fencepost", dead("show", "-o", "json", rows[0].ID)...).stdout), &row); err != nil || row.Payload != "audit 0" {
			t.Errorf("show json: %+v, %v", row, err)
		}

		r = mustRun(t, nil, "fencepost", dead("requeue", "--all", "--dry-run")...)
		if strings.Count(r.stdout, "\n") != 704 || !strings.Contains(r.stderr, "703 letters match, nothing was changed") || len(deadRows(t, b)) != 703 || pending(t, b)["orders"] != 0 {
			t.Errorf("a dry run listed %d lines and left %d letters", strings.Count(r.stdout, "\n"), len(deadRows(t, b)))
		}
		if r := mustRun(t, nil, "fencepost", dead("requeue", rows[4].ID)...); r.stdout != "requeued=1 left=0\n" {
			t.Errorf("requeue of one: %v", r)
		}
		if r := mustRun(t, nil, "fencepost", dead("requeue", "--type", "orders")...); r.stdout != "requeued=699 left=0\n" {
			t.Errorf("requeue of a type: %v", r)
		}
		refused(t, run(t, nil, "fencepost", dead("requeue", "--type", "orders")...), nothing, "no dead letter")
		if r := run(t, nil, "fencepost", dead("rm", rows[1].ID, rows[4].ID, "--yes")...); r.code != partial || r.stdout != "removed=1\n" {
			t.Errorf("rm of one that is there and one that is not: %v", r)
		}
		mustRun(t, nil, "fencepost", dead("rm", "--type", "audit", "--dry-run")...)
		if r := mustRun(t, nil, "fencepost", dead("rm", "--all", "--yes")...); r.stdout != "removed=2\n" {
			t.Errorf("rm: %v", r)
		}
		if r := mustRun(t, nil, "fencepost", dead("ls")...); r.stdout != "no dead letters\n" {
			t.Errorf("ls of nothing: %v", r)
		}
		refused(t, run(t, nil, "fencepost", dead("rm", rows[1].ID, "--yes")...), nothing)
		refused(t, run(t, nil, "fencepost", dead("show", rows[1].ID)...), nothing)

		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "orders", "--until-empty")
		got := payloads(t, b, "orders")
		if len(got) != 700 || string(got[0]) != "orders 1" || string(got[1]) != "orders 0" || string(got[699]) != "orders 699" {
			t.Errorf("%d messages in the file, from %q to %q", len(got), got[0], got[len(got)-1])
		}
	})
}

// TestRequeueAtOnce: if several commands requeue the same letters concurrently, exactly one publishes each letter.
func TestRequeueAtOnce(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		const letters = 300
		bury(t, b, "orders", letters, "connection refused")
		var requeues []*process
		for i := range 3 {
			requeues = append(requeues, start(t, fmt.Sprint("requeue ", i), "fencepost", "dead", "requeue", "--url", b.url, "--type", "orders", "--wait", "3m"))
		}
		codes := map[int]int{}
		for _, p := range requeues {
			codes[p.wait(t, runTimeout)]++
		}
		if codes[0] != 1 || codes[nothing] != 2 {
			t.Errorf("exit codes %v, want one 0, and %d where nothing was left", codes, nothing)
		}
		if n := pending(t, b)["orders"]; n != letters {
			t.Errorf("%d letters became %d messages", letters, n)
		}
		if r := mustRun(t, nil, "fencepost", "dead", "ls", "--url", b.url); r.stdout != "no dead letters\n" {
			t.Errorf("ls of nothing: %v", r)
		}
	})
}

// TestOneCommandAtATime: a command refuses to change what another one is changing, and names the other.
func TestOneCommandAtATime(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		bury(t, b, "orders", 1, "connection refused")
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "orders", "--message", "m")
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "orders", "--message", "m", "--delay", "1h")
		be, closeIt := open(t, b)
		defer closeIt()
		lease, err := be.Locker.Acquire(t.Context(), queue.AdminLock("orders"), lock.WithWhy("a program of ours"))
		if err != nil {
			t.Fatal(err)
		}
		commands := [][]string{{"dead", "requeue", "--type", "orders"}, {"dead", "rm", "--all", "--yes"}, {"scheduled", "rm", "--all", "--yes"}, {"types", "purge", "orders", "--all", "--yes"},
			{"types", "purge", "orders", "--foreign", "--yes"}}
		for _, c := range commands {
			for _, wait := range []string{"0", "50ms"} {
				refused(t, run(t, nil, "fencepost", append(c, "--url", b.url, "--wait", wait)...), held, "a program of ours", fmt.Sprint("pid ", os.Getpid()), ", since 20",
					"fencepost locks release --force --why TEXT _admin.orders")
			}
		}
		for _, c := range commands[:3] {
			mustRun(t, nil, "fencepost", append(c[:2:2], "--all", "--dry-run", "--url", b.url)...)
		}
		mustRun(t, nil, "fencepost", "types", "purge", "orders", "--all", "--dry-run", "--url", b.url)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range [][]string{commands[0], commands[2], commands[3]} {
			mustRun(t, nil, "fencepost", append(c, "--url", b.url, "--wait", "0")...)
		}
	})
}

// TestWorkerPutsAsideWhatTheFileCannotTake: a foreign publisher's message blocks its type until a worker is allowed to put it aside.
func TestWorkerPutsAsideWhatTheFileCannotTake(t *testing.T) {
	uri, db := mongotest.Fresh(t)
	b := backend{url: uri, dir: filepath.Join(t.TempDir(), "data")}
	drainable(t, b, 10)
	be, closeIt := open(t, b)
	defer closeIt()
	now, err := be.Queue.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	foreign := "t/" + queue.NewID(now, 4711, 1).String()
	if _, err := db.Collection("messages").InsertOne(t.Context(), bson.D{{Key: "_id", Value: foreign}, {Key: "b", Value: "text"},
		{Key: "h", Value: bson.D{{Key: "k", Value: strings.Repeat("v", 100_000)}}}}); err != nil {
		t.Fatal(err)
	}
	w := start(t, "blocked worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--log-format", "json")
	eventually(t, time.Minute, "the worker says what to do", func() bool { return strings.Contains(w.stderr.String(), "--on-error dead") })
	w.signal(t, syscall.SIGTERM)
	w.wait(t, time.Minute)
	mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty", "--on-error", "dead")
	rows := deadRows(t, b)
	if len(rows) != 1 || "t/"+rows[0].ID != foreign || !strings.Contains(rows[0].Reason, "headers") || pending(t, b)["t"] != 0 {
		t.Errorf("dead letters %+v, pending %v", rows, pending(t, b))
	}
	if r := mustRun(t, nil, "fencepost", "cat", "--format", "json", filepath.Join(b.dir, "t.fpl")); strings.Count(r.stdout, "\n") != 10 {
		t.Errorf("cat: %v", r)
	}
	if r := mustRun(t, nil, "fencepost", "verify", filepath.Join(b.dir, "t.fpl")); !strings.Contains(r.stdout, "  10 messages  index 0..10  ") || !strings.Contains(r.stdout, "  skipped 1  ") {
		t.Errorf("verify: %v", r)
	}
	// It cannot be requeued unchanged, and the error says why.
	refused(t, run(t, nil, "fencepost", "dead", "requeue", "--url", b.url, "--all"), partial, "headers")
	if r := run(t, nil, "worker", "--url", b.url, "--type", "t", "--on-error", "ignore"); r.code != usage {
		t.Errorf("worker: %v", r)
	}
}

func TestBadDeadCommands(t *testing.T) {
	b := embedded(t)
	mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--message", "m")
	id := queue.NewID(queue.ID{}.Time(), 1, 1).String()
	for _, c := range []struct {
		args  []string
		words string
	}{
		{[]string{"requeue"}, "--all"},
		{[]string{"rm"}, "--all"},
		{[]string{"rm", "--reason", "x"}, "--all and the same filter"},
		{[]string{"requeue", "--since", "1h"}, "--all and the same filter"},
		{[]string{"rm", "--all", "--type", "t"}, "--all"},
		{[]string{"rm", "--all"}, "give --yes"},
		{[]string{"rm", id}, "give --yes"},
		{[]string{"requeue", "--all", id}, "--all"},
		{[]string{"requeue", "xyz"}, "dead ls"},
		{[]string{"rm", "--type", "T"}, `"T"`},
		{[]string{"show"}, "one ID"},
		{[]string{"show", id, id}, "one ID"},
		{[]string{"ls", "--count", "0"}, "--count"},
		{[]string{"ls", "--since", "soon"}, "soon"},
		{[]string{"ls", "x"}, `"x"`},
	} {
		args := append([]string{"dead", c.args[0], "--url", b.url}, c.args[1:]...)
		refused(t, run(t, nil, "fencepost", args...), usage, c.words)
	}
	refused(t, run(t, nil, "fencepost", "dead", "ls", "--url", "sqlite://"+t.TempDir()+"/no.db"), nothing, "no database")
}
