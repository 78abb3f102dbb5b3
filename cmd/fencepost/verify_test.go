package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// TestStoppedVerifyFindsNothingBad: a file that was not read to its end is not reported as bad.
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

// TestVerifyCountsLooseMessages: messages of transactions have no order that could be violated. A duplicate among them is a violation.
func TestVerifyCountsLooseMessages(t *testing.T) {
	loose := queue.NewLooseID(time.UnixMilli(1_700_000_000_000))
	for copies, want := range map[int]string{1: "producers 1 (contiguous)  loose 1", 2: "this loose message"} {
		w, err := storage.Open(t.Context(), t.TempDir(), "orders", 1, storage.Options{AllowOverlay: true})
		if err != nil {
			t.Fatal(err)
		}
		numbered := queue.NewID(time.UnixMilli(1_700_000_000_000), 7, 1)
		records := []storage.Record{{ID: numbered[:], Payload: []byte("numbered")}}
		for range copies {
			records = append(records, storage.Record{ID: loose[:], Payload: []byte("loose")})
		}
		if err := w.Append(records); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var stdout bytes.Buffer
		cmd := root()
		cmd.SetArgs([]string{"verify", w.Path()})
		cmd.SetOut(&stdout)
		cmd.SetErr(&stdout)
		if code := cli.Run(t.Context(), cmd); (code == 0) != (copies == 1) || !strings.Contains(stdout.String(), want) {
			t.Errorf("%d copies: exit code %d, want %q\n%s", copies, code, want, stdout.String())
		}
	}
}

func TestVerifySum(t *testing.T) {
	reports := []*fileReport{
		{report: &storage.Report{Messages: 1000, Skipped: 1}},
		{report: &storage.Report{Messages: 7}},
		{report: &storage.Report{Messages: 5}, replaced: true, err: storage.ErrIntegrity},
		{report: &storage.Report{Messages: 2}, err: context.Canceled},
		{err: storage.ErrIntegrity},
		{report: &storage.Report{Messages: 3}, chain: []error{storage.ErrIntegrity}},
	}
	var out strings.Builder
	printSum(&out, reports)
	if want := "6 files  BAD 2  STOPPED 1  REPLACED 1  OK 2  1,011 messages\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
