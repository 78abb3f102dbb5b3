package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// rule is a safety rule, and the evidence that it is needed. There are three kinds: mutants, which have a text to replace; rules that a
// test of their package switches off itself; and rules that no test can check.
type rule struct {
	file string // the file that implements the rule
	rule string // the text after "rule: " in a comment of the file, or part of it; or another sentence

	old, new string // the replacement that removes it: old occurs once in file
	also     []edit // what must change with it
	how      string // set if a rule can be removed in several ways

	in       string        // the package of the tests, if it is not that of the file
	tests    string        // names of tests, joined by |, as for go test -run; " & " joins patterns, each of which must notice by itself
	open     bool          // no test is known to notice it: the next one to write, or the mutant changes nothing
	long     bool          // without -short
	args     []string      // additional ones, for the tests with the mutant
	hangs    bool          // without the rule the tests may wait forever, so a timeout counts
	timeout  time.Duration // defaults to two minutes
	untested string        // why no test can show it
	sim      bool          // the simulation also notices it: it has its own entry for that
}

// edit replaces old, which occurs once in file, with new.
type edit struct{ file, old, new string }

// table returns the entries: one for each rule and each of its patterns of tests. Those of the simulation come last, so that onePerPackage
// prefers the tests of the package.
func table() (all []rule) {
	var simulated []rule
	for _, r := range slices.Concat(storageRules, slotsRules, lockRules, queueRules, mongoqueueRules, sqlitequeueRules, mongoslotsRules, workerRules, formatRules, otherRules, httpRules) {
		if r.sim {
			simulated = append(simulated, r.inSimulation())
		}
		for i, tests := range strings.Split(r.tests, " & ") {
			one := r
			one.tests = tests
			if i > 0 {
				one.how = r.and("by " + tests)
			}
			all = append(all, one)
		}
	}
	for _, r := range simulationRules {
		simulated = append(simulated, r.inSimulation())
	}
	return append(all, simulated...)
}

// and returns how the rule is removed, and what else distinguishes the entry from others.
func (r rule) and(more string) string { return strings.TrimPrefix(r.how+", "+more, ", ") }

func (r rule) String() string {
	s := r.file + ": " + r.rule
	if r.how != "" {
		s += " (" + r.how + ")"
	}
	return s
}

func (r rule) isMutant() bool { return r.old != "" }

func (r rule) edits() []edit { return append([]edit{{r.file, r.old, r.new}}, r.also...) }

// where returns the directory of the tests.
func (r rule) where() string {
	if r.in != "" {
		return r.in
	}
	return path.Dir(r.file)
}

// pattern returns r.tests for -run: each name matches only itself.
func (r rule) pattern() string {
	var parts []string
	for name := range strings.SplitSeq(r.tests, "|") {
		levels := strings.Split(name, "/")
		for i, level := range levels {
			levels[i] = "^" + regexp.QuoteMeta(level) + "$"
		}
		parts = append(parts, strings.Join(levels, "/"))
	}
	return strings.Join(parts, "|")
}

// names returns the top-level tests among r.tests.
func (r rule) names() (names []string) {
	for name := range strings.SplitSeq(r.tests, "|") {
		top, _, _ := strings.Cut(name, "/")
		names = append(names, top)
	}
	return names
}

func (r rule) limit() time.Duration {
	if r.timeout != 0 {
		return r.timeout
	}
	return 2 * time.Minute
}

// check reports whether the entry fits the tree at root.
func (r rule) check(root string) error {
	problem := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s; correct its entry in tools/mutants", r, fmt.Sprintf(format, args...))
	}
	if (r.untested != "") != (r.tests == "") || r.untested != "" && r.isMutant() {
		return problem("needs either tests, or the reason why there are none")
	}
	if _, err := os.Stat(filepath.Join(root, r.file)); err != nil {
		return err
	}
	if r.isMutant() {
		for _, e := range r.edits() {
			source, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return err
			}
			if n := strings.Count(string(source), e.old); n != 1 {
				return problem("the text that it replaces in %s occurs %d times and not once: %q", e.file, n, e.old)
			}
			if e.old == e.new {
				return problem("changes nothing")
			}
		}
	}
	if r.tests == "" {
		return nil
	}
	have, err := testsIn(filepath.Join(root, r.where()))
	if err != nil {
		return err
	}
	for _, name := range r.names() {
		if !slices.Contains(have, name) {
			return problem("there is no %s in %s", name, r.where())
		}
	}
	return nil
}

// patched returns the texts of the files without the rule. check has verified the places.
func (r rule) patched(root string) (texts map[string]string, err error) {
	texts = map[string]string{}
	for _, e := range r.edits() {
		if _, ok := texts[e.file]; !ok {
			source, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			texts[e.file] = string(source)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
	}
	return texts, nil
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`)

// testsIn returns the names of the tests of the package in dir.
func testsIn(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names, err
}

// findRoot returns the directory of the module.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("there is no go.mod here or above: run it inside the repository")
		}
		dir = parent
	}
	return "", err
}
