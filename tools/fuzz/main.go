// Command fuzz runs every fuzz target of this repository, one after another, and prints a table of the runs for docs/fuzzing.md. It finds
// the targets in the source, so none is forgotten. It stops at the first finding: go test leaves the input in testdata/fuzz beside the
// target.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	each := flag.Duration("time", time.Hour, "how long each target runs")
	only := flag.String("run", "", "run only targets whose package and name, as storage.FuzzVerify, match this regular expression")
	list := flag.Bool("list", false, "print the targets, and run none")
	flag.Parse()
	if err := run(os.Stdout, os.Stderr, *each, *only, *list); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(out, progress io.Writer, each time.Duration, only string, list bool) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, err := targets(".")
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(t target) bool { return !wanted.MatchString(t.String()) })
	if len(all) == 0 {
		return fmt.Errorf("no target matches %q", only)
	}
	if list {
		for _, t := range all {
			fmt.Fprintln(out, t)
		}
		return nil
	}
	fmt.Fprint(out, tableHead)
	for i, t := range all {
		fmt.Fprintf(progress, "%s: %d of %d, %v\n", t, i+1, len(all), each)
		r, err := fuzz(t, each, progress)
		fmt.Fprintln(out, r.row(t))
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	return nil
}

// target is one fuzz function.
type target struct {
	dir  string // of its package, from the root of the repository, with slashes
	name string
}

func (t target) String() string { return t.dir + "." + t.name }

// targets finds the fuzz functions of all modules below root, sorted.
func targets(root string) (all []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				all = append(all, target{filepath.ToSlash(dir), f.Name.Name})
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b target) int { return cmp.Or(strings.Compare(a.dir, b.dir), strings.Compare(a.name, b.name)) })
	return all, err
}

// result is the outcome of one target.
type result struct {
	elapsed     time.Duration // without the build
	executions  uint64
	interesting uint64 // inputs that reached code which no earlier one had reached
	corpus      uint64 // including those of earlier runs
	outcome     string
}

const tableHead = "| target | time | executions | new interesting inputs | all of them | outcome |\n|---|--:|--:|--:|--:|---|\n"

func (r result) row(t target) string {
	return fmt.Sprintf("| `%s` | %v | %d | %d | %d | %s |", t, r.elapsed.Round(time.Second), r.executions, r.interesting, r.corpus, r.outcome)
}

// fuzz runs a target.
func fuzz(t target, each time.Duration, progress io.Writer) (r result, err error) {
	// Run in its directory, because it may be in its own module. Go would spend up to a minute minimising each interesting input, and a
	// slow target would do nothing else.
	cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "5s", ".")
	cmd.Dir = filepath.FromSlash(t.dir)
	text, err := cmd.CombinedOutput()
	for line := range bytes.Lines(text) {
		r.read(string(line))
	}
	r.outcome = "nothing found"
	switch {
	case err != nil && bytes.Contains(text, []byte("Failing input written to")):
		r.outcome = "**found something**"
	case err != nil:
		r.outcome = "**did not run to its end**"
	case r.executions == 0: // go test has no such target, for example
		r.outcome, err = "**did not run**", errors.New("go test has executed nothing")
	}
	if err != nil {
		_, _ = progress.Write(text)
	}
	return r, err
}

// status is a line of go test -fuzz. The last one has the totals.
var status = regexp.MustCompile(`^fuzz: elapsed: ([^,]+), execs: (\d+) \([^)]*\), new interesting: (\d+) \(total: (\d+)\)`)

func (r *result) read(line string) {
	if m := status.FindStringSubmatch(line); m != nil {
		r.elapsed, _ = time.ParseDuration(m[1])
		for i, n := range []*uint64{&r.executions, &r.interesting, &r.corpus} {
			*n, _ = strconv.ParseUint(m[i+2], 10, 64) // digits
		}
	}
}
