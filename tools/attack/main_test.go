package main

import "testing"

// TestPageNamesTests: the page's table can be read, and each test in it exists.
func TestPageNamesTests(t *testing.T) {
	attacks, err := read("../..")
	if err != nil || len(attacks) < 10 {
		t.Fatalf("%d attacks, %v", len(attacks), err)
	}
}

// TestRun runs the test above as an attack.
func TestRun(t *testing.T) {
	a := attack{what: "none", tests: []string{"TestPageNamesTests"}, packages: []string{"."}}
	programs := t.TempDir()
	for range 2 { // the second time with the binary of the first one
		r, err := a.run(programs)
		if err != nil || r.passed != 1 || r.failed+r.skipped > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
