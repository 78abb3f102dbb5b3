package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every module in the shipped programs has an accepted licence.
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

// The bill of materials of a program lists each module that it contains, with version and licence, and Go
// itself.
func TestBillOfMaterials(t *testing.T) {
	t.Chdir("../..")
	program := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/worker").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mods, err := modules(programs...)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeBOM(&out, mods, []string{program, program}); err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(out.Bytes(), &b); err != nil || b.Format != "CycloneDX" || b.Spec != "1.6" || b.Metadata.Component.Name != "github.com/fencepost/fencepost" {
		t.Fatalf("%v: %.300s", err, out.String())
	}
	found := map[string]component{}
	for _, c := range b.Components {
		if len(c.Licences) == 0 || c.Version == "" || found[c.Name].Name != "" {
			t.Errorf("%+v: no licence, no version, or twice", c)
		}
		found[c.Name] = c
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range info.Deps {
		if found[d.Path].Version != d.Version {
			t.Errorf("%s %s is in the program and not in the bill", d.Path, d.Version)
		}
	}
	if driver := found["go.mongodb.org/mongo-driver/v2"]; driver.Licences[0].Licence.ID != "Apache-2.0" || !strings.HasPrefix(driver.Purl, "pkg:golang/go.mongodb.org/mongo-driver/v2@v2.") {
		t.Errorf("%+v", driver)
	}
	if found["std"].Version == "" || len(found) != len(info.Deps)+1 {
		t.Errorf("%d components for %d modules and Go", len(found), len(info.Deps))
	}
	if err := writeBOM(&out, mods[1:], []string{program}); err == nil || !strings.Contains(err.Error(), "build it again") {
		t.Errorf("a module that the source does not need: %v", err)
	}
	if err := writeBOM(&out, mods, nil); err == nil {
		t.Error("no program is no error")
	}
}
