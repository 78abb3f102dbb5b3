package report

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/bench/internal/measure"
)

func TestReplaceSection(t *testing.T) {
	doc := "# Results\n"
	var err error
	for _, s := range [][2]string{{"storage", "old"}, {"lock", "locks\n\n"}, {"storage", "new"}} {
		if doc, err = ReplaceSection(doc, s[0], s[1]); err != nil {
			t.Fatal(err)
		}
	}
	want := "# Results\n\n" +
		"<!-- suite storage: begin -->\nnew\n<!-- suite storage: end -->\n\n" +
		"<!-- suite lock: begin -->\nlocks\n<!-- suite lock: end -->\n"
	if doc != want {
		t.Errorf("got\n%s\nwant\n%s", doc, want)
	}
	if _, err := ReplaceSection("<!-- suite lock: begin -->\nhalf", "lock", "x"); err == nil {
		t.Error("a section without end was replaced")
	}
}

func TestTable(t *testing.T) {
	got := Table([]string{"a", "b"}, [][]string{{"1", "2"}})
	if want := "| a | b |\n|---|---|\n| 1 | 2 |\n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		s       measure.Summary
		atLeast bool
		want    string
	}{
		{measure.Summary{Q1: 1, Median: 1.1, Q3: 1.2}, true, "met"},
		{measure.Summary{Q1: .8, Median: 1, Q3: 1.2}, true, "met"},
		{measure.Summary{Q1: .7, Median: .8, Q3: 1}, true, "**missed**, quartiles on both sides"},
		{measure.Summary{Q1: .7, Median: .8, Q3: 1}, false, "met, quartiles on both sides"},
		{measure.Summary{Q1: .91, Median: 1, Q3: 1.2}, false, "**missed**"},
		{measure.Summarize(nil), true, "**missed**"},
	} {
		target := .9
		if c.s.Q1 == .8 {
			target = .8
		}
		if got := Verdict(c.s, c.atLeast, target); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.s, got, c.want)
		}
	}
	if got := Spread(measure.Summary{Q1: .5, Median: 1, Q3: 12.4}); got != "1.00 (0.50–12)" {
		t.Error(got)
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	s := measure.Summary{Min: .1, Q1: .2, Median: .5, Q3: 1.5, Max: 3}
	p := Plot{Title: "speed <of> a & b", XLabel: "batch", YLabel: "ratio", X: []string{"1", "16"}, Line: 1, LineName: "raw", Panels: []Panel{
		{Title: "one", Series: []Series{{"a", []measure.Summary{s, s}}, {"b", []measure.Summary{s, measure.Summarize(nil)}}}},
		{Title: "two", Series: []Series{{"a", []measure.Summary{s, s}}, {"b", nil}}},
	}}
	svg := p.SVG()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"speed &lt;of&gt; a &amp; b", ">batch<", ">ratio<", ">one<", ">two<", ">raw<", ">16<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("%q is not in the plot", want)
		}
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("a missing value is drawn")
	}
}
