package clitest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/clitest"
	"github.com/spf13/cobra"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "tool", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
	ls := &cobra.Command{Use: "ls", Args: cli.NoArgs, Run: func(*cobra.Command, []string) {}}
	ls.Flags().VarP(cli.NewOneOf("text", "json"), "output", "o", "")
	show := &cobra.Command{Use: "show NAME", Args: cobra.ExactArgs(1), Run: func(*cobra.Command, []string) {}}
	root.AddCommand(ls, show)
	return root
}

func TestCheckDocument(t *testing.T) {
	for _, test := range []struct {
		line    string
		checked int
		problem string
	}{
		{"$ tool ls -o json", 1, ""},
		{"$ bin/tool show 'a b' > file   # and why", 1, ""},
		{"$ A=b tool ls --help & tool ls 2>/dev/null && wait | tool show x <in", 3, ""},
		{"$ tool ls --config file", 1, ""},
		{"$ docker compose exec tool tool ls", 1, ""},
		{"$ kubectl -n x exec deploy/tool -- tool ls --outputs json", 1, "unknown flag: --outputs"},
		{"$ docker compose logs tool", 0, ""},
		{"tool is not a command line here", 0, ""},
		{"$ other ls -x", 0, ""},
		{"$ tool lst", 1, "lst"},
		{"$ tool ls extra", 1, "extra"},
		{"$ tool ls -o yaml", 1, "yaml"},
		{"$ tool show", 1, "arg"},
		{"$ seq 3 | tool show a b", 1, "arg"},
	} {
		file := filepath.Join(t.TempDir(), "doc.md")
		if err := os.WriteFile(file, []byte("$ tool not fenced\n```console\n"+test.line+"\n```\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		checked, problems, err := clitest.CheckDocument(file, newRoot)
		if err != nil || checked != test.checked || (len(problems) > 0) != (test.problem != "") || !strings.Contains(strings.Join(problems, ""), test.problem) {
			t.Errorf("%s: %d checked, problems %q, %v; want %d and %q", test.line, checked, problems, err, test.checked, test.problem)
		}
	}
}
