package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
)

// ahead is a queue whose clock is ahead of this machine's.
type ahead struct {
	queue.Queue
	by time.Duration
}

func (q ahead) Now(context.Context) (time.Time, error) { return time.Now().Add(q.by), nil }

func TestDoctorComparesClocks(t *testing.T) {
	for by, want := range map[time.Duration]finding{
		0:                 {"ok", "clock", "at most 1m0s apart"},
		30 * time.Second:  {"ok", "clock", "at most 1m0s apart"},
		-30 * time.Second: {"ok", "clock", "at most 1m0s apart"},
		2 * time.Hour:     {"warning", "clock", "the server's is 2h0m0s ahead of this machine's"},
		-48 * time.Hour:   {"warning", "clock", "the server's is 48h0m0s behind this machine's"},
	} {
		d := &doctor{}
		d.examineServer(t.Context(), &fencepost.Backend{Queue: ahead{queuetest.NewMemory(), by}})
		if len(d.findings) != 1 || d.findings[0].Verdict != want.Verdict || d.findings[0].What != want.What || !strings.Contains(d.findings[0].Text, want.Text) || d.code != 0 {
			t.Errorf("%v ahead: %+v, exit code %d; want %+v", by, d.findings, d.code, want)
		}
		if d.findings[0].Verdict == "warning" && !strings.Contains(d.findings[0].Text, "correct the one that is wrong") {
			t.Errorf("%v ahead: no remedy in %q", by, d.findings[0].Text)
		}
	}
}
