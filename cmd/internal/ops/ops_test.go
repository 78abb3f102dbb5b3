package ops

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
)

// get sends a request to the server; every response is checked not to contain the secret.
func get(t *testing.T, s *Server, path string) (code int, body string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + s.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "s3cret") {
		t.Errorf("%s tells the secret:\n%s", path, b)
	}
	return res.StatusCode, string(b)
}

func listen(t *testing.T, o Options) *Server {
	t.Helper()
	o.Addr, o.URL, o.Secrets = "127.0.0.1:0", "mongodb://db1/shop", []string{"", "bob:s3cret"}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// The life of a worker as a probe sees it: connecting, ready, server unreachable, stopping, gone.
func TestProbesFollowTheWorker(t *testing.T) {
	s := listen(t, Options{Settings: []cli.Setting{{Name: "lease", Value: "5s", Source: "flag"}}})
	if code, body := get(t, s, "/readyz"); code != 503 || body != "connecting to mongodb://db1/shop\n" {
		t.Errorf("before there is a pool: %d %q", code, body)
	}
	if code, _ := get(t, s, "/livez"); code != 200 {
		t.Errorf("not alive while it connects: %d", code)
	}
	if code, body := get(t, s, "/statusz"); code != 200 || !strings.Contains(body, `"ready": false`) {
		t.Errorf("/statusz while it connects: %d %s", code, body)
	}

	var away atomic.Bool
	b := workertest.Backend(t)
	b.Queue = &queuetest.Faulty{Queue: b.Queue, Next: func(op queuetest.Op, _ string, _ int) queuetest.Fault {
		if away.Load() && (op == queuetest.OpDepth || op == queuetest.OpFetch || op == queuetest.OpPendingTypes) {
			return queuetest.Fault{Kind: queuetest.Unreachable}
		}
		return queuetest.Fault{}
	}}
	finish, entered := make(chan struct{}), make(chan struct{}, 1)
	pool, done := start(t, s, b, worker.Each(func(_ context.Context, _ worker.Lease, m queue.Message) error {
		switch string(m.Payload) {
		case "slow":
			entered <- struct{}{}
			<-finish
		case "bad":
			return errors.New("cannot log in as bob:s3cret:\nno")
		}
		return nil
	}))
	until(t, "ready", func() bool { code, body := get(t, s, "/readyz"); return code == 200 && body == "ok\n" })

	workertest.Publish(t, b.Queue, "orders", "good", "bad")
	var status statusJSON
	until(t, "a type that is blocked", func() bool {
		_, body := get(t, s, "/statusz")
		status = statusJSON{}
		if err := json.Unmarshal([]byte(body), &status); err != nil {
			t.Fatalf("/statusz: %v\n%s", err, body)
		}
		// "good" counts as handled shortly before it counts as a commit.
		return len(status.Types) == 2 && status.Types[1].State == worker.Blocked && status.Types[1].Handled == 1 &&
			!status.Types[1].LastCommit.IsZero() && status.Types[1].Backlog != nil
	})
	got := status.Types[1]
	if got.LastError != "cannot log in as ***: no" || !got.Held || got.Token == 0 {
		t.Errorf("%+v", got)
	}
	if !status.Ready || status.Instance == "" || len(status.Settings) != 1 || status.Version == "" {
		t.Errorf("%+v", status)
	}
	until(t, "metrics of a type that is blocked", func() bool { // the acknowledgement of "good" briefly ends the failure
		_, body := get(t, s, "/metrics")
		return strings.Contains(body, `fencepost_type_blocked{type="orders"} 1`) && strings.Contains(body, "go_goroutines")
	})

	away.Store(true)
	until(t, "not ready without the server", func() bool {
		code, body := get(t, s, "/readyz")
		return code == 503 && strings.HasPrefix(body, "the server is unusable: ")
	})
	if code, body := get(t, s, "/livez"); code != 200 {
		t.Errorf("a server that is away is no reason for a restart: %d %s", code, body)
	}
	away.Store(false)
	until(t, "ready again", func() bool { code, _ := get(t, s, "/readyz"); return code == 200 })

	if err := b.Queue.Ack(t.Context(), "orders", pendingIDs(t, b.Queue)); err != nil { // the bad message
		t.Fatal(err)
	}
	workertest.Publish(t, b.Queue, "audit", "slow")
	<-entered
	s.Stopping()
	pool.Stop()
	if code, body := get(t, s, "/readyz"); code != 503 || body != "stopping\n" {
		t.Errorf("while it stops: %d %q", code, body)
	}
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.Close()
	if c, err := net.Dial("tcp", s.Addr()); err == nil {
		c.Close()
		t.Error("the port is open after Close")
	}
}

func pendingIDs(t *testing.T, q queue.Queue) (ids []queue.ID) {
	t.Helper()
	msgs, err := q.Fetch(t.Context(), "orders", queue.ID{}, queue.Limit{Messages: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	return ids
}

func start(t *testing.T, s *Server, b *fencepost.Backend, h worker.Handler) (*worker.Pool, <-chan error) {
	t.Helper()
	cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{"orders", "audit"}, To: worker.Handling{Handler: h}, Observe: s.Observe,
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}
	pool, err := worker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Attach(pool, cfg)
	done := make(chan error, 1)
	go func() { done <- pool.Run(t.Context()) }()
	return pool, done
}

func TestProfilesOnlyIfAskedFor(t *testing.T) {
	without, with := listen(t, Options{}), listen(t, Options{Pprof: true})
	if code, _ := get(t, without, "/debug/pprof/"); code != 404 {
		t.Errorf("profiles that nobody asked for: %d", code)
	}
	if code, body := get(t, with, "/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %s", code, body)
	}
	// The command line may contain a password.
	if code, _ := get(t, with, "/debug/pprof/cmdline"); code != 404 {
		t.Errorf("the command line is told: %d", code)
	}
}

// Without a host in the address, only this machine can connect.
func TestWithoutAHostOnlyThisMachineIsAnswered(t *testing.T) {
	for addr, loopback := range map[string]bool{":0": true, "127.0.0.1:0": true, "localhost:0": true, "0.0.0.0:0": false, "[::]:0": false} {
		s, err := Listen(Options{Addr: addr})
		if err != nil {
			t.Fatal(err)
		}
		at, err := netip.ParseAddrPort(s.Addr())
		if err != nil || at.Addr().IsLoopback() != loopback || loopback == at.Addr().IsUnspecified() {
			t.Errorf("%s listens at %s, %v", addr, s.Addr(), err)
		}
		s.Close()
	}
}

func TestAddressesThatCannotBeUsed(t *testing.T) {
	taken := listen(t, Options{})
	for addr, want := range map[string]struct {
		code int
		word string
	}{
		taken.Addr():      {cli.ExitFailed, "in use"},
		"9090":            {cli.ExitUsage, ":9090"},
		":99999":          {cli.ExitUsage, ":9090"},
		"192.0.2.1:9090":  {cli.ExitUsage, "no such address"},
		"127.0.0.1:":      {cli.ExitUsage, ":9090"},
		"no such host:90": {cli.ExitUsage, "no such address"},
	} {
		_, err := Listen(Options{Addr: addr})
		if code := cli.Code(err); err == nil || code != want.code || !strings.Contains(err.Error(), want.word) {
			t.Errorf("%s: %v (exit code %d), want %d and %q", addr, err, code, want.code, want.word)
		}
	}
}
