package main

import (
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestHandlers(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url)
		if err != nil {
			t.Fatal(err)
		}
		if out != want {
			t.Errorf("want\n%s", want)
		}
	})
}

const want = `in batches:
  ann: chair of orders, from the shop
  bob: lamp of orders, from the shop
  ann: table of orders, from the shop
one by one:
  ship ann: chair
  ship bob: lamp
  log: type orders, error <nil>
by customer, two at a time:
  ann: chair, ann: table
  bob: lamp, bob: desk
with failures:
  ship ann: chair, at attempt 2
  ship ann: table, at attempt 1
  dead after 3: "bob: lamp", panic: no such lamp
  dead after 1: "", an order for nothing
  1 published again
  ship bob: lamp, at attempt 4
`
