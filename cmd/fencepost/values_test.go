package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/clitest"
)

func TestWrongFlagValues(t *testing.T) {
	clitest.WrongValues(t, root, map[string]string{
		"fencepost cat": "t.fpl", "fencepost tail": "t.fpl", "fencepost verify": "t.fpl", "fencepost compact": "t.fpl", "fencepost repair": "t.fpl",
		"fencepost types show": "t", "fencepost types pause": "t", "fencepost types resume": "t", "fencepost types limit": "t", "fencepost types purge": "t", "fencepost types peek": "t",
		"fencepost locks show": "t", "fencepost locks release": "t", "fencepost dead show": "065svpgc20000000000001o00000001a", "fencepost dead rm": "065svpgc20000000000001o00000001a", "fencepost dead requeue": "--type t",
		"fencepost scheduled rm": "--type t", "fencepost conform publisher": "true", "fencepost worker": "--type t", "fencepost worker config": "--type t",
	})
}

// A command with a typing mistake is refused, and the one that may have been meant is named.
func TestCommandsWithTypingMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"verfy":           `unknown argument "verfy"; did you mean 'fencepost verify'?`,
		"type ls":         `unknown argument "type"; did you mean 'fencepost types'?`,
		"lock ls":         `did you mean 'fencepost locks'?`,
		"types lst":       `did you mean 'fencepost types ls'?`,
		"completion tcsh": `unknown argument "tcsh"; see 'fencepost completion --help'`,
		"completion bsh":  `did you mean 'fencepost completion bash'?`,
		"something":       `unknown argument "something"; see 'fencepost --help'`,
	} {
		if code, out, errs := runRoot(t, strings.Fields(args)...); code != cli.ExitUsage || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%s: exit code %d, %.50q, %s", args, code, out, errs)
		}
	}
	if code, out, errs := runRoot(t, "completion", "bash"); code != 0 || !strings.Contains(out, "bash completion") {
		t.Errorf("completion bash: exit code %d, %.50q, %s", code, out, errs)
	}
}
