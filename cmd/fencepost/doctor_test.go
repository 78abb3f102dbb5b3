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

// Types for which there is no time are counted, and none of them passes for good.
func TestDoctorSaysWhatItDidNotLookAt(t *testing.T) {
	q := queuetest.NewMemory()
	types := []string{"a", "b", "c"}
	for within, want := range map[time.Duration]string{0: "3 of 3 types were not looked at, the first one is a", time.Hour: "can be appended"} {
		d := &doctor{types: types, within: within}
		if err := d.examineMessages(t.Context(), q); err != nil || len(d.findings) != 1 || !strings.Contains(d.findings[0].Text, want) {
			t.Errorf("messages within %v: %+v, %v; want %q", within, d.findings, err, want)
		}
	}
	d := &doctor{types: types}
	if err := d.examineFiles(t.Context(), q, t.TempDir()); err != nil || len(d.findings) != 1 || d.findings[0].Verdict != "warning" || !strings.Contains(d.findings[0].Text, "3 of 3 types were not looked at") {
		t.Errorf("files: %+v, %v", d.findings, err)
	}
}
