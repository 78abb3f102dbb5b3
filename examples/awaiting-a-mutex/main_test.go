package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestWritersDoNotOverlap(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url, "--writers", "5", "--blocks", "2", "--lines", "10")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"t1: 6 blocks, no two overlap, tokens grow", "t2: 4 blocks, no two overlap, tokens grow"} {
			if !strings.Contains(out, want) {
				t.Errorf("the output does not say %q", want)
			}
		}
	})
}

// If writers without the mutex did not overlap, the test above would prove nothing.
func TestWithoutTheMutexTheyDo(t *testing.T) {
	out, err := exampletest.Output(t, run, "--no-lock", "--types", "1", "--writers", "4", "--lines", "100")
	if err == nil || !strings.Contains(out, "is inside a block of writer") {
		t.Errorf("got %v", err)
	}
}

func TestCheckFindsOverlaps(t *testing.T) {
	for content, says := range map[string]string{
		"1 5 1 2\n1 5 2 2\n2 6 1 2\n2 6 2 2\n": "",
		"1 5 1 2\n2 6 1 2\n":                   "is inside",
		"1 5 1 2\n1 5 2 2\n2 5 1 2\n2 5 2 2\n": "token 5 after 5",
		"1 5 2 2\n":                            "begins with its line 2",
		"1 5 1 2\n":                            "not complete",
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := check(path)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: got %v, want %q", content, err, says)
		}
	}
}
