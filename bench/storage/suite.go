// Package storage measures the file of package storage against raw writes and reads of the same bytes, and against other
// logs written in Go.
package storage

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/suite"
)

// medium is a place to write to.
type medium struct {
	name, dir string
	appends   map[bool]map[int]appended // by durability and batch size
}

// results is everything that a run has measured.
type results struct {
	opts       suite.Options
	media      []*medium
	fileSystem string
	noRAM      string // why there is no file system in memory; empty if there is one
	noLarge    string // why nothing was measured with 10 GiB; empty if it was
	verify     map[int]verified
	open       measure.Times
	allocs     []allocCount
	load       [2]string // before and after
}

// Run runs the suite.
func Run(ctx context.Context, o suite.Options) (*suite.Result, error) {
	r := &results{opts: o, verify: map[int]verified{}}
	return suite.Run(ctx, r.measure, r.result)
}

func (r *results) measure(ctx context.Context) error {
	r.load[0] = machine.Load()
	defer func() { r.load[1] = machine.Load() }()
	o := &r.opts
	var inMemory bool
	r.fileSystem, inMemory = machine.FileSystem(o.Dir)
	r.noLarge = noLarge(o, inMemory)
	o.Large = r.noLarge == ""
	r.media = []*medium{{name: "device", dir: o.Dir}}
	ram, unmount, err := mountRAM(o.Dir, 1<<30+2*appendBytes(*o, slices.Max(batchSizes), false))
	if err != nil {
		r.noRAM = strings.ReplaceAll(err.Error(), o.Dir, "…")
		o.Logf("no ext4 in RAM: %v", err)
	} else {
		defer unmount()
		r.media = append(r.media, &medium{name: "ext4 in RAM", dir: ram})
	}
	for _, m := range r.media {
		m.appends = map[bool]map[int]appended{true: {}, false: {}}
		for _, durable := range []bool{true, false} {
			for _, batch := range batchSizes {
				o.Logf("append: %s, durable %v, batches of %d", m.name, durable, batch)
				if m.appends[durable][batch], err = measureAppend(ctx, *o, m.dir, batch, durable); err != nil {
					return err
				}
			}
		}
	}
	for _, batch := range batchSizes {
		o.Logf("verify: batches of %d", batch)
		if r.verify[batch], err = measureVerify(ctx, *o, batch); err != nil {
			return err
		}
	}
	o.Logf("allocations")
	if r.allocs, err = measureAllocs(ctx, *o); err != nil {
		return err
	}
	r.open, err = measureOpen(ctx, *o)
	return err
}

// noLarge says why the large file is left out.
func noLarge(o *suite.Options, inMemory bool) string {
	const room = 16 << 30
	var st unix.Statfs_t
	switch {
	case o.Quick:
		return "quick run"
	case !o.Large:
		return "switched off"
	case inMemory:
		return "the directory is in memory"
	case unix.Statfs(o.Dir, &st) != nil || int64(st.Bavail)*st.Bsize < room:
		return fmt.Sprintf("less than %d GiB free", room>>30)
	}
	return ""
}

func (r *results) result() *suite.Result {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; directory on %s; %s, GOMAXPROCS %d; load average %s before, %s after.\n\n", machine.Describe(), r.fileSystem,
		runtime.Version(), runtime.GOMAXPROCS(0), r.load[0], r.load[1])
	fmt.Fprintf(&b, "%s. %d rounds. Numbers are ratios: medians of the rounds' ratios, with their quartiles. Records have an ID of %d B and a payload of %d B. How far `%s` is from 1 shows what a difference means.\n\n",
		machine.Versions(peerModules...), r.opts.Rounds, idSize, payloadSize, nameControl)
	if r.noRAM != "" {
		fmt.Fprintf(&b, "Not measured on ext4 in RAM: %s.\n\n", r.noRAM)
	}
	if r.noLarge != "" {
		fmt.Fprintf(&b, "Not measured with a file of 10 GiB: %s.\n\n", r.noLarge)
	}
	b.WriteString("### Targets\n\n" + r.targets())
	plots := map[string]string{}
	for _, durable := range []bool{true, false} {
		title, file := "Append, durable", "storage-durable.svg"
		if !durable {
			title, file = "Append, not durable", "storage-unsynced.svg"
		}
		plots[file] = r.plot(title, durable)
		fmt.Fprintf(&b, "\n### %s\n\nSpeed, raw = 1: the same bytes as Fencepost's with one write", title)
		if durable {
			b.WriteString(" and one fdatasync")
		}
		fmt.Fprintf(&b, ".\n\n![%s](plots/%s)\n", title, file)
		for _, m := range r.media {
			fmt.Fprintf(&b, "\n%s:\n\n%s\n%s", strings.ToUpper(m.name[:1])+m.name[1:], ratioTable(m.appends[durable]), wholeTable(m.appends[durable]))
		}
	}
	b.WriteString("\n### Verify\n\nWarm page cache, a file of 256 MiB; speed, reading the file in pieces of 1 MiB = 1. Verify reads in a second goroutine, which needs a second core.\n\n" + r.verifyTable())
	b.WriteString("\n### Open (takeover)\n\n" + r.openTable())
	fmt.Fprintf(&b, "\n### Allocations\n\nIn the steady state, counted with runtime.MemStats; from %g per message on their lines are named.\n\n%s", budget, r.allocTable())
	return &suite.Result{Markdown: b.String(), Plots: plots}
}

// targets lists the design's targets for storage.
func (r *results) targets() string {
	var rows [][]string
	row := func(what, where, target, got, verdict string) {
		rows = append(rows, []string{what, where, target, got, verdict})
	}
	control := func(what string, m *medium, durable bool) {
		row("control: "+what+", raw / raw again", m.name, "", report.Spread(measure.Summarize(m.appends[durable][256].times.Ratios(nameRaw, nameControl))), "")
	}
	for _, m := range r.media {
		t := m.appends[true][256].times
		s := measure.Summarize(t.Ratios(nameRaw, nameFencepost))
		row("append, batches of 256, durable / raw", m.name, "≥ 0.95", report.Spread(s), report.Verdict(s, true, .95))
		for _, o := range peers {
			s := measure.Summarize(t.Ratios(o.name, nameFencepost))
			row("the same / "+o.name, m.name, "> 1", report.Spread(s), report.Verdict(s, true, 1))
		}
		control("durable", m, true)
	}
	for _, m := range r.media {
		s := measure.Summarize(m.appends[false][256].times.Ratios(nameRaw, nameFencepost))
		row("append, batches of 256, not durable / raw", m.name, "≥ 0.7", report.Spread(s), report.Verdict(s, true, .7))
		control("not durable", m, false)
	}
	s := measure.Summarize(r.verify[256].times.Ratios(nameRead, nameVerify))
	row("verify, batches of 256 / reading", fmt.Sprintf("page cache, %.1f cores busy elsewhere", r.verify[256].elsewhere), "≥ 0.7", report.Spread(s), report.Verdict(s, true, .7))
	if r.noLarge == "" {
		s := measure.Summarize(r.open.Ratios(nameLarge, nameSmall))
		row("time of a takeover of 10 GiB / of 10 MiB", "device", "≤ 2", report.Spread(s), report.Verdict(s, false, 2))
	}
	worst, verdict := 0.0, "met"
	for i := range r.allocs {
		worst = max(worst, r.allocs[i].perMessage())
	}
	if worst >= budget {
		verdict = "**missed**"
	}
	row("allocations per message beyond one per Sync, worst case", "", "0", fmt.Sprintf("%.4f", worst), verdict)
	return report.Table([]string{"work", "where", "target", "measured", ""}, rows)
}

// ratioTable compares medians.
func ratioTable(byBatch map[int]appended) string {
	head := []string{"batch", "raw"}
	for _, o := range measured {
		head = append(head, o.name)
	}
	var rows [][]string
	for _, batch := range batchSizes {
		a := byBatch[batch]
		row := []string{fmt.Sprint(batch), micros(a.perBatch(nameRaw))}
		for _, o := range measured {
			row = append(row, report.Spread(measure.Summarize(a.times.Ratios(nameRaw, o.name))))
		}
		rows = append(rows, row)
	}
	return report.Table(head, rows)
}

// wholeTable shows what the other table leaves out.
func wholeTable(byBatch map[int]appended) string {
	head := []string{"batch"}
	for _, o := range openers {
		head = append(head, o.name)
	}
	var rows [][]string
	for _, batch := range batchSizes {
		a := byBatch[batch]
		row := []string{fmt.Sprint(batch)}
		for _, o := range openers {
			perSecond := float64(batch) / a.perBatch(o.name).Seconds()
			row = append(row, fmt.Sprintf("%s · %s", thousands(perSecond), report.Ratio(a.times.Whole(nameRaw, o.name))))
		}
		rows = append(rows, row)
	}
	return "<details><summary>Records per second (median) · ratio of whole times, which counts new segments and checkpoints, and hiccups of the machine, too</summary>\n\n" +
		report.Table(head, rows) + "\n</details>\n"
}

func (r *results) plot(title string, durable bool) string {
	p := report.Plot{Title: title, XLabel: "records in a batch", YLabel: "speed, raw = 1", Line: 1, LineName: nameRaw}
	for _, batch := range batchSizes {
		p.X = append(p.X, fmt.Sprint(batch))
	}
	for _, m := range r.media {
		panel := report.Panel{Title: m.name}
		for _, o := range logs {
			s := report.Series{Name: o.name}
			for _, batch := range batchSizes {
				s.Values = append(s.Values, measure.Summarize(m.appends[durable][batch].times.Ratios(nameRaw, o.name)))
			}
			panel.Series = append(panel.Series, s)
		}
		p.Panels = append(p.Panels, panel)
	}
	return p.SVG()
}

func (r *results) verifyTable() string {
	head := slices.Concat([]string{"batch", nameRead}, readers[1:], []string{"cores busy elsewhere"})
	var rows [][]string
	for _, batch := range batchSizes {
		v := r.verify[batch]
		row := []string{fmt.Sprint(batch), fmt.Sprintf("%.1f GB/s", float64(v.bytes)/1e9/v.times.Median(nameRead).Seconds())}
		for _, name := range readers[1:] {
			row = append(row, report.Spread(measure.Summarize(v.times.Ratios(nameRead, name))))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", v.elsewhere)))
	}
	return report.Table(head, rows)
}

func (r *results) openTable() string {
	names := []string{nameSmall, nameLongest}
	if r.noLarge == "" {
		names = append(names, nameLarge)
	}
	var rows [][]string
	for _, name := range names {
		rows = append(rows, []string{name, fmt.Sprintf("%.1f ms", float64(r.open.Median(name).Microseconds())/1e3),
			report.Spread(measure.Summarize(r.open.Ratios(name, nameSmall)))})
	}
	return report.Table([]string{"file", "time", "time / " + nameSmall}, rows)
}

func (r *results) allocTable() string {
	var rows [][]string
	for i := range r.allocs {
		a := &r.allocs[i]
		where := strings.Join(a.sites, "<br>")
		rows = append(rows, []string{a.what, thousands(float64(a.messages)), fmt.Sprint(a.mallocs), fmt.Sprintf("%.4f", a.perMessage()), where})
	}
	return report.Table([]string{"work", "messages", "allocations", "per message, without one per Sync", "where, per message"}, rows)
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1e3) }

// thousands formats a number with separators.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
