package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestRaces(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		out, err := exampletest.Output(t, run, "--url", url)
		if err != nil {
			t.Fatal(err)
		}
		const lost = "a change lost"
		for title, want := range map[string][]string{
			races[0].title:               {lost, "ok", "ok"},
			races[1].title:               {lost, lost, "ok"},
			races[2].title:               {lost, "ok", "ok"},
			races[3].title:               {lost, lost, "ok"},
			"4  nested: order and order": {"ok", "waits for itself", "ok"},
		} {
			_, line, _ := strings.Cut(out, title)
			line, _, _ = strings.Cut(line, "\n")
			if got, want := strings.Join(strings.Fields(line), " "), strings.Join(want, " "); got != want {
				t.Errorf("%s: %s, want %s", title, got, want)
			}
		}
		for _, want := range []string{
			"for job-flow/1: reschedule",
			`P2 is told: lock "order/1" is held by `,
			"a cycle: lock graph: loop/a → loop/b → loop/a: ",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the output does not say %q", want)
			}
		}
	})
}
