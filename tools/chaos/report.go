//go:build unix

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// writeReport prints a page about the runs that a file has recorded.
func writeReport(out io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return usagef("--report: %w", err)
	}
	defer f.Close()
	all, err := readResults(f)
	if err != nil {
		return usagef("--report: %s: %w", path, err)
	}
	if len(all) == 0 {
		return usagef("--report: %s has no results", path)
	}
	sum := summarise(all)
	var page bytes.Buffer
	page.WriteString(reportHead)
	sum.table(&page)
	sum.seeds(&page)
	sum.violated(&page)
	_, err = out.Write(page.Bytes())
	return err
}

// summary is what a report says about results.
type summary struct {
	first, last time.Time
	total       tally
	rows        map[string]*tally // by scenario and backend
	violations  []result
	versions    map[string][]result // by commit and machine
}

// summarise sums up results, at least one, in the order of their times.
func summarise(all []result) *summary {
	s := &summary{first: all[0].Time, last: all[len(all)-1].Time, rows: map[string]*tally{}, versions: map[string][]result{}}
	for _, r := range all {
		key := r.Scenario + " | " + job{backend: r.Backend, store: r.Store}.where()
		if s.rows[key] == nil {
			s.rows[key] = &tally{}
		}
		s.rows[key].add(r)
		s.total.add(r)
		if r.Verdict == violated {
			s.violations = append(s.violations, r)
		}
		version := r.Commit + " | " + r.Machine
		s.versions[version] = append(s.versions[version], r)
	}
	return s
}

// table writes the runs of each scenario and backend, and all faults.
func (s *summary) table(page io.Writer) {
	total := &s.total
	fmt.Fprintf(page, "%s runs, %s to %s: **%s held, %s violated**, %s could not be made. %s confirmed messages; %s messages in files, each of them checked.\n\n",
		comma(total.runs), s.first.Format("2006-01-02 15:04"), s.last.Format("2006-01-02 15:04 UTC"),
		comma(total.verdicts[held]), comma(total.verdicts[violated]), comma(total.verdicts[notRun]), comma(total.confirmed), comma(total.inFiles))
	fmt.Fprintf(page, "| scenario | backend | runs | held | violated | not made | faults | confirmed | unknown | refused | sessions | void bytes | recovered in s, median / most |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, sc := range scenarios {
		for _, b := range backends {
			for _, store := range append([]string{""}, stores...) {
				where := job{backend: b, store: store}.where()
				if row := s.rows[sc.name+" | "+where]; row != nil {
					fmt.Fprintf(page, "| %s | %s | %s\n", sc.name, where, row)
				}
			}
		}
	}
	fmt.Fprintf(page, "| all | | %s\n\n", total)
	kinds := slices.Sorted(maps.Keys(total.faults))
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%s %s", kind, comma(total.faults[kind]))
	}
	fmt.Fprintf(page, "Faults that were done, by kind: %s.\n\n", strings.Join(kinds, ", "))
	if total.late != (lateCreates{}) {
		fmt.Fprintf(page, "Creates of slots that were delivered when their sender had given them up: %s. Of these %s created the slot, and %s found another one there.\n\n",
			comma(total.late.Created+total.late.Taken), comma(total.late.Created), comma(total.late.Taken))
	}
}

// seeds writes the seeds of each version.
func (s *summary) seeds(page io.Writer) {
	fmt.Fprintf(page, "## Seeds\n\n| commit | machine | runs | seeds |\n|---|---|--:|---|\n")
	for _, version := range slices.SortedFunc(maps.Keys(s.versions), func(a, b string) int { return s.versions[a][0].Time.Compare(s.versions[b][0].Time) }) {
		var seeds []uint64
		for _, r := range s.versions[version] {
			seeds = append(seeds, r.Seed)
		}
		fmt.Fprintf(page, "| %s | %d | %s |\n", version, len(seeds), ranges(seeds))
	}
}

// violated writes the violations, with the commands that repeat them.
func (s *summary) violated(page io.Writer) {
	fmt.Fprint(page, "\n## Violations\n\n")
	if len(s.violations) == 0 {
		fmt.Fprint(page, "None.\n")
	}
	for _, r := range s.violations {
		store := ""
		if r.Store != "" {
			store = " --store " + r.Store
		}
		fmt.Fprintf(page, "- commit %s: `make chaos ARGS='--scenario %s --backend %s%s --seed %d --runs 1'`: %s\n", r.Commit, r.Scenario, r.Backend, store, r.Seed, strings.Join(r.Found, "; "))
		if r.Note != "" {
			fmt.Fprintf(page, "  %s\n", r.Note)
		}
	}
}

const reportHead = `# What chaos has shown

` + "`make chaos ARGS='--report FILE'`" + ` writes this page from the results of earlier runs, which ` + "`--record FILE`" + ` keeps: one line for each run that was not interrupted.
` + "`make chaos`" + ` does more runs, on any machine. ` + "`--help`" + ` describes what a run does and checks; ` + "`--list`" + ` describes the scenarios.

`

func readResults(in io.Reader) (all []result, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d is no result: %w", n, err)
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b result) int { return a.Time.Compare(b.Time) })
	return all, lines.Err()
}

// tally adds up results.
type tally struct {
	runs, confirmed, unknown, refused, inFiles, epochs int
	void                                               int64
	verdicts, faults                                   map[string]int
	late                                               lateCreates
	recovery                                           []float64
}

func (t *tally) add(r result) {
	if t.verdicts == nil {
		t.verdicts, t.faults = map[string]int{}, map[string]int{}
	}
	t.runs++
	t.verdicts[r.Verdict]++
	t.confirmed, t.unknown, t.refused = t.confirmed+r.Confirmed, t.unknown+r.Unknown, t.refused+r.Refused
	t.inFiles, t.epochs, t.void = t.inFiles+r.InFiles, t.epochs+r.Epochs, t.void+r.Void
	t.late.Created, t.late.Taken = t.late.Created+r.Late.Created, t.late.Taken+r.Late.Taken
	for kind, n := range r.Faults {
		t.faults[kind] += n
	}
	if r.Verdict != notRun {
		t.recovery = append(t.recovery, r.Recovery)
	}
}

func (t *tally) String() string {
	faults := 0
	for _, n := range t.faults {
		faults += n
	}
	recovery := "–"
	if len(t.recovery) > 0 {
		slices.Sort(t.recovery)
		recovery = fmt.Sprintf("%.1f / %.1f", t.recovery[len(t.recovery)/2], t.recovery[len(t.recovery)-1])
	}
	return fmt.Sprintf("%s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", comma(t.runs), comma(t.verdicts[held]), comma(t.verdicts[violated]),
		comma(t.verdicts[notRun]), comma(faults), comma(t.confirmed), comma(t.unknown), comma(t.refused), comma(t.epochs), comma(t.void), recovery)
}

func comma[T int | int64](n T) string { return humanize.Comma(int64(n)) }

// ranges formats numbers as "1–3, 7".
func ranges(numbers []uint64) string {
	slices.SortFunc(numbers, cmp.Compare)
	numbers = slices.Compact(numbers)
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if part := fmt.Sprint(numbers[i]); j == i {
			parts = append(parts, part)
		} else {
			parts = append(parts, fmt.Sprintf("%s–%d", part, numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
