// Package report writes results: Markdown tables, sections that can be replaced one by one, plots.
package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/fencepost/fencepost/bench/internal/measure"
)

// Table returns a Markdown table.
func Table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	line(head)
	b.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

// Spread formats a median with its quartiles.
func Spread(s measure.Summary) string {
	return fmt.Sprintf("%s (%s–%s)", Ratio(s.Median), Ratio(s.Q1), Ratio(s.Q3))
}

// Ratio formats a ratio with its significant digits.
func Ratio(v float64) string {
	switch {
	case math.IsNaN(v):
		return "n/a"
	case v >= 9.95:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// Verdict says whether the median meets a target, and says so if the quartiles are on both sides of it.
func Verdict(s measure.Summary, atLeast bool, target float64) string {
	met := s.Median >= target
	if !atLeast {
		met = s.Median <= target
	}
	v := "**missed**"
	if met {
		v = "met"
	}
	if s.Q1 < target && target < s.Q3 {
		v += ", quartiles on both sides"
	}
	return v
}

func markers(name string) (begin, end string) {
	return "<!-- suite " + name + ": begin -->\n", "<!-- suite " + name + ": end -->\n"
}

// ReplaceSection returns doc with the section of a suite replaced, or appended if there is none yet. Everything else stays
// unchanged, so that suites can be run one by one.
func ReplaceSection(doc, name, body string) (string, error) {
	begin, end := markers(name)
	section := begin + strings.TrimRight(body, "\n") + "\n" + end
	before, rest, found := strings.Cut(doc, begin)
	if !found {
		return strings.TrimRight(doc, "\n") + "\n\n" + section, nil
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("the section of suite %s begins and does not end: %q is missing", name, strings.TrimSpace(end))
	}
	return before + section + after, nil
}
