package clitest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// wrongValues are values that each type of flag refuses. Flags of other types are strings, which each program checks itself.
var wrongValues = map[string][]string{
	"int":      {"x", "", "-1", "1.5", "99999999999999999999"},
	"uint64":   {"x", "", "-1", "1.5", "99999999999999999999"},
	"duration": {"x", "", "-1", "-1s", "7", "99999999999999999999h"},
	"bool":     {"x", "-1", "2"},
	"size":     {"x", "", "-1", "99999999999999999999", "1 boat"},
	"count":    {"x", "", "-1", "1.5", "99999999999999999999"},
	"time":     {"x", "", "-1", "99999999999999999999"},
}

// WrongValues gives every flag of every command wrong values, on the command line, by its environment variable and in the configuration file,
// and fails the test unless each is a usage error that names the flag and the value in plain words, or says that the flag belongs on the command line. arguments has the arguments that a command
// requires, by its path, as in "producer publish". newRoot returns the program's root command.
func WrongValues(t *testing.T, newRoot func() *cobra.Command, arguments map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv(cli.EnvPrefix+"URL", "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=1")
	tried := 0
	var visit func(path []string, cmd *cobra.Command)
	visit = func(path []string, cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(append(slices.Clone(path), sub.Name()), sub)
		}
		if cmd.RunE == nil {
			return
		}
		args := slices.Concat(path[1:], strings.Fields(arguments[strings.Join(path, " ")]))
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			values := wrongValues[f.Value.Type()]
			if strings.Contains(f.Value.Type(), "|") { // one of
				values = []string{"x", "", "-1"}
			}
			for _, v := range values {
				tried++
				name := strings.Join(append(slices.Clone(path), f.Name), " ") + "=" + v
				expect(t, name, newRoot(), append(slices.Clone(args), "--"+f.Name+"="+v), "--"+f.Name, v)
				variable := cli.EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
				os.Setenv(variable, v)
				expect(t, name+", environment", newRoot(), args, variable, v)
				os.Unsetenv(variable)
				config := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(config, fmt.Appendf(nil, "%s: %q\n", f.Name, v), 0o600); err != nil {
					t.Fatal(err)
				}
				expect(t, name+", file", newRoot(), append(slices.Clone(args), "--config", config), f.Name, v)
			}
		})
	}
	root := newRoot()
	visit([]string{root.Name()}, root)
	if tried == 0 {
		t.Error("no flag was tried")
	}
}

func expect(t *testing.T, name string, root *cobra.Command, args []string, flag, value string) {
	t.Helper()
	var errs bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(""))
	root.SetOut(&bytes.Buffer{})
	root.SetErr(&errs)
	code := cli.Run(context.Background(), root)
	text := errs.String()
	if code != cli.ExitUsage || strings.Contains(text, "strconv") || strings.Contains(text, "invalid argument") || strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, flag) || !strings.Contains(text, value) && !strings.Contains(text, "on the command line") {
		t.Errorf("%s: exit code %d: %s", name, code, text)
	}
}
