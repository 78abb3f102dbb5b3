package browsertest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
)

// The text of a page about a type: in its row of the list, and on its own page.
const (
	cell    = `document.querySelector('[data-key=%s] [data-label="%s"]').textContent`
	row     = `[data-key=%s] td[data-label=Type] a`
	fact    = `[...document.querySelectorAll(".facts dt")].find((d) => d.textContent === %q).nextElementSibling.textContent`
	writers = `[...document.querySelectorAll("td[data-label=Writer]")].map((d) => d.textContent).reverse().join()` // oldest first
	inFile  = `[...document.querySelectorAll(".totals dt")].find((d) => d.textContent === "acknowledged records").previousElementSibling.textContent`
)

var pidOf = regexp.MustCompile(` pid (\d+)`)

// A newcomer watches the demo, and then runs programs: publishes with curl and with the Python file, kills the worker that the page
// names, sees another one take over, and finds each message in the file once.
func TestNewcomer(t *testing.T) {
	needBrowser(t)
	fencepost := build(t)
	t.Run("demo", func(t *testing.T) {
		t.Parallel()
		demo(t, fencepost)
	})
	t.Run("programs", func(t *testing.T) {
		t.Parallel()
		programs(t, fencepost)
	})
}

// build builds fencepost, and returns its path.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencepost")
	if out, err := exec.Command("go", "build", "-C", "../../../..", "-o", path, "./cmd/fencepost").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// demo is what make demo ARGS=--ui shows. The lease is longer than the demo's default, so that a browser on a busy machine keeps up.
func demo(t *testing.T, fencepost string) {
	source := t.TempDir()
	for i := range 600 { // 50 MB, which is more than ten batches: one can be killed in the middle
		if err := os.WriteFile(filepath.Join(source, fmt.Sprintf("%d.txt", i)), []byte(strings.Repeat("all work and no play\n", 4000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	demo := start(t, fencepost, "demo", "--ui", "--source", source, "--lease", "5s")
	p := newTab(t)
	p.open(demo.printed(`pages +(http://\S+/)`) + "types")
	backlog := fmt.Sprintf(cell, "txt", "Backlog")
	p.is(backlog+` !== "0"`, "true")
	p.is(backlog, "0")
	p.run(chromedp.Click(chromedp.CSS(fmt.Sprintf(row, "txt"))))
	p.is(inFile, "600")

	pids := strings.Split(demo.printed(`worker processes .*\(pids ([\d, ]+)\)`), ", ")
	name := func(pattern string) string {
		n, err := strconv.Atoi(demo.printed(pattern))
		if err != nil || n < 1 || n > len(pids) {
			t.Fatalf("the demo has %d workers, and speaks of number %d, %v", len(pids), n, err)
		}
		return "pid " + pids[n-1]
	}
	dead, heir := name(`kill -9 +worker (\d+), which held`), name(`take over worker (\d+) got the lock`)
	p.is(fmt.Sprintf(`(%s).match(/%s,.* %s\b/) !== null`, writers, dead, heir), "true")
	demo.printed(`(The pages stay until Ctrl-C)`)
	p.leave()
	demo.stop(syscall.SIGINT)
}

// programs is the scenario with several programs on one server.
func programs(t *testing.T, fencepost string) {
	kit.Python(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	url, _ := mongotest.Fresh(t)
	dir := filepath.Join(t.TempDir(), "data")
	begin := func(args ...string) *program { return start(t, fencepost, append(args, "--url", url, "--dir", dir)...) }

	pages, api := begin("ui", "--listen", "127.0.0.1:0", "--refresh", "500ms"), begin("serve", "--listen", "127.0.0.1:0")
	p := newTab(t)
	p.open(pages.printed(`(http://\S+/)`) + "types")
	const lines = 1000
	var orders strings.Builder
	for i := range lines {
		fmt.Fprintf(&orders, "\"curl %d\"\n", i)
	}
	curl := func() {
		cmd := exec.Command("sh", "../../../../clients/http/publish.sh", strings.TrimSuffix(api.printed(`(http://\S+/)`), "/"), "orders", "import-1")
		cmd.Stdin = strings.NewReader(orders.String())
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "{\"stored\":1000,\"unknown\":0,\"rejected\":0,\"complete\":true}\n") {
			t.Fatalf("curl: %v\n%s", err, out)
		}
	}
	curl()
	p.is(fmt.Sprintf(cell, "orders", "Backlog"), "1,000")

	workers := map[string]*program{}
	for range 2 {
		w := begin("worker", "--all-types", "--lease", "2s")
		workers[strconv.Itoa(w.Process.Pid)] = w
	}
	p.is(fmt.Sprintf(cell, "orders", "Backlog"), "0")
	p.run(chromedp.Click(chromedp.CSS(fmt.Sprintf(row, "orders"))))
	p.is(inFile, "1,000")
	p.is(`document.querySelectorAll("li[data-key]").length`, "2") // workers that could serve it

	// The one that the page names dies while Python publishes.
	publisher := python(t, url)
	p.is(inFile+` !== "1,000"`, "true")
	dead := p.js(fmt.Sprintf(fact, "holder"))
	pid := pidOf.FindStringSubmatch(dead)
	if pid == nil || workers[pid[1]] == nil {
		t.Fatalf("the page names %q, which is none of %v", dead, workers)
	}
	workers[pid[1]].kill()
	delete(workers, pid[1])
	batches := publisher()
	curl() // it does not know the first outcome; nothing gets in twice
	for heir := range workers {
		p.is(fmt.Sprintf(fact, "holder")+`.endsWith(" pid `+heir+`")`, "true")
		p.is(fmt.Sprintf(`(%s).match(/ pid %s,.* pid %s$/) !== null`, writers, pid[1], heir), "true")
	}
	p.is(inFile+`.replace(",", "")`, strconv.Itoa(2*lines+20*batches)) // a duplicate takes an index, but is not a message
	p.is(`document.querySelector("section[aria-labelledby=pending]").textContent.includes("Nothing is pending.")`, "true")
	for _, w := range workers {
		w.stop(syscall.SIGTERM)
	}
	p.leave()
	pages.stop(syscall.SIGTERM)
	api.stop(syscall.SIGTERM)

	file := filepath.Join(dir, "orders.fpl")
	start(t, fencepost, "verify", file).ends()
	cat := start(t, fencepost, "cat", file)
	cat.ends()
	var want [2][]string
	for i := range lines {
		want[0] = append(want[0], fmt.Sprintf(`"curl %d"`, i))
	}
	for i := range 20 * batches {
		want[1] = append(want[1], fmt.Sprintf("python %d", i))
	}
	got := strings.Split(strings.TrimSpace(cat.stdout.String()), "\n")
	for i, of := range []string{`"curl `, "python "} {
		if mine := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, of) }); !slices.Equal(mine, want[i]) {
			t.Errorf("of %d messages that begin with %s the file has %d, or not in their order", len(want[i]), of, len(mine))
		}
	}
	if len(got) != len(want[0])+len(want[1]) {
		t.Errorf("the file has %d messages, want %d", len(got), len(want[0])+len(want[1]))
	}
}

// python publishes with the Python file, twenty messages at a time, until the returned function is called, and then ten more times. The
// function returns the number of batches.
func python(t *testing.T, url string) (finish func() int) {
	t.Helper()
	cmd := exec.Command(kit.Python(t), "-B", "-u", "-c", `
import sys
sys.path.insert(0, "../../../../clients/python")
from fencepost import Message, Publisher
with Publisher(sys.argv[1]) as publisher:
    for batch, _ in enumerate(sys.stdin):
        publisher.publish_many(Message("orders", f"python {n}") for n in range(20 * batch, 20 * batch + 20))
        print("stored")
`, url)
	var errs kit.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	enough, done := make(chan struct{}), make(chan error, 1)
	batches := 0
	go func() {
		answers := bufio.NewReader(out)
		for left := 10; left > 0; batches++ {
			if _, err := in.Write([]byte("\n")); err != nil {
				done <- err
				return
			}
			if _, err := answers.ReadString('\n'); err != nil {
				done <- err
				return
			}
			select {
			case <-enough:
				left--
			default:
			}
		}
		in.Close()
		done <- cmd.Wait()
	}()
	return func() int {
		t.Helper()
		close(enough)
		if err := <-done; err != nil {
			t.Fatalf("Python: %v\n%s", err, errs.String())
		}
		return batches
	}
}

// program is a program that runs beside the test.
type program struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr kit.Buffer
	done           chan struct{} // closed after it has ended
}

// start starts a program. It is killed at the end of the test if it is still running.
func start(t *testing.T, path string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(path, args...), t: t, done: make(chan struct{})}
	p.Env, p.Stdout, p.Stderr = kit.Env(), &p.stdout, &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%q printed:\n%s%s", p.Args[1:], p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// printed waits until it has printed a match, and returns the group of the pattern.
func (p *program) printed(pattern string) (found string) {
	p.t.Helper()
	uitest.Until(p.t, p.Args[1]+" prints "+pattern, func() bool {
		m := regexp.MustCompile(pattern).FindStringSubmatch(p.stdout.String())
		if m != nil {
			found = m[1]
		}
		return m != nil
	})
	return found
}

func (p *program) kill() {
	p.Process.Kill()
	<-p.done
}

// stop ends it with a signal, and expects exit code 0.
func (p *program) stop(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	p.ends()
}

func (p *program) ends() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.t.Fatalf("%q does not end", p.Args[1:])
	}
	if code := p.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("%q ended with %d", p.Args[1:], code)
	}
}
