package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
	"github.com/fencepost/fencepost/lock"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The demonstration checks every exit code itself.
func TestDemonstration(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url)
		if err != nil {
			t.Fatal(err)
		}
		for want, n := range map[string]int{
			`lock "TranApproval_100" is held by `:              1,
			"transaction 100 is approved already":              1,
			"transaction 102 is approved":                      1,
			`lock "TranApproval_103" is held by `:              1,
			`lock "TranApproval_103" (token `:                  1, // … was lost
			"4 transactions are approved, 4 mails were sent\n": 1,
		} {
			if strings.Count(out, want) != n {
				t.Errorf("the output says %q %d times, want %d", want, strings.Count(out, want), n)
			}
		}
	})
}

// The stored approval stops a caller that has passed the check for a lost lock.
func TestAnApprovalIsStoredOnceAndMailedOnce(t *testing.T) {
	a := &approval{transaction: 7, dir: t.TempDir()}
	if err := a.store(1); err != nil || !a.approved() {
		t.Fatal(err)
	}
	if err := a.store(2); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the second approval: %v", err)
	}
	for range 2 {
		if err := a.mail(); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(a.dir); err != nil || len(files) != 2 {
		t.Errorf("%d files, want an approval and a mail (%v)", len(files), err)
	}
}

func TestUsage(t *testing.T) {
	if err := run(t.Context(), []string{"--transaction", "1", "--duration", "1ms"}, io.Discard); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a duration that is too short: %v", err)
	}
}
