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
)

// progress is the part of a state file that the tests check.
type progress struct {
	Messages int64 `json:"messages"`
	InFlight int   `json:"in_flight"`
	Done     bool  `json:"done"`
}

func readProgress(t *testing.T, path string) (p progress) {
	t.Helper()
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return p
	}
	if err == nil {
		err = json.Unmarshal(b, &p) // the file is complete whenever it is read
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKilledPublishIsResumed: the publishing of a file is killed again and again, while a worker drains. The same command resumes it until every
// line is in the type's file once and in order.
func TestKilledPublishIsResumed(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		const lines = 60_000
		input, state := filepath.Join(t.TempDir(), "input"), filepath.Join(t.TempDir(), "state")
		var text strings.Builder
		for i := range lines {
			fmt.Fprintf(&text, "line %d\n", i)
		}
		if err := os.WriteFile(input, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		command := func(more ...string) []string {
			return append([]string{"publish", "--url", b.url, "--type", "t", "--resume", state, input}, more...)
		}
		drain := func() {
			t.Helper()
			mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty")
		}
		signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL}
		if !strings.HasPrefix(b.url, "sqlite:") {
			signals = signals[:2]
		}
		for i, with := range signals {
			p := start(t, fmt.Sprint("producer ", i), "producer", command("--rate", "2k")...)
			before := readProgress(t, state).Messages
			eventually(t, runTimeout, "the producer makes progress", func() bool { return readProgress(t, state).Messages > before+500 })
			p.signal(t, with)
			code := p.wait(t, runTimeout)
			if with == syscall.SIGTERM && (code != stopped || readProgress(t, state).InFlight != 0) {
				t.Errorf("after SIGTERM: exit code %d, %+v", code, readProgress(t, state))
			}
			if i%2 == 0 {
				drain() // messages that were in flight then are no longer in the queue
			}
		}
		if p := readProgress(t, state); p.Done || p.Messages >= lines {
			t.Fatalf("it was too late to kill it: %+v", p)
		}
		if r := mustRun(t, nil, "producer", command()...); !strings.Contains(r.stderr, "resuming after line") {
			t.Errorf("%v", r)
		}
		if p := readProgress(t, state); !p.Done || p.Messages != lines || p.InFlight != 0 {
			t.Errorf("at the end: %+v", p)
		}
		if r := mustRun(t, nil, "producer", command()...); !strings.Contains(r.stderr, "already published, all of its 60000 messages") || !strings.HasPrefix(r.stdout, "published=0 ") {
			t.Errorf("once more: %v", r)
		}
		drain()
		file := filepath.Join(b.dir, "t.fpl")
		if r := mustRun(t, nil, "fencepost", "cat", file); r.stdout != text.String() {
			t.Errorf("the file holds %d lines, want %d, each once and in order", strings.Count(r.stdout, "\n"), lines)
		}
		if r := mustRun(t, nil, "fencepost", "verify", file); !strings.Contains(r.stdout, "gaps 0") || !strings.Contains(r.stdout, "producers 1 ") {
			t.Errorf("%v", r)
		}
	})
}

// TestResumeRefuses: a foreign state file, or one whose messages are no longer remembered, is refused with the remedy and not changed.
func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	dir := t.TempDir()
	path := func(name, text string) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if text != "" {
			if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	input, state := path("input", "a\nb\nc\n"), path("state", "")
	publish := func(args ...string) result {
		return run(t, strings.NewReader("x\n"), "producer", append([]string{"publish", "--url", b.url}, args...)...)
	}
	for _, args := range [][]string{{"-"}, {}, {"--format", "raw", input}, {input, input}, {"--message", "x"}, {"--dry-run", input}} {
		refused(t, publish(append([]string{"--type", "t", "--resume", state}, args...)...), usage, "--resume", "one FILE")
	}
	refused(t, publish("--type", "t", "--resume", state, "/dev/null"), usage, "regular file")

	// A pause interrupts publishing; afterwards the same command publishes the rest.
	mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "other", "--message", "m") // creates the database
	mustRun(t, nil, "fencepost", "types", "pause", "t", "--create", "--publish", "--url", b.url)
	same := []string{"--type", "t", "--header", "k=v", "--resume", state, input}
	refused(t, publish(same...), notNow, "line 1", "fencepost types resume t")
	if p := readProgress(t, state); p.Done || p.Messages != 0 {
		t.Errorf("%+v", p)
	}
	kept, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, publish("--type", "u", "--header", "k=v", "--resume", state, input), usage, "--type")
	refused(t, publish("--type", "t", "--resume", state, input), usage, "--header")
	refused(t, publish("--type", "t", "--header", "k=v", "--format", "ndjson", "--resume", state, input), usage, "--format")
	refused(t, publish("--type", "t", "--header", "k=v", "--resume", state, path("longer", "a\nb\nc\nd\n")), usage, "is not the file", input)
	refused(t, publish("--type", "t", "--header", "k=v", "--resume", state, path("other", "a\nx\nc\n")), usage, "is not the file", input)
	refused(t, publish("--type", "t", "--header", "k=v", "--resume", input, input), usage, "not a state file")
	r := run(t, nil, "producer", append([]string{"publish", "--url", "sqlite://" + filepath.Join(dir, "another.db")}, same...)...)
	refused(t, r, usage, "another.db", "--url")
	if now, err := os.ReadFile(state); err != nil || string(now) != string(kept) {
		t.Errorf("a refusal changed the state: %s, %v", now, err)
	}

	// Messages in flight that are too old to be recognised as copies.
	var old map[string]any
	if err := json.Unmarshal(kept, &old); err != nil {
		t.Fatal(err)
	}
	old["producer"], old["in_flight"], old["time"] = "00000000000000ff", 2, time.Now().Add(-13*time.Hour).UnixMilli()
	text, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	path("state", string(text))
	refused(t, publish(same...), failed, "too old", "2 messages after line 0", "fencepost types peek", "fencepost cat")
	path("state", string(kept))

	// Two commands at a time.
	limit := func(n string) {
		t.Helper()
		mustRun(t, nil, "fencepost", "types", "limit", "t", "--max-backlog", n, "--url", b.url)
	}
	limit("1")
	mustRun(t, nil, "fencepost", "types", "resume", "t", "--url", b.url)
	first := start(t, "first", "producer", append([]string{"publish", "--url", b.url}, same...)...)
	eventually(t, runTimeout, "the first one waits for room", func() bool { return strings.Contains(first.stderr.String(), "waiting for room") })
	refused(t, publish(same...), held, "another producer")
	limit("0")
	if code := first.wait(t, runTimeout); code != 0 || pending(t, b)["t"] != 3 {
		t.Errorf("exit code %d, %v", code, pending(t, b))
	}
}
