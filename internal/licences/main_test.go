package main

import (
	"os"
	"strings"
	"testing"
)

// Everything in the shipped programs has a licence that we accept.
func TestLicences(t *testing.T) {
	t.Chdir("../..") // where the module is
	mods, err := modules(programs...)
	if err != nil {
		t.Fatal(err)
	}
	if len(mods) < 20 {
		t.Fatalf("only %d modules", len(mods))
	}
	var list strings.Builder
	if err := write(&list, mods); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"go.mongodb.org/mongo-driver/v2", "modernc.org/sqlite", "the Go standard library", "Permission is hereby granted", "==== github.com/prometheus/client_golang"} {
		if !strings.Contains(list.String(), want) {
			t.Errorf("the list does not have %q", want)
		}
	}
}

func TestLicencesThatAreNotAccepted(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"GPL":     {"This program is licensed under the GNU General Public License, version 3", "GNU General Public License"},
		"SSPL":    {"Server Side Public License\nVERSION 1, OCTOBER 16, 2018", "Server Side Public License"},
		"unknown": {"All rights reserved.", "no licence"},
		"both":    {"Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files\nor the GNU Lesser General Public License", "GNU Lesser"},
	} {
		if _, err := classify(map[string]string{"LICENSE": test.text}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ours, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if names, err := classify(map[string]string{"LICENSE": string(ours)}); err != nil || names[0] != "Apache-2.0" {
		t.Errorf("our own: %v, %v", names, err)
	}
	if err := write(new(strings.Builder), []module{{Path: "x", Dir: t.TempDir()}}); err == nil || !strings.Contains(err.Error(), "has no licence") {
		t.Errorf("a module without any: %v", err)
	}
}
