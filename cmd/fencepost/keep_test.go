package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
)

// stopping is an output that stops the command when it prints its first line.
type stopping struct {
	bytes.Buffer
	stop context.CancelFunc
}

func (s *stopping) Write(p []byte) (int, error) {
	s.stop()
	return s.Buffer.Write(p)
}

// A command that was stopped between two types reports with its exit code that it did not process all of them.
func TestStoppedBetweenTypes(t *testing.T) {
	store, url := storeWith(t)
	for _, args := range [][]string{
		{"keep", "--url", url, "--store", store, "--age", "30d", "--dry-run"},
		{"copy", "--yes", "--url", url, store, t.TempDir()},
	} {
		cmd, errs := root(), &bytes.Buffer{}
		ctx, cancel := context.WithCancel(t.Context())
		out := &stopping{stop: cancel}
		cmd.SetArgs(args)
		cmd.SetOut(out)
		cmd.SetErr(errs)
		if code := cli.Run(ctx, cmd); code != cli.ExitStopped || !strings.HasPrefix(out.String(), "audit") || strings.Contains(out.String(), "orders") {
			t.Errorf("%s: exit code %d, want %d: %s%s", args[0], code, cli.ExitStopped, out, errs)
		}
	}
}

// The name of a directory is not used as a pattern.
func TestDirectoryWithAnyName(t *testing.T) {
	store, url := storeWith(t)
	dir := filepath.Join(t.TempDir(), `data [2025-07] *?\\`)
	if code, _, errs := runRoot(t, "copy", "--yes", "--url", url, store, dir, "audit"); code != 0 {
		t.Fatalf("copy: %d, %s", code, errs)
	}
	for _, args := range [][]string{{"verify", dir}, {"keep", "--url", url, "--age", "30d", "--dry-run", dir}} {
		if code, out, errs := runRoot(t, args...); code != 0 || !strings.Contains(out, "audit") {
			t.Errorf("%s: exit code %d: %s%s", args[0], code, out, errs)
		}
	}
}

// The files that keep removes in a store and in a directory, and its arguments.
func TestKeep(t *testing.T) {
	store, url := storeWith(t)
	data := t.TempDir()
	if code, _, errs := runRoot(t, "copy", "--yes", "--url", url, store, data, "audit"); code != 0 {
		t.Fatalf("copy: %d, %s", code, errs)
	}
	inStore, there := " --url "+url+" --store "+store+" ", " --url "+url+" "
	for _, test := range []struct {
		args string
		code int
		says []string // texts in the output
		not  string
	}{
		{"keep" + there + data, cli.ExitUsage, []string{"--age 30d", "--size 100GiB", "--replaced"}, ""},
		{"keep --age 30d" + there + data, cli.ExitUsage, []string{"--dry-run", "--yes"}, ""},
		{"keep --age -1d --yes" + there + data, cli.ExitUsage, []string{"30d, 12h or 90m"}, ""},
		{"keep --age 30d --yes" + there, cli.ExitUsage, []string{"no file"}, ""},
		{"keep --age 30d --yes" + there + data + "/nonsense", cli.ExitUsage, []string{"nonsense does not exist", "data/orders.fpl"}, ""},
		{"keep --age 30d --yes" + there + data + "/orders.fpl", cli.ExitIntegrity, []string{"orders@0002.fpl"}, "removed=1"},

		{"keep --age 30d --yes orders" + inStore, 0, []string{"orders  removed=0 bytes=0  kept: generation 1 on, index 0 on, files: 2"}, "sealed"},
		{"keep --age 1ns --dry-run orders" + inStore, 0, []string{"orders.fpl in " + store + "  index 0..1", "would be removed: sealed more than 1ns ago", "removed=0 matching=1", "generation 2 on", "(dry run)"}, ""},
		{"keep --age 1ns --dry-run --yes orders" + inStore, 0, []string{"removed=0 matching=1", "(dry run)"}, ""},
		{"keep --replaced --yes orders" + inStore, 0, []string{"orders.fpl in " + store + "  index 0..1", "  removed: replaced by a compaction or repair", "removed=1 ", "kept: generation 2 on, index 0 on, files: 1"}, "dry"},
		{"keep --size 1B --yes" + inStore, cli.ExitIntegrity, []string{"orders  removed=0", "audit.fpl"}, "removed=1"}, // audit continues in the directory
		{"verify orders" + inStore[strings.Index(inStore, " --store"):], 0, []string{"orders@0002.fpl in " + store + "  OK  3 messages", "first kept: generation 2"}, "orders.fpl"},
		{"cat orders" + inStore[strings.Index(inStore, " --store"):], 0, []string{"one\ntwo\nthree\n"}, ""},
		{"cat orders.fpl" + inStore[strings.Index(inStore, " --store"):], cli.ExitUsage, []string{"orders.fpl in " + store + " was removed as an old one; the file of type orders there is orders@0002.fpl: name that one"}, "restore"},
		{"keep --replaced --dry-run orders.fpl" + inStore, 0, []string{"removed=0 matching=0"}, ""},
		{"tail --from 0 orders.fpl" + inStore, 0, []string{"one\ntwo\nthree\n"}, ""},
		{"compact --allow-overlay orders.fpl" + inStore, 0, []string{"orders@0003.fpl in " + store + "  3 records"}, ""},
		{"keep --age 1ns --yes" + there + data, 0, []string{filepath.Join(data, "audit.fpl") + "  index 0..0", "removed=1", "audit  removed=1"}, ""},
		{"keep --age 1ns --yes" + there + data + "/audit@0002.fpl", 0, []string{"removed=0 bytes=0  kept: generation 2 on, index 1 on, files: 1"}, ""},
		{"keep --age 1ns --yes nothing" + inStore, cli.ExitNothing, []string{"no files of type nothing"}, ""},
		{"cat orders", cli.ExitUsage, []string{"orders does not exist", "data/orders.fpl"}, ""}, // a type's name instead of a file
		{"cat orders.fpl", cli.ExitUsage, []string{"error: orders.fpl does not exist; check the path"}, ""},
	} {
		code, out, errs := runRoot(t, strings.Fields(test.args)...)
		for _, s := range test.says {
			if code != test.code || !strings.Contains(out+errs, s) || test.not != "" && strings.Contains(out+errs, test.not) || strings.Count(errs, "error: ") > 1 {
				t.Errorf("%s: exit code %d, want %d, with %q and not %q\nstdout: %s\nstderr: %s", test.args, code, test.code, s, test.not, out, errs)
			}
		}
	}
	// With a database that does not know the files, none is removed.
	db := filepath.Join(t.TempDir(), "queue.db")
	q, err := sqlitequeue.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	other := "sqlite://" + db
	if code, _, errs := runRoot(t, "keep", "--age", "1ns", "--yes", "--url", other, data); code != cli.ExitNothing || !strings.Contains(errs, "no registered file of type audit") {
		t.Errorf("another database: %d, %s", code, errs)
	}
}

// A mistyped name leaves nothing in the database.
func TestKeepOfAnUnknownTypeTakesNoLock(t *testing.T) {
	store, url := storeWith(t)
	if code, _, errs := runRoot(t, "copy", "--url", url, "--yes", store, t.TempDir(), "nope"); code != cli.ExitNothing || !strings.Contains(errs, "no registered file") {
		t.Errorf("copy: %d, %s", code, errs)
	}
	nope := filepath.Join(t.TempDir(), "nope.fpl")
	if code, _, errs := runRoot(t, "keep", "--url", url, "--replaced", "--yes", nope); code != cli.ExitNothing || !strings.Contains(errs, "no registered file of type nope") {
		t.Errorf("keep: %d, %s", code, errs)
	}
	if code, out, errs := runRoot(t, "locks", "ls", "--all", "-o", "json", "--url", url); code != 0 || strings.Contains(out, "nope") {
		t.Errorf("locks: %d, %s%s", code, out, errs)
	}
}
