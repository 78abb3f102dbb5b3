package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// noRoom is an output without room.
type noRoom struct{}

func (noRoom) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command whose output cannot be written fails, with one error.
func TestOutputThatCannotBeWritten(t *testing.T) {
	store, url := storeWith(t)
	there, in := []string{"--url", url}, []string{"--url", url, "--store", store}
	for _, command := range []struct {
		name string
		args []string
	}{
		{"verify", in[2:]}, {"verify -v", in[2:]}, {"verify --json", in[2:]}, {"cat orders", in[2:]}, {"tail -n 1 orders", in[2:]},
		{"doctor", in}, {"keep --age 30d --dry-run", in}, {"copy --dry-run", append(there, store, filepath.Join(t.TempDir(), "data"))},
		{"types ls", there}, {"types show orders", there}, {"types limit orders --max-backlog 9", there}, {"top --once", there}, {"locks ls", there},
		{"compact orders", in},
	} {
		var errs bytes.Buffer
		cmd := root()
		cmd.SetArgs(append(strings.Fields(command.name), command.args...))
		cmd.SetOut(noRoom{})
		cmd.SetErr(&errs)
		code := cli.Run(t.Context(), cmd)
		if code != cli.ExitFailed || strings.Count(errs.String(), syscall.ENOSPC.Error()) != 1 || strings.Count(errs.String(), "error: ") != 1 {
			t.Errorf("%s: exit code %d: %s", command.name, code, &errs)
		}
	}
}
