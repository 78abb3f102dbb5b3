package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// output notes the first error of writing to stdout, for all commands: most print line by line, and would have to check every one.
type output struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

// checkOutput makes a program fail if not everything could be written to stdout. A terminal takes everything, and top needs to know it.
func checkOutput(root *cobra.Command) {
	var out output
	root.PersistentPreRun = func(*cobra.Command, []string) {
		if out.w = root.OutOrStdout(); !cli.IsTerminal(out.w) {
			root.SetOut(&out)
		}
	}
	root.PersistentPostRunE = func(*cobra.Command, []string) error { return out.failed() }
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("the output is incomplete: %w", o.err)
}
