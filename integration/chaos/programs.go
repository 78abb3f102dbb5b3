//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are what runs are made with.
type programs struct {
	dir    string // worker and fencepost, as they were built
	self   string // this program: also the producers'
	python string
	reader string // the independent reader of the file format
	zstd   bool   // which knows compressed files
}

func (p programs) path(name string) string { return filepath.Join(p.dir, name) }

// build builds the product's programs into dir.
func build(dir string) (programs, error) {
	p := programs{dir: dir}
	var err error
	if p.self, err = os.Executable(); err != nil {
		return p, err
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return p, fmt.Errorf("chaos builds the product first: run it inside its source tree, with Go in PATH: %w", err)
	}
	module := strings.TrimSpace(string(root))
	p.reader = filepath.Join(module, "docs", "format", "read_fpl.py")
	if _, err := os.Stat(p.reader); err != nil {
		return p, fmt.Errorf("this is not Fencepost's source tree: %w", err)
	}
	if p.python, err = exec.LookPath("python3"); err != nil {
		return p, fmt.Errorf("the independent reader of the files needs python3: %w", err)
	}
	p.zstd = exec.Command(p.python, "-c", "from compression import zstd").Run() == nil
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/worker", "./cmd/fencepost")
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		return p, fmt.Errorf("build the product: %w\n%s", err, out)
	}
	return p, nil
}

// cleanEnv is the environment without the settings of whoever runs this.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "FENCEPOST_") {
			env = append(env, e)
		}
	}
	return append(env, "FENCEPOST_ALLOW_OVERLAY=true") // temporary directories may be a container's own layer
}
