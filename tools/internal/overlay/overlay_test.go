package overlay_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/tools/internal/overlay"
)

// TestOverlay builds a program with one line changed: the new text is compiled, and the file stays as it is.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	const old = "package main\n\nfunc main() { println(\"old\") }\n"
	for path, text := range map[string]string{source: old, filepath.Join(dir, "go.mod"): "module example\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := overlay.Files{}
	if err := files.Edit(source, `"old"`, `"new"`); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"nowhere", "main"} { // main occurs twice
		if err := files.Edit(source, text, "x"); err == nil || !strings.Contains(err.Error(), source) {
			t.Errorf("edit of %q: %v", text, err)
		}
	}
	for range 2 { // earlier files are replaced
		list, err := files.Write(dir)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "run", "-overlay", list, ".")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "new\n" {
			t.Errorf("the program prints %q, %v", out, err)
		}
	}
	if b, err := os.ReadFile(source); err != nil || string(b) != old {
		t.Errorf("the file is %q, %v", b, err)
	}
	if leaves, err := filepath.Glob(filepath.Join(dir, "overlay", "*")); err != nil || len(leaves) != 2 {
		t.Errorf("written: %q, %v", leaves, err)
	}
}
