package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
		{err: fs.ErrPermission},
		{report: &storage.Report{Messages: 3}, chain: []error{storage.ErrIntegrity}},
	}
	var out strings.Builder
	printSum(&out, reports)
	if want := "7 files  BAD 2  UNREADABLE 1  STOPPED 1  REPLACED 1  OK 2  1,011 messages\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// A file under the name of another type is reported in a directory, and its damage counts, unless it is a copy beside the file itself.
func TestVerifyFilesUnderOtherNames(t *testing.T) {
	dir, url := t.TempDir(), "sqlite://"+filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "o", "one", "two", "three")
	publish(t, url, "audit", "login")
	if code, _, errs := runRoot(t, "worker", "--url", url, "--dir", dir, "--all-types", "--until-empty", "--allow-overlay"); code != 0 {
		t.Fatalf("worker: %d, %s", code, errs)
	}
	content, err := os.ReadFile(filepath.Join(dir, "o.fpl"))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "orders.fpl")
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(other, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want int, says ...string) {
		t.Helper()
		code, out, errs := runRoot(t, "verify", dir)
		for _, s := range says {
			if code != want || !strings.Contains(out, s) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, want, s, out, errs)
			}
		}
	}
	write(content)
	check(0, "a copy: it holds generation 1 of type o, and is not counted", "3 files  OK 3  4 messages\n")
	damaged := slices.Clone(content)
	damaged[len(damaged)/2] ^= 1
	write(damaged)
	check(cli.ExitIntegrity, "BAD 1")
	write(content)
	if err := os.Remove(filepath.Join(dir, "o.fpl")); err != nil {
		t.Fatal(err)
	}
	check(cli.ExitIntegrity, other+" holds generation 1 of type o: it was renamed, or is a kept copy; rename it to o.fpl", "2 files  BAD 1  OK 1  4 messages\n")
	if code, out, errs := runRoot(t, "verify", other); code != 0 {
		t.Errorf("a copy named by the user: %d, %s%s", code, out, errs)
	}
}

// A file that is removed between its listing and its reading is reported as that. The others are not reported as files that do not follow one another.
func TestFilesRemovedMeanwhile(t *testing.T) {
	data := t.TempDir()
	w, err := storage.Open(t.Context(), data, "orders", 1, storage.Options{AllowOverlay: true})
	var paths []string
	for range 3 {
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, w.Path())
		if err := w.Append([]storage.Record{{ID: make([]byte, 20), Payload: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		w, err = w.Rotate(t.Context(), nil)
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	// The second file was removed before the listing, and the third one after it.
	paths = []string{paths[0], paths[2]}
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}
	reports := verifyFiles(t.Context(), paths, verifyOptions{maxMemory: 1 << 20})
	verifyChains(t.Context(), reports, whole{{dir: data}: true}, nil)
	for i, r := range reports {
		if err := r.verdict(); i == 0 && err != nil || i == 1 && (!errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrIntegrity)) {
			t.Errorf("verify %s: %v", r.path, err)
		}
	}
	c := &catter{}
	if err := c.chains(paths); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrIntegrity) {
		t.Errorf("cat: %v", err)
	}
}
