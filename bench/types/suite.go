// Package types measures the cost of many types: replicas while nothing is published, and drains of few messages of each
// type.
package types

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/suite"
)

// bench is a run of the suite.
type bench struct {
	o      suite.Options
	server *messages.Server

	load [2]string // before and after

	idles    []*idle
	drains   []*drain
	embedded embedded
}

// Run runs the suite.
func Run(ctx context.Context, o suite.Options) (*suite.Result, error) {
	b := &bench{o: o}
	return suite.Run(ctx, b.measure, b.result)
}

// rounds is the number of rounds: all measurements of this suite are slow.
func (b *bench) rounds() int { return max(b.o.Rounds/5, 1) }

// half is the number of rounds of embedded drains. One takes half a minute, and they differ by a third.
func (b *bench) half() int { return max(b.o.Rounds/2, 1) }

func (b *bench) measure(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.server, err = messages.Connect(ctx, b.o, "types"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Close(ctx)) }()
	b.load[0] = machine.Load()
	if b.embedded, err = b.measureEmbedded(ctx); err != nil {
		return fmt.Errorf("embedded: %w", err)
	}
	if b.drains, err = b.measureDrains(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if b.idles, err = b.measureIdle(ctx); err != nil {
		return fmt.Errorf("idle replicas: %w", err)
	}
	b.load[1] = machine.Load()
	return nil
}

// Limits that the targets name.
const (
	idleTypes     = 10_000
	idleCommands  = 15
	idleMemory    = 20 // KiB
	embeddedLimit = 2  // ms
)

func (b *bench) result() *suite.Result {
	var s strings.Builder
	filesystem, _ := machine.FileSystem(b.o.Dir)
	fmt.Fprintf(&s, "%s; directory on %s; %s, GOMAXPROCS %d; load average %s before, %s after.\n\n",
		machine.Describe(), filesystem, runtime.Version(), runtime.GOMAXPROCS(0), b.load[0], b.load[1])
	fmt.Fprintf(&s, "Server: %s; %s. %d rounds, %d of embedded drains. Messages of %d B. Replicas are processes, all on this machine. Ratios are medians of the rounds' ratios, with their quartiles; how far `%s` is from 1 shows what a difference means. Every file was read back: each message is there, whole, once, and in order.\n\n",
		b.server.Name, machine.Versions("go.mongodb.org/mongo-driver/v2"), b.rounds(), b.half(), messages.MessageSize, nameAgain)
	s.WriteString("### Targets\n\n" + b.targets())
	fmt.Fprintf(&s, "\n### Drain\n\nThe bare loop drains one type after the other: find, write, fdatasync, deleteMany, and a find that is empty. The time of replicas is that of the whole life of their pools.\n\n![Drain](plots/%s)\n\n%s", plotDrain, b.drainTable())
	fmt.Fprintf(&s, "\n### Commands\n\nCommands per type that replicas send to the server in the last round of a drain. The bare loop sends three.\n\n%s", b.commandsTable())
	fmt.Fprintf(&s, "\n### Embedded\n\nThe first drain of types with %d messages each, on SQLite: milliseconds per type.\n\n%s", few, b.embeddedTable())
	fmt.Fprintf(&s, "\n### Idle\n\nWhat one replica costs while nothing is published. Processor time of the server is that of all processes of the names %s on this machine, in percent of one core; the first line is what they use without a replica. Memory is heap and stacks, as far as they grew since the replica connected.\n\n%s",
		strings.Join(serverProcesses, ", "), b.idleTable())
	return &suite.Result{Markdown: s.String(), Plots: map[string]string{plotDrain: b.drainPlot()}}
}

func (b *bench) targets() string {
	var rows [][]string
	row := func(work, target, measured, verdict string) {
		rows = append(rows, []string{work, target, measured, verdict})
	}
	for _, d := range b.drains {
		what := fmt.Sprintf("drain, %d types of %d messages", d.types, d.each)
		target := func(name string, atLeast float64) {
			s := d.speed(name)
			row(fmt.Sprintf("%s, %s / %s", what, name, nameBare), "≥ "+fmt.Sprintf("%.1f", atLeast), report.Spread(s), report.Verdict(s, true, atLeast))
		}
		switch {
		case d.is(256, 100):
			target(nameOne, 1)
		case d.is(10_000, 10):
			target(nameFour, .8)
		default:
			continue
		}
		row(fmt.Sprintf("control: the same, %s / %s", nameAgain, nameBare), "", report.Spread(d.speed(nameAgain)), "")
	}
	for _, i := range b.idles {
		if i.types != idleTypes {
			continue
		}
		single := func(what, unit string, value, most float64) {
			row(fmt.Sprintf("%s, %d types, %s", what, i.types, i.state), fmt.Sprintf("≤ %.0f%s", most, unit), fmt.Sprintf("%.1f%s", value, unit),
				report.Verdict(measure.Summarize([]float64{value}), false, most))
		}
		single("commands per second of an idle replica", "", i.commands(), idleCommands)
		single("memory per idle type", " KiB", i.perType()/1024, idleMemory)
	}
	e := &b.embedded
	least, ofLeast := e.least()
	most, ofMost := e.most()
	s := measure.Summarize(e.growth())
	row(fmt.Sprintf("embedded: time per type, %s / %s", ofTypes(most, ofMost), ofTypes(least, ofLeast)), "≤ 1", report.Spread(s), report.Verdict(s, false, 1))
	s = measure.Summarize(e.perType(most, ofMost))
	row(fmt.Sprintf("embedded: time per type, %s", ofTypes(most, ofMost)), fmt.Sprintf("≤ %d ms", embeddedLimit), report.Spread(s)+" ms", report.Verdict(s, false, embeddedLimit))
	return report.Table([]string{"work", "target", "measured", ""}, rows)
}

func (b *bench) drainTable() string {
	var rows [][]string
	for _, d := range b.drains {
		row := []string{fmt.Sprint(d.types), fmt.Sprint(d.each)}
		for _, name := range []string{nameBare, nameOne, nameFour} {
			row = append(row, fmt.Sprintf("%.0f", d.rate(name)))
		}
		for _, name := range []string{nameAgain, nameOne, nameFour} {
			row = append(row, report.Spread(d.speed(name)))
		}
		rows = append(rows, row)
	}
	return report.Table([]string{"types", "messages of each", nameBare + ", messages/s", nameOne, nameFour,
		nameAgain + ", speed, " + nameBare + " = 1", nameOne, nameFour}, rows)
}

func (b *bench) commandsTable() string {
	kinds := map[string]bool{}
	head := []string{"command and collection"}
	for _, d := range b.drains {
		for _, name := range []string{nameOne, nameFour} {
			head = append(head, fmt.Sprintf("%d × %d, %s", d.types, d.each, name))
			for kind := range d.kinds[name] {
				kinds[kind] = true
			}
		}
	}
	var rows [][]string
	for _, kind := range append(slices.Sorted(maps.Keys(kinds)), "") {
		row := []string{cmp.Or(kind, "together")}
		for _, d := range b.drains {
			for _, name := range []string{nameOne, nameFour} {
				row = append(row, fmt.Sprintf("%.2f", d.perType(name, kind)))
			}
		}
		rows = append(rows, row)
	}
	return report.Table(head, rows)
}

func (b *bench) embeddedTable() string {
	e := &b.embedded
	head := []string{"types"}
	for _, workers := range e.workers {
		head = append(head, fmt.Sprintf("workers: %d", workers))
	}
	var rows [][]string
	for _, n := range e.counts {
		row := []string{fmt.Sprint(n)}
		for _, workers := range e.workers {
			row = append(row, report.Spread(measure.Summarize(e.perType(n, workers))))
		}
		rows = append(rows, row)
	}
	return report.Table(head, rows)
}

func (b *bench) idleTable() string {
	var rows [][]string
	percent := func(cores float64) string {
		if math.IsNaN(cores) {
			return "it runs elsewhere"
		}
		return fmt.Sprintf("%.1f %%", cores*100)
	}
	for _, i := range b.idles {
		if i.state == stateNobody {
			rows = append(rows, []string{"", i.state, "", "", "", percent(i.server), "", ""})
			continue
		}
		rows = append(rows, []string{fmt.Sprint(i.types), i.state, fmt.Sprint(i.held), fmt.Sprintf("%.1f + %.1f", i.queue, i.lock),
			fmt.Sprintf("%.1f", i.commands()), percent(i.server), percent(i.own), fmt.Sprintf("%.1f KiB", i.perType()/1024)})
	}
	return report.Table([]string{"types", "", "it holds", "commands/s: queue + lock", "together", "server", "replica", "memory per type"}, rows)
}

const plotDrain = "types-drain.svg"

func (b *bench) drainPlot() string {
	p := report.Plot{Title: "Drain of more and more types", XLabel: "types × messages of each", YLabel: "speed, bare loop = 1", Line: 1, LineName: nameBare}
	panel := report.Panel{Title: "replicas are processes"}
	for _, d := range b.drains {
		p.X = append(p.X, fmt.Sprintf("%d × %d", d.types, d.each))
	}
	for _, name := range []string{nameOne, nameFour} {
		s := report.Series{Name: name}
		for _, d := range b.drains {
			s.Values = append(s.Values, d.speed(name))
		}
		panel.Series = append(panel.Series, s)
	}
	p.Panels = []report.Panel{panel}
	return p.SVG()
}
