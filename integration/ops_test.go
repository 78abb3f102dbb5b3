package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var listensAt = regexp.MustCompile(`"addr":"([^"]+)"`)

// startAnswering starts a worker that answers HTTP, and returns its address.
func startAnswering(t *testing.T, args ...string) (w *process, address string) {
	t.Helper()
	w = start(t, "worker", "worker", append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	eventually(t, time.Minute, "the worker listens", func() bool {
		if m := listensAt.FindStringSubmatch(w.stderr.String()); m != nil {
			address = "http://" + m[1]
		}
		return address != ""
	})
	return w, address
}

// ask returns the answer to a GET, with status 0 if there is none.
func ask(url string) (code int, body string) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// TestWorkerAnswersHTTP: a worker under constant HTTP requests drains, stops on SIGTERM in the middle of it, and loses nothing.
func TestWorkerAnswersHTTP(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		const n = 20_000
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--count", fmt.Sprint(n), "--size", "100B")
		w, address := startAnswering(t, "--url", b.url, "--dir", b.dir, "--type", "t", "--batch", "100", "--lease", "5s", "--pprof")
		eventually(t, time.Minute, "ready", func() bool { code, _ := ask(address + "/readyz"); return code == 200 })
		eventually(t, time.Minute, "something is appended", func() bool {
			_, body := ask(address + "/metrics")
			return regexp.MustCompile(`fencepost_appended_messages_total\{type="t"\} [1-9]`).MatchString(body)
		})
		for path, want := range map[string]string{"/livez": "ok", "/statusz": `"state": "held"`, "/debug/pprof/": "goroutine"} {
			if code, body := ask(address + path); code != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		w.signal(t, syscall.SIGTERM)
		if code := w.wait(t, time.Minute); code != 0 {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		if code, _ := ask(address + "/livez"); code != 0 {
			t.Errorf("the port answers %d after the end", code)
		}
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		if got := len(payloads(t, b, "t")); got != n {
			t.Errorf("%d messages in the file, %d were published", got, n)
		}
		mustRun(t, nil, "fencepost", "verify", filepath.Join(b.dir, "t.fpl"))
	})
}

// TestWorkerAnswersBeforeItIsConnected: a worker that cannot reach its server says so, without secrets, and ends on a signal.
func TestWorkerAnswersBeforeItIsConnected(t *testing.T) {
	w, address := startAnswering(t, "--url", "mongodb://bob:secret@127.0.0.1:1/shop?serverSelectionTimeoutMS=120000", "--type", "t")
	code, body := ask(address + "/readyz")
	if code != 503 || body != "connecting to mongodb://127.0.0.1:1/shop\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	for path, want := range map[string]int{"/livez": 200, "/statusz": 200, "/metrics": 200, "/debug/pprof/": 404} {
		if code, body := ask(address + path); code != want || strings.Contains(body, "secret") {
			t.Errorf("%s: %d\n%s", path, code, body)
		}
	}
	// A port in use gives one clear error.
	refused(t, run(t, nil, "worker", "--type", "t", "--listen", strings.TrimPrefix(address, "http://"), "--url", embedded(t).url), failed, "in use")
	w.signal(t, syscall.SIGTERM)
	if code := w.wait(t, time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := w.stderr.String(); strings.Contains(log, "secret") {
		t.Errorf("the log tells the secret:\n%s", log)
	}
}

// TestTopAndTypesShow: top and types show display the actions of workers and operators.
func TestTopAndTypesShow(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		bury(t, b, "audit", 3, "bad format")
		drainable(t, b, 5)
		mustRun(t, nil, "fencepost", "types", "pause", "--url", b.url, "t", "--why", "disk swap")
		var rows []struct {
			Type, State, Why string
			Backlog          *int
			Rate             *float64
		}
		if err := json.Unmarshal([]byte(mustRun(t, nil, "fencepost", "top", "--once", "-o", "json", "--url", b.url).stdout), &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) != 2 || rows[0].Type != "t" || *rows[0].Backlog != 5 || !strings.Contains(rows[0].State, "paused") || rows[0].Why != "disk swap" ||
			rows[1].State != "idle" || rows[0].Rate != nil {
			t.Errorf("top: %+v", rows)
		}
		table := mustRun(t, nil, "fencepost", "top", "--url", b.url).stdout // without a terminal it prints once
		if !strings.Contains(table, "paused (disk swap)") || strings.Contains(table, "\x1b") || strings.Count(table, "\n") != 3 {
			t.Errorf("top: %s", table)
		}
		show := func(typ string) string {
			return mustRun(t, nil, "fencepost", "types", "show", typ, "--url", b.url).stdout
		}
		for typ, words := range map[string][]string{"t": {"disk swap", "5, the oldest for", "none yet", "never used"}, "audit": {"nothing", "3; fencepost dead ls"}} {
			for _, w := range words {
				if got := show(typ); !strings.Contains(got, w) {
					t.Errorf("types show %s does not say %q:\n%s", typ, w, got)
				}
			}
		}
		mustRun(t, nil, "fencepost", "types", "resume", "--url", b.url, "t")
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		var d struct {
			DurableIndex uint64 `json:"durable_index"`
			Lock         struct{ Token int64 }
		}
		r := mustRun(t, nil, "fencepost", "types", "show", "t", "--url", b.url, "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &d); err != nil || d.DurableIndex != 5 || d.Lock.Token == 0 {
			t.Errorf("types show: %v", r)
		}
		refused(t, run(t, nil, "fencepost", "types", "show", "nosuch", "--url", b.url), nothing, "nosuch", "types ls")
	})
}

func TestWrongOperationsArgumentsAreUsageErrors(t *testing.T) {
	b := embedded(t)
	drainable(t, b, 1)
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("url: "+b.url+"\nleese: 3s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		code  int
		words []string
	}{
		{"worker --type t --pprof", usage, []string{"--pprof", "--listen"}},
		{"worker --type t --listen 9090", usage, []string{"9090", ":9090"}},
		{"worker --type t --listen :99999", usage, []string{":99999"}},
		{"worker --type t --config " + config, usage, []string{config + ":2", `"leese"`, `"lease"`}},
		{"worker --type t --config /nowhere.yaml", usage, []string{"/nowhere.yaml", "no such file"}},
		{"worker config --config " + config, usage, []string{config + ":2"}},
		{"worker config extra", usage, []string{"extra"}},
		{"worker config -o xml", usage, []string{"xml"}},
		{"producer publish --type t --message x --config " + config, usage, []string{config + ":2"}},
		{"fencepost types ls --config " + config, usage, []string{config + ":2"}},
		{"fencepost types show", usage, []string{"one type"}},
		{"fencepost types show Orders", usage, []string{"Orders"}},
		{"fencepost types show t --count-up-to 0", usage, []string{"--count-up-to"}},
		{"fencepost top --refresh 1ms", usage, []string{"--refresh"}},
		{"fencepost top --count-up-to 0", usage, []string{"--count-up-to"}},
		{"fencepost top Extra", usage, []string{`"Extra"`}},
		{"worker --type t --metrics-types all", usage, []string{"--metrics-types", "--listen"}},
		{"fencepost top --url sqlite:///nowhere/x.db", nothing, []string{"/nowhere/x.db"}},
	} {
		args := strings.Fields(c.args)
		refused(t, run(t, nil, args[0], args[1:]...), c.code, c.words...)
	}
}

// TestConfigurationFile: one file configures all three programs, and worker config shows the result.
func TestConfigurationFile(t *testing.T) {
	b := embedded(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("url: %s\nworker:\n  dir: %s\n  type: [t]\n  until-empty: true\nproducer:\n  type: t\n  seed: 7\n", b.url, b.dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, nil, "producer", "publish", "--config", config, "--count", "7")
	var settings []struct{ Name, Value, Source string }
	r := mustRun(t, nil, "worker", "config", "--config", config, "--batch", "9", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &settings); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"dir": b.dir + " from " + config + ":3", "batch": "9 from flag", "lease": "20s from default", "until-empty": "true from " + config + ":5",
		"allow-overlay": "true from env FENCEPOST_ALLOW_OVERLAY"}
	for _, s := range settings {
		if w, ok := want[s.Name]; ok && w != s.Value+" from "+s.Source {
			t.Errorf("%s: %s from %s, want %s", s.Name, s.Value, s.Source, w)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("not shown: %v", want)
	}
	mustRun(t, nil, "worker", "--config", config)
	if got := len(payloads(t, b, "t")); got != 7 {
		t.Errorf("%d messages in the file", got)
	}
	mustRun(t, nil, "fencepost", "types", "ls", "--config", config)
}
