package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/storage"
)

// TestStoppedVerifyFindsNothingBad: what was not read to its end is not called bad.
func TestStoppedVerifyFindsNothingBad(t *testing.T) {
	w, err := storage.Open(t.Context(), t.TempDir(), "orders", 1, storage.Options{AllowOverlay: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Append([]storage.Record{{ID: []byte{1}, Payload: []byte("order 1")}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	cmd := root()
	cmd.SetArgs([]string{"verify", w.Path()})
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	code := cli.Run(ctx, cmd)
	if code != cli.ExitStopped || stderr.String() != "error: stopped: 1 of 1 files were not read to their end\n" || strings.Contains(stdout.String(), "BAD") {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, stdout.String(), stderr.String())
	}
}
