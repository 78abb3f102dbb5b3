// Package suitetest provides helpers for the tests of suites.
package suitetest

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/bench/internal/suite"
)

// Check checks that a suite's section contains the wanted texts and none of the unwanted: no NaN, and neither the directory nor
// the server of the run.
func Check(t *testing.T, o suite.Options, res *suite.Result, wanted, unwanted []string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(res.Markdown, want) {
			t.Errorf("%q is not in the results:\n%s", want, res.Markdown)
		}
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(o.MongoDB, "mongodb://"), "/")
	for _, text := range append([]string{o.Dir, address, "NaN"}, unwanted...) {
		if strings.Contains(res.Markdown, text) {
			t.Errorf("%q is in the results:\n%s", text, res.Markdown)
		}
	}
}
