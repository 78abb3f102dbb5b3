// Attack runs the tests of the attacks listed in docs/security.md, and prints their measurements: make attack.
//
// A test reports a measurement with a log line that begins with "measured: ".
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencepost/fencepost/internal/printable"
)

const page = "docs/security.md"

func main() {
	attacks, err := read(".")
	if err == nil {
		err = run(attacks)
	}
	if err != nil {
		printable.Fprintf(os.Stderr, "attack: %v\n", err)
		os.Exit(1)
	}
}

// attack is a row of the table.
type attack struct {
	what, limit string
	tests       []string
	packages    []string // of the tests
}

const heading = "\n## Attacks\n"

var (
	testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

// read returns the attacks listed on the page: attack | limit | tests.
func read(root string) (attacks []attack, err error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(text), heading)
	if !found {
		return nil, fmt.Errorf("%s has no section %q", page, strings.TrimSpace(heading))
	}
	section, _, _ = strings.Cut(section, "\n## ")
	where, err := tests(root)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 3 || strings.HasPrefix(cells[0], "-") {
			continue
		}
		a := attack{what: strings.TrimSpace(cells[0]), limit: strings.TrimSpace(cells[1])}
		for _, m := range testName.FindAllStringSubmatch(cells[2], -1) {
			if where[m[1]] == nil {
				return nil, fmt.Errorf("%s names %s, and there is no such test", page, m[1])
			}
			a.tests, a.packages = append(a.tests, m[1]), append(a.packages, where[m[1]]...)
		}
		if a.tests != nil {
			attacks = append(attacks, a)
		}
	}
	return attacks, nil
}

// tests returns the packages that contain each test.
func tests(root string) (where map[string][]string, err error) {
	where = map[string][]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			where[string(m[1])] = append(where[string(m[1])], "./"+dir)
		}
		return err
	})
	return where, err
}

// result is the outcome of an attack's tests.
type result struct {
	passed, failed, skipped int
	measured                []string
	log                     bytes.Buffer // of all
}

// run runs the attacks one after another, so that none disturbs the measurement of another. It prints each result to stderr as soon as it
// is known.
func run(attacks []attack) error {
	programs, err := os.MkdirTemp("", "fencepost-attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	printable.Fprintf(table, "ATTACK\tLIMIT\tMEASURED\tTOOK\tOUTCOME\n")
	var bad []string
	for _, a := range attacks {
		began := time.Now()
		r, err := a.run(programs)
		if err != nil {
			return err
		}
		outcome := "held"
		if r.failed > 0 || r.skipped > 0 || r.passed < len(a.tests) {
			outcome = fmt.Sprintf("NOT HELD: %d passed, %d failed, %d skipped", r.passed, r.failed, r.skipped)
			bad = append(bad, a.what)
			os.Stderr.Write(r.log.Bytes())
		}
		took := time.Since(began).Round(time.Second)
		printable.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", plain(a.what), plain(a.limit), strings.Join(r.measured, "; "), took, outcome)
		printable.Fprintf(os.Stderr, "%s: %s; %s %v\n", plain(a.what), outcome, strings.Join(r.measured, "; "), took)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if bad != nil {
		return fmt.Errorf("%d of %d attacks: %s", len(bad), len(attacks), strings.Join(bad, "; "))
	}
	return nil
}

// plain removes Markdown marks from a cell.
func plain(cell string) string { return strings.NewReplacer("`", "", "*", "").Replace(cell) }

// run runs the tests of an attack with test binaries that are built once for all attacks. It returns an error only if they could not be run
// at all.
func (a *attack) run(programs string) (r *result, err error) {
	r = &result{}
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(a.packages))) {
		program := filepath.Join(programs, strings.ReplaceAll(dir, "/", "_")+".test")
		if _, err := os.Stat(program); err != nil {
			if text, err := exec.Command("go", "test", "-c", "-o", program, dir).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("build the tests of %s: %w: %s", dir, err, text)
			}
		}
		cmd := exec.Command("go", "tool", "test2json", program, "-test.v=test2json", "-test.timeout=30m", "-test.run=^("+strings.Join(a.tests, "|")+")$")
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return nil, err // otherwise the results show it
		}
		r.read(out)
	}
	return r, nil
}

// read adds the output of test2json to the result.
func (r *result) read(out []byte) {
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		r.log.WriteString(e.Output)
		if _, measured, ok := strings.Cut(e.Output, ": measured: "); ok {
			r.measured = append(r.measured, strings.TrimSpace(measured))
		}
		top := e.Test != "" && !strings.Contains(e.Test, "/")
		switch {
		case e.Action == "skip" && e.Test != "":
			r.skipped++
		case e.Action == "pass" && top:
			r.passed++
		case e.Action == "fail" && top:
			r.failed++
		}
	}
}
