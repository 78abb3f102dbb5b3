package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSizeLimitCompactRepairTail takes one type through all that happens to its files: it goes on in a new file at the size
// limit while a worker is killed, is followed by tail from the first message on, compacted, damaged and repaired.
func TestSizeLimitCompactRepairTail(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		first := filepath.Join(b.dir, "t.fpl")
		var want strings.Builder
		n := 0
		publish := func(k int) {
			t.Helper()
			var lines strings.Builder
			for range k {
				fmt.Fprintf(&lines, "%06d%s\n", n, strings.Repeat(" all work and no play", 20))
				n++
			}
			want.WriteString(lines.String())
			mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "t", "-")
		}
		publish(5000) // about 2 MB
		args := []string{"--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "2s", "--max-file-size", "1MiB"}
		worker := start(t, "worker 1", "worker", args...)
		eventually(t, time.Minute, "the first file appears", func() bool { _, err := os.Stat(first); return err == nil })
		follower := start(t, "tail", "fencepost", "tail", "--follow", "--from", "0", first)
		followed := func() bool { return follower.stdout.String() == want.String() }
		eventually(t, time.Minute, "tail prints everything", followed)
		publish(3000)
		worker.signal(t, syscall.SIGKILL)
		publish(3000)
		if r := run(t, nil, "worker", append(args, "--until-empty")...); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, time.Minute, "tail prints everything", followed)
		files, err := filepath.Glob(filepath.Join(b.dir, "t*.fpl"))
		if err != nil || len(files) < 3 {
			t.Fatalf("files %v, %v", files, err)
		}
		if got := mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...); got.stdout != want.String() {
			t.Errorf("cat of all files prints %d bytes, want %d", len(got.stdout), want.Len())
		}
		mustRun(t, nil, "fencepost", "verify", "--deep", b.dir)

		// Compaction: any file of the type names it; the newest is written anew.
		before := len(files)
		r := mustRun(t, nil, "fencepost", "compact", "--url", b.url, "--compress", first)
		if !strings.Contains(r.stdout, fmt.Sprintf("t@%04d.fpl", before+1)) {
			t.Errorf("compact: %v", r)
		}
		publish(100)
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, time.Minute, "tail prints everything", followed)
		newest := filepath.Join(b.dir, fmt.Sprintf("t@%04d.fpl", before+1))
		if got := mustRun(t, nil, "fencepost", "tail", "-n", "5", first).stdout; got != tail(want.String(), 5)+"\n" {
			t.Errorf("the last messages are %.200q", got)
		}
		mustRun(t, nil, "fencepost", "verify", "--deep", b.dir)

		// Repair: what is compressed in one batch is lost together, everything else is kept.
		refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, newest), nothing, "nothing is damaged")
		refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, first), failed, "sealed", "cat --salvage")
		content, err := os.ReadFile(newest)
		if err != nil {
			t.Fatal(err)
		}
		i := bytes.LastIndex(content, []byte("FPB1")) // the 100 messages behind the compaction
		content[i+200] ^= 1
		flip(t, newest, int64(i+200), content[i+200]) // in place: tail has the file open
		refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, newest), integrity, "corruption")
		refused(t, run(t, nil, "fencepost", "repair", "--dry-run", "--url", b.url, newest), integrity, "corruption")
		r = run(t, nil, "fencepost", "repair", "--url", b.url, newest)
		refused(t, r, partial, "could not be saved")
		if after, err := os.ReadFile(newest); err != nil || !bytes.HasPrefix(after, content) {
			t.Error("repair changed the damaged file")
		}
		publish(100)
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		repaired := filepath.Join(b.dir, fmt.Sprintf("t@%04d.fpl", before+2))
		mustRun(t, nil, "fencepost", "verify", "--deep", repaired)
		if got := mustRun(t, nil, "fencepost", "tail", "-n", "100", first).stdout; got != tail(want.String(), 100)+"\n" {
			t.Errorf("the last messages after the repair are %.200q", got)
		}
		follower.signal(t, syscall.SIGINT)
		if code := follower.wait(t, time.Minute); code != stopped {
			t.Errorf("tail ended with %d", code)
		}
	})
}

// flip writes one byte of a file.
func flip(t *testing.T, path string, at int64, b byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{b}, at); err != nil {
		t.Fatal(err)
	}
}

func TestRewritingIsRefused(t *testing.T) {
	b := embedded(t)
	drainable(t, b, 10)
	file := filepath.Join(b.dir, "t.fpl")
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, file), failed, "no such file")
	worker := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t")
	eventually(t, time.Minute, "the worker holds the type", func() bool { return len(heldLocks(t, b)) == 1 })
	eventually(t, time.Minute, "the file appears", func() bool { _, err := os.Stat(file); return err == nil })
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, file), held, "--wait")
	worker.signal(t, syscall.SIGTERM)
	worker.wait(t, time.Minute)
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url), usage, "one file")
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, b.dir), usage, "name of a type's file")
	refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, "--lease", "1ms", file), usage, "--lease")
	refused(t, run(t, nil, "fencepost", "tail", filepath.Join(b.dir, "x.fpl")), failed, "no such file")
	refused(t, run(t, nil, "fencepost", "tail", file, file), usage, "one file")
	refused(t, run(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--max-file-size", "4KiB"), usage, "at least 1MiB")
}
