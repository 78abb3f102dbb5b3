package integration

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
)

var publishedField = regexp.MustCompile(`published=(\d+) unknown=(\d+) rejected=(\d+)`)

// Given producers and workers that are told to stop, or killed, at random moments from their start on, then the messages that a producer
// reported as published are in the files once and in order, no program needs longer than its grace, and the exit codes are correct.
func TestSignalsAtAnyMomentLoseNothing(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	onEachBackend(t, func(t *testing.T, b backend) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		const lines = 10_000
		input := filepath.Join(t.TempDir(), "input")
		confirmed := make([]int, rounds)
		for i := range rounds {
			var sb strings.Builder
			for n := range lines {
				fmt.Fprintf(&sb, "%d %d %s\n", i, n, strings.Repeat("x", rng.IntN(100)))
			}
			if err := os.WriteFile(input, []byte(sb.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			publish := []string{"publish", "--url", b.url, "--type", "orders"}
			switch i % 3 {
			case 1:
				publish = append(publish, "--key-from", "payload")
			case 2:
				publish = append(publish, "--delay", "300ms")
			}
			work := []string{"--url", b.url, "--dir", b.dir, "--lease", "5s", "--max-file-size", "4MiB", "--type", "orders", "--log-format", "json"}
			untilEmpty := i%4 == 2
			if untilEmpty {
				work = append(work, "--until-empty")
			}
			p := start(t, fmt.Sprint("producer ", i), "producer", append(publish, input)...)
			w := start(t, fmt.Sprint("worker ", i), "worker", work...)
			wait := time.Duration(rng.IntN([]int{20, 200, 1500}[rng.IntN(3)])) * time.Millisecond
			time.Sleep(wait) // the random moment
			kill := i%4 == 3
			if kill {
				w.signal(t, syscall.SIGKILL)
			} else {
				_ = w.Process.Signal(syscall.SIGTERM) // with --until-empty it may have ended
			}
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
			_ = p.Process.Signal(syscall.SIGTERM) // it may have ended
			code := p.wait(t, time.Minute)
			if m := publishedField.FindStringSubmatch(p.stdout.String()); m != nil {
				confirmed[i], _ = strconv.Atoi(m[1])
			}
			early := code == -1 && p.stdout.String() == ""
			if done := confirmed[i] == lines; code != 0 && code != stopped && !early || code == 0 && !done {
				t.Errorf("round %d: the producer ended with exit code %d after %v: %s", i, code, wait, p.stdout.String())
			}
			code = w.wait(t, time.Minute)
			early = code == -1 && w.stderr.String() == "" // before the program could handle the signal
			if want := map[bool]int{true: -1, false: 0}[kill]; code != want && !early && !(untilEmpty && code == stopped) {
				t.Errorf("round %d: the worker ended with exit code %d after %v", i, code, wait)
			}
		}
		// On a very slow machine every signal may have been too early.
		mustRun(t, strings.NewReader(fmt.Sprintf("%d 0 the last one\n", rounds)), "producer", "publish", "--url", b.url, "--type", "orders")
		confirmed = append(confirmed, 1)
		last := start(t, "last worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "orders")
		eventually(t, 2*time.Minute, "everything drained", func() bool {
			return mustRun(t, nil, "fencepost", "scheduled", "ls", "--url", b.url).stdout == "no delayed messages\n" && pending(t, b)["orders"] == 0
		})
		last.signal(t, syscall.SIGTERM)
		last.wait(t, time.Minute)
		mustRun(t, nil, "fencepost", "verify", "--deep", b.dir)
		next := make([]int, len(confirmed))
		for _, line := range allPayloads(t, b) {
			var i, n int
			if _, err := fmt.Sscanf(line, "%d %d", &i, &n); err != nil || n != next[i] {
				t.Fatalf("round %d: message %d where %d is due (%v)", i, n, next[i], err)
			}
			next[i]++
		}
		for i, n := range next {
			if n < confirmed[i] {
				t.Errorf("round %d: %d messages are in the files, %d were confirmed", i, n, confirmed[i])
			}
		}
		t.Logf("confirmed and in the files: %v %v", confirmed, next)
	})
}

// allPayloads returns the output of cat for all files of a directory, in order.
func allPayloads(t *testing.T, b backend) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "*.fpl"))
	if err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...).stdout
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")
}

// TestStoppedCommandsSaySo: a command that waits for its server ends on SIGTERM, with the exit code for that, and does not report the
// interruption as a finding.
func TestStoppedCommandsSaySo(t *testing.T) {
	for _, args := range []string{"doctor", "setup --check", "top", "types ls", "types show t", "types peek t", "types purge t --all --yes", "locks ls", "locks watch",
		"dead ls", "dead requeue --all", "scheduled ls", "scheduled rm --all --yes"} {
		t.Run(args, func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			p := start(t, args, "fencepost", append(strings.Fields(args), "--url", "mongodb://"+silent.Addr().String()+"/shop")...)
			c, err := silent.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Read(make([]byte, 1)); err != nil { // now it has sent a request, and waits
				t.Fatal(err)
			}
			p.signal(t, syscall.SIGTERM)
			if code := p.wait(t, time.Minute); code != stopped || p.stdout.String() != "" {
				t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, p.stdout.String(), p.stderr.String())
			}
			want := ""
			if args == "doctor" {
				want = "error: stopped before everything was checked\n"
			}
			if got := p.stderr.String(); got != want {
				t.Errorf("stderr: %s", got)
			}
		})
	}
}

// TestStoppedProducer: a waiting producer ends soon after a signal, and reports which messages are stored, not stored, and unknown.
func TestStoppedProducer(t *testing.T) {
	t.Parallel()
	t.Run("full backlog", func(t *testing.T) {
		onEachBackend(t, func(t *testing.T, b backend) {
			drainable(t, b, 1)
			mustRun(t, nil, "fencepost", "types", "limit", "t", "--max-backlog", "11", "--url", b.url)
			p := start(t, "producer", "producer", "publish", "--type", "t", "--count", "50", "--url", b.url)
			eventually(t, time.Minute, "it waits for room", func() bool { return strings.Contains(p.stderr.String(), "waiting for room") })
			p.signal(t, syscall.SIGTERM)
			if code := p.wait(t, time.Minute); code != stopped || !strings.HasPrefix(p.stdout.String(), "published=10 unknown=0 rejected=40 ") ||
				!strings.HasSuffix(p.stderr.String(), "error: stopped after 10 messages\n") || pending(t, b)["t"] != 11 {
				t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, p.stdout.String(), p.stderr.String())
			}
		})
	})
	t.Run("full disk", func(t *testing.T) {
		url := "sqlite://" + filepath.Join(mountTmpfs(t, "300k"), "queue.db")
		p := start(t, "producer", "producer", "publish", "--type", "t", "--count", "2000", "--size", "1KiB", "--url", url)
		eventually(t, time.Minute, "it says what it waits for", func() bool {
			return strings.Contains(p.stderr.String(), "retrying") && strings.Contains(p.stderr.String(), "disk is full")
		})
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t, time.Minute); code != stopped || !strings.Contains(p.stdout.String(), " unknown=0 ") {
			t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, p.stdout.String(), p.stderr.String())
		}
	})
	// The server does not answer any more: any message sent may have been stored.
	t.Run("no answer", func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes a server of its own; not with -short")
		}
		s := mongotest.NewServer(t)
		b := backend{url: s.URI()}
		p := start(t, "producer", "producer", "publish", "--type", "t", "--count", "1e6", "--rate", "1k", "--url", b.url)
		// Not at the beginning, when it has to query the type before it sends more.
		eventually(t, time.Minute, "it publishes", func() bool { return pending(t, b)["t"] > 500 })
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // something is in flight
		p.signal(t, syscall.SIGTERM)
		waits := func() bool { return strings.Contains(p.stderr.String(), "a second signal exits at once") }
		eventually(t, time.Minute, "it waits for the answer, or not any more", func() bool {
			select {
			case <-p.done:
				return true
			default:
				return waits()
			}
		})
		_ = p.Process.Signal(syscall.SIGTERM)
		code := p.wait(t, time.Minute)
		m := regexp.MustCompile(`published=(\d+) unknown=(\d+) `).FindStringSubmatch(p.stdout.String())
		if code != stopped || m == nil || waits() && m[2] == "0" {
			t.Fatalf("exit code %d\nstdout: %s\nstderr: %s", code, p.stdout.String(), p.stderr.String())
		}
		if err := s.Unpause(t.Context()); err != nil {
			t.Fatal(err)
		}
		published, _ := strconv.Atoi(m[1])
		unknown, _ := strconv.Atoi(m[2])
		if n := pending(t, b)["t"]; n < published || n > published+unknown {
			t.Errorf("%d are in the queue: %s", n, p.stdout.String())
		}
	})
}

// TestIdleWorkersStopWhileTheServerIsPaused: idle workers, one that holds a type and one that stands by, stop at once, with 0. The lock of the first
// is free when the server resumes, or when its lease has expired.
func TestIdleWorkersStopWhileTheServerIsPaused(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a server of its own; not with -short")
	}
	s := mongotest.NewServer(t)
	b := backend{url: s.URI(), dir: t.TempDir()}
	publish := func() {
		mustRun(t, strings.NewReader(strings.Repeat("a line\n", 10)), "producer", "publish", "--type", "t", "--url", b.url)
	}
	publish()
	var workers []*process
	for i := range 2 {
		workers = append(workers, start(t, fmt.Sprint("worker ", i), "worker", "--type", "t", "--dir", b.dir, "--url", b.url, "--log-format", "json"))
	}
	eventually(t, time.Minute, "everything is in the file, and a worker holds the type", func() bool {
		return pending(t, b)["t"] == 0 && run(t, nil, "fencepost", "locks", "ls", "--url", b.url).code == 0
	})
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	for i, w := range workers {
		began := time.Now()
		w.signal(t, syscall.SIGTERM)
		// A second, plus time for a busy machine. Without the rule it takes the grace of 20 s or more.
		if code, took := w.wait(t, time.Minute), time.Since(began); code != 0 || took > 15*time.Second {
			t.Errorf("worker %d: exit code %d after %v\n%s", i, code, took, w.stderr.String())
		}
		t.Logf("worker %d stopped after %v", i, time.Since(began))
	}
	if err := s.Unpause(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish()
	mustRun(t, nil, "worker", "--type", "t", "--dir", b.dir, "--url", b.url, "--until-empty")
	if n := len(allPayloads(t, b)); n != 20 {
		t.Errorf("%d messages are in the file, want 20", n)
	}
}
