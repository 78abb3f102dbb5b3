package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/ptytest"
)

// The bar is only for terminals: nothing of it goes to a file, or to a terminal with --quiet.
func TestProgressIsForTerminals(t *testing.T) {
	for _, name := range []string{"verify", "copy", "keep"} {
		for _, test := range []struct{ terminal, quiet, shows bool }{{true, false, true}, {true, true, false}, {false, false, false}} {
			store, url := storeWith(t)
			args := map[string][]string{
				"verify": {"verify", "--store", store, "orders"},
				"copy":   {"copy", "--yes", "--url", url, store, filepath.Join(t.TempDir(), "data"), "orders"},
				"keep":   {"keep", "--url", url, "--store", store, "--replaced", "--yes", "orders"},
			}[name]
			if test.quiet {
				args = append(args, "--quiet")
			}
			errs, err := os.Create(filepath.Join(t.TempDir(), "errs"))
			if err != nil {
				t.Fatal(err)
			}
			defer errs.Close()
			var shown *os.File
			if test.terminal {
				shown, errs = ptytest.Open(t)
			}
			cmd := root()
			cmd.SetArgs(args)
			cmd.SetOut(new(bytes.Buffer))
			cmd.SetErr(errs)
			if code := cli.Run(t.Context(), cmd); code != cli.ExitOK {
				t.Errorf("%q: exit code %d", args, code)
			}
			var text string
			if test.terminal {
				text = ptytest.Shown(t, shown, errs)
			} else {
				b, err := os.ReadFile(errs.Name())
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			// keep reads one small file here: the bar ends when it begins.
			if shows := strings.Contains(text, name); shows != (test.shows && name != "keep") || !shows && len(text) > 0 {
				t.Errorf("%s %+v: it shows %q", name, test, text)
			}
		}
	}
}
