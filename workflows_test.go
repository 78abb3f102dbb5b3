package fencepost_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestWorkflows checks the hosted workflows: they may read the source and nothing more, their actions are pinned to commits, and the
// make targets and .ci scripts they use exist.
func TestWorkflows(t *testing.T) {
	paths, err := filepath.Glob(".github/workflows/*.yml")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	target := regexp.MustCompile(`\bmake ([a-z-]+)`)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var w struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Timeout     int `yaml:"timeout-minutes"`
				Permissions map[string]string
				Steps       []struct{ Uses, Run string }
			}
		}
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" || len(w.Jobs) == 0 {
			t.Errorf("%s: permissions %v, %d jobs", path, w.Permissions, len(w.Jobs))
		}
		for name, job := range w.Jobs {
			if job.Timeout == 0 || job.Permissions != nil || len(job.Steps) == 0 {
				t.Errorf("%s: job %s: no limit in time, more permissions, or no steps", path, name)
			}
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s: %s is not pinned to a commit", path, step.Uses)
				}
				for _, m := range target.FindAllStringSubmatch(step.Run, -1) {
					if !strings.Contains(string(makefile), "\n"+m[1]+":") {
						t.Errorf("%s: there is no make %s", path, m[1])
					}
				}
				for word := range strings.FieldsSeq(step.Run) {
					if strings.HasPrefix(word, ".ci/") {
						if _, err := os.Stat(word); err != nil {
							t.Errorf("%s: %v", path, err)
						}
					}
				}
			}
		}
	}
}
