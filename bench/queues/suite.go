// Package queues measures the queue and the worker pool: against the minimal work that any program must do on the same
// server, and against job queues.
package queues

import (
	"context"
	"errors"
	"fmt"
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

	load      [2]string // before and after
	elsewhere float64   // cores

	drain           timed
	single          single
	publish         timed
	backlog         backlog
	embedded        embedded
	embeddedBacklog backlog
	http            overHTTP
	peers           peers
	handOvers       []handOver
}

// place belongs to one contender, see package messages.
type place struct{ *messages.Place }

// Run runs the suite.
func Run(ctx context.Context, o suite.Options) (*suite.Result, error) {
	b := &bench{o: o}
	return suite.Run(ctx, b.measure, b.result)
}

// few is the number of rounds of slow measurements.
func (b *bench) few() int { return max(b.o.Rounds/3, 1) }

func (b *bench) sized(full, quick int) int {
	if b.o.Quick {
		return quick
	}
	return full
}

func (b *bench) measure(ctx context.Context) error {
	return b.with(ctx, []part{
		{"drain", func() (err error) {
			elsewhere := machine.Elsewhere()
			b.drain, err = b.measureDrain(ctx)
			b.elsewhere = elsewhere()
			return err
		}},
		{"drain, one by one", func() (err error) { b.single, err = b.measureSingle(ctx); return err }},
		{"publish", func() (err error) { b.publish, err = b.measurePublish(ctx); return err }},
		{"backlog", func() (err error) { b.backlog, err = b.measureBacklog(ctx); return err }},
		{"embedded", func() (err error) { b.embedded, err = b.measureEmbedded(ctx); return err }},
		{"embedded, backlog", func() (err error) { b.embeddedBacklog, err = b.measureEmbeddedBacklog(ctx); return err }},
		{"over HTTP", func() (err error) { b.http, err = b.measureHTTP(ctx); return err }},
		{"peers", func() (err error) { b.peers, err = b.measurePeers(ctx); return err }},
		{"hand-over", func() (err error) { b.handOvers, err = b.measureHandOver(ctx); return err }},
	})
}

// part is a measurement.
type part struct {
	name string
	run  func() error
}

// with runs the parts on a server.
func (b *bench) with(ctx context.Context, parts []part) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.server, err = messages.Connect(ctx, b.o, "queue"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Close(ctx)) }()
	b.load[0] = machine.Load()
	for _, p := range parts {
		b.o.Logf("%s", p.name)
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.load[1] = machine.Load()
	return nil
}

// newPlace makes a place, which is closed and dropped with the run.
func (b *bench) newPlace(name string) (*place, error) {
	p, err := b.server.NewPlace(name)
	return &place{p}, err
}

// newBackend makes a place for Fencepost.
func (b *bench) newBackend(ctx context.Context, name string) (*place, error) {
	p, err := b.server.NewBackend(ctx, name)
	return &place{p}, err
}

// verifyAll checks the files of several places.
func verifyAll(ctx context.Context, places ...*place) error {
	for _, p := range slices.Compact(places) {
		if err := p.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) result() *suite.Result {
	var s strings.Builder
	fmt.Fprintf(&s, "%s; directory on %s; %s, GOMAXPROCS %d; %.1f cores busy with other processes than this one, the server among them, during the first measurement; load average %s before, %s after.\n\n",
		machine.Describe(), fileSystem(b.o.Dir), runtime.Version(), runtime.GOMAXPROCS(0), b.elsewhere, b.load[0], b.load[1])
	fmt.Fprintf(&s, "Server: %s; %s. %d rounds, %d of what takes long. Messages of %d B in batches of %d. Ratios are medians of the rounds' ratios, with their quartiles; how far `%s` is from 1 shows what a difference means. Every file was read back: each message is there, whole, once, and in order.\n\n",
		b.server.Name, machine.Versions("go.mongodb.org/mongo-driver/v2"), b.o.Rounds, b.few(), messages.MessageSize, messages.BatchSize, nameAgain)
	s.WriteString("### Targets\n\n" + b.targets())
	fmt.Fprintf(&s, "\n### Drain to a durable file\n\n%d messages of one type. `%s`: find, write, fdatasync, deleteMany; no lock, no framing, no checks. Fencepost's time is that of the whole life of a pool: acquire the lock, open the file, drain, see the type empty, close, release.\n\n%s", b.drain.n, nameBare, b.timedTable(&b.drain, nil, nameBare, nameAgain, nameFencepost))
	fmt.Fprintf(&s, "\nThe articles' way, with a backlog of %d:\n\n%s", b.single.backlog, b.singleTable())
	fmt.Fprintf(&s, "\n### Publish\n\n%d messages of one type, in calls of %d; `%s`: insertMany with the same write concern. `%s` is one call per message, which the publisher puts into batches itself.\n\n%s", b.publish.n, messages.BatchSize, nameInsertMany, nameSend, b.timedTable(&b.publish, asInsert, nameBare, nameAgain, nameFencepost, nameSend))
	fmt.Fprintf(&s, "\n### Backlog\n\nRate from the end of the first batch to the end of the %dth message, with %d messages behind it, which a pool fetches ahead, and with a million or so (%d at the end). Both take their windows from the front of the same big backlog, in turns.\n\n![Backlog](plots/%s)\n\n%s", b.backlog.window, ahead, b.backlog.left, plotBacklog, b.backlog.table())
	fmt.Fprintf(&s, "\n### Embedded\n\nThe same on SQLite, in one process. `%s`: a table with an integer key; select, write, fdatasync, delete by range; inserts in synced transactions of %d.\n\n%s\nWith %d messages and with a million (%d at the end) behind the window, as above, but each with a big backlog of its own:\n\n%s", nameBare, messages.BatchSize, b.embeddedTable(), ahead, b.embeddedBacklog.left, b.embeddedBacklog.table())
	fmt.Fprintf(&s, "\n### Publish over HTTP\n\n%d messages of one type from one caller, %d in each call of Go's publisher or request to `fencepost serve`, a process of its own on this machine.\n\n%s", b.http.embedded.n, messages.BatchSize, b.httpTable())
	fmt.Fprintf(&s, "\n### Beside job queues\n\n%s\n\n%s. %s\n\n![Job queues](plots/%s)\n\n%s", peersDiffer, b.peers.with, "Each round all of them in turns; messages per second, median and quartiles.", plotPeers, b.peersTable())
	fmt.Fprintf(&s, "\n### Handing a type over\n\nA message is published every %v; time from the last commit of one replica to the first of the other, which was standing by.\n\n%s", trickle, b.handOverTable())
	return &suite.Result{Markdown: s.String(), Plots: map[string]string{plotBacklog: b.backlogPlot(), plotPeers: b.peersPlot()}}
}

const peersDiffer = `River and Asynq are job queues: each message is a job of its own with its state, its attempts and its time-out, taken by whatever
worker is free, handled at least once, in no order across workers and with nothing that keeps a late worker from writing. Fencepost has one
writer per type and takes messages in batches, so an fsync serves a thousand. The work is as equal as they allow: payloads of the same size,
each durable in one file before its job is completed. With one worker the order holds and each message waits for its own fdatasync; with many
workers there is no order, and here they share each fdatasync, which our handler does for them. That is what ordering costs in a job queue; it is
not what they are made for. Servers are from the distribution, on the same machine, with durable settings.`

func fileSystem(dir string) string {
	description, _ := machine.FileSystem(dir)
	return description
}

func (b *bench) targets() string {
	var rows [][]string
	row := func(work, target string, s measure.Summary, atLeast float64) {
		verdict := ""
		if atLeast > 0 {
			verdict = report.Verdict(s, true, atLeast)
		}
		rows = append(rows, []string{work, target, report.Spread(s), verdict})
	}
	row("drain / "+nameBare, "≥ 0.9", b.drain.speed(nameFencepost), .9)
	row("control: "+nameBare+" / again", "", b.drain.speed(nameAgain), 0)
	row("drain / one findOneAndDelete, write and fdatasync per message", "≥ 20", measure.Summarize(b.single.ratios[nameOrdered]), 20)
	row("publish / "+nameInsertMany, "≥ 0.9", b.publish.speed(nameFencepost), .9)
	row("control: "+nameInsertMany+" / again", "", b.publish.speed(nameAgain), 0)
	row("publish over HTTP / in Go, embedded", "≥ 0.7", b.http.embedded.speed(nameHTTP), .7)
	row("control: in Go / again", "", b.http.embedded.speed(nameAgain), 0)
	row("publish over HTTP / in Go, server", "≥ 0.7", b.http.server.speed(nameHTTP), .7)
	for _, at := range []struct {
		where  string
		target float64
		l      *backlog
	}{{"server", .9, &b.backlog}, {"embedded", .95, &b.embeddedBacklog}} {
		row("drain rate with 1 M backlog / with 15 k, "+at.where, fmt.Sprintf("≥ %g", at.target), measure.Summarize(at.l.ratios(nameFencepost+big, nameFencepost+small)), at.target)
		row("control: the same of the bare loop", "", measure.Summarize(at.l.ratios(nameBare+big, nameBare+small)), 0)
		row("drain with 1 M backlog / bare loop with the same", "", measure.Summarize(at.l.ratios(nameFencepost+big, nameBare+big)), 0)
	}
	return report.Table([]string{"work", "target", "measured", ""}, rows)
}

// asInsert returns the name of the bare loop when it publishes.
func asInsert(name string) string { return strings.Replace(name, nameBare, nameInsertMany, 1) }

func (b *bench) timedTable(t *timed, shown func(string) string, names ...string) string {
	if shown == nil {
		shown = func(name string) string { return name }
	}
	var rows [][]string
	for _, name := range names {
		rows = append(rows, []string{shown(name), perSec(t.rate(name)), report.Spread(t.speed(name)), report.Ratio(t.times.Whole(nameBare, name))})
	}
	return report.Table([]string{"", "messages/s", "speed", "of whole times"}, rows)
}

func (b *bench) singleTable() string {
	var rows [][]string
	for _, name := range b.single.names {
		rows = append(rows, []string{name, perSecs(b.single.rates[name]), report.Spread(measure.Summarize(b.single.ratios[name]))})
	}
	return report.Table([]string{"", "messages/s", "Fencepost is so many times as fast"}, rows)
}

func (l *backlog) table() string {
	var rows [][]string
	for _, name := range []string{nameBare, nameFencepost} {
		rows = append(rows, []string{name, perSecs(l.rates[name+small]), perSecs(l.rates[name+big]), report.Spread(measure.Summarize(l.ratios(name+big, name+small)))})
	}
	rows = append(rows, []string{"fencepost / bare loop", report.Spread(measure.Summarize(l.ratios(nameFencepost+small, nameBare+small))),
		report.Spread(measure.Summarize(l.ratios(nameFencepost+big, nameBare+big))), ""})
	return report.Table([]string{"", fmt.Sprintf("backlog of %d, messages/s", l.small), fmt.Sprintf("of %d or more, messages/s", l.big), "ratio"}, rows)
}

func (b *bench) embeddedTable() string {
	e := &b.embedded
	var rows [][]string
	for _, name := range []string{nameBare, nameFencepost} {
		rows = append(rows, []string{name, perSec(e.publish.rate(name)), report.Spread(e.publish.speed(name)), perSec(e.drain.rate(name)), report.Spread(e.drain.speed(name))})
	}
	return report.Table([]string{"", "publish, messages/s", "speed", "drain, messages/s", "speed"}, rows)
}

func (b *bench) peersTable() string {
	var rows [][]string
	for _, p := range b.peers.list {
		if p.why != nil {
			rows = append(rows, []string{p.name, oneLine(p.why), "", p.how})
			continue
		}
		rows = append(rows, []string{p.name, perSecs(p.published), perSecs(p.drained), p.how})
	}
	return report.Table([]string{"", "published", "drained to a durable file", "how"}, rows)
}

func (b *bench) handOverTable() string {
	var rows [][]string
	for _, h := range b.handOvers {
		s := measure.Summarize(h.gaps)
		rows = append(rows, []string{h.what, fmt.Sprintf("%.0f ms", s.Median), fmt.Sprintf("%.0f ms", s.Max), fmt.Sprint(len(h.gaps))})
	}
	return report.Table([]string{"", "median", "longest", "times"}, rows)
}

func perSec(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	if len(s) > 3 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	if len(s) > 7 {
		s = s[:len(s)-7] + "," + s[len(s)-7:]
	}
	return s
}

func perSecs(values []float64) string {
	s := measure.Summarize(values)
	return fmt.Sprintf("%s (%s–%s)", perSec(s.Median), perSec(s.Q1), perSec(s.Q3))
}

func oneLine(err error) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "|", "/")
}

const (
	plotBacklog = "queue-backlog.svg"
	plotPeers   = "queue-peers.svg"
)

func (b *bench) backlogPlot() string {
	l := &b.backlog
	p := report.Plot{Title: "Drain rate with a backlog", XLabel: "messages pending", YLabel: "speed, bare loop with the small backlog = 1",
		X: []string{fmt.Sprint(l.small), fmt.Sprint(l.big)}, Line: 1, LineName: "bare, small"}
	panel := report.Panel{Title: "window of " + fmt.Sprint(l.window)}
	for _, name := range []string{nameBare, nameFencepost} {
		panel.Series = append(panel.Series, report.Series{Name: name, Values: []measure.Summary{
			measure.Summarize(l.ratios(name+small, nameBare+small)), measure.Summarize(l.ratios(name+big, nameBare+small))}})
	}
	p.Panels = []report.Panel{panel}
	return p.SVG()
}

func (b *bench) peersPlot() string {
	p := report.Plot{Title: "Beside job queues", YLabel: "messages per second", LineName: "Fencepost, server, drained"}
	published, drained := report.Series{Name: "messages/s"}, report.Series{Name: "messages/s"}
	for i, peer := range b.peers.list {
		if i == 0 {
			p.Line = measure.Summarize(peer.drained).Median
		}
		if peer.why == nil {
			p.X = append(p.X, peer.short)
			published.Values = append(published.Values, measure.Summarize(peer.published))
			drained.Values = append(drained.Values, measure.Summarize(peer.drained))
		}
	}
	p.Panels = []report.Panel{{Title: "published", Series: []report.Series{published}}, {Title: "drained to a durable file", Series: []report.Series{drained}}}
	return p.SVG()
}
