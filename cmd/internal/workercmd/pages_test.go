package workercmd

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/worker/workertest"
)

// A worker with --ui serves pages and probes, requires passwords only for the pages, and is read-only.
func TestWorkerWithPages(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "fencepost.db")
	b, err := fencepost.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	workertest.Publish(t, b.Queue, "orders", "chair")
	r := start(t, "--url", url, "--listen", "127.0.0.1:0", "--ui", "--base-path", "/ops", "--user-header", "X-User")
	address := "http://" + addr.FindStringSubmatch(r.await(t, "answering HTTP"))[1]
	ask := func(path string, user ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(user) > 0 {
			req.Header.Set("X-User", user[0])
		}
		client := http.Client{Timeout: time.Minute}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	r.await(t, "worker started")
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		code, body := ask("/ops/types/orders", "anna")
		if code == 200 && strings.Contains(body, `<a href="/ops/types/orders/records/0">0</a>`) && strings.Contains(body, "not read yet") && strings.Contains(body, "<b>holds it</b>") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the record is not on the page: %d\n%s", code, body)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 200, "/statusz": 200, "/ops/types": 403, "/": 403, "/ops/types/orders": 403} {
		if code, body := ask(path); code != want {
			t.Errorf("%s without a user: %d, want %d\n%s", path, code, want, body)
		}
	}
	if code, body := ask("/ops/act/purge?type=orders", "anna"); code != http.StatusForbidden || !strings.Contains(body, "fencepost ui --write") {
		t.Errorf("an action: %d\n%s", code, body)
	}
	if code, body := ask("/", "anna"); code != 200 || !strings.Contains(body, ">orders</a>") {
		t.Errorf("the first page: %d\n%s", code, body)
	}
	// An open page does not keep the worker from stopping.
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/ops/types", nil)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("X-User", "anna")
	open, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Body.Close()
	if code, _ := r.stop(t); code != cli.ExitOK {
		t.Errorf("the worker ended with %d", code)
	}
	if _, err := io.Copy(io.Discard, open.Body); err != nil {
		t.Errorf("the page that is open was not ended, but cut off after a while: %v", err)
	}
}

// While the worker waits for its server, there are no pages, but the probes answer.
func TestPagesBeforeThereIsAServer(t *testing.T) {
	r := start(t, "--url", "mongodb://127.0.0.1:1/x", "--listen", "127.0.0.1:0", "--ui")
	address := "http://" + addr.FindStringSubmatch(r.await(t, "answering HTTP"))[1]
	for path, want := range map[string]int{"/types": 503, "/livez": 200} {
		if code, body := get(t, address+path); code != want {
			t.Errorf("%s: %d, want %d\n%s", path, code, want, body)
		}
	}
}
