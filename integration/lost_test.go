package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// series publishes and drains messages of about 1 KB, so that a small size limit makes several generations of files.
type series struct {
	b    backend
	n    int
	want strings.Builder // the published messages
}

func (s *series) publish(t *testing.T, k int) {
	t.Helper()
	var lines strings.Builder
	for range k {
		fmt.Fprintf(&lines, "%06d%s\n", s.n, strings.Repeat("x", 1000))
		s.n++
	}
	s.want.WriteString(lines.String())
	mustRun(t, strings.NewReader(lines.String()), "producer", "publish", "--url", s.b.url, "--type", "t", "-")
}

func (s *series) drain(t *testing.T) result {
	t.Helper()
	return run(t, nil, "worker", "--url", s.b.url, "--dir", s.b.dir, "--type", "t", "--max-file-size", "1MiB", "--gap-timeout", "100ms", "--until-empty")
}

func (s *series) mustDrain(t *testing.T) {
	t.Helper()
	if r := s.drain(t); r.code != 0 {
		t.Fatal(r)
	}
}

func (s *series) files(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.b.dir, "t*.fpl"))
	must(t, err)
	slices.Sort(files)
	return files
}

// sound checks that every program finds the files in order, and returns the output of verify.
func (s *series) sound(t *testing.T) string {
	t.Helper()
	mustRun(t, nil, "fencepost", "doctor", "--url", s.b.url, "--dir", s.b.dir)
	return mustRun(t, nil, "fencepost", "verify", s.b.dir).stdout
}

func (s *series) cat(t *testing.T) string {
	t.Helper()
	return mustRun(t, nil, "fencepost", append([]string{"cat"}, s.files(t)...)...).stdout
}

// TestDatabaseSetBackBehindSeveralFiles: since the backup of the database, the files have advanced by several generations. Workers follow them from the
// registered one to the newest. Where the series cannot be proved, no error advises to move a newer file away, and an operator can adopt it.
func TestDatabaseSetBackBehindSeveralFiles(t *testing.T) {
	onEachBackend(t, func(t *testing.T, b backend) {
		s := &series{b: b}
		s.publish(t, 100)
		s.mustDrain(t)
		restore := b.snapshot(t)
		for range 2 { // each fills a file
			s.publish(t, 1200)
			s.mustDrain(t)
		}
		mustRun(t, nil, "fencepost", "compact", "--url", b.url, filepath.Join(b.dir, "t.fpl"))
		mustRun(t, nil, "fencepost", "compact", "--url", b.url, filepath.Join(b.dir, "t.fpl"))
		before := s.files(t)
		if len(before) < 5 {
			t.Fatalf("files %v", before)
		}
		restore()
		if r := mustRun(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir); !strings.Contains(r.stdout, "is registered as generation 1") {
			t.Errorf("doctor: %v", r)
		}
		s.publish(t, 10)
		s.mustDrain(t)
		s.sound(t)
		if got := s.cat(t); got != s.want.String() {
			t.Errorf("%d messages of %d", lines(got), s.n)
		}

		// The same with a file in between that is missing.
		restore()
		away := filepath.Join(t.TempDir(), "away")
		must(t, os.Rename(before[1], away))
		newest := s.files(t)[len(s.files(t))-1]
		s.publish(t, 10)
		r := s.drain(t)
		refused(t, r, integrity, "older than the files", "--adopt", "move and remove nothing")
		if r := run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir); r.code != integrity || strings.Contains(r.stdout, "move this one away") {
			t.Errorf("doctor: %v", r)
		}
		refused(t, run(t, nil, "fencepost", "repair", "--adopt", "--accept-loss", "--url", b.url, newest), usage, "--adopt")
		// Archiving a file and all files before it leaves a sound series.
		must(t, os.Remove(before[0]))
		refused(t, run(t, nil, "fencepost", "repair", "--adopt", "--dry-run", "--url", b.url, newest), integrity, "older than the files")
		if r := mustRun(t, nil, "fencepost", "repair", "--adopt", "--url", b.url, newest); !strings.Contains(r.stdout, "is the registered file now") {
			t.Errorf("repair --adopt: %v", r)
		}
		refused(t, run(t, nil, "fencepost", "repair", "--adopt", "--url", b.url, newest), nothing, "is the registered one")
		s.mustDrain(t)
		s.sound(t)
		if got := s.cat(t); !strings.HasSuffix(s.want.String(), got) || lines(got) < 20 {
			t.Errorf("cat prints %d messages that are not the last ones of %d", lines(got), s.n)
		}
	})
}

// TestLostFilesAreGivenUp: when the newest file of a type, all of them, or all but an old copy are lost, repair --accept-loss says how many messages
// are lost and marks them, and workers continue. Afterwards every check succeeds, and reports the accepted loss.
func TestLostFilesAreGivenUp(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, b backend) {
		s := &series{b: b}
		repair := func(args ...string) result {
			return run(t, nil, "fencepost", append([]string{"repair", "--url", b.url, "--accept-loss"}, args...)...)
		}
		first := filepath.Join(b.dir, "t.fpl")
		s.publish(t, 100)
		s.mustDrain(t)
		old, err := os.ReadFile(first)
		must(t, err)
		for range 2 { // each fills a file
			s.publish(t, 1200)
			s.mustDrain(t)
		}
		s.publish(t, 50)
		s.mustDrain(t)
		n := s.n
		chain, err := storage.ReadChain(nil, b.dir, "t")
		must(t, err)
		if len(chain) < 3 {
			t.Fatalf("%d generations", len(chain))
		}
		restore := b.snapshot(t)
		saved := filepath.Join(t.TempDir(), "saved")
		must(t, os.CopyFS(saved, os.DirFS(b.dir)))
		again := func() {
			restore()
			must(t, os.RemoveAll(b.dir))
			must(t, os.CopyFS(b.dir, os.DirFS(saved)))
		}

		// The newest.
		last := chain[len(chain)-1]
		must(t, os.Remove(last.Path))
		s.publish(t, 5)
		refused(t, s.drain(t), integrity, "is registered for this type and not here", "repair --accept-loss")
		refused(t, repair("--dry-run", last.Path), integrity, "not here")
		lost := fmt.Sprintf("%d records of type t are lost", last.Next-last.First)
		refused(t, repair(last.Path), partial, lost, fmt.Sprintf("from %d to %d", last.First, last.Next-1))
		s.mustDrain(t)
		if r := run(t, nil, "fencepost", "doctor", "--url", b.url, "--dir", b.dir); !strings.Contains(r.stdout, fmt.Sprintf("%d of %d generations are here", len(chain), len(chain)+1)) {
			t.Errorf("doctor: %v", r)
		}
		if out := s.sound(t); !strings.Contains(out, fmt.Sprintf("lost %d:", last.Next-last.First)) {
			t.Errorf("verify: %s", out)
		}
		all := strings.SplitAfter(s.want.String(), "\n")
		if got := s.cat(t); got != strings.Join(all[:last.First], "")+strings.Join(all[last.Next:], "") {
			t.Errorf("cat prints %d messages", lines(got))
		}
		refused(t, repair("--dry-run", filepath.Join(b.dir, "x.fpl")), nothing, "no registered file of type x")

		// All but a copy that is older than the seal of the first.
		again()
		for _, l := range chain {
			must(t, os.Remove(l.Path))
		}
		must(t, os.WriteFile(first, old, 0o600))
		s.publish(t, 5)
		refused(t, s.drain(t), integrity, "is registered for this type and not here")
		refused(t, repair(first), partial, fmt.Sprintf("%d records of type t are lost", n-100))
		s.publish(t, 5)
		s.mustDrain(t)
		if out := s.sound(t); !strings.Contains(out, fmt.Sprintf("lost %d:", n-100)) || !strings.Contains(out, "REPLACED") {
			t.Errorf("verify: %s", out)
		}

		// All of several files: their first index is unknown.
		again()
		for _, l := range chain {
			must(t, os.Remove(l.Path))
		}
		s.publish(t, 5)
		refused(t, s.drain(t), integrity, "does not exist", "repair --accept-loss")
		refused(t, repair(first), partial, fmt.Sprintf("with indexes below %d are lost, except those in older files", last.Next))
		s.publish(t, 5)
		s.mustDrain(t)
		if out := s.sound(t); !strings.Contains(out, fmt.Sprintf("first kept: generation %d, from index %d", len(chain)+1, last.Next)) {
			t.Errorf("verify: %s", out)
		}

		// A missing directory is not a loss.
		again()
		must(t, os.RemoveAll(b.dir))
		refused(t, repair(first), failed, "does not exist")
		if _, err := os.Stat(b.dir); err == nil {
			t.Error("repair made the directory")
		}
	})
}

// TestLossAtTheEndIsAccepted: after repair --accept-loss of an old copy, verify of the directory works, as operations.md says.
func TestLossAtTheEndIsAccepted(t *testing.T) {
	b := embedded(t)
	s := &series{b: b}
	first := filepath.Join(b.dir, "t.fpl")
	s.publish(t, 10)
	s.mustDrain(t)
	old, err := os.ReadFile(first)
	must(t, err)
	s.publish(t, 10)
	s.mustDrain(t)
	must(t, os.WriteFile(first, old, 0o600))
	s.publish(t, 1)
	refused(t, s.drain(t), integrity, "were durable")
	repair := func(args ...string) result {
		return run(t, nil, "fencepost", append([]string{"repair", "--accept-loss", "--url", b.url}, args...)...)
	}
	dry := repair("--dry-run", first)
	refused(t, dry, integrity, "ends at index 10, but records below index 20 were durable")
	says(t, dry, integrity, "messages from index 10 to below 20 are given up")
	refused(t, repair(first), partial, "10 records")
	s.mustDrain(t)
	for _, args := range [][]string{{"--dry-run"}, {}} {
		refused(t, repair(append(args, filepath.Join(b.dir, "t@0002.fpl"))...), nothing, "nothing is damaged, and according to the database no message is missing")
	}
	if files, err := filepath.Glob(filepath.Join(b.dir, "*.fpl")); err != nil || len(files) != 2 {
		t.Errorf("a repair of what is in order left %q, %v", files, err)
	}
	if out := s.sound(t); !strings.Contains(out, "REPLACED") || !strings.Contains(out, "lost 10:") {
		t.Errorf("verify: %s", out)
	}
	refused(t, run(t, nil, "fencepost", "verify", first), integrity, "corruption") // by itself it is damaged
}

// TestFileOfARunningWorkerIsTaken: whatever happens to the file that a worker has open, no message is acknowledged into a file that its path does not
// name, even if the worker is about to continue in a new file. The worker says what happened, and continues when the file is back.
func TestFileOfARunningWorkerIsTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		take func(dir, file, aside string) error
		back func(dir, file, aside string) error
		says string
	}{
		{"moved", func(_, file, aside string) error { return os.Rename(file, aside) },
			func(_, file, aside string) error { return os.Rename(aside, file) }, "was moved"},
		{"removed, with a second name", func(_, file, aside string) error { return errors.Join(os.Link(file, aside), os.Remove(file)) },
			func(_, file, aside string) error { return os.Rename(aside, file) }, "was moved"},
		{"replaced by a copy", func(_, file, aside string) error {
			data, err := os.ReadFile(file)
			return errors.Join(err, os.Link(file, aside), os.WriteFile(file+".copy", data, 0o600), os.Rename(file+".copy", file))
		}, func(_, file, aside string) error { return os.Rename(aside, file) }, "was replaced"},
		{"directory renamed", func(dir, _, _ string) error { return os.Rename(dir, dir+".old") },
			func(dir, _, _ string) error { return errors.Join(os.RemoveAll(dir), os.Rename(dir+".old", dir)) }, "directory was renamed"},
		{"cut", func(_, file, aside string) error {
			data, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(aside, data, 0o600), os.Truncate(file, int64(len(data)-20_000)))
		}, func(_, file, aside string) error { return os.Rename(aside, file) }, "was cut"},
	} {
		for _, limit := range []string{"0", "1MiB"} {
			t.Run(c.name+", file size at most "+limit, func(t *testing.T) {
				onEachBackend(t, func(t *testing.T, b backend) {
					s := &series{b: b}
					file, aside := filepath.Join(b.dir, "t.fpl"), filepath.Join(t.TempDir(), "aside")
					worker := start(t, "worker", "worker", "--url", b.url, "--dir", b.dir, "--type", "t", "--max-file-size", limit)
					s.publish(t, 100)
					eventually(t, runTimeout, "the messages are in the file", func() bool { return pending(t, b)["t"] == 0 })
					must(t, c.take(b.dir, file, aside))
					s.publish(t, 1500)
					if code := worker.wait(t, runTimeout); code != integrity || !strings.Contains(worker.stderr.String(), c.says) {
						t.Errorf("the worker ended with %d: %s", code, worker.stderr.String())
					}
					if n := pending(t, b)["t"]; n != 1500 {
						t.Errorf("%d messages are in the queue, want 1500", n)
					}
					must(t, c.back(b.dir, file, aside))
					s.mustDrain(t)
					s.sound(t)
					if got := s.cat(t); got != s.want.String() {
						t.Errorf("%d messages of %d", lines(got), s.n)
					}
				})
			})
		}
	}
}

// TestTwoDatabasesOnOneDirectory: doctor says that the files are used with another database, too.
func TestTwoDatabasesOnOneDirectory(t *testing.T) {
	one := &series{b: embedded(t)}
	two := &series{b: embedded(t)}
	two.b.dir = one.b.dir
	for _, s := range []*series{one, two} {
		s.publish(t, 3)
		s.mustDrain(t)
		one.sound(t)
	}
	r := mustRun(t, nil, "fencepost", "doctor", "--url", one.b.url, "--dir", one.b.dir)
	if !strings.Contains(r.stdout, "workers of another database use this directory") {
		t.Errorf("doctor: %v", r)
	}
	if r := mustRun(t, nil, "fencepost", "doctor", "--url", two.b.url, "--dir", one.b.dir); strings.Contains(r.stdout, "workers of another") {
		t.Errorf("doctor of the database that was used last: %v", r)
	}
}
