package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/lock"
)

// Lists show times that --since and --before take, in UTC, whatever the zone of the machine.
func TestTimesInLists(t *testing.T) {
	at := time.Date(2026, 1, 31, 15, 4, 5, 678_000_000, time.UTC)
	var dead, delayed, watched bytes.Buffer
	if err := printLetters(&dead, []letterRow{{Type: "o", Died: at}}); err != nil {
		t.Fatal(err)
	}
	rows := []delayedRow{{Type: "o", Due: at, InSeconds: 59.4}, {Type: "o", Due: at, InSeconds: -1}, {Type: "o", Due: at, InSeconds: (27068*time.Hour + 2*time.Minute).Seconds()}}
	if err := printDelayed(&delayed, rows); err != nil {
		t.Fatal(err)
	}
	if err := printChange(&watched, "text", lock.Record{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{dead.String(), delayed.String()} {
		if !strings.Contains(out, "2026-01-31T15:04:05Z ") {
			t.Errorf("%s", out)
		}
	}
	for _, in := range []string{" 59s ", " due ", " 1127d20h "} {
		if !strings.Contains(delayed.String(), in) {
			t.Errorf("no %q: %s", in, delayed.String())
		}
	}
	var since cli.Since
	if first := strings.Fields(watched.String())[0]; since.Set(first) != nil || !strings.HasSuffix(first, "Z") {
		t.Errorf("locks watch: %s", watched.String())
	}
}
