package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/queue"
)

// Exit codes, as documented in every program's help.
const (
	failed    = 1
	usage     = 2
	integrity = 3
	nothing   = 4
	held      = 5
	notNow    = 6
	partial   = 7
	stopped   = 130
)

// refused checks that a program ended with one clear error: the exit code, one "error:" line on stderr, nothing but a summary
// on stdout, and the words that name the problem and the remedy.
func refused(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%v", r.code, code, r)
	}
	var message string
	for _, line := range strings.Split(r.stderr, "\n") {
		if m, ok := strings.CutPrefix(line, "error: "); ok {
			if message != "" {
				t.Errorf("more than one error:\n%s", r.stderr)
			}
			message = m
		}
	}
	for _, w := range words {
		if !strings.Contains(message, w) {
			t.Errorf("the error does not say %q:\n%s", w, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "goroutine ") || strings.Contains(r.stderr, "secret") {
		t.Errorf("the error shows a stack or a secret:\n%s", r.stderr)
	}
}

func TestWrongArgumentsAreUsageErrors(t *testing.T) {
	b := embedded(t)
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, 15<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	notJSON := filepath.Join(t.TempDir(), "x.ndjson")
	if err := os.WriteFile(notJSON, []byte("nope\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		words []string
	}{
		{"worker", []string{"--type"}},
		{"worker --type Orders", []string{`"Orders"`, "a-z"}},
		{"worker --type ../../etc/passwd", []string{"../../etc/passwd"}},
		{"worker --typ orders", []string{"--typ", "--help"}},
		{"worker orders", []string{"--type orders"}},
		{"worker --type orders --lease 10ms", []string{"--lease", "10ms", "1s"}},
		{"worker --type orders --lease soon", []string{"--lease"}},
		{"worker --type orders --batch 0", []string{"--batch"}},
		{"worker --type orders --batch 1000000", []string{"--batch", "1000000", "100000"}},
		{"worker --type orders --batch-bytes many", []string{"4MiB"}},
		{"worker --type [a", []string{"[a"}},
		{"worker --type orders --url postgres://user:secret@host/db", []string{"postgres://host/db", "mongodb://", "sqlite://"}},
		{"worker --type orders --url nonsense", []string{"nonsense", "mongodb://"}},
		{"worker --type orders --url sqlite://", []string{"sqlite://"}},
		{"worker --type orders --log-level loud", []string{"loud"}},
		{"producer publish --message x", []string{"--type"}},
		{"producer publish --type ORDERS --message x", []string{"ORDERS"}},
		{"producer publish --type big --format raw " + big, []string{big, "15728641 bytes, at most 15728640"}},
		{"producer publish --type big --count 1 --size 16MiB", []string{"16777216 bytes, at most 15728640", "publish a reference"}},
		{"producer publish --type x --count 1 --message y", []string{"cannot be combined"}},
		{"producer publish --type x --format xml " + big, []string{"xml", "lines"}},
		{"producer publish --type x --format ndjson " + notJSON, []string{"line 1", "JSON"}},
		{"producer publish --type x --header novalue --message y", []string{"key=value"}},
		{"producer publish --type x /does/not/exist", []string{"/does/not/exist"}},
		{"producer publish --type x " + filepath.Dir(big), []string{"directory"}},
		{"producer publsh", []string{"publsh"}},
		{"producer publish --type x --message y --backlog-wait -1s", []string{"--backlog-wait"}},
		{"producer publish --type x --message y --backlog-wait 13h", []string{"--backlog-wait", "12h"}},
		{"fencepost types pause", []string{"TYPE"}},
		{"fencepost types pause Orders", []string{"Orders", "a-z"}},
		{"fencepost types resume [a", []string{"[a"}},
		{"fencepost types limit x", []string{"--max-backlog"}},
		{"fencepost types limit x --max-backlog 1e9", []string{"10000000"}},
		{"fencepost types limit x --max-backlog many", []string{"100"}},
		{"fencepost types purge --yes", []string{"TYPE"}},
		{"fencepost types purge ../x --yes", []string{"../x"}},
		{"fencepost types purge x", []string{"--dry-run", "--yes"}},
		{"fencepost types purge x --yes --before yesterday", []string{"yesterday", "2026-01-31"}},
		{"fencepost types purge x --yes --older -1h", []string{"--older"}},
		{"fencepost types purge x --yes --older 1h --before 2026-01-31", []string{"cannot be combined"}},
		{"fencepost types purge x --yes", []string{"by ID", "--older", "--all"}}, // as in: types purge x $ID --yes
		{"fencepost types purge x --yes --all --foreign", []string{"cannot be combined"}},
		{"fencepost types peek", []string{"TYPE"}},
		{"fencepost types peek X", []string{"a-z"}},
		{"fencepost types peek x --from 12", []string{"--from", "12"}},
		{"fencepost types peek x -n 0", []string{"--count"}},
		{"fencepost verfy", []string{"verfy"}},
		{"fencepost verify", []string{"no file"}},
		{"fencepost cat", []string{"no file"}},
		{"fencepost cat --format xml x", []string{"xml"}},
		{"fencepost demo --workers 1", []string{"2"}},
		{"fencepost types list", []string{"list"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			args := strings.Fields(c.args)
			if args[0] != "fencepost" && !strings.Contains(c.args, "--url") && len(args) > 1 && args[1] != "publsh" {
				args = append(args, "--url", b.url)
			}
			refused(t, run(t, nil, args[0], args[1:]...), usage, c.words...)
		})
	}
	if r := run(t, nil, "fencepost", "types", "ls", "--url", b.url); r.code != 0 || !strings.Contains(r.stdout, "no types") {
		t.Errorf("there is nothing yet, which is no error: %v", r)
	}
}

func TestUnknownFileIsNotFound(t *testing.T) {
	refused(t, run(t, nil, "fencepost", "verify", "/does/not/exist.fpl"), usage, "/does/not/exist.fpl")
	refused(t, run(t, nil, "fencepost", "cat", "/does/not/exist.fpl"), usage, "/does/not/exist.fpl")
}

func TestUnreachableServer(t *testing.T) {
	url := "mongodb://user:secret@127.0.0.1:1/db?serverSelectionTimeoutMS=1000"
	refused(t, run(t, nil, "worker", "--type", "orders", "--connect-timeout", "2s", "--url", url), failed, "127.0.0.1:1", "connection refused", "--connect-timeout")
	refused(t, run(t, nil, "producer", "publish", "--type", "orders", "--message", "x", "--connect-timeout", "2s", "--url", url), failed, "127.0.0.1:1", "connection refused", "--connect-timeout")
}

func TestEnvironmentVariablesStandForFlags(t *testing.T) {
	b := embedded(t)
	t.Setenv("FENCEPOST_TYPE", "never")
	env := append(kit.Env(), "FENCEPOST_URL="+b.url, "FENCEPOST_TYPE=orders", "FENCEPOST_BATCH=nonsense")
	cmd := exec.Command(filepath.Join(bin, "producer"), "publish", "--message", "from the environment")
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = exec.Command(filepath.Join(bin, "worker"), "--until-empty", "--dir", b.dir)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("FENCEPOST_BATCH")) {
		t.Fatalf("a wrong environment variable is not named: %v\n%s", err, out)
	}
	// The flag overrides the variable.
	cmd = exec.Command(filepath.Join(bin, "worker"), "--until-empty", "--dir", b.dir, "--batch", "10")
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := payloads(t, b, "orders"); len(got) != 1 || string(got[0]) != "from the environment" {
		t.Fatalf("got %q", got)
	}
}

// drainable publishes n messages to type "t".
func drainable(t *testing.T, b backend, n int) {
	t.Helper()
	mustRun(t, nil, "producer", "publish", "--url", b.url, "--type", "t", "--count", fmt.Sprint(n), "--size", "1KiB")
}

func drain(t *testing.T, b backend) result {
	t.Helper()
	return run(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--until-empty", "--lease", "5s")
}

// stillThere checks that a refused worker has left all messages in the queue, and that they arrive once the remedy has been
// applied.
func stillThere(t *testing.T, b backend, n int, remedy func()) {
	t.Helper()
	if got := pending(t, b)["t"]; got != n {
		t.Errorf("%d of %d messages are in the queue after the refusal", got, n)
	}
	remedy()
	if r := drain(t, b); r.code != 0 {
		t.Fatalf("after the remedy: %v", r)
	}
	mustRun(t, nil, "fencepost", "verify", filepath.Join(b.dir, "t.fpl"))
}

func TestFileOnAnotherVolumeIsRefused(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		drainable(t, b, 10)
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		drainable(t, b, 10)

		// Given a directory without the registered file …
		right := b.dir
		b.dir = filepath.Join(t.TempDir(), "other")
		refused(t, drain(t, b), integrity, b.dir, "registered", "volume")
		if _, err := os.Stat(filepath.Join(b.dir, "t.fpl")); err == nil {
			t.Error("a second file was created")
		}
		// … or with another file of that type, from another queue.
		other := embedded(t)
		drainable(t, other, 1)
		if r := drain(t, other); r.code != 0 {
			t.Fatal(r)
		}
		b.dir = other.dir
		refused(t, drain(t, b), integrity, b.dir, "registered", "volume")

		b.dir = right
		stillThere(t, b, 10, func() {})
		if got := len(payloads(t, b, "t")); got != 20 {
			t.Errorf("%d messages in the file, want 20", got)
		}
	})
}

func TestRestoredOldCopyIsRefused(t *testing.T) {
	b := embedded(t)
	fpl := filepath.Join(b.dir, "t.fpl")
	drainable(t, b, 10)
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}
	old, err := os.ReadFile(fpl)
	if err != nil {
		t.Fatal(err)
	}
	drainable(t, b, 10)
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}
	current, err := os.ReadFile(fpl)
	if err != nil {
		t.Fatal(err)
	}
	drainable(t, b, 10)
	write(t, fpl, old)
	refused(t, drain(t, b), integrity, fpl, "copy")
	doctor := func() result { return run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir) }
	if r := doctor(); r.code != integrity || !strings.Contains(r.stdout, "restore the newest copy") || !strings.Contains(r.stdout, fpl) {
		t.Errorf("doctor does not find it: %v", r)
	}
	stillThere(t, b, 10, func() { write(t, fpl, current) })
	if r := doctor(); r.code != 0 {
		t.Errorf("doctor after the remedy: %v", r)
	}
	if got := len(payloads(t, b, "t")); got != 30 {
		t.Errorf("%d messages in the file, want 30", got)
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedForeignAndNewerFilesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func([]byte) []byte
		code   int
		words  []string
	}{
		{"foreign", func([]byte) []byte { return []byte("this is somebody's shopping list\n") }, integrity, []string{"not a Fencepost file"}},
		{"empty", func([]byte) []byte { return nil }, integrity, nil},
		{"damaged header", func(b []byte) []byte { b[100] ^= 1; return b }, integrity, []string{"header"}},
		{"newer version", func(b []byte) []byte { b[8]++; return b }, failed, []string{"newer"}},
		{"damaged message", func(b []byte) []byte { b[bytes.Index(b, []byte("FPB1"))+200] ^= 1; return b }, integrity, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := embedded(t)
			fpl := filepath.Join(b.dir, "t.fpl")
			drainable(t, b, 10)
			if r := drain(t, b); r.code != 0 {
				t.Fatal(r)
			}
			good, err := os.ReadFile(fpl)
			if err != nil {
				t.Fatal(err)
			}
			bad := c.damage(bytes.Clone(good))
			write(t, fpl, bad)
			refused(t, run(t, nil, "fencepost", "verify", fpl), c.code, append(c.words, fpl)...)
			refused(t, run(t, nil, "fencepost", "cat", fpl), c.code, append(c.words, fpl)...)
			if after, err := os.ReadFile(fpl); err != nil || !bytes.Equal(after, bad) {
				t.Error("a tool changed the file")
			}
			drainable(t, b, 5)
			if c.name == "damaged message" {
				return // the worker reads back only to the last checkpoint; verify finds older damage
			}
			refused(t, drain(t, b), c.code, append(c.words, fpl)...)
			stillThere(t, b, 5, func() { write(t, fpl, good) })
		})
	}
}

func TestUnusableDirectories(t *testing.T) {
	for _, c := range []struct {
		name string
		dir  func(t *testing.T) (dir string, remedy func())
	}{
		{"a file is in the way", func(t *testing.T) (string, func()) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, nil)
			return path, func() { os.Remove(path) }
		}},
		{"read-only", func(t *testing.T) (string, func()) {
			dir := mountTmpfs(t, "1m")
			remount(t, dir, "ro")
			return dir, func() { remount(t, dir, "rw") }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := embedded(t)
			dir, remedy := c.dir(t)
			b.dir = dir
			drainable(t, b, 5)
			refused(t, drain(t, b), failed, dir)
			stillThere(t, b, 5, remedy)
		})
	}
}

func TestFullDiskLosesNothing(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		b.dir = mountTmpfs(t, "4m")
		drainable(t, b, 10_000) // 10 MB
		refused(t, drain(t, b), failed, "t.fpl", "space")
		mustRun(t, nil, "fencepost", "verify", filepath.Join(b.dir, "t.fpl"))
		remount(t, b.dir, "size=64m")
		if r := drain(t, b); r.code != 0 {
			t.Fatalf("after more space was added: %v", r)
		}
		mustRun(t, nil, "fencepost", "verify", "--deep", filepath.Join(b.dir, "t.fpl"))
		if got := len(payloads(t, b, "t")); got != 10_000 {
			t.Errorf("%d of 10000 messages in the file", got)
		}
	})
}

// A worker without --until-empty waits for room and continues by itself.
func TestFullDiskIsWaitedOut(t *testing.T) {
	b := embedded(t)
	b.dir = mountTmpfs(t, "4m")
	drainable(t, b, 10_000)
	w := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s")
	eventually(t, time.Minute, "the worker reports the full disk", func() bool { return strings.Contains(w.stderr.String(), "space") })
	remount(t, b.dir, "size=64m")
	eventually(t, time.Minute, "everything drained", func() bool { return pending(t, b)["t"] == 0 })
	w.signal(t, syscall.SIGTERM)
	if code := w.wait(t, 10*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := len(payloads(t, b, "t")); got != 10_000 {
		t.Errorf("%d of 10000 messages in the file", got)
	}
}

// A file is recognised by its ID, wherever it has been moved.
func TestMovedFileIsRecognised(t *testing.T) {
	b := embedded(t)
	drainable(t, b, 10)
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(b.dir, moved); err != nil {
		t.Fatal(err)
	}
	b.dir = moved
	drainable(t, b, 10)
	if r := drain(t, b); r.code != 0 {
		t.Fatal(r)
	}
	if got := len(payloads(t, b, "t")); got != 20 {
		t.Errorf("%d messages in the file, want 20", got)
	}
}

// mountTmpfs mounts a small separate file system. It needs root, as do the MongoDB tests without an image.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system; run the tests as root to include this one")
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

func remount(t *testing.T, dir, option string) {
	t.Helper()
	if out, err := exec.Command("mount", "-o", "remount,"+option, dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v\n%s", err, out)
	}
}

// An invalid message stops the producer. The messages before it are published, and the exit code says so.
func TestPartialPublish(t *testing.T) {
	b := embedded(t)
	r := run(t, strings.NewReader("{}\n[1]\nnope\n{}\n"), "producer", "publish", "--url", b.url, "--type", "t", "--format", "ndjson")
	refused(t, r, partial, "line 3", "JSON", "2 messages before it are published")
	if got := pending(t, b)["t"]; got != 2 {
		t.Errorf("%d messages published, want 2", got)
	}
	long := strings.Repeat("x", queue.MaxPayload+1)
	refused(t, run(t, strings.NewReader(long), "producer", "publish", "--url", b.url, "--type", "t"), usage, "line 1")
}

func TestDryRunPublishesNothing(t *testing.T) {
	b := embedded(t)
	r := mustRun(t, strings.NewReader("a\nb\n"), "producer", "publish", "--url", b.url, "--type", "t", "--dry-run")
	if !strings.HasPrefix(r.stdout, "published=0 checked=2 ") {
		t.Errorf("summary: %s", r.stdout)
	}
	refused(t, run(t, nil, "fencepost", "types", "ls", "--url", b.url), nothing, "no database")
}
