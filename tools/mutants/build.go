package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/tools/internal/overlay"
)

// buildAll compiles the mutants without running tests: that takes a second or two each.
func buildAll(ctx context.Context, root string, rules []rule, parallel int) error {
	tmp, err := os.MkdirTemp("", "fencepost-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	rules = slices.DeleteFunc(rules, func(r rule) bool { return path.Ext(r.file) != ".go" })
	var wg sync.WaitGroup
	failed := make([]error, len(rules))
	turn := make(chan struct{}, parallel)
	for i, r := range rules {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if err := r.build(ctx, root, filepath.Join(tmp, fmt.Sprint(i))); err != nil {
				failed[i] = fmt.Errorf("%s: %w", r, err)
				fmt.Println(failed[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return errors.New("not all mutants compile")
	}
	fmt.Printf("%d mutants compile\n", len(rules))
	return nil
}

// build compiles the package of the mutant.
func (r rule) build(ctx context.Context, root, dir string) error {
	texts, err := r.patched(root)
	if err != nil {
		return err
	}
	files := overlay.Files{}
	for file, text := range texts {
		files[filepath.Join(root, file)] = text
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list, err := files.Write(dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", os.DevNull, ".")
	cmd.Dir = filepath.Join(root, filepath.Dir(r.file)) // it may be in its own module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
