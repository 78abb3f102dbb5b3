package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/sqlitedb"
	"github.com/fencepost/fencepost/queue"
)

// fileLines returns the messages in a type's file.
func fileLines(t *testing.T, b backend, typ string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(mustRun(t, nil, "fencepost", "cat", filepath.Join(b.dir, typ+".fpl")).stdout, "\n"), "\n")
}

func letterPayload(t *testing.T, b backend, l deadRow) string {
	t.Helper()
	return mustRun(t, nil, "fencepost", "dead", "show", "--url", b.url, "-o", "raw", l.ID).stdout
}

// TestCopyFromAMomentBeforeIsRefused: messages are acknowledged right after a copy of the file was made, their worker dies at once, and the copy is
// put back. Because of the registry no worker continues with the copy. When the newest file is back, a worker continues with that.
func TestCopyFromAMomentBeforeIsRefused(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		publish := func(from, to int) {
			var lines strings.Builder
			for i := from; i <= to; i++ {
				fmt.Fprintln(&lines, i)
			}
			mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "t")
			eventually(t, runTimeout, "the worker drains them", func() bool { return pending(t, b)["t"] == 0 })
		}
		file := filepath.Join(b.dir, "t.fpl")
		w := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s")
		publish(1, 10)
		older, err := os.ReadFile(file)
		must(t, err)
		publish(11, 20)
		w.signal(t, syscall.SIGKILL)
		w.wait(t, runTimeout)
		newest, err := os.ReadFile(file)
		must(t, err)

		must(t, os.WriteFile(file, older, 0o600))
		drain := []string{"--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s", "--until-empty"}
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "-m", "21")
		if r := run(t, nil, "worker", drain...); r.code != 3 || !strings.Contains(r.stderr, "records below index 20 were durable") || pending(t, b)["t"] != 1 {
			t.Errorf("%v", r)
		}
		if r := run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir); r.code != 3 {
			t.Errorf("doctor: %v", r)
		}
		must(t, os.WriteFile(file, newest, 0o600))
		mustRun(t, nil, "worker", drain...)
		if got := fileLines(t, b, "t"); len(got) != 21 || got[20] != "21" {
			t.Errorf("the file holds %q", got)
		}
		mustRun(t, nil, "fencepost", "verify", b.dir)
	})
}

// TestRestoredDatabaseKeepsDeadLetters: the database is restored to a time before a message became a dead letter. The message becomes one again, and
// its two neighbours are recognised as copies.
func TestRestoredDatabaseKeepsDeadLetters(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	mustRun(t, strings.NewReader("one\ntwo\nthree\n"), "producer", "publish", "--url", b.url, "--type", "t", "--header", "a=b")
	db, err := sqlitedb.Open(t.Context(), strings.TrimPrefix(b.url, "sqlite://"), sqlitedb.Options{})
	must(t, err)
	headers, err := json.Marshal(map[string]string{"a": strings.Repeat("b", queue.MaxHeaders)}) // no file accepts that
	must(t, err)
	must(t, db.Write(t.Context(), func(tx *sqlitedb.Tx) error {
		n, err := tx.Exec(`UPDATE queue_messages SET headers = ? WHERE payload = ?`, string(headers), []byte("two"))
		if err == nil && n != 1 {
			err = fmt.Errorf("%d messages", n)
		}
		return err
	}))
	must(t, db.Close())
	restore := b.snapshot(t)
	for _, want := range []string{`"duplicates":0,`, `"duplicates":2,`} {
		r := mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty", "--on-error", "dead")
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%v; want %s", r, want)
		}
		if letters := deadRows(t, b); len(letters) != 1 || letterPayload(t, b, letters[0]) != "two" {
			t.Errorf("letters %+v", letters)
		}
		if got := fileLines(t, b, "t"); !slices.Equal(got, []string{"one", "three"}) || pending(t, b)["t"] != 0 {
			t.Errorf("the file holds %q", got)
		}
		restore()
	}
}

// TestStateFileThatIsSetBackLosesNothing: a producer's state file is set back to an earlier state, and the input was edited where the producer does
// not check it. The producer assigns numbers a second time: its messages become dead letters and are never taken for copies, drained or not.
func TestStateFileThatIsSetBackLosesNothing(t *testing.T) {
	t.Parallel()
	for name, drained := range map[string]bool{"drained": true, "pending": false} {
		t.Run(name, func(t *testing.T) {
			b := embedded(t)
			input, state := filepath.Join(t.TempDir(), "input"), filepath.Join(t.TempDir(), "state")
			const lines, width, before = 500, 8 << 10, 200
			var text bytes.Buffer
			for i := range lines {
				fmt.Fprintf(&text, "%-*d\n", width-1, i)
			}
			must(t, os.WriteFile(input, text.Bytes(), 0o600))
			publish := func() result {
				return mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--resume", state, input)
			}
			drain := func() {
				mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty")
			}
			publish()
			if drained {
				drain()
			}
			// The state as it was after the first 200 lines.
			var earlier map[string]any
			saved, err := os.ReadFile(state)
			must(t, err)
			must(t, json.Unmarshal(saved, &earlier))
			earlier["done"], earlier["offset"], earlier["line"], earlier["messages"], earlier["n"] = false, before*width, before, before, before
			saved, err = json.Marshal(earlier)
			must(t, err)
			must(t, os.WriteFile(state, saved, 0o600))
			edited := text.Bytes()
			copy(edited[250*width:], "edited")
			must(t, os.WriteFile(input, edited, 0o600))
			time.Sleep(2 * time.Millisecond) // messages published from here on have later times

			if r := publish(); !strings.Contains(r.stdout, fmt.Sprintf("published=%d ", lines-before)) {
				t.Errorf("%v", r)
			}
			drain()
			got := fileLines(t, b, "t")
			for i := range got {
				if strings.TrimSpace(got[i]) != fmt.Sprint(i) {
					t.Fatalf("line %d of the file is %.20q", i, got[i])
				}
			}
			letters := deadRows(t, b, "--count", "1000")
			if len(got) != lines || len(letters) != lines-before || pending(t, b)["t"] != 0 {
				t.Fatalf("%d lines in the file, %d letters; want %d and %d", len(got), len(letters), lines, lines-before)
			}
			slices.SortFunc(letters, func(a, b deadRow) int { return strings.Compare(a.ID, b.ID) })
			if payload := letterPayload(t, b, letters[250-before]); !strings.HasPrefix(payload, "edited") {
				t.Errorf("the letter of the line that was edited is %.20q", payload)
			}
		})
	}
}
