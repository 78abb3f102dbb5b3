package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

func TestWrongFlagValues(t *testing.T) {
	clitest.WrongValues(t, root, map[string]string{"producer publish": "--type t --message x"})
}

// Flags that do not apply to the messages of a run are refused, not ignored. Values from the environment or a file do not count.
func TestFlagsThatDoNotGoTogether(t *testing.T) {
	t.Setenv("FENCEPOST_TYPE", "t")
	publish := func(args string) (code int, stderr string) {
		var errs bytes.Buffer
		cmd := root()
		cmd.SetArgs(append([]string{"publish", "--dry-run"}, strings.Fields(args)...))
		cmd.SetIn(strings.NewReader("[1]\n"))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&errs)
		code = cli.Run(t.Context(), cmd)
		return code, errs.String()
	}
	for args, want := range map[string]string{
		"--size 1KiB":                              "--size and --seed require --count",
		"--seed 7 -":                               "--size and --seed require --count",
		"--seed 1 --message x":                     "--size and --seed require --count",
		"--format ndjson --message x":              "--format applies to files",
		"--format lines --count 1":                 "--format applies to files",
		"--header a=1 --header b=1 --header a=2 -": `--header a: given twice, as "1" and "2"`,
		"--type orders --type audit -":             `--type: given twice`,
		"--count 0":                                "--count 0: generate",
		"--count 0 --message x":                    "--count 0: generate",
		"--count 1 -":                              "cannot be combined",
	} {
		if code, errs := publish(args); code != cli.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s, want %q", args, code, errs, want)
		}
	}
	t.Setenv("FENCEPOST_FORMAT", "ndjson")
	for _, args := range []string{"", "--format lines -", "--message x", "--header a=1 --header a=1 --message x --message y", "--type t -t t -", "--count 1 --size 1KiB --seed 7"} {
		if code, errs := publish(args); code != 0 {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}
