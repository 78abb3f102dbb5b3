package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

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
			var text []byte
			if test.terminal {
				b := make([]byte, 1<<16)
				errs.WriteString(".") // so that there is something to read
				shown.SetReadDeadline(time.Now().Add(time.Minute))
				n, err := shown.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				text = bytes.TrimSuffix(b[:n], []byte("."))
			} else if text, err = os.ReadFile(errs.Name()); err != nil {
				t.Fatal(err)
			}
			// keep reads one small file here: the bar ends when it begins.
			if shows := bytes.Contains(text, []byte(name)); shows != (test.shows && name != "keep") || !shows && len(text) > 0 {
				t.Errorf("%s %+v: it shows %q", name, test, text)
			}
		}
	}
}
