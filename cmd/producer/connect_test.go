package main

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/mongotest/fake"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
)

// whenSaid calls f once, when the text is written.
type whenSaid struct {
	text string
	f    func()

	mu   sync.Mutex
	b    bytes.Buffer
	once sync.Once
}

func (w *whenSaid) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(b)
	if w.f != nil && strings.Contains(w.b.String(), w.text) {
		w.once.Do(func() { go w.f() })
	}
	return len(b), nil
}

func (w *whenSaid) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// run runs the producer and returns its exit code and its output.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runUntil(t, &whenSaid{}, args...)
}

func runUntil(t *testing.T, errs *whenSaid, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(""))
	cmd.SetOut(&out)
	cmd.SetErr(errs)
	code = cli.Run(context.Background(), cmd)
	return code, out.String(), errs.String()
}

// quick is how long a stop may take on a busy machine. The rule allows a second; without the rule it takes 5 s and more.
const quick = 4500 * time.Millisecond

// insertedOne is the response to an insert of one message.
var insertedOne = bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}

// A producer that starts during an election waits for the primary, reports so once, and publishes.
func TestProducerWaitsForAPrimary(t *testing.T) {
	var elected atomic.Bool
	var s *fake.Server
	s = fake.Start(t, func(command string) bson.D {
		switch {
		case fake.IsHello(command):
			return s.Member(elected.Load())
		case !elected.Load():
			return fake.Failed(10107)
		case command == "insert":
			return insertedOne
		}
		return nil
	})
	time.AfterFunc(6*time.Second, func() { elected.Store(true) })
	code, out, errs := run(t, "publish", "--url", "mongodb://"+s.Addr()+"/db?replicaSet=rs0&serverSelectionTimeoutMS=2000", "--type", "orders", "--message", "x")
	if code != 0 || !strings.Contains(out, "published=1") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if n := strings.Count(errs, "waiting for a usable server at mongodb://"+s.Addr()+"/db"); n != 1 || !strings.Contains(errs, "no primary") {
		t.Errorf("it should say once what it waits for: %s", errs)
	}
}

// A signal ends the wait for a server at once, and so does the end of --connect-timeout.
func TestProducerEndsTheWaitForAServer(t *testing.T) {
	publish := []string{"publish", "--url", "mongodb://127.0.0.1:1/db?serverSelectionTimeoutMS=100", "--type", "orders", "--message", "x"}
	var signalled atomic.Pointer[time.Time]
	code, out, errs := runUntil(t, &whenSaid{text: "waiting for a usable server", f: func() {
		signalled.Store(new(time.Now()))
		syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
	}}, publish...)
	if took := time.Since(*signalled.Load()); code != cli.ExitStopped || took > quick || out != "" {
		t.Errorf("exit code %d after %v: %s%s", code, took, out, errs)
	}
	code, _, errs = run(t, append(publish, "--connect-timeout", "1s")...)
	if code != cli.ExitFailed || !strings.Contains(errs, "within 1s (--connect-timeout)") || !strings.Contains(errs, "connection refused") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	for _, never := range []string{"0", "-1s"} {
		code, _, errs = run(t, append(publish, "--connect-timeout", never)...)
		if code != cli.ExitUsage || !strings.Contains(errs, "--connect-timeout") || strings.Contains(errs, "waiting") {
			t.Errorf("--connect-timeout %s: exit code %d: %s", never, code, errs)
		}
	}
}

// A producer that waits for room in a full backlog has sent nothing: it stops at once, even while its server is silent.
func TestProducerThatWaitsForRoomStopsWhileTheServerIsSilent(t *testing.T) {
	var s *fake.Server
	s = fake.StartWith(t, func(command string, document bson.Raw) bson.D {
		in, _ := document.Lookup("find").StringValueOK()
		switch {
		case fake.IsHello(command):
			return s.Member(true)
		case in == "types":
			return fake.Found("db.types", bson.D{{Key: "_id", Value: "orders"}, {Key: "max_backlog", Value: 1}})
		case in == "messages":
			return fake.Found("db.messages", bson.D{{Key: "_id", Value: "orders/" + queue.NewID(time.Now(), 1, 1).String()}})
		}
		return nil
	})
	var signalled atomic.Pointer[time.Time]
	code, out, errs := runUntil(t, &whenSaid{text: "waiting for room", f: func() {
		s.Silent(true)
		time.Sleep(2 * time.Second)
		signalled.Store(new(time.Now()))
		syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
	}}, "publish", "--url", "mongodb://"+s.Addr()+"/db?replicaSet=rs0", "--type", "orders", "--message", "a", "--message", "b")
	if took := time.Since(*signalled.Load()); code != cli.ExitStopped || took > quick {
		t.Errorf("exit code %d after %v", code, took)
	}
	if !regexp.MustCompile(`^published=0 unknown=0 rejected=2 `).MatchString(out) || !strings.Contains(errs, "stopped after 0 messages") {
		t.Errorf("the results: %s%s", out, errs)
	}
}

// An error says each thing once: which message, why it is not stored, and the remedy.
func TestErrorsOfRefusedMessagesSayEachThingOnce(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for typ, patch := range map[string]queue.SettingsPatch{"paused": {PublishPaused: new(true)}, "full": {MaxBacklog: new(1)}} {
		if err := q.RegisterType(t.Context(), typ); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PatchSettings(t.Context(), typ, patch); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, errs := run(t, "publish", "--url", url, "--type", "full", "-m", "a"); code != 0 {
		t.Fatal(errs)
	}
	for typ, want := range map[string]string{
		"paused": "error: --message, message 1: publish: not stored: publishing is paused for type paused; to resume it: fencepost types resume paused\n",
		"full": "error: --message, message 1: publish: not stored: " + queue.ErrBacklogFull.Error() + ": 1 messages of type full are pending, which is its limit; " +
			"start a worker for it, or raise the limit; the command for that: fencepost types limit full --max-backlog N\n",
	} {
		if code, _, errs := run(t, "publish", "--url", url, "--type", typ, "--backlog-wait", "0", "-m", "b"); code != cli.ExitNotNow || errs != want {
			t.Errorf("exit code %d: %s, want %s", code, errs, want)
		}
	}
}
