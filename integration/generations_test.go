package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/storage"
)

// TestSizeLimitCompactRepairTail takes one type through all changes of its files: it continues in a new file at the size limit
// while a worker is killed, is followed by tail from the first message on, compacted, damaged and repaired.
func TestSizeLimitCompactRepairTail(t *testing.T) {
	t.Parallel()
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
		args := []string{"--url", b.url, "--dir", b.dir, "--type", "t", "--lease", "5s", "--max-file-size", "1MiB"}
		worker := start(t, "worker 1", "worker", args...)
		eventually(t, time.Minute, "the first file appears", func() bool { _, err := os.Stat(first); return err == nil })
		follower := start(t, "tail", "fencepost", "tail", "--follow", "--from", "0", first)
		followed := func() bool { return follower.stdout.String() == want.String() }
		eventually(t, runTimeout, "tail prints everything", followed)
		publish(3000)
		worker.signal(t, syscall.SIGKILL)
		publish(3000)
		if r := run(t, nil, "worker", append(args, "--until-empty")...); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, runTimeout, "tail prints everything", followed)
		files, err := filepath.Glob(filepath.Join(b.dir, "t*.fpl"))
		if err != nil || len(files) < 3 {
			t.Fatalf("files %v, %v", files, err)
		}
		if got := mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...); got.stdout != want.String() {
			t.Errorf("cat of all files prints %d bytes, want %d", len(got.stdout), want.Len())
		}
		mustRun(t, nil, "fencepost", "verify", "--deep", b.dir)

		// Compaction: any file of the type identifies it; all files but the first are rewritten, into one.
		before := len(files)
		r := mustRun(t, nil, "fencepost", "compact", "--url", b.url, "--compress", "--from", "2", first)
		if !strings.Contains(r.stdout, fmt.Sprintf("t@%04d.fpl", before+1)) {
			t.Errorf("compact: %v", r)
		}
		r = mustRun(t, nil, "fencepost", "keep", "--url", b.url, "--replaced", "--yes", first)
		if !strings.Contains(r.stdout, fmt.Sprintf("removed=%d", before-1)) {
			t.Errorf("keep: %v", r)
		}
		if got := mustRun(t, nil, "fencepost", "cat", first, filepath.Join(b.dir, fmt.Sprintf("t@%04d.fpl", before+1))); got.stdout != want.String() {
			t.Errorf("cat of the remaining files prints %d bytes, want %d", len(got.stdout), want.Len())
		}
		publish(100)
		if r := drain(t, b); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, runTimeout, "tail prints everything", followed)
		newest := filepath.Join(b.dir, fmt.Sprintf("t@%04d.fpl", before+1))
		if got := mustRun(t, nil, "fencepost", "tail", "-n", "5", first).stdout; got != tail(want.String(), 5)+"\n" {
			t.Errorf("the last messages are %.200q", got)
		}
		mustRun(t, nil, "fencepost", "verify", "--deep", b.dir)

		// Repair: the messages compressed in one damaged batch are lost together, everything else is kept.
		refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, newest), nothing, "nothing is damaged")
		refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, first), failed, "sealed", "cat --salvage")
		content, err := os.ReadFile(newest)
		if err != nil {
			t.Fatal(err)
		}
		i := bytes.LastIndex(content, []byte("FPB1")) // the 100 messages after the compaction
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
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, file), usage, "does not exist")
	worker := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t")
	eventually(t, time.Minute, "the worker holds the type", func() bool { return len(heldLocks(t, b)) == 1 })
	eventually(t, time.Minute, "the file appears", func() bool { _, err := os.Stat(file); return err == nil })
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, file), held, "--wait")
	worker.signal(t, syscall.SIGTERM)
	worker.wait(t, time.Minute)
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url), usage, "one file")
	refused(t, run(t, nil, "fencepost", "compact", "--url", b.url, b.dir), usage, "a type's file")
	refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, "--lease", "1ms", file), usage, "--lease")
	refused(t, run(t, nil, "fencepost", "tail", filepath.Join(b.dir, "x.fpl")), usage, "does not exist")
	refused(t, run(t, nil, "fencepost", "tail", file, file), usage, "one file")
	refused(t, run(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--max-file-size", "4KiB"), usage, "at least 1MiB")
}

// TestBrokenChains: whatever happens to one of the files of a type, every program that reads them names the file and the missing
// messages, and ends with exit code 3. A healthy series is healthy wherever it begins.
func TestBrokenChains(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	const perLine = 1000
	var lines strings.Builder
	for n := range 12000 {
		fmt.Fprintf(&lines, "%06d%s\n", n, strings.Repeat("x", perLine-7))
	}
	mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", b.url, "--type", "t", "-")
	mustRun(t, nil, "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--max-file-size", "1MiB", "--batch", "200", "--until-empty")
	mustRun(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir)
	chain, err := storage.ReadChain(nil, b.dir, "t")
	if err != nil || len(chain) < 6 {
		t.Fatalf("%d generations, %v", len(chain), err)
	}
	name := func(dir string, g int) string { return filepath.Join(dir, storage.GenerationName("t", uint64(g))) }
	rename := func(dir string, from, to string) error {
		return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to))
	}
	missing := func(g int) string {
		return fmt.Sprintf("messages %d to %d are missing", chain[g-1].First, chain[g-1].Next-1)
	}
	for _, c := range []struct {
		name   string
		damage func(dir string) error
		says   []string
		newest bool // it is noticed only where the newest file is requested
	}{
		{"cut", func(dir string) error {
			info, err := os.Stat(name(dir, 3))
			return errors.Join(err, os.Truncate(name(dir, 3), info.Size()-100_000))
		}, []string{"generation 3", "t@0003.fpl) is cut", fmt.Sprintf("to %d are missing", chain[2].Next-1)}, false},
		{"removed", func(dir string) error { return os.Remove(name(dir, 4)) }, []string{"generation 4", "t@0004.fpl) is missing", missing(4)}, false},
		{"swapped", func(dir string) error {
			return errors.Join(rename(dir, "t@0003.fpl", "s"), rename(dir, "t@0004.fpl", "t@0003.fpl"), rename(dir, "s", "t@0004.fpl"))
		}, []string{"t@0003.fpl and t@0004.fpl have swapped names"}, false},
		{"copied", func(dir string) error {
			data, err := os.ReadFile(name(dir, 3))
			return errors.Join(err, os.WriteFile(name(dir, 4), data, 0o600))
		}, []string{"generation 4", "t@0004.fpl is a copy of t@0003.fpl", missing(4)}, false},
		{"the newest removed", func(dir string) error { return os.Remove(name(dir, len(chain))) },
			[]string{"is sealed", storage.GenerationName("t", uint64(len(chain))), fmt.Sprintf("messages from %d on", chain[len(chain)-1].First), "mount or restore"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := errors.Join(os.CopyFS(dir, os.DirFS(b.dir)), c.damage(dir)); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "t*.fpl"))
			if err != nil {
				t.Fatal(err)
			}
			refused(t, run(t, nil, "fencepost", "verify", dir), integrity, c.says...)
			r := run(t, nil, "fencepost", "verify", "--json", dir)
			var bad int
			for line := range strings.Lines(r.stdout) {
				var j struct {
					OK    bool
					Chain []string
				}
				if err := json.Unmarshal([]byte(line), &j); err != nil || j.OK == (len(j.Chain) > 0) {
					t.Errorf("%v: %s", err, line)
				}
				bad += len(j.Chain)
			}
			if bad == 0 || r.code != integrity {
				t.Errorf("verify --json: %v", r)
			}
			refused(t, run(t, nil, "fencepost", "tail", files[0]), integrity, c.says...)
			if c.newest {
				// If files are named, nothing is known about the files before and after them.
				mustRun(t, nil, "fencepost", append([]string{"verify"}, files...)...)
				mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...)
				if r := run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", dir); r.code != integrity || !strings.Contains(r.stdout, "registered for this type and not here") {
					t.Errorf("doctor: %v", r)
				}
				return
			}
			refused(t, run(t, nil, "fencepost", append([]string{"verify"}, files...)...), integrity, c.says...)
			r = run(t, nil, "fencepost", append([]string{"cat"}, files...)...)
			refused(t, r, integrity, c.says...)
			if r.stdout != "" {
				t.Errorf("cat prints %d bytes of files that do not follow one another", len(r.stdout))
			}
			r = run(t, nil, "fencepost", append([]string{"cat", "--salvage", "--format", "json"}, files...)...)
			if r.code != integrity || !strings.Contains(r.stdout, `{"gap":{"from_index":`) || !strings.Contains(r.stdout, `"payload":"011999`) {
				t.Errorf("cat --salvage: exit code %d, stderr %s", r.code, r.stderr)
			}
			refused(t, run(t, nil, "fencepost", "tail", "--follow", "--from", "0", files[0]), integrity, c.says...)
			r = run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", dir)
			for _, s := range c.says {
				if r.code != integrity || !strings.Contains(r.stdout, s) {
					t.Errorf("doctor does not say %q: %v", s, r)
				}
			}
			refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, files[len(files)-1]), integrity, c.says...)
			refused(t, run(t, nil, "fencepost", "repair", "--url", b.url, "--accept-loss", files[2]), integrity, c.says...)
		})
	}

	// Older files may be archived, and files may be named one by one.
	mustRun(t, nil, "fencepost", "verify", name(b.dir, 2), name(b.dir, 3))
	mustRun(t, nil, "fencepost", "verify", name(b.dir, 3))
	mustRun(t, nil, "fencepost", "cat", name(b.dir, 3))
	refused(t, run(t, nil, "fencepost", "cat", name(b.dir, 2), name(b.dir, 4)), integrity, "generation 3", missing(3))
	for g := 1; g < 4; g++ {
		if err := os.Remove(name(b.dir, g)); err != nil {
			t.Fatal(err)
		}
	}
	r := mustRun(t, nil, "fencepost", "verify", b.dir)
	if first := fmt.Sprintf("first kept: generation 4, from index %d\n", chain[3].First); strings.Count(r.stdout, first) != 1 {
		t.Errorf("verify does not say %q: %v", first, r)
	}
	mustRun(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir)
	files, err := filepath.Glob(filepath.Join(b.dir, "t*.fpl"))
	if err != nil {
		t.Fatal(err)
	}
	if got := mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...).stdout; got != lines.String()[perLine*int(chain[3].First):] {
		t.Errorf("cat prints %d bytes", len(got))
	}

	// Compacted messages are printed once.
	mustRun(t, nil, "fencepost", "compact", "--url", b.url, files[0])
	mustRun(t, nil, "fencepost", "compact", "--url", b.url, files[0])
	mustRun(t, nil, "fencepost", "verify", b.dir)
	if files, err = filepath.Glob(filepath.Join(b.dir, "t*.fpl")); err != nil || len(files) != len(chain)-1 {
		t.Fatalf("files %v, %v", files, err)
	}
	r = mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...)
	if r.stdout != lines.String()[perLine*int(chain[3].First):] || !strings.Contains(r.stderr, "was replaced by a compaction or repair") {
		t.Errorf("cat prints %d bytes; stderr %s", len(r.stdout), r.stderr)
	}
}

// TestFilesGoOnWhileTheyAreChecked: a worker that continues in one file after the other, and seals each before the next has its name, never
// leaves files that look broken to a concurrent check.
func TestFilesGoOnWhileTheyAreChecked(t *testing.T) {
	b := embedded(t)
	if err := os.Mkdir(b.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	worker := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--max-file-size", "1MiB")
	lines := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(lines, []byte(strings.Repeat(strings.Repeat("x", 999)+"\n", 1500)), 0o600); err != nil {
		t.Fatal(err)
	}
	generations, checks := 0, 0
	for round := 0; generations < 6; round++ {
		if round == 100 {
			t.Fatalf("only %d generations", generations)
		}
		producer := start(t, "producer", "producer", "publish", "--url", b.url, "--type", "t", lines)
		for published := false; !published; {
			select {
			case <-producer.done:
				published = true
			default:
			}
			files, err := filepath.Glob(filepath.Join(b.dir, "t*.fpl"))
			if err != nil {
				t.Fatal(err)
			}
			if generations = len(files); generations == 0 {
				continue
			}
			checks++
			mustRun(t, nil, "fencepost", "verify", b.dir)
			mustRun(t, nil, "fencepost", append([]string{"cat"}, files...)...)
			mustRun(t, nil, "fencepost", "tail", files[0])
			if r := run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir); r.code == integrity {
				t.Fatal(r)
			}
		}
		if code := producer.wait(t, time.Minute); code != 0 {
			t.Fatalf("publishing ended with %d", code)
		}
	}
	worker.signal(t, syscall.SIGTERM)
	if code := worker.wait(t, time.Minute); code != 0 {
		t.Errorf("the worker ended with %d", code)
	}
	t.Logf("%d generations, %d checks", generations, checks)
}
