package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/worker/workertest"
)

// withDeadLetter returns a database with one dead letter, and the letter's ID.
func withDeadLetter(t *testing.T) (url string, q *sqlitequeue.Queue, id string) {
	t.Helper()
	url = "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "orders", "bad")
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	msgs, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.MoveToDeadLetters(t.Context(), "orders", []queue.DeadLetter{{Message: msgs[0], Reason: "bad"}}); err != nil {
		t.Fatal(err)
	}
	return url, q, msgs[0].ID.String()
}

// In a worker's container, the types that the worker serves do not select dead letters or delayed messages.
func TestTypesOfAWorkerChooseNothing(t *testing.T) {
	url, q, _ := withDeadLetter(t)
	config := filepath.Join(t.TempDir(), "worker.yaml")
	if err := os.WriteFile(config, []byte("type: ['audit-*']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCEPOST_URL", url)
	for variable, value := range map[string]string{"FENCEPOST_TYPE": "orders", "FENCEPOST_CONFIG": config} {
		t.Setenv(variable, value)
		for command, want := range map[string]string{"dead rm": "name the dead letters", "dead requeue": "name the dead letters", "scheduled rm": "name the delayed messages"} {
			if code, out, errs := runRoot(t, strings.Fields(command)...); code != cli.ExitUsage || !strings.Contains(errs, want) {
				t.Errorf("%s with %s: %d, %s%s", command, variable, code, out, errs)
			}
		}
		workertest.RequireDead(t, q, "orders", "bad")
		if code, out, errs := runRoot(t, "dead", "ls"); code != 0 || !strings.Contains(out, "orders") {
			t.Errorf("dead ls with %s: %d, %s%s", variable, code, out, errs)
		}
		os.Unsetenv(variable)
	}
	if code, out, errs := runRoot(t, "dead", "rm", "--type", "orders", "--yes"); code != 0 || out != "removed=1\n" {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

// What is removed for good is confirmed by --yes, whatever chooses it; --dry-run with --yes is a dry run.
func TestRemovalsAreConfirmed(t *testing.T) {
	url, q, id := withDeadLetter(t)
	publish(t, url, "orders", "pending")
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	delayed, err := p.PublishAfter(t.Context(), 48*time.Hour, "orders", []byte("later"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, removed string }{
		{"dead rm --all", "removed=1\n"},
		{"dead rm --type orders", "removed=1\n"},
		{"dead rm " + id, "removed=1\n"},
		{"scheduled rm --all", "removed=1\n"},
		{"scheduled rm " + delayed.String(), "removed=1\n"},
		{"types purge orders --all", "purged=1 bytes=7\n"},
	} {
		args := append(strings.Fields(c.args), "--url", url)
		if code, out, errs := runRoot(t, args...); code != cli.ExitUsage || !strings.Contains(errs, "check first with --dry-run, then give --yes") {
			t.Errorf("%s: %d, %s%s", c.args, code, out, errs)
		}
		if code, out, errs := runRoot(t, append(args, "--dry-run", "--yes")...); code != 0 || out == c.removed || !strings.Contains(out+errs, "dry run") {
			t.Errorf("%s --dry-run --yes: %d, %s%s", c.args, code, out, errs)
		}
	}
	for args, want := range map[string]string{"dead rm " + id: "removed=1\n", "scheduled rm --all": "removed=1\n", "types purge orders --all": "purged=1 bytes=7\n"} {
		if code, out, errs := runRoot(t, append(strings.Fields(args), "--url", url, "--yes")...); code != 0 || out != want {
			t.Errorf("%s --yes: %d, %s%s", args, code, out, errs)
		}
	}
}

// A list that a name or a filter makes empty is an empty array, and the same exit code as that of the table.
func TestEmptyListsAsJSON(t *testing.T) {
	url, _, _ := withDeadLetter(t)
	for command, want := range map[string]string{
		"types peek orders":           "nothing is pending there",
		"types peek ordrs":            "knows no type ordrs",
		"types peek orders --foreign": "has no foreign keys",
		"types ls --pending":          "no type has pending messages",
		"dead ls --type audit":        "no dead letter",
		"scheduled ls --type orders":  "no delayed message",
	} {
		args := append(strings.Fields(command), "--url", url)
		if code, out, errs := runRoot(t, args...); code != cli.ExitNothing || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s%s", command, code, out, errs)
		}
		if code, out, errs := runRoot(t, append(args, "-o", "json")...); code != cli.ExitNothing || out != "[]\n" || !strings.Contains(errs, want) {
			t.Errorf("%s -o json: %d, %s%s", command, code, out, errs)
		}
	}
}
