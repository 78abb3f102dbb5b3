package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

// TestRemedies: for errors of the libraries, the programs print the command that helps, however the error is wrapped.
func TestRemedies(t *testing.T) {
	const path = "data/orders.fpl"
	registered := storage.Entry{Generation: 2, DurableIndex: 9, FileID: storage.FileID{1}}
	kept := func(place string) storage.Entry {
		e := registered
		e.Place = place
		return e
	}
	for _, c := range []struct {
		err  error
		want string // "" if no command helps
	}{
		{&queue.PausedError{Type: "orders"}, "fencepost types resume orders"},
		{&queue.BacklogFullError{Type: "orders", Limit: 5}, "fencepost types limit orders --max-backlog N"},
		{&worker.PausedError{Type: "orders"}, "fencepost types resume orders"},
		{&worker.BlockedError{Cause: storage.ErrLimit}, "--on-error dead"},
		{&worker.UnfitError{Type: "orders", Messages: 1}, "fencepost types show orders"},
		{&lock.DamagedError{Name: "orders", Cause: io.EOF}, "fencepost locks release --force --why TEXT orders"},
		{&storage.CutError{Path: path}, "fencepost repair --accept-loss " + path},
		{&storage.CopyConflict{Path: path, Target: path, Removed: true}, "fencepost keep"},
		{&storage.RegistryMismatch{Path: path, Registered: registered, Missing: true}, "fencepost verify data; to give up the lost messages: fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: registered, Older: 1}, "fencepost verify data; to give up the lost messages: fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: registered, Next: 3}, "fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: registered, Next: 9, Epoch: 1}, "fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: registered, Newer: 3, FileID: storage.FileID{2}}, "fencepost repair --adopt " + path},
		{&storage.RegistryMismatch{Path: path, Registered: registered, FileID: storage.FileID{2}}, "after moving this one away: fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: kept("host-1:/srv/a"), Missing: true}, "fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Registered: kept("host-1:/srv/a"), FileID: storage.FileID{2}}, "on host host-1 with --dir /srv/a"},
		{&storage.RegistryMismatch{Path: path, Registered: kept("s3://bucket/prefix"), FileID: storage.FileID{2}}, "with --store s3://bucket/prefix, or move the type here: fencepost copy --yes s3://bucket/prefix data orders"},
		{&storage.RegistryMismatch{Path: path, Registered: kept("shared:/srv/a"), FileID: storage.FileID{2}}, "with --store shared:/srv/a, or move the type here: fencepost copy --yes shared:/srv/a data orders"},
		{&storage.RegistryMismatch{Path: path, Registered: kept("mongodb:"), FileID: storage.FileID{2}}, "fencepost copy --yes mongodb: data orders"},
		{&storage.RegistryMismatch{Path: path, Registered: kept(worker.Place(nil, "data")), FileID: storage.FileID{2}}, "fencepost repair --accept-loss " + path},
		{&storage.RegistryMismatch{Path: path, Unregistered: true}, ""},
		{storage.ErrFenced, ""},
	} {
		wrapped := fmt.Errorf("type orders: %w", c.err)
		got := cli.WithRemedy(wrapped)
		rest, ok := strings.CutPrefix(got.Error(), wrapped.Error())
		if !ok || (c.want == "") != (rest == "") || !strings.HasSuffix(rest, c.want) || !errors.Is(got, c.err) || cli.Code(got) != cli.Code(c.err) {
			t.Errorf("%T: %q, want %q behind the error", c.err, got, c.want)
		}
		if again := cli.WithRemedy(got); again.Error() != got.Error() {
			t.Errorf("%T: a remedy is told twice: %q", c.err, again)
		}
		if strings.Contains(c.err.Error(), "fencepost ") || strings.Contains(c.err.Error(), "--") {
			t.Errorf("%T names a command: %q", c.err, c.err)
		}
	}
	root := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error {
		return errors.Join(&storage.CutError{Path: "a.fpl"}, io.EOF, &storage.CutError{Path: "b.fpl"})
	}}
	var stderr bytes.Buffer
	root.SetErr(&stderr)
	root.SetArgs(nil)
	cli.Run(t.Context(), root)
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "--accept-loss a.fpl") || !strings.HasSuffix(lines[1], "EOF") || !strings.HasSuffix(lines[2], "--accept-loss b.fpl") {
		t.Errorf("printed: %q", lines)
	}
}
