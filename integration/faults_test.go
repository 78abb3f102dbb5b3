package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/storage"
)

const (
	faultProducers = 4
	faultMessages  = 200_000
	faultLease     = 2 * time.Second
)

var faultTypes = []string{"orders", "audit", "events"}

// Given 4 concurrent producers of 200,000 messages of 3 types and 4 workers with overlapping types, when one holder is
// killed, one is paused for longer than its lease, and (where there is a server) the server is paused for some seconds,
// then each file verifies and holds every confirmed message exactly once, in producer order.
func TestEveryConfirmedMessageExactlyOnceInOrderUnderFaults(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		underFaults(t, embedded(t))
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		s := mongotest.NewServer(t)
		underFaults(t, backend{url: s.URI(), dir: filepath.Join(t.TempDir(), "data"), server: s})
	})
}

func underFaults(t *testing.T, b backend) {
	messages := faultMessages
	if testing.Short() {
		messages /= 10
	}
	workers := make(map[int]*process)
	for i, types := range [][]string{{"orders", "audit"}, {"audit", "events"}, {"events", "orders"}, {"orders", "audit", "events"}} {
		args := []string{"--url", b.url, "--dir", b.dir, "--lease", faultLease.String(), "--log-format", "json"}
		for _, typ := range types {
			args = append(args, "--type", typ)
		}
		w := start(t, fmt.Sprintf("worker %d", i+1), "worker", args...)
		workers[w.Process.Pid] = w
	}

	// Each producer publishes all types, one after the other, from a file of known lines.
	perProducer := messages / faultProducers
	var producers sync.WaitGroup
	confirmed := make([]result, faultProducers*len(faultTypes))
	for p := range faultProducers {
		files := make([]string, len(faultTypes))
		for i, typ := range faultTypes {
			files[i] = filepath.Join(t.TempDir(), fmt.Sprintf("producer-%d-%s", p, typ))
			writeLines(t, files[i], p, share(perProducer, i))
		}
		producers.Go(func() {
			for i, typ := range faultTypes {
				confirmed[p*len(faultTypes)+i] = run(t, nil, "producer", "publish", "--url", b.url, "--type", typ, files[i])
			}
		})
	}

	holder := func(not ...int) (pid int, typ string) {
		for _, l := range heldLocks(t, b) {
			if w := workers[l.PID]; w != nil && !slices.Contains(not, l.PID) {
				return l.PID, l.Name
			}
		}
		return 0, ""
	}
	await := func(what string, not ...int) (pid int, typ string) {
		eventually(t, time.Minute, what, func() bool {
			pid, typ = holder(not...)
			info, err := os.Stat(filepath.Join(b.dir, storage.FileName(typ)))
			return pid != 0 && err == nil && info.Size() > 100_000
		})
		return pid, typ
	}

	killed, typ := await("a worker holds a lock and has appended something")
	workers[killed].signal(t, syscall.SIGKILL)
	t.Logf("killed %s, which held %s", workers[killed].name, typ)

	paused, typ := await("another worker holds a lock and has appended something", killed)
	workers[paused].signal(t, syscall.SIGSTOP)
	t.Logf("paused %s, which held %s, for three leases", workers[paused].name, typ)
	pausedAt := time.Now()

	if b.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.server.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // the fault itself: how long the server is paused
		if err := b.server.Unpause(ctx); err != nil {
			t.Fatal(err)
		}
		t.Log("paused the server for 4 s")
	}
	time.Sleep(time.Until(pausedAt.Add(3 * faultLease))) // the fault itself: longer than the lease
	workers[paused].signal(t, syscall.SIGCONT)

	producers.Wait()
	for i, r := range confirmed {
		if want := fmt.Sprintf("published=%d ", share(perProducer, i%len(faultTypes))); r.code != 0 || !strings.HasPrefix(r.stdout, want) {
			t.Fatalf("a producer did not get everything confirmed (%s…): %v", want, r)
		}
	}
	eventually(t, 2*time.Minute, "everything drained", func() bool {
		for _, n := range pending(t, b) {
			if n > 0 {
				return false
			}
		}
		return true
	})
	for pid, w := range workers {
		if pid != killed {
			w.signal(t, syscall.SIGTERM)
		}
	}
	for pid, w := range workers {
		if code := w.wait(t, 30*time.Second); pid != killed && code != 0 {
			t.Errorf("%s ended with exit code %d after SIGTERM", w.name, code)
		}
	}
	for i, typ := range faultTypes {
		checkFile(t, b, typ, faultProducers, share(perProducer, i))
	}
}

// share divides n messages among the types.
func share(n, i int) int {
	s := n / len(faultTypes)
	if i < n%len(faultTypes) {
		s++
	}
	return s
}

// writeLines writes n lines "producer sequence padding"; the padding is up to 400 characters.
func writeLines(t *testing.T, path string, producer, n int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(producer), uint64(n)))
	var sb strings.Builder
	for i := range n {
		fmt.Fprintf(&sb, "%d %d %s\n", producer, i, strings.Repeat("x", rng.IntN(400)))
	}
	if err := os.WriteFile(path, []byte(sb.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkFile checks that a type's file verifies and holds n lines of each producer, each once and in order.
func checkFile(t *testing.T, b backend, typ string, producers, n int) {
	t.Helper()
	r := run(t, nil, "fencepost", "verify", filepath.Join(b.dir, storage.FileName(typ)))
	if r.code != 0 {
		t.Errorf("verify %s: %v", typ, r)
	}
	t.Log(strings.TrimSpace(r.stdout))
	next := make([]int, producers)
	for i, line := range payloads(t, b, typ) {
		var p, seq int
		if _, err := fmt.Sscanf(string(line), "%d %d ", &p, &seq); err != nil || p >= producers {
			t.Fatalf("%s, message %d is not one of ours: %q", typ, i, line)
		}
		if seq != next[p] {
			t.Fatalf("%s, message %d: producer %d's line %s where its line %s was due (lost, doubled or out of order)",
				typ, i, p, strconv.Itoa(seq), strconv.Itoa(next[p]))
		}
		next[p]++
	}
	for p, got := range next {
		if got != n {
			t.Errorf("%s: %d of %d confirmed messages of producer %d are in the file", typ, got, n, p)
		}
	}
}

// Given a producer that is killed in the middle of its work, the file contains a contiguous prefix of its input, in order and
// without a gap, with at least the confirmed messages.
func TestKilledProducerLeavesAContiguousPrefix(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		lines := filepath.Join(t.TempDir(), "lines")
		writeLines(t, lines, 0, 100_000)
		p := start(t, "producer", "producer", "publish", "--url", b.url, "--type", "orders", "--rate", "10k", lines)
		eventually(t, time.Minute, "some messages are published", func() bool {
			r := run(t, nil, "fencepost", "types", "ls", "--url", b.url, "--count-up-to", "5000", "-o", "json")
			return r.code == 0 && strings.Contains(r.stdout, `"pending": 5000`)
		})
		p.signal(t, syscall.SIGKILL)
		<-p.done
		confirmed := pending(t, b)["orders"]
		mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "orders", "--until-empty")
		got := len(payloads(t, b, "orders"))
		if got < confirmed || got >= 100_000 {
			t.Fatalf("%d messages in the file, want at least the %d that were visible after the kill, and not all 100000", got, confirmed)
		}
		checkFile(t, b, "orders", 1, got)
	})
}
