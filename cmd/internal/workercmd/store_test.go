package workercmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/worker/workertest"
)

// A worker appends to files in a store, logs which, and ignores the directory that the
// container image sets.
func TestWorkerKeepsFilesInAStore(t *testing.T) {
	db, dir := filepath.Join(t.TempDir(), "queue.db"), t.TempDir()
	t.Setenv("FENCEPOST_DIR", filepath.Join(t.TempDir(), "data"))
	q, err := sqlitequeue.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	workertest.Publish(t, q, "orders", "order 1")
	w := startAnywhere(t, "--url", "sqlite://"+db, "--store", "shared:"+dir, "--listen", "127.0.0.1:0")
	log := w.await(t, "holding the type")
	for _, want := range []string{`"store":"shared:` + dir + `"`, `"file":"orders.fpl in shared:` + dir + `"`} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is not logged", want)
		}
	}
	url := "http://" + addr.FindStringSubmatch(log)[1]
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, metrics := get(t, url+"/metrics"); strings.Contains(metrics, "\nfencepost_appended_messages_total{type=\"orders\"} 1\n") {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the message was not appended")
		}
	}
	_, body := get(t, url+"/statusz")
	var status struct {
		Store    string
		Settings []cli.Setting
	}
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.Store != "shared:"+dir || !strings.Contains(body, `"value": "shared:`+dir+`"`) {
		t.Errorf("/statusz: %v, %s", err, body)
	}
	if code, _ := w.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s, err := dirslots.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	report, err := storage.Verify(t.Context(), "orders.fpl", storage.VerifyOptions{FS: slots.New(t.Context(), s)})
	if err != nil || report.Err() != nil || report.Messages != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// A database that reports success for each of many inserts with one name gets no files.
func TestWorkerRefusesAStoreThatDoesNotKeepItsWord(t *testing.T) {
	var there atomic.Pointer[bson.D]
	s := fake.StartWith(t, func(command string, document bson.Raw) bson.D {
		switch command {
		case "listCollections":
			return fake.Found("files.$cmd.listCollections")
		case "insert":
			var insert struct {
				Documents []bson.D `bson:"documents"`
			}
			if err := bson.Unmarshal(document, &insert); err != nil {
				return fake.Failed(9)
			}
			there.Store(&insert.Documents[0])
			return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}
		case "find":
			if d := there.Load(); d != nil {
				return fake.Found("files.slots", *d)
			}
		}
		return nil
	})
	w := startAnywhere(t, "--url", "sqlite://"+filepath.Join(t.TempDir(), "queue.db"), "--store", "mongodb://"+s.Addr()+"/files", "--until-empty")
	if code := w.end(t); code != cli.ExitFailed {
		t.Errorf("exit code %d", code)
	}
	if log := w.String(); !strings.Contains(log, "error: mongodb://"+s.Addr()+"/files: of 32 concurrent creates of the same value 32 succeeded, and exactly one must") ||
		strings.Contains(log, "worker started") {
		t.Error("it should be refused, and say why")
	}
}

// The store may be on another server than the messages: the worker waits for that one, too.
func TestWorkerWaitsForTheServerOfTheStore(t *testing.T) {
	s, url, _ := electing(t, 189)
	w := startAnywhere(t, "--url", "sqlite://"+filepath.Join(t.TempDir(), "queue.db"), "--store", url, "--listen", "127.0.0.1:0")
	log := w.await(t, "waiting for a usable server")
	want := "waiting for a usable server at mongodb://" + s.Addr() + "/shop"
	if code, body := get(t, "http://"+addr.FindStringSubmatch(log)[1]+"/readyz"); code != 503 || !strings.Contains(body, want) || !strings.Contains(body, "no primary") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, took := w.stop(t); code != 0 || took > quick {
		t.Errorf("exit code %d after %v", code, took)
	}
}

// A worker that cannot use its directory ends at startup, instead of being ready until the first message.
func TestWorkerTestsItsDirectory(t *testing.T) {
	dir := t.TempDir()
	file, url := filepath.Join(dir, "file"), "sqlite://"+filepath.Join(dir, "queue.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	work := func(dir string) (code int, log string) {
		t.Helper()
		var out bytes.Buffer
		cmd := New()
		cmd.SetArgs([]string{"--url", url, "--dir", dir, "--type", "orders", "--allow-overlay", "--until-empty"})
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		return cli.Run(t.Context(), cmd), out.String()
	}
	for _, dir := range []string{file, filepath.Join(file, "data"), "/proc/x"} {
		if code, log := work(dir); code != cli.ExitFailed || strings.Contains(log, "worker started") || strings.Count(log, "error: ") != 1 {
			t.Errorf("--dir %s: exit code %d: %s", dir, code, log)
		}
	}
	if code, log := work(filepath.Join(dir, "new", "data")); code != 0 {
		t.Errorf("a directory that does not exist yet: exit code %d: %s", code, log)
	}
}
