//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the programs that runs use.
type programs struct {
	dir    string // worker, fencepost, and this program for the producers
	module string // the source tree
	python string
	reader string // the independent reader of the file format
	zstd   bool   // whether reader supports compressed files
}

func (p programs) path(name string) string { return filepath.Join(p.dir, name) }

// findPrograms finds the programs that are not built.
func findPrograms() (p programs, err error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return p, fmt.Errorf("chaos builds the product first: run it inside its source tree, with Go in PATH: %w", err)
	}
	p.module = strings.TrimSpace(string(root))
	p.reader = filepath.Join(p.module, "docs", "format", "read_fpl.py")
	if _, err := os.Stat(p.reader); err != nil {
		return p, fmt.Errorf("this is not Fencepost's source tree: %w", err)
	}
	if p.python, err = exec.LookPath("python3"); err != nil {
		return p, fmt.Errorf("the independent reader of the files needs python3: %w", err)
	}
	p.zstd = exec.Command(p.python, "-c", "from compression import zstd").Run() == nil
	return p, nil
}

// build builds a variant of the product's programs into a new directory below dir.
func (p programs) build(dir string, v variant) (programs, error) {
	var err error
	if p.dir, err = os.MkdirTemp(dir, "bin-"); err != nil {
		return p, err
	}
	args := []string{"build", "-o", p.dir + string(filepath.Separator)}
	if v.rewrite != nil || len(v.edits) > 0 {
		files, err := v.overlay(p.module)
		if err != nil {
			return p, err
		}
		overlay, err := files.Write(p.dir)
		if err != nil {
			return p, err
		}
		args = append(args, "-overlay", overlay)
	}
	build := exec.Command("go", append(args, "./cmd/worker", "./cmd/fencepost", "./tools/chaos")...)
	build.Dir = p.module
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image
	if out, err := build.CombinedOutput(); err != nil {
		return p, fmt.Errorf("build the product: %w\n%s", err, out)
	}
	return p, nil
}
