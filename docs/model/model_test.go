// Package model_test runs the models, fencepost.pml and slots.pml, and holds what README.md says about the code against the code.
package model_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const repository = "../.."

// TestModel lets spin look at every state of the models, and at the mutants that must fail.
func TestModel(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at millions of states; not with -short")
	}
	for _, tool := range []string{"sh", "spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing := "the model needs " + tool + ", which is not installed; on Debian and Ubuntu: apt-get install spin gcc libc6-dev"
			if os.Getenv("FENCEPOST_TEST_REQUIRE_MODEL") == "1" {
				t.Fatal(missing)
			}
			t.Skip(missing)
		}
	}
	limit := timeout(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	run := exec.CommandContext(ctx, "sh", "run.sh")
	// Interrupted, run.sh ends the checker and removes its files.
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = 5 * time.Second
	table, err := run.CombinedOutput()
	t.Logf("run.sh:\n%s", table)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		t.Fatalf("run.sh did not finish in %s", limit)
	case err != nil:
		t.Fatalf("run.sh: %v; the table tells what is not as expected", err)
	}
}

// timeout is nine minutes, or less if the test binary has less: then the table is still told.
func timeout(t *testing.T) time.Duration {
	const most = 9 * time.Minute
	deadline, ok := t.Deadline()
	if left := time.Until(deadline) - 15*time.Second; ok && left < most {
		return left
	}
	return most
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	function = regexp.MustCompile(`^([a-z]+)\.(?:\((\*?[A-Za-z]+)\)\.)?([A-Za-z]+)$`)
)

// TestMappingIsTrue: what README.md's tables of steps name exists, in the model and in the file that the table names.
func TestMappingIsTrue(t *testing.T) {
	for _, table := range []struct {
		model, heading, end string
		rows, functions     int // at least
	}{
		{"fencepost.pml", "\n## Step by step\n", "\n## ", 15, 20},
		{"slots.pml", "\n### Step by step, slots\n", "\n### ", 15, 20},
	} {
		t.Run(table.model, func(t *testing.T) {
			_, section, _ := strings.Cut(read(t, "README.md"), table.heading)
			section, _, _ = strings.Cut(section, table.end)
			rows, functions := checkTable(t, section, table.model)
			if rows < table.rows || functions < table.functions {
				t.Errorf("found %d rows with %d functions: README.md's table is not where this test looks for it", rows, functions)
			}
		})
	}
}

// checkTable compares the rows of a table with the model and with the code.
func checkTable(t *testing.T, section, model string) (rows, functions int) {
	text := read(t, model)
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		rows++
		for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
			if !regexp.MustCompile(`(?m)^(inline ` + m[1] + `\(|byte ` + m[1] + `;|#define ` + m[1] + `\()`).MatchString(text) {
				t.Errorf("%s has no %s", model, m[1])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			f := function.FindStringSubmatch(m[1])
			if f == nil {
				t.Errorf("%s is not the name of a function", m[1])
				continue
			}
			file := strings.TrimSpace(cells[2])
			switch {
			case filepath.Base(filepath.Dir(file)) != f[1]:
				t.Errorf("%s is not in package %s", file, f[1])
			case !functionsOf(t, file)[f[2]+"."+f[3]]:
				t.Errorf("%s has no function %s", file, m[1])
			}
			functions++
		}
	}
	return rows, functions
}

// functionsOf returns the functions that a file declares, as "*Writer.Append" or ".Open".
func functionsOf(t *testing.T, file string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		receiver := ""
		if f.Recv != nil {
			receiver = typeName(f.Recv.List[0].Type)
		}
		declared[receiver+"."+f.Name.Name] = true
	}
	return declared
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestMutantsAreTold: README.md and run.sh speak of exactly the mutants that the models have.
func TestMutantsAreTold(t *testing.T) {
	mutant := regexp.MustCompile(`MUTANT_[A-Z_]+`)
	want := names(mutant, read(t, "fencepost.pml")+read(t, "slots.pml"))
	for _, file := range []string{"README.md", "run.sh"} {
		got := names(mutant, read(t, file))
		for m := range want {
			if !got[m] {
				t.Errorf("%s does not mention %s", file, m)
			}
		}
		for m := range got {
			if !want[m] {
				t.Errorf("%s mentions %s, which no model has", file, m)
			}
		}
	}
}

func names(pattern *regexp.Regexp, text string) map[string]bool {
	found := map[string]bool{}
	for _, name := range pattern.FindAllString(text, -1) {
		found[name] = true
	}
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
