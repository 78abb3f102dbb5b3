package workercmd

import (
	"bytes"
	"context"
	"io"
	"net/http"
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
)

// quick is how long a stop may take on a busy machine. The rule allows a second; without the rule it takes 5 s and more.
const quick = 4500 * time.Millisecond

// running is a worker program in this process.
type running struct {
	mu   sync.Mutex
	log  bytes.Buffer
	more chan struct{} // something was logged
	code chan int
}

func (r *running) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return r.log.Write(b)
}

func (r *running) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// start runs a worker. There can be one at a time: signals go to all.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	return startAnywhere(t, append(args, "--dir", t.TempDir())...)
}

// startAnywhere is start with args that say where the files are.
func startAnywhere(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{more: make(chan struct{}, 1), code: make(chan int, 1)}
	cmd := New()
	cmd.SetArgs(append(args, "--type", "orders", "--log-format", "json"))
	cmd.SetOut(io.Discard)
	cmd.SetErr(r)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.code <- cli.Run(ctx, cmd)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Log(r.String())
		}
	})
	return r
}

// await waits until something is logged.
func (r *running) await(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		if s := r.String(); strings.Contains(s, text) {
			return s
		}
		select {
		case <-r.more:
		case <-limit:
			t.Fatalf("it never logged %q", text)
		}
	}
}

// stop sends SIGTERM, and returns the exit code and the duration of the stop.
func (r *running) stop(t *testing.T) (code int, took time.Duration) {
	t.Helper()
	began := time.Now()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return r.end(t), time.Since(began)
}

func (r *running) end(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(time.Minute):
		t.Fatal("the worker does not end")
		return 0
	}
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

var addr = regexp.MustCompile(`"addr":"([^"]+)"`)

// electing is a member of a replica set that has no primary until elect is called. Earlier requests get an error with code.
func electing(t *testing.T, code int) (s *fake.Server, url string, elect func()) {
	var elected atomic.Bool
	s = fake.Start(t, func(command string) bson.D {
		switch {
		case fake.IsHello(command):
			return s.Member(elected.Load())
		case !elected.Load():
			return fake.Failed(code)
		}
		return nil
	})
	return s, "mongodb://" + s.Addr() + "/shop?replicaSet=rs0&serverSelectionTimeoutMS=2000&heartbeatFrequencyMS=500", func() { elected.Store(true) }
}

// A worker that starts during an election reports once what it is waiting for, reports it to probes, and continues after the election.
func TestWorkerWaitsForAPrimary(t *testing.T) {
	s, url, elect := electing(t, 189)
	w := start(t, "--url", url, "--listen", "127.0.0.1:0", "--until-empty")
	log := w.await(t, "waiting for a usable server")
	http := "http://" + addr.FindStringSubmatch(log)[1]
	if code, body := get(t, http+"/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
	if code, body := get(t, http+"/readyz"); code != 503 || !strings.Contains(body, "waiting for a usable server at mongodb://"+s.Addr()+"/shop") || !strings.Contains(body, "no primary") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	time.Sleep(time.Second) // several attempts
	elect()
	if code := w.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log = w.String()
	if n := strings.Count(log, "waiting for a usable server"); n != 1 || !strings.Contains(log, "the server is usable now") {
		t.Errorf("it should say once that it waits, and when that is over")
	}
}

// The wait ends with an error after --connect-timeout, unless that is 0.
func TestConnectTimeout(t *testing.T) {
	const closed = "mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=100"
	w := start(t, "--url", closed, "--connect-timeout", "1s")
	if code := w.end(t); code != cli.ExitFailed {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"no usable server at mongodb://127.0.0.1:1/shop within 1s (--connect-timeout)", "connection refused", "waiting for a usable server"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	w = start(t, "--url", closed, "--connect-timeout", "0")
	w.await(t, "waiting for a usable server")
	select {
	case code := <-w.code:
		t.Errorf("it was to wait forever, and ended with exit code %d", code)
	case <-time.After(2 * time.Second):
	}
	if code, took := w.stop(t); code != 0 || took > quick {
		t.Errorf("exit code %d after %v", code, took)
	}
}

// Permanent errors end the wait.
func TestWorkerWaitsForNothingThatAPersonHasToCorrect(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(s *fake.Server, command string) bson.D
		query  string
		says   string
	}{
		"no rights":   {func(*fake.Server, string) bson.D { return fake.Failed(13) }, "directConnection=true", "authSource"},
		"another set": {func(s *fake.Server, _ string) bson.D { return s.Member(true) }, "replicaSet=other", "replicaSet"},
		"a secondary": {func(s *fake.Server, _ string) bson.D {
			return append(s.Member(false), bson.E{Key: "primary", Value: "db7:27017"})
		}, "directConnection=true", "not the primary"},
		"hangs up at once": {func(*fake.Server, string) bson.D { return nil }, "tls=true&tlsInsecure=true", "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			var s *fake.Server
			s = fake.Start(t, func(command string) bson.D {
				// The driver's own handshakes are isMaster.
				if command == "hello" || fake.IsHello(command) && name != "no rights" {
					return tc.answer(s, command)
				}
				return nil
			})
			w := start(t, "--url", "mongodb://"+s.Addr()+"/shop?serverSelectionTimeoutMS=3000&"+tc.query)
			if code := w.end(t); code != cli.ExitFailed {
				t.Errorf("exit code %d", code)
			}
			if log := w.String(); strings.Contains(log, "waiting for") || !strings.Contains(log, tc.says) {
				t.Errorf("it should fail at once and say %q", tc.says)
			}
		})
	}
}

// A signal ends the wait, even if a server accepts connections and says nothing.
func TestSignalEndsTheWaitForAServer(t *testing.T) {
	for _, silent := range []bool{false, true} {
		s, url, _ := electing(t, 10107)
		s.Silent(silent)
		w := start(t, "--url", url)
		w.await(t, "waiting for a usable server")
		if code, took := w.stop(t); code != 0 || took > quick {
			t.Errorf("silent %v: exit code %d after %v", silent, code, took)
		}
		w = start(t, "--url", url, "--until-empty")
		w.await(t, "waiting for a usable server")
		if code, _ := w.stop(t); code != cli.ExitStopped {
			t.Errorf("silent %v, --until-empty: exit code %d", silent, code)
		}
	}
}

// A worker with nothing in hand stops within a second while its server is silent.
func TestIdleWorkerStopsWhileTheServerIsSilent(t *testing.T) {
	s, _, elect := electing(t, 10107)
	elect()
	w := start(t, "--url", "mongodb://"+s.Addr()+"/shop?replicaSet=rs0") // with the usual timeouts
	w.await(t, "worker started")
	time.Sleep(time.Second)
	s.Silent(true)
	time.Sleep(2 * time.Second)
	if code, took := w.stop(t); code != 0 || took > quick {
		t.Errorf("exit code %d after %v", code, took)
	}
}
