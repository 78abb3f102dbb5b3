package ops

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/clitest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/workertest"
)

// pipes are connections to a server in a synctest bubble.
type pipes struct{ *clitest.Pipes }

// servePipes serves on pipes.
func servePipes(t *testing.T, o Options) pipes {
	p := pipes{clitest.NewPipes()}
	s := serve(p, "", o)
	t.Cleanup(s.Close)
	return p
}

// answer sends a GET, and returns the status of the response, 0 if there is none.
func (p pipes) answer(t *testing.T, path string) int {
	t.Helper()
	c := p.Dial(t)
	defer c.Close()
	return answerOn(t, c, path)
}

func answerOn(t *testing.T, c net.Conn, path string) int {
	t.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return 0
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	res.Body.Close()
	return res.StatusCode
}

// Clients that keep sending requests and read nothing delay the metrics for others only briefly, and never /livez.
func TestClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := servePipes(t, Options{})
		for range 10 {
			go io.WriteString(p.Dial(t), strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 20))
		}
		synctest.Wait()
		if code := p.answer(t, "/livez"); code != 200 {
			t.Errorf("/livez beside clients that do not read: %d", code)
		}
		time.Sleep(writeTimeout + time.Second)
		if code := p.answer(t, "/metrics"); code != 200 {
			t.Errorf("/metrics %v later: %d", writeTimeout+time.Second, code)
		}
	})
}

// A request must arrive completely in time: its head, and the rest.
func TestClientsThatDoNotFinish(t *testing.T) {
	for name, test := range map[string]struct {
		begin  string
		within time.Duration
	}{
		"nothing":           {"", headerTimeout},
		"half a head":       {"GET /livez HTTP/1.1\r\nHost: x\r\n", headerTimeout},
		"half a body":       {"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx", readTimeout},
		"no second request": {"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				c := servePipes(t, Options{}).Dial(t)
				go io.WriteString(c, test.begin)
				c.SetReadDeadline(began.Add(time.Hour))
				_, err := io.Copy(io.Discard, c)
				if took := time.Since(began); err != nil || took < test.within || took > test.within+time.Second {
					t.Errorf("the connection was closed after %v (%v), want %v", took, err, test.within)
				}
			})
		})
	}
}

// A profile takes as long as requested, and is exempt from the time limit of other responses.
func TestProfileTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := servePipes(t, Options{Pprof: true})
		began := time.Now()
		if code := p.answer(t, "/debug/pprof/mutex?seconds=60"); code != 200 || time.Since(began) != time.Minute {
			t.Errorf("%d after %v", code, time.Since(began))
		}
	})
}

// Whatever clients do, the number of connections is bounded, and the next one is answered.
func TestConnectionsAreBounded(t *testing.T) {
	for name, begin := range map[string]string{
		"new":          "",
		"half a head":  "GET /livez HTTP/1.1\r\nHost: x\r\n",
		"do not read":  strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 20),
		"kept for use": "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := servePipes(t, Options{})
				var open atomic.Int64
				for range 5 * maxConns {
					c := p.Dial(t)
					open.Add(1)
					go func() {
						io.WriteString(c, begin)
						if name == "kept for use" {
							io.Copy(io.Discard, c)
							open.Add(-1)
						}
					}()
					synctest.Wait()
				}
				if name == "kept for use" && open.Load() != maxConns {
					t.Errorf("%d connections are open, want %d", open.Load(), maxConns)
				}
				if code := p.answer(t, "/livez"); code != 200 {
					t.Errorf("/livez: %d", code)
				}
			})
		})
	}
}

// The connection in use stays; older and newer idle ones are closed.
func TestConnectionInUseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := servePipes(t, Options{})
		used := p.Dial(t)
		for i := range 5 * maxConns {
			p.Dial(t)
			synctest.Wait()
			if i%(maxConns/2) != 0 {
				continue
			}
			if code := answerOn(t, used, "/livez"); code != 200 {
				t.Fatalf("after %d other connections: %d", i, code)
			}
		}
	})
}

// Requests for a host name that another site could control are refused, on every path.
func TestRequestsForOtherHosts(t *testing.T) {
	s, err := Listen(Options{Addr: "localhost:0", Hosts: []string{"Worker.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for host, want := range map[string]int{
		"127.0.0.1:9090": 200, "[::1]:9090": 200, "10.1.2.3": 200, "[fe80::1]": 200, // probes, Prometheus
		"localhost:9090": 200, "worker:9090": 200, "LOCALHOST.": 200, // of this machine, Compose
		"worker.example.com": 200, "WORKER.EXAMPLE.COM.:9090": 200,
		"evil.example": 421, "evil.example:9090": 421, "worker.example.com.evil.example": 421, "a.worker.example.com": 421,
		"127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
	} {
		for _, path := range []string{"/metrics", "/livez", "/readyz", "/statusz", "/", "/none"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if refused := res.StatusCode == http.StatusMisdirectedRequest; refused != (want == 421) {
				t.Errorf("%s of %s: %d %s", path, host, res.StatusCode, body)
			} else if name := hostname(host); refused && (strings.Count(string(body), "\n") != 1 || !strings.Contains(string(body), "--listen-host "+name)) {
				t.Errorf("%s of %s: %q; want one line with the remedy", path, host, body)
			}
		}
	}
}

// The machine's name and the host of --listen need no flag.
func TestOwnNames(t *testing.T) {
	h := hostsOf("metrics.example.com", nil)
	for _, name := range []string{"metrics.example.com", "Metrics.Example.Com.:9090"} {
		if !h.allow(name) {
			t.Errorf("%s is not answered", name)
		}
	}
}

// While the store hangs, every page responds quickly.
func TestAnswersWhileTheStoreHangs(t *testing.T) {
	s := listen(t, Options{})
	b := workertest.Backend(t)
	b.Queue = &queuetest.Faulty{Queue: b.Queue, Next: func(queuetest.Op, string, int) queuetest.Fault {
		return queuetest.Fault{Kind: queuetest.Hang}
	}}
	start(t, s, b, worker.Each(func(context.Context, worker.Lease, queue.Message) error { return nil }))
	for _, path := range []string{"/livez", "/readyz", "/statusz", "/metrics"} {
		began := time.Now()
		get(t, s, path)
		if took := time.Since(began); took > 4500*time.Millisecond { // a page that waits for the store takes 5 s
			t.Errorf("%s took %v", path, took)
		}
	}
}
