package integration

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestManyConnectionsTakeNothingFromTheTypes: a worker that may have 256 open files gets requests over 1,100 connections that are never closed, half of them
// from clients that do not read. It still serves new types, and answers a probe.
func TestManyConnectionsTakeNothingFromTheTypes(t *testing.T) {
	b := embedded(t)
	w, address := startAnswering(t, "--url", b.url, "--dir", b.dir, "--all-types")
	if err := unix.Prlimit(w.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: 256}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 1100 {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(address, "http://"), 10*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		if i%2 == 0 {
			io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 20)) // the connection may already be closed
		}
	}
	if code, body := ask(address + "/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
	for i := range 20 {
		mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", fmt.Sprintf("t%d", i), "--message", "x")
	}
	eventually(t, 30*time.Second, "20 new types are drained", func() bool {
		left := pending(t, b)
		for _, n := range left {
			if n > 0 {
				return false
			}
		}
		return len(left) == 20
	})
	if code, body := ask(address + "/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
}
