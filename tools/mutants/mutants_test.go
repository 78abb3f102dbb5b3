package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ruleComment matches a comment that states a rule, and not "as a rule: …".
var ruleComment = regexp.MustCompile(`//.*\brule: (.*)`)

// TestTable: every entry matches the code, and every rule marked in the code has an entry.
func TestTable(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	rules, seen := table(), map[string]bool{}
	for _, r := range rules {
		if err := r.check(root); err != nil {
			t.Error(err)
		}
		if seen[r.String()] {
			t.Errorf("%s: there are two entries of this name; say with how: in what they differ", r)
		}
		seen[r.String()] = true
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !isProduct(path):
			return nil
		}
		source, err := os.ReadFile(path)
		for i, line := range strings.Split(string(source), "\n") {
			m := ruleComment.FindStringSubmatch(line)
			if m == nil || strings.Contains(line, "as a rule: ") {
				continue
			}
			if !mentioned(rules, m[1]) {
				t.Errorf("%s:%d: no entry in tools/mutants has this rule: %s", path, i+1, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func isProduct(path string) bool {
	return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") &&
		!strings.HasSuffix(filepath.Dir(path), "test") && !strings.Contains(path, "/tools/") && !strings.Contains(path, "/integration/")
}

func mentioned(rules []rule, comment string) bool {
	for _, r := range rules {
		if strings.Contains(comment, r.rule) {
			return true
		}
	}
	return false
}
