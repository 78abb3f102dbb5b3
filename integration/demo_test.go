package integration

import (
	"strings"
	"testing"
)

// TestDemo runs the first command of the README.
func TestDemo(t *testing.T) {
	t.Parallel()
	r := mustRun(t, nil, "fencepost", "demo")
	for _, words := range []string{"kill -9", "all good", "have the path and SHA-256 of their original, each exactly once"} {
		if !strings.Contains(r.stdout, words) {
			t.Errorf("the output does not have %q:\n%v", words, r)
		}
	}
}
