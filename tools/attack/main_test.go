package main

import "testing"

// TestPageNamesTests: the page's table can be read, and each test in it is there.
func TestPageNamesTests(t *testing.T) {
	attacks, err := read("../..")
	if err != nil || len(attacks) < 10 {
		t.Fatalf("%d attacks, %v", len(attacks), err)
	}
}
