package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestPublishAndDrain(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url, "--stream", "2500")
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
