package s3slots_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/fencepost/fencepost/internal/s3test"
)

const envCreate = "FENCEPOST_TEST_CREATE" // the store in which a child process creates a value

// TestBucketInTheHost: without path-style=true the bucket is the first part of the host name, at a gateway and at AWS. No name server
// knows these names, so the requests go to a proxy. Go reads the proxy's address once per process, so a child process sends them.
func TestBucketInTheHost(t *testing.T) {
	s3test.Environment(t)
	if url := os.Getenv(envCreate); url != "" {
		if err := open(t, url).Create(t.Context(), "orders/1", []byte("x")); err != nil {
			t.Error(err)
		}
		return
	}
	for settings, want := range map[string]string{
		"endpoint=http://store.example:9000":                 "PUT types.store.example:9000/some/prefix/orders/1",
		"endpoint=http://store.example:9000&path-style=true": "PUT store.example:9000/types/some/prefix/orders/1",
		"endpoint=https://store.example":                     "CONNECT types.store.example:443",
		"endpoint=https://store.example&path-style=true":     "CONNECT store.example:443",
		"region=eu-central-1":                                "CONNECT types.s3.eu-central-1.amazonaws.com:443",
		"region=eu-central-1&path-style=true":                "CONNECT s3.eu-central-1.amazonaws.com:443",
	} {
		t.Run(settings, func(t *testing.T) {
			backend := s3mem.New()
			if err := backend.CreateBucket("types"); err != nil {
				t.Fatal(err)
			}
			gateway := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithHostBucketBase("store.example:9000")).Server()
			asked := make(chan string, 100)
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- r.Method + " " + r.Host + r.URL.Path
				if r.Method == http.MethodConnect { // TLS: a proxy sees only the name
					w.WriteHeader(http.StatusForbidden)
					return
				}
				gateway.ServeHTTP(w, r)
			}))
			defer proxy.Close()
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBucketInTheHost$")
			child.Env = append(os.Environ(), envCreate+"=s3://types/some/prefix?"+settings, "HTTP_PROXY="+proxy.URL, "HTTPS_PROXY="+proxy.URL, "NO_PROXY=")
			out, err := child.CombinedOutput()
			close(asked)
			if got := <-asked; got != want || (err == nil) != strings.HasPrefix(want, "PUT") {
				t.Errorf("the request was %q, want %q; %v\n%s", got, want, err, out)
			}
		})
	}
}
