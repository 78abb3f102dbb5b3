package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTargetsAreDocumented: the table of docs/fuzzing.md lists every target, and no other.
func TestTargetsAreDocumented(t *testing.T) {
	all, err := targets("../..")
	if err != nil {
		t.Fatal(err)
	}
	var code []string
	for _, target := range all {
		code = append(code, target.String())
	}
	if !slices.Contains(code, "storage.FuzzVerify") || !slices.Contains(code, "docs/format.FuzzPythonReader") {
		t.Fatalf("the targets are %q", code)
	}
	text, err := os.ReadFile("../../docs/fuzzing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Targets\n")
	table, _, ok := strings.Cut(table, "\n## ")
	if !ok {
		t.Fatal("docs/fuzzing.md has no section Targets, followed by another one")
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| .+ \\| `([^`]+)` \\| .+ \\|$").FindAllStringSubmatch(table, -1) {
		listed = append(listed, row[1])
	}
	for _, name := range code {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/fuzzing.md does not have %s: say what it decodes, and what is checked", name)
		}
	}
	for i, name := range listed {
		if !slices.Contains(code, name) || slices.Contains(listed[:i], name) {
			t.Errorf("docs/fuzzing.md has %s, which is no target, or is there twice", name)
		}
	}
}

// TestRun runs two targets in a separate module, one of which finds something.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the standard library for fuzzing: half a minute the first time")
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.24\n",
		"a/a_test.go": "package a\nimport \"testing\"\nfunc FuzzGood(f *testing.F) {\n\tf.Add(1)\n\tf.Fuzz(func(t *testing.T, n int) {})\n}\n" +
			"func FuzzWrong(f *testing.F) {\n\tf.Add(1)\n\tf.Fuzz(func(t *testing.T, n int) {\n\t\tif n != 1 {\n\t\t\tt.Error(n)\n\t\t}\n\t})\n}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, progress strings.Builder
	err := run(&out, &progress, 500*time.Millisecond, "", false)
	if err == nil || !strings.Contains(err.Error(), "a.FuzzWrong") {
		t.Errorf("the error is %v", err)
	}
	rows := regexp.MustCompile("^" + regexp.QuoteMeta(tableHead) + "\\| `a.FuzzGood` \\| \\d+s \\| [1-9]\\d* \\| \\d+ \\| \\d+ \\| nothing found \\|\n" +
		"\\| `a.FuzzWrong` \\| .* \\| \\*\\*found something\\*\\* \\|\n$")
	if !rows.MatchString(out.String()) {
		t.Errorf("the table is\n%s", out.String())
	}
	if !strings.Contains(progress.String(), "testdata/fuzz/FuzzWrong") {
		t.Errorf("the location of the input is not reported: %s", progress.String())
	}
	if err := run(&out, &progress, time.Second, "Nothing", false); err == nil {
		t.Error("no target, and no error")
	}
}

func TestStatus(t *testing.T) {
	var r result
	r.read("fuzz: elapsed: 0s, gathering baseline coverage: 3/30 completed")
	r.read("fuzz: elapsed: 3s, execs: 12345 (4115/sec), new interesting: 3 (total: 33)")
	r.read("PASS")
	if r != (result{elapsed: 3 * time.Second, executions: 12345, interesting: 3, corpus: 33}) {
		t.Errorf("%+v", r)
	}
}
