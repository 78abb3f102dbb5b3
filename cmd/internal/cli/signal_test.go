//go:build unix

package cli

import (
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// A signal between a program's last line and its end does not kill it: its result is what it has printed.
func TestSignalsAtTheEndAreIgnored(t *testing.T) {
	t.Cleanup(func() { signal.Reset(syscall.SIGTERM) })
	called := make(chan string, 2)
	done := OnSignals(func() { called <- "first" }, func() { called <- "second" })
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if what := <-called; what != "first" {
		t.Fatalf("the first signal called %s", what)
	}
	done()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil { // without the rule this ends the test binary
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if len(called) > 0 {
		t.Fatal("a signal after the end was acted on")
	}
}

// The second signal is noticed regardless of what the first one has cancelled.
func TestSecondSignal(t *testing.T) {
	t.Cleanup(func() { signal.Reset(syscall.SIGTERM) })
	called := make(chan string)
	done := OnSignals(func() { called <- "first" }, func() { called <- "second" })
	defer done()
	for _, want := range []string{"first", "second"} {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if what := <-called; what != want {
			t.Fatalf("the %s signal called %s", want, what)
		}
	}
}
