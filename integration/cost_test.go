package integration

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// TestRequestsToAStore checks the number of requests per message that docs/operations.md states: with a backlog at most one per batch, and for
// messages that arrive one by one at most one per --linger.
func TestRequestsToAStore(t *testing.T) {
	t.Parallel()
	bucket := s3mem.New()
	must(t, bucket.CreateBucket("files"))
	server := httptest.NewServer(gofakes3.New(bucket, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(server.Close)

	const batch, linger = 1000, time.Second
	for name, c := range map[string]struct {
		prefix  string
		publish []string // flags
		work    []string
		n       int
		creates func(took time.Duration) int // at most
	}{
		"a backlog": {"backlog", nil, nil, 20 * batch, func(time.Duration) int { return 20 }},
		"one by one": {"single", []string{"--rate", "50/s"}, []string{"--linger", linger.String()}, 150,
			func(took time.Duration) int { return int(took/linger) + 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := embedded(t)
			publish := func(n int, more ...string) {
				mustRun(t, nil, "producer", append([]string{"publish", "--url", b.url, "--type", "t", "--count", fmt.Sprint(n), "--size", "256B"}, more...)...)
			}
			store := "s3://files/" + c.prefix + "?endpoint=" + server.URL + "&path-style=true"
			work := append([]string{"--url", b.url, "--store", store, "--type", "t"}, c.work...)
			began := time.Now()
			if c.publish == nil {
				publish(c.n)
			}
			w, address := startAnswering(t, work...)
			if c.publish != nil {
				eventually(t, time.Minute, "ready", func() bool { code, _ := ask(address + "/readyz"); return code == 200 })
				began = time.Now()
				publish(c.n, c.publish...)
			}
			requests := map[string]int{}
			eventually(t, runTimeout, "all is appended", func() bool {
				_, body := ask(address + "/metrics")
				for _, m := range regexp.MustCompile(`fencepost_store_requests_total\{answer="ok",request="(\w+)"\} (\d+)`).FindAllStringSubmatch(body, -1) {
					requests[m[1]], _ = strconv.Atoi(m[2])
				}
				return regexp.MustCompile(fmt.Sprintf(`fencepost_appended_messages_total\{type="t"\} (%d|%g)\n`, c.n, float64(c.n))).MatchString(body)
			})
			took := time.Since(began)
			const opening = 3 // a new file: its header, its name, the fence
			if most := c.creates(took) + opening; requests["create"] > most || requests["create"] == 0 {
				t.Errorf("%d messages took %d creates in %v, want at most %d", c.n, requests["create"], took, most)
			}
			t.Logf("%d messages, %v: %v", c.n, took, requests)
			w.signal(t, syscall.SIGTERM)
			w.wait(t, runTimeout)
		})
	}
}
