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

// rule is a safety rule, and what shows that it is needed. There are three kinds: mutants, which have a text to replace;
// rules that a test of their package switches off itself; and rules of which no test can tell.
type rule struct {
	file string // which keeps the rule
	rule string // what follows "rule: " in a comment of the file, or a part of it; or another sentence

	old, new string // what drops it: old occurs once in file
	how      string // said where a rule can be dropped in several ways

	in       string        // the package of the tests, when it is not that of the file
	tests    string        // names of tests, joined by |, as for go test -run
	open     bool          // no test is known to notice it: the next one to write, or the mutant changes nothing
	long     bool          // without -short
	hangs    bool          // without the rule the tests may wait for ever, so running out of time counts
	timeout  time.Duration // defaults to two minutes
	untested string        // why nothing here can show it
}

func table() []rule {
	return slices.Concat(storageRules, lockRules, queueRules, mongoqueueRules, sqlitequeueRules, workerRules, formatRules, otherRules)
}

func (r rule) String() string {
	s := r.file + ": " + r.rule
	if r.how != "" {
		s += " (" + r.how + ")"
	}
	return s
}

func (r rule) isMutant() bool { return r.old != "" }

// where returns the directory of the tests.
func (r rule) where() string {
	if r.in != "" {
		return r.in
	}
	return path.Dir(r.file)
}

// pattern returns r.tests for -run: each name matches itself only.
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

// check finds out whether the entry fits the tree at root.
func (r rule) check(root string) error {
	problem := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s; correct its entry in internal/mutants", r, fmt.Sprintf(format, args...))
	}
	if (r.untested != "") != (r.tests == "") || r.untested != "" && r.isMutant() {
		return problem("needs either tests, or the reason why there are none")
	}
	source, err := os.ReadFile(filepath.Join(root, r.file))
	if err != nil {
		return err
	}
	if r.isMutant() {
		if n := strings.Count(string(source), r.old); n != 1 {
			return problem("the text that it replaces occurs %d times and not once: %q", n, r.old)
		}
		if r.old == r.new {
			return problem("changes nothing")
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

// patched returns the file's text without the rule. check has found the place.
func (r rule) patched(root string) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(root, r.file))
	return []byte(strings.Replace(string(source), r.old, r.new, 1)), err
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
