//go:build unix

package integration

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/internal/race"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/storage/slots/mongoslots"
	"github.com/fencepost/fencepost/storage/slots/s3slots"
)

// Network namespaces need root. Without them the test is skipped, or fails if the variable is 1.
const envRequireNodes = "FENCEPOST_TEST_REQUIRE_NODES"

var nodeMessages = flag.Int("nodes", 0, "messages of TestHostsThatShareNothing with each kind of store, and a bound on its takeovers that only an idle machine keeps; 0: some thousand")

// Given three workers on three hosts without a common disk and files in a store, when the host of the holder is switched off in the
// middle of a drain, then another host continues, and every message is in the file once, in order, for the product's own tools and for an
// independent reader.
func TestHostsThatShareNothing(t *testing.T) {
	t.Parallel()
	if race.Enabled {
		t.Skip("programs with the race detector need a C library, which the hosts do not have")
	}
	if err := kit.CanHaveNodes(); err != nil {
		if os.Getenv(envRequireNodes) == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	// With small batches, few messages are enough for a drain that lasts until a host is switched off.
	messages, late, options := 4000, 30*time.Second, []string{"--batch", "20"}
	if *nodeMessages > 0 {
		messages, late, options = *nodeMessages, 5*time.Second, nil
	}
	// One after the other: each takeover has a bound.
	for _, store := range []string{"mongodb", "s3", "shared"} {
		t.Run(store, func(t *testing.T) { hostsThatShareNothing(t, store, messages, late, options...) })
	}
}

// hostsThatShareNothing expects another host to continue at most late after the lease has expired.
func hostsThatShareNothing(t *testing.T, kind string, messages int, late time.Duration, options ...string) {
	const (
		lease = 4 * time.Second
		long  = 20 * time.Minute // for all messages, on a busy machine
	)
	uri, _ := mongotest.Fresh(t)
	server, err := url.Parse(uri)
	must(t, err)
	through := func(address string) string {
		u := *server
		u.Host = address
		return u.String()
	}
	s := openNodeStore(t, kind, uri)

	var want strings.Builder
	for i := range messages {
		fmt.Fprintf(&want, "%07d all work and no play makes Jack a dull boy\n", i)
	}
	file := filepath.Join(t.TempDir(), "messages")
	must(t, os.WriteFile(file, []byte(want.String()), 0o600))
	publish := start(t, "producer", "producer", "publish", "--quiet", "--url", uri, "--type", "orders", file)
	if code := publish.wait(t, long); code != 0 {
		t.Fatalf("publish ended with %d", code)
	}

	type host struct {
		node   *kit.Node
		worker *process
	}
	hosts := map[string]host{}
	for i := range 3 {
		name := fmt.Sprintf("host-%d", i+1)
		node, err := kit.NewNode(name, bin)
		must(t, err)
		t.Cleanup(func() { must(t, node.Remove()) })
		address, err := node.Forward(server.Host)
		must(t, err)
		// Its disk is not this machine's.
		look := startWith(t, node.Start, name, "/bin/fencepost", "cat", file)
		if code := look.wait(t, runTimeout); code == 0 || !strings.Contains(look.stderr.String(), "does not exist") {
			t.Fatalf("%s sees a file of this machine: exit code %d: %s", name, code, look.stderr.String())
		}
		args := []string{"--url", through(address), "--store", s.seenBy(t, i, node), "--type", "orders", "--lease", lease.String(), "--log-format", "json"}
		hosts[name] = host{node, startWith(t, node.Start, name, "/bin/worker", append(args, options...)...)}
	}

	b, err := fencepost.Open(t.Context(), uri)
	must(t, err)
	defer b.Close(context.WithoutCancel(t.Context()))
	// While the server does not answer, the holder is unknown.
	pending := func() (n int, known bool) {
		d, err := b.Queue.Depth(t.Context(), "orders", 10*messages)
		return d.Pending, err == nil
	}
	below := func(most int) bool {
		n, known := pending()
		return known && n < most
	}
	holder := func() string {
		rec, err := b.Locker.Inspect(t.Context(), "orders")
		if err != nil || rec.Hold == nil {
			return ""
		}
		return rec.Hold.Owner.Host
	}
	var first string
	eventually(t, runTimeout, "the drain is under way", func() bool {
		first = holder()
		return first != "" && below(messages-messages/10)
	})
	// More messages arrive until the host is off, so that even the fastest one is switched off in the middle of a drain.
	more := trickle(t, b.Queue)
	gone := hosts[first]
	must(t, gone.node.Unplug())
	gone.worker.signal(t, syscall.SIGKILL)
	off := time.Now()
	want.WriteString(more())
	left := 0
	eventually(t, runTimeout, "it is known what is left to another host", func() (known bool) {
		left, known = pending()
		return known
	})
	var next string
	eventually(t, runTimeout, "another host goes on", func() bool {
		next = holder()
		return next != first && next != "" && below(max(left, 1))
	})
	took := time.Since(off)
	t.Logf("%s: %s was switched off with %d messages pending; %s took over after %v", s.what, first, left, next, took.Round(10*time.Millisecond))
	if took > lease+late {
		t.Errorf("another host took over after %v; want a lease of %v and at most %v more", took, lease, late)
	}
	eventually(t, long, "everything drained", func() bool { return below(1) })
	t.Logf("drained after %v", time.Since(off).Round(10*time.Millisecond))
	for name, h := range hosts {
		if name == first {
			continue
		}
		h.worker.signal(t, syscall.SIGTERM)
		if code := h.worker.wait(t, runTimeout); code != 0 {
			t.Errorf("%s ended with %d", name, code)
		}
	}

	in := []string{"--url", uri, "--store", s.address}
	if r := run(t, nil, "fencepost", append([]string{"verify", "--deep", "orders"}, in...)...); r.code != 0 || !strings.Contains(r.stdout, "OK") {
		t.Errorf("verify: %v", r)
	}
	if r := run(t, nil, "fencepost", append([]string{"cat", "orders"}, in...)...); r.code != 0 || r.stdout != want.String() {
		t.Errorf("cat prints %d bytes, want %d: %s", len(r.stdout), want.Len(), r.stderr)
	}
	var copied []string
	for generation := uint64(1); ; generation++ {
		file := filepath.Join(t.TempDir(), "orders.fpl")
		if err := kit.CopySlots(t.Context(), s.slots(t), "orders", generation, file); err != nil {
			if generation == 1 {
				t.Fatal(err)
			}
			break
		}
		copied = append(copied, file)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the independent reader needs python3")
	}
	var theirs bytes.Buffer
	for _, file := range copied {
		for _, command := range []string{"verify", "cat"} {
			out, err := exec.Command(python, "../docs/format/read_fpl.py", command, file).Output()
			if err != nil {
				t.Errorf("the independent reader, %s: %v: %s", command, err, out)
			}
			if command == "cat" {
				theirs.Write(out)
			}
		}
	}
	if theirs.String() != want.String() {
		t.Errorf("the independent reader prints %d bytes, want %d", theirs.Len(), want.Len())
	}
}

// trickle publishes one line after another. The returned function ends that after one more line, and returns all lines.
func trickle(t *testing.T, q queue.Queue) (end func() (lines string)) {
	p, err := queue.NewPublisher(t.Context(), q, queue.PublisherOptions{})
	must(t, err)
	var lines strings.Builder
	publish := func(i int) error {
		line := fmt.Sprintf("%07d and more\n", i)
		lines.WriteString(line)
		_, err := p.Publish(t.Context(), "orders", []byte(strings.TrimSuffix(line, "\n")), nil)
		return err
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- publish(i)
				return
			default:
			}
			if err := publish(i); err != nil {
				stopped <- err
				return
			}
		}
	}()
	return func() string {
		close(stop)
		must(t, <-stopped)
		must(t, p.Close(t.Context()))
		return lines.String()
	}
}

// nodeStore is a store that is reachable from hosts that share nothing.
type nodeStore struct {
	what    string
	address string                                                   // on this machine
	seenBy  func(t *testing.T, i int, node *kit.Node) (there string) // its address on host i
	slots   func(t *testing.T) slots.Store
}

func openNodeStore(t *testing.T, kind, uri string) nodeStore {
	switch kind {
	case "mongodb":
		return nodeStore{
			what: "MongoDB slots", address: "mongodb:",
			seenBy: func(*testing.T, int, *kit.Node) string { return "mongodb:" },
			slots: func(t *testing.T) slots.Store {
				s, err := mongoslots.Open(t.Context(), uri, mongoslots.Options{})
				must(t, err)
				t.Cleanup(func() { s.Close() })
				return s
			},
		}
	case "s3":
		o, err := kit.StartObjects(t.Context(), t.TempDir())
		must(t, err)
		t.Cleanup(o.Close)
		// This process reads the store, too. T.Setenv is not allowed in parallel tests.
		for _, e := range kit.Env() {
			if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AWS_") {
				must(t, os.Setenv(name, value))
			}
		}
		return nodeStore{
			what: "S3 (" + o.What + ")", address: o.Address(o.Targets[0]),
			seenBy: func(t *testing.T, i int, node *kit.Node) string {
				address, err := node.Forward(o.Targets[i%len(o.Targets)])
				must(t, err)
				return o.Address(address)
			},
			slots: func(t *testing.T) slots.Store {
				s, err := s3slots.Open(t.Context(), o.Address(o.Targets[1]))
				must(t, err)
				return s
			},
		}
	}
	dir := t.TempDir()
	return nodeStore{
		what: "shared directory", address: "shared:" + dir,
		seenBy: func(t *testing.T, _ int, node *kit.Node) string {
			must(t, node.Mount(dir))
			return "shared:" + dir
		},
		slots: func(t *testing.T) slots.Store {
			s, err := dirslots.Open(dir)
			must(t, err)
			return s
		},
	}
}
