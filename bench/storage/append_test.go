package storage

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/bench/internal/suite"
)

// TestLogsHoldWhatTheyAreGiven: no contender is measured doing nothing.
func TestLogsHoldWhatTheyAreGiven(t *testing.T) {
	for _, opener := range openers {
		for _, durable := range []bool{true, false} {
			s := setup{dir: t.TempDir(), durable: durable, batch: 10, source: newSource(30)}
			c, err := opener.open(s)
			if err != nil {
				t.Fatal(opener.name, err)
			}
			run := blocksOf(c, opener.name, s, 3)
			const blocks = 4
			for range blocks {
				if err := errors.Join(run.Prepare(), run.Run()); err != nil {
					t.Fatal(opener.name, err)
				}
			}
			if err := c.close(); err != nil {
				t.Fatal(opener.name, err)
			}
			if err := checkLog(c, s.source, blocks*30); err != nil {
				t.Errorf("%s, durable %v: %v", opener.name, durable, err)
			}
		}
	}
}

// lossy is a log that forgets, changes or repeats a record.
type lossy struct{ entries [][]byte }

func (*lossy) prepare(*source)       {}
func (*lossy) append(int, int) error { return nil }
func (*lossy) close() error          { return nil }
func (l *lossy) readBack(check func([]byte) error) error {
	for _, e := range l.entries {
		if err := check(e); err != nil {
			return err
		}
	}
	return nil
}

func TestCheckLogNoticesLoss(t *testing.T) {
	s := newSource(3)
	s.set(0)
	all := func() [][]byte {
		var c [][]byte
		for _, e := range s.entries {
			c = append(c, bytes.Clone(e))
		}
		return c
	}
	if err := checkLog(&lossy{all()}, s, 3); err != nil {
		t.Fatal(err)
	}
	changed, short := all(), all()
	changed[1][entrySize-1]++
	short[2] = short[2][:100]
	for what, entries := range map[string][][]byte{
		"nothing": nil, "one missing": all()[:2], "first missing": all()[1:], "changed": changed, "short": short,
	} {
		if checkLog(&lossy{entries}, s, 3) == nil {
			t.Errorf("%s: not noticed", what)
		}
	}
}

func TestRawNoticesLoss(t *testing.T) {
	s := setup{dir: t.TempDir(), batch: 2, source: newSource(2)}
	c, err := openRaw(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.append(0, 2); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(s.dir, "raw")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	if err := checkLog(c, s.source, 0); err == nil {
		t.Error("a missing byte was not noticed")
	}
}

// TestQuick runs the whole suite on tiny sizes.
func TestQuick(t *testing.T) {
	o := suite.Options{Dir: t.TempDir(), Rounds: 2, Quick: true, Logf: t.Logf}
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tidwall/wal", "raft-wal", "etcd wal", "takeover", "verify", "allocations"} {
		if !strings.Contains(res.Markdown, want) {
			t.Errorf("%q is not in the results:\n%s", want, res.Markdown)
		}
	}
	if strings.Contains(res.Markdown, o.Dir) || strings.Contains(res.Markdown, "NaN") {
		t.Errorf("a path or a missing number is in the results:\n%s", res.Markdown)
	}
	for _, name := range []string{"storage-durable.svg", "storage-unsynced.svg"} {
		if !strings.HasPrefix(res.Plots[name], "<svg") {
			t.Errorf("%s is missing", name)
		}
	}
	if left, _ := os.ReadDir(o.Dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCancelledRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	o := suite.Options{Dir: t.TempDir(), Rounds: 100, Quick: true}
	o.Logf = func(format string, _ ...any) { cancel() } // as soon as the first measurement is announced
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(o.Dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), o.Dir) {
		t.Error("a mount was left behind")
	}
}
