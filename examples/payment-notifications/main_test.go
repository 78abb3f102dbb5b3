package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The results of the article, as far as they do not depend on the machine: which locks give wrong payments, and which lock is faster.
func TestLocks(t *testing.T) {
	exampletest.Backends(t, func(t *testing.T, url string) {
		const scale = 5
		svg := filepath.Join(t.TempDir(), "waterfall.svg")
		out, err := exampletest.Output(t, run, "--url", url, "--scale", strconv.Itoa(scale), "--svg", svg)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")[1:]
		if len(lines) != len(scenarios) {
			t.Fatalf("%d lines", len(lines))
		}
		longest := make(map[string]float64)
		for i, line := range lines {
			m := regexp.MustCompile(`^(.*?)  +([\d.]+) s +([\d.]+) s  (.*)$`).FindStringSubmatch(line)
			if m == nil || m[1] != scenarios[i].title {
				t.Fatalf("line %q", line)
			}
			want := "none"
			if s := scenarios[i]; s.lock == lockNone || s.lock == lockPerID && s.instances > 1 {
				want = "1 2 3"
			}
			// On a busy machine, one of the wrong payments may be right by chance.
			if (m[4] == "none") != (want == "none") {
				t.Errorf("%s: wrong payments %s, want %s", m[1], m[4], want)
			}
			seconds, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			longest[m[1]] = seconds * scale
		}
		least := map[string]float64{ // nothing can be faster
			scenarios[0].title: 1,
			scenarios[1].title: 12 - 11*0.05,
			scenarios[2].title: 4 - 11*0.05,
			scenarios[4].title: 12 - 11*0.05,
			scenarios[5].title: 4 - 11*0.05,
		}
		for title, seconds := range least {
			if longest[title] < seconds-1.5 { // the start is noticed late on a busy machine
				t.Errorf("%s: the longest call took %.2f s, less than is possible", title, longest[title])
			}
		}
		if longest[scenarios[2].title] >= longest[scenarios[1].title] {
			t.Error("a lock per payment is not faster than one for all")
		}
		wellFormed(t, svg)
	})
}

func wellFormed(t *testing.T, path string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bars := 0
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if want := 1 + 2*len(payments)*len(scenarios); bars != want {
		t.Errorf("%d bars, want %d", bars, want)
	}
}
