package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// path is the file of an embedded backend's database.
func (b backend) path() string { return strings.TrimPrefix(b.url, "sqlite://") }

// moveDatabase moves the files of a database that may be in use.
func moveDatabase(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(from+suffix, to+suffix); err != nil && !(suffix != "" && errors.Is(err, os.ErrNotExist)) {
			t.Fatal(err)
		}
	}
}

// TestDatabaseReplacedUnderAProducer: the producer ends, and says what is confirmed and what is in doubt. With the old database back in place
// the same command continues.
func TestDatabaseReplacedUnderAProducer(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(map[bool]string{false: "removed", true: "replaced"}[replaced], func(t *testing.T) {
			t.Parallel()
			b := embedded(t)
			old, copied := b.path()+".old", b.path()+".copy"
			mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "other", "--message", "m")
			content, err := os.ReadFile(b.path())
			must(t, err)
			write(t, copied, content)

			const lines = 20_000
			var text strings.Builder
			for i := range lines {
				fmt.Fprintf(&text, "line %d\n", i)
			}
			input, state := filepath.Join(t.TempDir(), "input"), filepath.Join(t.TempDir(), "state")
			write(t, input, []byte(text.String()))
			publish := []string{"publish", "--url", b.url, "--type", "t", "--resume", state, input}
			p := start(t, "producer", "producer", append(publish, "--rate", "500")...)
			eventually(t, runTimeout, "the producer makes progress", func() bool { return readProgress(t, state).Messages > 100 })
			moveDatabase(t, b.path(), old)
			if replaced {
				must(t, os.Rename(copied, b.path()))
			}
			code := p.wait(t, runTimeout)
			said := p.stdout.String() + p.stderr.String()
			for _, word := range []string{"may be stored or not", b.path(), "removed or replaced", "stop every producer and worker", "put the old files back", "are in the old database"} {
				if code != partial || !strings.Contains(said, word) {
					t.Errorf("exit code %d, want %d and %q in:\n%s", code, partial, word, said)
				}
			}
			var published, unknown, rejected int
			if _, err := fmt.Sscanf(p.stdout.String(), "published=%d unknown=%d rejected=%d", &published, &unknown, &rejected); err != nil || published < 100 || unknown == 0 {
				t.Errorf("%v: %s", err, p.stdout.String())
			}
			if _, err := os.Stat(b.path()); (err == nil) != replaced {
				t.Errorf("the producer has left this at the place of the database: %v", err)
			}

			moveDatabase(t, old, b.path())
			mustRun(t, nil, "producer", publish...)
			mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty")
			if r := mustRun(t, nil, "fencepost", "cat", filepath.Join(b.dir, "t.fpl")); r.stdout != text.String() {
				t.Errorf("the file holds %d lines, want %d, each once and in order", strings.Count(r.stdout, "\n"), lines)
			}
		})
	}
}

// TestDatabaseReplacedUnderAWorker: the worker stops rather than continue with a database that no other program sees, and says why. With the old
// database back in place, a restarted worker continues.
func TestDatabaseReplacedUnderAWorker(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		for _, types := range [][]string{{"--type", "t"}, {"--all-types"}} {
			t.Run(fmt.Sprint(map[bool]string{false: "removed", true: "replaced"}[replaced], types), func(t *testing.T) {
				t.Parallel()
				b := embedded(t)
				publish := func(lines string) {
					t.Helper()
					mustRun(t, strings.NewReader(lines), "producer", "publish", "--url", b.url, "--type", "t")
				}
				publish("1\n2\n")
				old, copied := b.path()+".old", b.path()+".copy"
				content, err := os.ReadFile(b.path())
				must(t, err)
				write(t, copied, content)
				w, address := startAnswering(t, append([]string{"--url", b.url, "--dir", b.dir, "--log-format", "json"}, types...)...)
				eventually(t, runTimeout, "the messages are in the file", func() bool { return pending(t, b)["t"] == 0 })

				moveDatabase(t, b.path(), old)
				if replaced {
					must(t, os.Rename(copied, b.path()))
				}
				if code := w.wait(t, runTimeout); code != failed || !strings.Contains(w.stderr.String(), "stop every producer and worker") {
					t.Errorf("exit code %d, want %d", code, failed)
				}
				if code, _ := ask(address + "/readyz"); code == 200 {
					t.Error("it is ready")
				}
				if _, err := os.Stat(b.path()); (err == nil) != replaced {
					t.Errorf("the worker has left this at the place of the database: %v", err)
				}

				moveDatabase(t, old, b.path())
				publish("3\n")
				mustRun(t, nil, "worker", append([]string{"--url", b.url, "--dir", b.dir, "--until-empty"}, types...)...)
				if r := mustRun(t, nil, "fencepost", "cat", filepath.Join(b.dir, "t.fpl")); r.stdout != "1\n2\n3\n" {
					t.Errorf("the file holds %q", r.stdout)
				}
			})
		}
	}
}
