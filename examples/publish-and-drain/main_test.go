package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestPublishAndDrain(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url, "--dir", t.TempDir(), "--stream", "2500")
		if err != nil {
			t.Fatal(err)
		}
		want := `published order 1
message 0 is stored
message 1 is stored
message 2 is stored
message 3 is rejected
2500 readings are stored, 0 are not
3 types were held and drained
audit.fpl 0: ann ordered three things
audit.fpl holds 1
orders.fpl 0: chair
orders.fpl 1: table
orders.fpl 2: lamp
orders.fpl holds 3
readings.fpl 0: reading 0
readings.fpl 1: reading 1
readings.fpl 2: reading 2
readings.fpl holds 2500
`
		if strings.TrimSpace(out) != strings.TrimSpace(want) {
			t.Errorf("got\n%s\nwant\n%s", out, want)
		}
	})
}

// Files persist if their database does, and the next run appends to them. Nothing remains of a temporary database.
func TestWhatStays(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TMPDIR", ".")
	for _, test := range []struct {
		args   []string
		second string
	}{
		{[]string{"--stream", "1"}, "orders.fpl holds 3\n"},
		{[]string{"--stream", "1", "--url", "sqlite://shop.db"}, "orders.fpl holds 6\n"},
		{[]string{"--stream", "1", "--dir", "embedded"}, "orders.fpl holds 6\n"},
	} {
		for _, want := range []string{"orders.fpl holds 3\n", test.second} {
			if out, err := exampletest.Output(t, run, test.args...); err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: %v; it does not print %q", test.args, err, want)
			}
		}
	}
	if left, err := filepath.Glob("fencepost-example-*"); err != nil || left != nil {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}
