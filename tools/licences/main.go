// Program licences prints the licences of all modules in the shipped programs, as their authors require for redistribution. It fails if
// one is not on the list of accepted licences. With -sbom and the paths of built programs it prints their software bill of materials.
// `make image` puts both into the image.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// programs are the shipped programs.
var programs = []string{"./cmd/worker", "./cmd/producer", "./cmd/fencepost"}

// accepted licences require a notice, and nothing of the programs as a whole. Each is recognised by a sentence that no other one has.
var accepted = []struct{ name, sentence string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files"},
	{"BSD", "Redistribution and use in source and binary forms, with or without modification, are permitted provided that the following conditions are met"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"public domain", "has been dedicated to the public domain by the authors"},
}

// refused matches words of licences that reach further than their own files. A person has to look at a text that contains one of them.
var refused = regexp.MustCompile(`(?i)gnu (affero |lesser )?general public license|server side public license|business source license|commons clause`)

// secondary is the passage in which MPL-2.0 itself names other licences.
const secondary = "means either the GNU General Public License, Version 2.0, the GNU Lesser General Public License, Version 2.1, " +
	"the GNU Affero General Public License, Version 3.0, or any later versions of those licenses."

// module is the output of go list for one module.
type module struct {
	Path, Version, Dir string
	Main               bool
}

func main() {
	sbom := flag.Bool("sbom", false, "print a bill of materials of these built programs, as CycloneDX")
	flag.Parse()
	mods, err := modules(programs...)
	switch {
	case err != nil:
	case *sbom:
		err = writeBOM(os.Stdout, mods, flag.Args())
	default:
		err = write(os.Stdout, mods)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// modules lists the modules that the packages contain on Linux, and Go itself, whose standard library they contain as well.
func modules(packages ...string) ([]module, error) {
	golist := func(args ...string) ([]byte, error) {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		return cmd.Output()
	}
	out, err := golist(append([]string{"list", "-deps", "-json=Module"}, packages...)...)
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var mods []module
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Module != nil && !p.Module.Main && !slices.Contains(mods, *p.Module) {
			mods = append(mods, *p.Module)
		}
	}
	slices.SortFunc(mods, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	env, err := golist("env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	root, version, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	return append(mods, module{Path: "the Go standard library", Version: version, Dir: root}), nil
}

// licenceFile matches the usual names of licence files.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|unlicense)([.-].*)?$`)

// texts returns the licences and notices of a module by file name.
func (m module) texts() (map[string]string, error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, e := range entries {
		if !licenceFile.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts[e.Name()] = string(b)
	}
	if len(texts) == 0 {
		// Some distributions put Go's licence elsewhere than the official archive does; it is the same as that of golang.org/x/sys.
		if m.Path == "the Go standard library" {
			return map[string]string{"LICENSE": "The licence of golang.org/x/sys, above.\n"}, nil
		}
		return nil, fmt.Errorf("%s %s has no licence", m.Path, m.Version)
	}
	return texts, nil
}

// classify names the accepted licences in a module's texts.
func classify(texts map[string]string) (names []string, err error) {
	for name, text := range texts {
		words := strings.Join(strings.Fields(text), " ")
		if word := refused.FindString(strings.ReplaceAll(words, secondary, "")); word != "" {
			return nil, fmt.Errorf("%s speaks of the %q", name, word)
		}
		for _, l := range accepted {
			if strings.Contains(words, l.sentence) && !slices.Contains(names, l.name) {
				names = append(names, l.name)
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no licence that we know and accept")
	}
	slices.Sort(names)
	return names, nil
}

// write lists modules and licences, and then every text.
func write(w io.Writer, mods []module) error {
	var list, full strings.Builder
	for _, m := range mods {
		texts, err := m.texts()
		if err != nil {
			return err
		}
		kinds := []string{"BSD"}
		if m.Path != "the Go standard library" {
			if kinds, err = classify(texts); err != nil {
				return fmt.Errorf("%s %s: %w; look at it, and do without the module or extend tools/licences", m.Path, m.Version, err)
			}
		}
		fmt.Fprintf(&list, "%s %s: %s\n", m.Path, m.Version, strings.Join(kinds, ", "))
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			fmt.Fprintf(&full, "\n==== %s %s, %s\n\n%s\n", m.Path, m.Version, name, strings.TrimRight(texts[name], "\n"))
		}
	}
	_, err := fmt.Fprintf(w, "Fencepost (Apache-2.0) contains:\n\n%s%s", list.String(), full.String())
	return err
}
