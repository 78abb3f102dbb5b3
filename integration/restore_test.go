package integration

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
)

// TestOperationsExamples runs the marked examples of docs/operations.md, and compares their output.
func TestOperationsExamples(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)<!-- a test runs this -->\n```console\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/operations.md has %d examples for this test, want 2", len(blocks))
	}
	for _, block := range blocks {
		title, _, _ := strings.Cut(block[1], "\n")
		t.Run(title, func(t *testing.T) {
			// The first example needs its sequence of delayed messages to continue, which it does for a minute.
			for {
				began := time.Now()
				problem := runExample(t, block[1])
				if problem == "" {
					return
				}
				if time.Since(began) < 45*time.Second {
					t.Fatal(problem)
				}
				t.Logf("took %v, trying again: %s", time.Since(began), problem)
			}
		})
	}
}

// runExample runs the commands of a console block in an empty directory. It returns the differences.
func runExample(t *testing.T, block string) (problem string) {
	t.Helper()
	dir := t.TempDir()
	commands := strings.Split("\n"+block, "\n$ ")[1:]
	for _, c := range commands {
		command, want, _ := strings.Cut(c, "\n")
		ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(kit.Env(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s%s", command, err, &stdout, &stderr)
		}
		if !matches(want, stdout.String()) {
			return command + " printed\n" + stdout.String() + "and docs/operations.md says\n" + want + "\n" + stderr.String()
		}
	}
	return ""
}

// matches compares output with the expected text of a document. An ellipsis matches anything within a line.
func matches(want, got string) bool {
	want, got = strings.TrimSpace(want), strings.TrimSpace(got)
	return regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + `$`).MatchString(got)
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, got string
		matches   bool
	}{{"A\nB", "A\nB\n", true}, {"A\nB", "A\nB\nC\n", false}, {"A …\nB", "A x y\nB\n", true}, {"A …", "A x\nB\n", false}, {"", "A\n", false}, {"a.c", "abc", false}} {
		if matches(c.want, c.got) != c.matches {
			t.Errorf("%q matches %q: %v", c.want, c.got, !c.matches)
		}
	}
}

// snapshot backs up the backend's database while no program runs, and returns a function that restores it.
func (b backend) snapshot(t *testing.T) (restore func()) {
	t.Helper()
	back, err := b.db.BackUp()
	must(t, err)
	return func() { t.Helper(); must(t, back()) }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRestoredDatabaseLosesAndDoublesNothing: the backup is older than a promotion and older than messages that were promoted since. Messages
// confirmed after the restore are in the file or dead letters, and nothing is in the file twice.
func TestRestoredDatabaseLosesAndDoublesNothing(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		publish := func(messages ...string) {
			args := []string{"publish", "--url", b.url, "--type", "orders", "--at", "2026-01-01T00:00:00Z"}
			for _, m := range messages {
				args = append(args, "-m", m)
			}
			mustRun(t, nil, "producer", args...)
		}
		drain := func() { mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "orders", "--until-empty") }
		file := func() []string {
			return strings.Fields(mustRun(t, nil, "fencepost", "cat", filepath.Join(b.dir, "orders.fpl")).stdout)
		}
		publish("A")
		drain()
		publish("E")
		restore := b.snapshot(t)
		publish("B")
		drain()
		restore()
		publish("C", "D", "F", "G")
		drain()
		got := file()
		letters := run(t, nil, "fencepost", "dead", "requeue", "--url", b.url, "--type", "orders")
		drain()
		all := file()
		if !slices.Equal(got[:3], []string{"A", "E", "B"}) || !slices.IsSorted(got[3:]) || letters.code != 0 && len(got) != 7 {
			t.Errorf("before the dead letters are published again the file holds %q; %v", got, letters)
		}
		slices.Sort(all)
		if !slices.Equal(all, []string{"A", "B", "C", "D", "E", "F", "G"}) {
			t.Errorf("the file holds %q", all)
		}
		mustRun(t, nil, "fencepost", "verify", b.dir)
	})
}
