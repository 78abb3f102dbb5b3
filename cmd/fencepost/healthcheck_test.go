package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

func TestHealthcheck(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the database does not answer\nmore", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/readyz", http.StatusFound) })
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	server := httptest.NewServer(mux)
	defer server.Close()
	addr := server.Listener.Addr().String()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	for _, test := range []struct {
		name string
		env  string // value of FENCEPOST_LISTEN
		args []string
		code int
		says string
	}{
		{"ready", "", []string{server.URL + "/readyz"}, cli.ExitOK, ""},
		{"ready, by the worker's address", "", []string{"--listen", addr}, cli.ExitOK, ""},
		{"ready, by the worker's environment", addr, nil, cli.ExitOK, ""},
		{"not ready", "", []string{server.URL + "/bad"}, cli.ExitFailed, "503 Service Unavailable: the database does not answer"},
		{"a redirect is not an answer", "", []string{server.URL + "/elsewhere"}, cli.ExitFailed, "302"},
		{"no answer", "", []string{server.URL + "/never", "--timeout", "50ms"}, cli.ExitFailed, "did not answer in time"},
		{"nobody there", "", []string{"http://" + closed.Addr().String() + "/readyz"}, cli.ExitFailed, "is a worker with this --listen running?"},
		{"not a URL", "", []string{"localhost:9090"}, cli.ExitUsage, "http://127.0.0.1:9090/readyz"},
		{"two URLs", "", []string{server.URL, server.URL}, cli.ExitUsage, "give one URL"},
		{"not an address", "", []string{"--listen", "9090"}, cli.ExitUsage, ":9090"},
		{"no time", "", []string{"--timeout", "0s"}, cli.ExitUsage, "--timeout"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.env != "" {
				t.Setenv("FENCEPOST_LISTEN", test.env)
			}
			cmd := root()
			var stderr bytes.Buffer
			cmd.SetErr(&stderr)
			cmd.SetArgs(append([]string{"healthcheck"}, test.args...))
			if code := cli.Run(context.Background(), cmd); code != test.code || !strings.Contains(stderr.String(), test.says) {
				t.Errorf("exit code %d, says %q; want %d and %q", code, stderr.String(), test.code, test.says)
			}
		})
	}
}

func TestReadyURLOfAWildcardIsThisMachine(t *testing.T) {
	for listen, want := range map[string]string{
		":9090": "http://127.0.0.1:9090/readyz", "0.0.0.0:1": "http://127.0.0.1:1/readyz", "[::]:1": "http://[::1]:1/readyz",
		"10.1.2.3:80": "http://10.1.2.3:80/readyz", "localhost:9090": "http://localhost:9090/readyz",
	} {
		if got, err := readyURL(listen); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", listen, got, err, want)
		}
	}
}
