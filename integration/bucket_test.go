package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// startBucket starts a store with a bucket. refuse may answer a PUT in its place, with a status, a code and a message.
func startBucket(t *testing.T, refuse func(r *http.Request) (status int, code, message string)) (address string) {
	t.Helper()
	bucket := s3mem.New()
	must(t, bucket.CreateBucket("files"))
	plain := gofakes3.New(bucket, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			if status, code, message := refuse(r); status != 0 {
				w.WriteHeader(status)
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
				return
			}
			if how := r.Header.Get("X-Amz-Server-Side-Encryption"); how != "" {
				w.Header().Set("X-Amz-Server-Side-Encryption", how)
			}
		}
		plain.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return "s3://files/some/prefix?path-style=true&endpoint=" + server.URL
}

// Given a bucket whose policy requires encryption with a key, when workers and writing commands request it, then they work; readers request nothing, and
// the type has the same location with and without encryption.
func TestEncryptedBucket(t *testing.T) {
	t.Parallel()
	var disabled atomic.Bool
	plain := startBucket(t, func(r *http.Request) (int, string, string) {
		switch {
		case r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "alias/files":
			return http.StatusForbidden, "AccessDenied", "not authorized to perform: s3:PutObject with an explicit deny in a resource-based policy"
		case disabled.Load():
			return http.StatusBadRequest, "KMS.DisabledException", "the key is disabled"
		}
		return 0, "", ""
	})
	store, b := plain+"&sse=aws:kms&sse-kms-key-id=alias/files", embedded(t)
	work := func(store string) result {
		return run(t, nil, "worker", "--url", b.url, "--store", store, "--type", "t", "--until-empty", "--lease", "5s")
	}
	tool := func(command, store string, args ...string) result {
		return run(t, nil, "fencepost", append([]string{command, "--url", b.url, "--store", store}, args...)...)
	}
	drainable(t, b, 100)
	refused(t, work(plain), failed, "if a policy of the bucket wants encryption, ask for it with sse=")
	if r := work(store); r.code != 0 {
		t.Fatal(r)
	}
	for _, address := range []string{plain, store} {
		if r := tool("verify", address, "--deep"); r.code != 0 || !strings.Contains(r.stdout, "t.fpl in "+plain+"  OK  100 messages") {
			t.Errorf("verify: %v", r)
		}
	}
	if r := run(t, nil, "fencepost", "types", "show", "t", "--url", b.url); r.code != 0 || !strings.Contains(r.stdout, plain) || strings.Contains(r.stdout, "sse") {
		t.Errorf("types show: %v", r)
	}
	if r := run(t, nil, "fencepost", "copy", "--yes", "--url", b.url, plain, store, "t"); r.code != usage || !strings.Contains(r.stderr, "the same place") {
		t.Errorf("copy: %v", r)
	}
	if r := run(t, nil, "worker", "config", "--url", b.url, "--store", store, "--type", "t"); !strings.Contains(r.stdout, store) {
		t.Errorf("config: %v", r)
	}
	refused(t, tool("compact", plain, "t"), failed, "ask for it with sse=")
	if r := tool("doctor", store); r.code != 0 {
		t.Errorf("doctor: %v", r)
	}
	if r := tool("compact", store, "t"); r.code != 0 {
		t.Errorf("compact: %v", r)
	}
	if r := run(t, nil, "fencepost", "copy", "--yes", "--url", b.url, store, strings.Replace(store, "some/prefix", "other", 1), "t"); r.code != 0 || !strings.Contains(r.stdout, "sse-kms-key-id=alias/files") {
		t.Errorf("copy does not say how to go on: %v", r)
	}
	disabled.Store(true)
	drainable(t, b, 100)
	refused(t, work(strings.Replace(store, "some/prefix", "other", 1)), failed, "the KMS key cannot be used", "enable the key")
	disabled.Store(false)
	if r := work(strings.Replace(store, "some/prefix", "other", 1)); r.code != 0 {
		t.Error(r)
	}
}

// Given a full store, a worker says so in one line at growing intervals, with the store and the remedy, and continues when there is room; one that starts meanwhile
// waits, and --until-empty ends with one error.
func TestFullStore(t *testing.T) {
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		var full atomic.Bool
		address := startBucket(t, func(*http.Request) (int, string, string) {
			if full.Load() {
				return http.StatusInsufficientStorage, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."
			}
			return 0, "", ""
		})
		fullStore(t, address, "free some space in the store, or raise its quota", func() { full.Store(true) }, func() { full.Store(false) })
	})
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		dir := mountTmpfs(t, "64m")
		// Existing data stays; 20 MB more do not fit.
		fullStore(t, "shared:"+dir, "free some space in the store, or raise its quota", func() { remount(t, dir, "size=2m") }, func() { remount(t, dir, "size=64m") })
	})
}

func fullStore(t *testing.T, store, remedy string, fill, empty func()) {
	b := embedded(t)
	work := []string{"--url", b.url, "--store", store, "--type", "t", "--lease", "5s"}
	w := start(t, "worker", "worker", work...)
	drainable(t, b, 10)
	eventually(t, time.Minute, "the first messages are drained", func() bool { return pending(t, b)["t"] == 0 })
	began := time.Now()
	fill()
	drainable(t, b, 10_000) // 10 MB
	failures := func() (n int) {
		for line := range strings.Lines(w.stderr.String()) {
			if strings.Contains(line, "ERR") || strings.Contains(line, `"error"`) && strings.Contains(line, "session failed") {
				n++
				for _, says := range []string{"t.fpl in " + store, "no room", "the store is full", remedy, "nothing acknowledged is lost", "the type continues when there is room"} {
					if !strings.Contains(line, says) {
						t.Errorf("it does not say %q: %s", says, line)
					}
				}
				if strings.Contains(line, "writer is dead") || strings.Contains(line, "volume") {
					t.Errorf("it says more than it should: %s", line)
				}
			}
		}
		return n
	}
	eventually(t, time.Minute, "the worker has failed twice", func() bool { return failures() >= 2 })
	if n, most := failures(), 5+int(time.Since(began)/time.Second); n > most {
		t.Errorf("%d lines in %v", n, time.Since(began))
	}
	until := run(t, nil, "worker", append(work, "--until-empty", "--connect-timeout", "10s")...)
	refused(t, until, failed, "the store is full", remedy, "nothing acknowledged is lost")
	empty()
	eventually(t, time.Minute, "everything drained", func() bool { return pending(t, b)["t"] == 0 })
	w.signal(t, syscall.SIGTERM)
	if code := w.wait(t, time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if r := run(t, nil, "fencepost", "verify", "--url", b.url, "--store", store, "--deep"); r.code != 0 || !strings.Contains(r.stdout, "10,010 messages") {
		t.Errorf("verify: %v", r)
	}
}
