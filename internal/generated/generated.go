// Package generated keeps the generated parts of documents up to date: tests compare them, and rewrite them with -update.
package generated

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of documents")

// Part compares a part of a document with its expected text: everything between the lines "<!-- generated: NAME -->" and "<!-- end: NAME
// -->". With -update it writes that part. Tests that write to the same document must not run concurrently.
func Part(t testing.TB, file, name, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Appendf(nil, "<!-- generated: %s -->\n", name), fmt.Appendf(nil, "<!-- end: %s -->\n", name)
	before, rest, found := bytes.Cut(text, begin)
	got, after, ended := bytes.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Errorf("%s has no part %s", file, name)
	case string(got) == want:
	case *update:
		if err := os.WriteFile(file, bytes.Join([][]byte{before, begin, []byte(want), end, after}, nil), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the part %s is out of date; make docs writes it", file, name)
	}
}
