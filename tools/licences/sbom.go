package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
)

// A software bill of materials in CycloneDX 1.6, JSON: https://cyclonedx.org/docs/1.6/json/. It contains only what Go knows for
// certain.
type (
	bom struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type     string    `json:"type"`
		Ref      string    `json:"bom-ref"`
		Name     string    `json:"name"`
		Version  string    `json:"version"`
		Purl     string    `json:"purl"`
		Licences []licence `json:"licenses,omitempty"`
	}
	licence struct {
		Licence struct {
			ID   string `json:"id,omitempty"`
			Name string `json:"name,omitempty"`
		} `json:"license"`
	}
)

// spdx are the accepted licences whose name is an identifier of SPDX.
var spdx = []string{"Apache-2.0", "MIT", "ISC", "MPL-2.0"}

// newComponent describes a module. The package URL has the escapes of https://github.com/package-url/purl-spec, type golang.
func newComponent(kind, path, version string, licences []string) component {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	purl := "pkg:golang/" + strings.Join(parts, "/") + "@" + url.QueryEscape(version)
	c := component{Type: kind, Ref: purl, Name: path, Version: version, Purl: purl}
	for _, name := range licences {
		var l licence
		if slices.Contains(spdx, name) {
			l.Licence.ID = name
		} else {
			l.Licence.Name = name
		}
		c.Licences = append(c.Licences, l)
	}
	return c
}

// writeBOM lists the modules recorded in the built programs. Each must be among mods, whose licences are known.
func writeBOM(w io.Writer, mods []module, built []string) error {
	if len(built) == 0 {
		return errors.New("-sbom: name the built programs")
	}
	b := bom{Format: "CycloneDX", Spec: "1.6", Version: 1}
	for _, path := range built {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		b.Metadata.Component = newComponent("application", info.Main.Path, info.Main.Version, []string{"Apache-2.0"})
		contained := []module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			contained = append(contained, module{Path: d.Path, Version: d.Version})
		}
		for _, m := range contained {
			kinds := []string{"BSD"}
			if m.Path != "std" {
				i := slices.IndexFunc(mods, func(known module) bool { return known.Path == m.Path && known.Version == m.Version })
				if i < 0 {
					return fmt.Errorf("%s contains %s %s, which the source does not need: build it again", path, m.Path, m.Version)
				}
				texts, err := mods[i].texts()
				if err != nil {
					return err
				}
				if kinds, err = classify(texts); err != nil {
					return fmt.Errorf("%s %s: %w", m.Path, m.Version, err)
				}
			}
			c := newComponent("library", m.Path, m.Version, kinds)
			if !slices.ContainsFunc(b.Components, func(other component) bool { return other.Ref == c.Ref }) {
				b.Components = append(b.Components, c)
			}
		}
	}
	slices.SortFunc(b.Components, func(x, y component) int { return strings.Compare(x.Ref, y.Ref) })
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(b)
}
