// Package clitest checks the command lines in documents: that they name existing commands, flags and values.
package clitest

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// Documents fails the test if a command line of a program in the documents is wrong, or if there are fewer than atLeast. top is the
// path of the module. newRoot returns the program's root command.
func Documents(t testing.TB, top string, newRoot func() *cobra.Command, atLeast int) {
	t.Helper()
	total := 0
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "docs/handlers.md", "docs/operations.md", "docs/stores.md", "docs/security.md", "docs/ui.md", "docs/http.md", "deploy/README.md", "deploy/kubernetes/README.md"} {
		checked, problems, err := CheckDocument(filepath.Join(top, doc), newRoot)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Error(p)
		}
		total += checked
	}
	if total < atLeast {
		t.Errorf("only %d command lines found", total)
	}
}

// CheckDocument returns how many command lines of a program a Markdown document has, and their errors. It checks
// the lines that start with "$ " in fenced code blocks, and each command of a pipeline or a list in them. It finds a program
// in a container after docker … exec and kubectl exec … --. newRoot returns the program's root command.
func CheckDocument(file string, newRoot func() *cobra.Command) (checked int, problems []string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, nil, err
	}
	fenced := false
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line) // a block may be part of a list
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		rest, ok := strings.CutPrefix(line, "$ ")
		if !fenced || !ok {
			continue
		}
		for _, words := range commands(rest) {
			root := newRoot()
			args, ok := argsOf(words, root.Name())
			if !ok {
				continue
			}
			checked++
			if err := Check(root, args); err != nil {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %v", file, i+1, strings.Join(words, " "), err))
			}
		}
	}
	return checked, problems, nil
}

// Check parses a command line without running it.
func Check(root *cobra.Command, args []string) error {
	cli.Prepare(root)
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// argsOf returns the arguments of program, if the command runs it.
func argsOf(words []string, program string) ([]string, bool) {
	for len(words) > 0 && strings.Contains(words[0], "=") {
		words = words[1:] // a variable in front
	}
	switch {
	case len(words) == 0:
		return nil, false
	case path.Base(words[0]) == program:
		return words[1:], true
	case strings.HasPrefix(words[0], "docker") || words[0] == "kubectl":
		exec := slices.Index(words, "exec")
		if exec < 0 {
			return nil, false
		}
		// The container may have the name of its program, as in: docker compose exec worker worker --help.
		for i := len(words) - 1; i > exec; i-- {
			if words[i] == program && i > exec+1 {
				return words[i+1:], true
			}
		}
	}
	return nil, false
}

// commands splits a shell line into commands at pipes and separators, and the commands into words, without redirections and comments. Of the
// shell's other syntax it knows only quotes: documents should not use more.
func commands(line string) (list [][]string) {
	var words []string
	var word strings.Builder
	var quote rune
	started := false
	endWord := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			list = append(list, words)
		}
		words = nil
	}
loop:
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, started = r, true
		case r == '#' && !started:
			break loop
		case r == ' ':
			endWord()
		case r == '|' || r == '&' || r == ';':
			endCommand()
		default:
			word.WriteRune(r)
			started = true
		}
	}
	endCommand()
	for i, words := range list {
		list[i] = withoutRedirections(words)
	}
	return list
}

func withoutRedirections(words []string) (kept []string) {
	for i := 0; i < len(words); i++ {
		operator := strings.TrimLeft(words[i], "012")
		switch {
		case operator == ">" || operator == ">>" || operator == "<":
			i++ // and the file
		case strings.HasPrefix(operator, ">") || strings.HasPrefix(operator, "<"):
		default:
			kept = append(kept, words[i])
		}
	}
	return kept
}
