// Package overlay compiles other texts in place of source files, without changing the tree: go build -overlay.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Files maps the paths of source files to the texts that replace them. Paths are absolute, or relative to the directory in which the go
// command runs.
type Files map[string]string

// Edit replaces old, which must occur exactly once, in the file at path.
func (f Files) Edit(path, old, new string) error {
	text, ok := f[path]
	if !ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = string(b)
	}
	if n := strings.Count(text, old); n != 1 {
		return fmt.Errorf("%s has this text %d times, not once; adapt the edit:\n%s", path, n, old)
	}
	f[path] = strings.Replace(text, old, new, 1)
	return nil
}

// Write writes the files into dir/overlay, replacing earlier ones, and returns the path to pass to -overlay. The files have names that no
// tool mistakes for Go.
func (f Files) Write(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "overlay")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	replace := make(map[string]string, len(f))
	for path, text := range f {
		written := filepath.Join(dir, strconv.Itoa(len(replace))+"-"+filepath.Base(path)+".txt")
		if err := os.WriteFile(written, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[path] = written
	}
	list, err := json.Marshal(struct{ Replace map[string]string }{replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}
