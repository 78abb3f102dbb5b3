package generated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// failures counts errors instead of reporting them.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(string, ...any) { f.n++ }

func TestPart(t *testing.T) {
	const text = "before\n<!-- generated: x -->\nold\n<!-- end: x -->\nafter\n"
	file := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	part := func(name, want string) (failed bool) {
		f := &failures{TB: t}
		Part(f, file, name, want)
		return f.n > 0
	}
	if part("x", "old\n") {
		t.Error("what is the same is refused")
	}
	if !part("x", "new\n") {
		t.Error("what differs passes")
	}
	if !part("y", "") {
		t.Error("a part that is not there passes")
	}
	*update = true
	defer func() { *update = false }()
	if part("x", "new\n") {
		t.Error("it cannot be written")
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != strings.Replace(text, "old", "new", 1) {
		t.Errorf("%v\n%s", err, got)
	}
}
