package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestTypesControls: an operator pauses a type, limits its backlog, inspects and purges its pending messages, and publishers follow.
func TestTypesControls(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		types := func(args ...string) []string { return append([]string{"types", args[0], "--url", b.url}, args[1:]...) }
		publish := func(lines string, args ...string) result {
			t.Helper()
			return run(t, strings.NewReader(lines), "producer", append([]string{"publish", "--url", b.url, "--type", "orders"}, args...)...)
		}
		says := func(want string, args ...string) {
			t.Helper()
			if r := mustRun(t, nil, "fencepost", types(args...)...); !strings.Contains(r.stdout, want) {
				t.Errorf("types %q does not say %q:\n%s", args, want, r.stdout)
			}
		}
		if r := publish("a\nb\nc\n", "--header", "k=v w"); r.code != 0 {
			t.Fatal(r)
		}
		for _, args := range [][]string{{"pause", "ordrs"}, {"resume", "audit"}, {"limit", "audit", "--max-backlog", "1"}, {"pause", "x*"}, {"peek", "audit"}, {"purge", "audit", "--all", "--yes"}} {
			refused(t, run(t, nil, "fencepost", types(args...)...), nothing, "fencepost types ls")
		}
		says("later: publish paused", "pause", "later", "--publish", "--create")

		says("orders: paused", "pause", "ord*", "--why", "moving")
		says("paused (moving)", "ls")
		refused(t, publish("d\ne\n"), notNow, "line 1", "paused", "moving", "fencepost types resume orders")
		says("orders: publishing resumed; drain paused", "resume", "orders", "--publish")
		var rows []struct {
			Type         string
			DrainPaused  bool `json:"drain_paused"`
			MaxBacklog   int  `json:"max_backlog"`
			PublishPause bool `json:"publish_paused"`
		}
		says("orders: drain paused, limit 5", "limit", "orders", "--max-backlog", "5")
		if err := json.Unmarshal([]byte(mustRun(t, nil, "fencepost", types("ls", "-o", "json")...).stdout), &rows); err != nil || len(rows) != 2 ||
			rows[1].Type != "orders" || !rows[1].DrainPaused || rows[1].PublishPause || rows[1].MaxBacklog != 5 {
			t.Errorf("types ls: %+v, %v", rows, err)
		}

		// The limit: messages that fit are published, in order, and the rest is refused with a separate exit code.
		r := publish("d\ne\nf\ng\n", "--backlog-wait", "0")
		refused(t, r, notNow, "line 3", "limit", "fencepost types limit orders", "2 messages before it")
		if !strings.HasPrefix(r.stdout, "published=2 unknown=0 rejected=2 ") {
			t.Errorf("summary %s", r.stdout)
		}
		waiting := start(t, "waiting producer", "producer", "publish", "--url", b.url, "--type", "orders", "--message", "f")
		eventually(t, runTimeout, "it waits for room", func() bool { return strings.Contains(waiting.stderr.String(), "waiting for room") })
		says("orders: limit removed; drain paused", "limit", "orders", "--max-backlog", "0")
		if code := waiting.wait(t, runTimeout); code != 0 {
			t.Errorf("a publisher that waited for room ended with %d", code)
		}
		says("orders: resumed", "resume", "orders")

		// Inspecting.
		says("k\"=\"v w\"  a\n", "peek", "orders", "-n", "1")
		var pending []struct {
			ID, Payload string
			N           int
			Bytes       int
			Headers     map[string]string
		}
		if err := json.Unmarshal([]byte(mustRun(t, nil, "fencepost", types("peek", "orders", "-o", "json")...).stdout), &pending); err != nil || len(pending) != 6 {
			t.Fatalf("peek: %+v, %v", pending, err)
		}
		for i, p := range pending {
			if p.Payload != string(rune('a'+i)) || p.Bytes != 1 || (p.Headers["k"] == "v w") != (i < 3) {
				t.Errorf("message %d: %+v", i, p)
			}
		}
		if r := mustRun(t, nil, "fencepost", types("peek", "orders", "--from", pending[4].ID)...); strings.Contains(r.stdout, pending[3].ID) || !strings.Contains(r.stdout, pending[4].ID) {
			t.Errorf("peek --from %s:\n%s", pending[4].ID, r.stdout)
		}

		// Purging.
		says("purged=0 matching=6 bytes=6 ", "purge", "orders", "--all", "--dry-run")
		refused(t, run(t, nil, "fencepost", types("purge", "orders", "--older", "10h", "--yes")...), nothing, "no pending message")
		refused(t, run(t, nil, "fencepost", types("purge", "orders", "--before", "2020-01-31", "--yes")...), nothing, "no pending message")
		says("purged=6 bytes=6", "purge", "orders", "--before", "2100-01-31T15:04:05Z", "--yes")
		refused(t, run(t, nil, "fencepost", types("purge", "orders", "--all", "--yes")...), nothing, "no pending message")
		refused(t, run(t, nil, "fencepost", types("peek", "orders")...), nothing, "nothing is pending")
	})
}
