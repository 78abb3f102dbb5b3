//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// chaos runs the command and returns its exit code and what it prints.
func chaos(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	code := execute(t.Context(), cmd)
	return code, out.String()
}

func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("the independent reader needs python3")
	}
}

// With workers that append messages already in the file, chaos finds duplicates, says how to reproduce them, and fails. With unmodified
// workers, the same runs hold.
func TestBrokenWorkersAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds workers of its own and needs a minute: not with -short")
	}
	needPython(t)
	runs := func(seed, n int, more ...string) (int, string) {
		return chaos(t, append([]string{"--scenario", "locks", "--backend", "sqlite", "--seed", fmt.Sprint(seed), "--runs", fmt.Sprint(n), "--keep", t.TempDir()}, more...)...)
	}
	if code, out := runs(1, 1); code != exitOK || !strings.Contains(out, "1 runs held, 0 violated, 0 not run") {
		t.Errorf("workers as they are: exit code %d\n%s", code, out)
	}
	// A seed determines the faults and their times, not how far each process has come by then.
	for seed := 1; ; seed++ {
		code, out := runs(seed, 1, "--without", "contiguity")
		noticed := code == exitFailed && strings.Contains(out, "order: ") // wrong order is also found, but is not the subject of this test
		if !strings.Contains(out, "doubled: ") && (code == exitOK || noticed) && seed < 10 {
			continue
		}
		if code != exitFailed || !strings.Contains(out, "doubled: ") || !strings.Contains(out, fmt.Sprintf("--seed %d --runs 1 --lease 2s --without contiguity'", seed)) {
			t.Errorf("workers without contiguity, seed %d: exit code %d\n%s", seed, code, out)
		}
		return
	}
}

func TestBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"--scenario bogus":                    "kill, freeze",
		"--backend oracle":                    "mongodb, sqlite",
		"--scenario network --backend sqlite": "no sense",
		"--store mongodb --backend sqlite":    "no sense",
		"--store tape":                        "mongodb, s3, shared",
		"--duration soon":                     "--duration",
		"--runs -1":                           "--runs",
		"--parallel 0":                        "--parallel",
		"--lease 1ms":                         "1s",
		"--record /does/not/exist":            "--record",
		"--report /does/not/exist":            "--report",
		"--without everything":                "contiguity",
		"--without contiguity --record f":     "--record",
		"surplus":                             "surplus",
	} {
		code, out := chaos(t, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(out, want) || strings.Count(out, "error:") != 1 {
			t.Errorf("%s: exit code %d, %s; want 2 and %q", args, code, out, want)
		}
	}
}

func TestReport(t *testing.T) {
	in := `{"time":"2026-01-02T03:04:05Z","commit":"abc","machine":"m","scenario":"kill","backend":"sqlite","seed":8,"faults":{"kill":3},"confirmed":1200,"in_files":1201,"recovery":1.5,"verdict":"held"}
{"time":"2026-01-02T03:04:06Z","commit":"abc","machine":"m","scenario":"kill","backend":"sqlite","seed":7,"faults":{"kill":1},"confirmed":10,"recovery":2.5,"verdict":"held"}
{"time":"2026-01-02T03:04:07Z","commit":"abc","machine":"m","scenario":"mix","backend":"mongodb","seed":10,"faults":{},"confirmed":1,"verdict":"violated","found":["lost: one"]}
{"time":"2026-01-02T03:04:08Z","commit":"abc","machine":"m","scenario":"nodes","backend":"mongodb","store":"s3","seed":9,"faults":{"kill":2},"late":{"created":2,"taken":5},"confirmed":9,"recovery":1,"verdict":"held"}
`
	path := t.TempDir() + "/results"
	if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := chaos(t, "--report", path)
	for _, want := range []string{"4 runs", "**3 held, 1 violated**", "| nodes | mongodb+s3 | 1 | 1 |", "given them up: 7. Of these 2 created", "| kill | sqlite | 2 | 2 | 0 | 0 | 4 | 1,210 |", "2.5 / 2.5", "| abc | m | 4 | 7–10 |", "lost: one", "--seed 10"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, out)
		}
	}
	for _, bad := range []string{"", "{}\nnonsense\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := chaos(t, "--report", path); code != exitUsage {
			t.Errorf("%q: exit code %d: %s", bad, code, out)
		}
	}
}
