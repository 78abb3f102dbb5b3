package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/tools/internal/overlay"
	"github.com/fencepost/fencepost/tools/internal/seeded"
)

// verdict is the outcome of a test run.
type verdict struct {
	passed, skipped []string // top-level tests
	failed          []string // any tests
	timeout         bool
	ok              bool // the binary exited with 0
	output          []byte
}

var result = regexp.MustCompile(`(?m)^( *)--- (PASS|FAIL|SKIP): (\S+)`)

// try runs the tests of the rules first without a mutant, and then with each.
func try(ctx context.Context, root string, rules []rule, parallel int) error {
	tmp, err := os.MkdirTemp("", "fencepost-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	t := &trier{root: root, tmp: tmp, width: len(fmt.Sprint(len(rules)))}
	t.library = sync.OnceValues(seeded.Library)
	slots := make(chan struct{}, parallel)
	started := time.Now()

	var packages []suite
	for _, r := range rules {
		if s := (suite{r.where(), r.long}); !slices.Contains(packages, s) {
			packages = append(packages, s)
		}
	}
	var wg sync.WaitGroup
	for _, s := range packages {
		var names []string
		for _, r := range rules {
			if s == (suite{r.where(), r.long}) {
				names = append(names, r.names()...)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		base := make(chan baseline, 1)
		wg.Go(func() {
			slots <- struct{}{}
			base <- t.baseline(ctx, s, names)
			<-slots
		})
		wg.Go(func() {
			b := <-base
			var mutants sync.WaitGroup
			for _, r := range rules {
				if s != (suite{r.where(), r.long}) {
					continue
				}
				slots <- struct{}{}
				mutants.Go(func() {
					t.one(ctx, r, b)
					<-slots
				})
			}
			mutants.Wait()
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	fmt.Printf("%d killed, %d survived, %d open, %d not judged, %d skipped, in %s\n",
		t.killed, len(t.survivors), t.open, len(t.unjudged), t.skipped, time.Since(started).Round(time.Second))
	if n := len(t.survivors); n > 0 {
		return fmt.Errorf("%s survived: the tests do not need the rule\n  %s", plural(n, "mutant"), strings.Join(t.survivors, "\n  "))
	}
	if n := len(t.unjudged); n > 0 {
		return fmt.Errorf("%s could not be judged\n  %s", plural(n, "mutant"), strings.Join(t.unjudged, "\n  "))
	}
	return nil
}

// suite is a package's tests, with or without the long ones.
type suite struct {
	dir  string
	long bool
}

type baseline struct {
	err     error
	passed  []string
	skipped []string
}

type trier struct {
	root, tmp string
	width     int
	library   func() (overlay.Files, error) // of the simulation

	mu                  sync.Mutex
	done                int
	killed, skipped     int
	open                int
	survivors, unjudged []string
}

// baseline runs the tests without any mutant.
func (t *trier) baseline(ctx context.Context, s suite, names []string) baseline {
	dir, err := os.MkdirTemp(t.tmp, "baseline-")
	if err != nil {
		return baseline{err: err}
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "tests")
	if out, err := t.compile(ctx, binary, s.dir, nil); err != nil {
		return baseline{err: fmt.Errorf("%s does not compile: %s", s.dir, out)}
	}
	v, err := t.run(ctx, binary, filepath.Join(t.root, s.dir), "^("+strings.Join(names, "|")+")$", s.long, 10*time.Minute)
	switch {
	case err != nil:
		return baseline{err: err}
	case !v.ok:
		return baseline{err: fmt.Errorf("the tests in %s fail without any mutant: %s\n%s", s.dir, strings.Join(v.failed, " "), tail(v.output))}
	}
	return baseline{passed: v.passed, skipped: v.skipped}
}

// one tries one mutant and prints the outcome.
func (t *trier) one(ctx context.Context, r rule, b baseline) {
	started := time.Now()
	outcome, detail := t.judge(ctx, r, b)
	if r.open && outcome == killed {
		outcome, detail = unjudged, "is marked as open, and was killed "+detail+": name that test in its entry, and remove the mark"
	} else if r.open && outcome == survived {
		outcome = open
	}
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done++
	fmt.Printf("%*d %-8s %5.1fs  %s\n", t.width, t.done, outcome, time.Since(started).Seconds(), r)
	if detail != "" {
		fmt.Printf("%*s %s\n", t.width, "", detail)
	}
	switch outcome {
	case killed:
		t.killed++
	case skipped:
		t.skipped++
	case open:
		t.open++
	case survived:
		t.survivors = append(t.survivors, r.String())
	default:
		t.unjudged = append(t.unjudged, r.String()+": "+detail)
	}
}

// Outcomes.
const (
	killed   = "killed"
	survived = "SURVIVED"
	skipped  = "skipped" // for lack of a server or a tool, as the test says
	unjudged = "UNCLEAR"
	open     = "open"
)

func (t *trier) judge(ctx context.Context, r rule, b baseline) (outcome, detail string) {
	if b.err != nil {
		return unjudged, b.err.Error()
	}
	ran := func(in []string) bool {
		return slices.ContainsFunc(r.names(), func(n string) bool { return slices.Contains(in, n) })
	}
	switch {
	case ran(b.passed):
	case ran(b.skipped):
		return skipped, "by " + r.tests + ", which needs something that is not available here"
	default:
		return unjudged, "no test ran for " + r.tests + ", even without a mutant"
	}
	dir, err := os.MkdirTemp(t.tmp, "mutant-")
	if err != nil {
		return unjudged, err.Error()
	}
	defer os.RemoveAll(dir)
	files, cwd, err := t.apply(r, dir)
	if err != nil {
		return unjudged, err.Error()
	}
	binary := filepath.Join(dir, "tests")
	if out, err := t.compile(ctx, binary, r.where(), files); err != nil {
		return unjudged, "does not compile: " + string(out)
	}
	v, err := t.run(ctx, binary, cwd, r.pattern(), r.long, r.limit(), r.args...)
	switch {
	case err != nil:
		return unjudged, err.Error()
	case v.ok:
		return survived, "all of " + r.tests + " pass without it"
	case v.timeout && r.hangs:
		return killed, "nothing ended within " + r.limit().String()
	case v.timeout:
		return unjudged, "no verdict within " + r.limit().String() + "\n" + tail(v.output)
	case len(v.failed) > 0:
		detail = "by " + v.failed[len(v.failed)-1] // the innermost subtest is named after those around it
		if schedule := failedSchedule.FindSubmatch(v.output); schedule != nil {
			detail += fmt.Sprintf(", seed %s: %.200s", schedule[1], schedule[2])
		}
		return killed, detail
	case bytes.Contains(v.output, []byte("panic: ")) || bytes.Contains(v.output, []byte("fatal error: ")):
		return killed, "by a panic: " + oneLine(string(panicLine.Find(v.output)))
	}
	return unjudged, "the tests ended without a verdict\n" + tail(v.output)
}

// failedSchedule matches the simulation's report of the schedule that failed.
var failedSchedule = regexp.MustCompile(`: seed (\d+):\n *(.*)`)

var panicLine = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)

// apply returns the files that the mutant changes. If they are not Go files, it instead writes a copy of their directory into dir, in
// which to run the tests.
func (t *trier) apply(r rule, dir string) (files overlay.Files, cwd string, err error) {
	texts, err := r.patched(t.root)
	if err != nil {
		return nil, "", err
	}
	cwd = filepath.Join(t.root, r.where())
	if !strings.HasSuffix(r.file, ".go") {
		// At the same directory depth, so that ../.. exists.
		copied := filepath.Join(dir, filepath.Dir(r.file))
		if err := os.CopyFS(copied, os.DirFS(filepath.Join(t.root, filepath.Dir(r.file)))); err != nil {
			return nil, "", err
		}
		return nil, copied, os.WriteFile(filepath.Join(copied, filepath.Base(r.file)), []byte(texts[r.file]), 0o755)
	}
	files = overlay.Files{}
	for file, text := range texts {
		files[filepath.Join(t.root, file)] = text
	}
	return files, cwd, nil
}

// compile builds the tests of the package in dir with files in place of others. The simulation's tests get a patched library, with
// which schedules are reproducible. Vet is for the real code.
func (t *trier) compile(ctx context.Context, binary, dir string, files overlay.Files) (out []byte, err error) {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary} // linking takes most of the time
	if dir == simulation {
		library, err := t.library()
		if err != nil {
			return []byte(err.Error()), err
		}
		library = maps.Clone(library)
		maps.Copy(library, files)
		files, args = library, append(args, "-tags", seeded.Tag)
	}
	if len(files) > 0 {
		overlay, err := files.Write(filepath.Dir(binary))
		if err != nil {
			return []byte(err.Error()), err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = filepath.Join(t.root, dir) // it may be in its own module
	return cmd.CombinedOutput()
}

// run runs compiled tests. The binary itself ends when its time is over; if it does not, it is killed.
func (t *trier) run(ctx context.Context, binary, dir, pattern string, long bool, limit time.Duration, more ...string) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	if b, err := os.ReadFile(binary); err == nil && bytes.Contains(b, []byte("rapid.nofailfile")) {
		more = append(more, "-rapid.nofailfile") // otherwise it records failures in the tree
	}
	args := []string{"-test.run=" + pattern, "-test.v", "-test.failfast", "-test.timeout=" + limit.String()}
	if !long {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, binary, append(args, more...)...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with the processes that tests start
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes that a test left running because it ended early
	}
	v := verdict{ok: err == nil, output: out, timeout: bytes.Contains(out, []byte("panic: test timed out after")) || ctx.Err() != nil}
	for _, m := range result.FindAllSubmatch(out, -1) {
		top, name := len(m[1]) == 0, string(m[3])
		switch {
		case string(m[2]) == "FAIL":
			v.failed = append(v.failed, name)
		case top && string(m[2]) == "PASS":
			v.passed = append(v.passed, name)
		case top:
			v.skipped = append(v.skipped, name)
		}
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !v.timeout {
		return v, fmt.Errorf("run the tests: %w", err)
	}
	return v, nil
}

// tail returns the end of a test's output.
func tail(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) > 20 {
		lines = lines[len(lines)-20:]
	}
	return strings.Join(lines, "\n")
}
