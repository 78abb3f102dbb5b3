package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fileLines returns the messages in a type's file.
func fileLines(t *testing.T, b backend, typ string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(mustRun(t, nil, "fencepost", "cat", filepath.Join(b.dir, typ+".fpl")).stdout, "\n"), "\n")
}

// TestCopyFromAMomentBeforeIsRefused: messages are acknowledged right after a copy of the file was made, their worker dies at once, and the copy is
// put back. The registry knows better: no worker goes on with the copy, and none does when the newest file is back.
func TestCopyFromAMomentBeforeIsRefused(t *testing.T) {
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
		w := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "2s")
		publish(1, 10)
		older, err := os.ReadFile(file)
		must(t, err)
		publish(11, 20)
		w.signal(t, syscall.SIGKILL)
		w.wait(t, runTimeout)
		newest, err := os.ReadFile(file)
		must(t, err)

		must(t, os.WriteFile(file, older, 0o600))
		drain := []string{"--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "2s", "--until-empty"}
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
