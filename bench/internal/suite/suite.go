// Package suite defines the input and output of every benchmark suite.
package suite

import "context"

// Options come from the command line.
type Options struct {
	Dir    string // an empty directory of this run; the caller removes it
	Rounds int
	Quick  bool // sizes that show that everything works, but measure nothing
	Large  bool // also what takes 10 GiB of disk
	// MongoDB is the URI of a server to use; empty: start one.
	MongoDB string
	Logf    func(format string, args ...any)
}

// Result is a suite's section of RESULTS.md, without heading, and its plots.
type Result struct {
	Markdown string
	Plots    map[string]string // file name below plots/ → SVG
}

// Run measures, and returns the section with the results.
func Run(ctx context.Context, measure func(context.Context) error, section func() *Result) (*Result, error) {
	if err := measure(ctx); err != nil {
		if ctx.Err() != nil { // rather than an error that it caused
			err = ctx.Err()
		}
		return nil, err
	}
	return section(), nil
}
