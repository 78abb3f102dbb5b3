package main

import (
	"os"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// TestTailEndsWithItsReader: tail -f in a pipe ends when the reader has ended, even if no further message arrives.
func TestTailEndsWithItsReader(t *testing.T) {
	store, _ := storeWith(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := root()
	cmd.SetArgs([]string{"tail", "-f", "--store", store, "audit"})
	cmd.SetOut(w)
	errs := new(strings.Builder)
	cmd.SetErr(errs)
	ended := make(chan int, 1)
	go func() { ended <- cli.Run(t.Context(), cmd) }()
	b := make([]byte, 100)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "login\n" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	r.Close()
	if code := <-ended; code != cli.ExitStopped || errs.String() != "" {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
