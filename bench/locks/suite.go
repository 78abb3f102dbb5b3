// Package locks measures package lock on MongoDB against the usual lock on MongoDB (classic).
package locks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
)

// bench is a run of the suite.
type bench struct {
	o             suite.Options
	uri, database string
	server        string // its own description

	mu      sync.Mutex
	clients []*mongo.Client

	load      [2]string // before and after
	elsewhere float64   // cores
	alone     alone
	handOffs  handOffs
	waits     []idle
	recovery  []*recovery
}

// Run runs the suite.
func Run(ctx context.Context, o suite.Options) (*suite.Result, error) {
	b := &bench{o: o}
	return suite.Run(ctx, b.measure, b.result)
}

func (b *bench) measure(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	uri, stop, err := server.Start(ctx, b.o.MongoDB, b.o.Logf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	b.uri = uri
	b.database = server.NewDatabase("lock")
	client, _, err := server.Dial(b.uri)
	if err != nil {
		return fmt.Errorf("--mongodb: %w", err)
	}
	b.clients = []*mongo.Client{client}
	if b.server, err = server.Describe(ctx, client); err != nil {
		return errors.Join(fmt.Errorf("--mongodb: no server answers: %w", err), client.Disconnect(context.WithoutCancel(ctx)))
	}
	defer func() {
		end, cancel := server.Undisturbed(ctx)
		defer cancel()
		err = errors.Join(err, server.Drop(end, client, b.database))
		for _, c := range b.clients {
			err = errors.Join(err, c.Disconnect(end))
		}
	}()

	b.load[0] = machine.Load()
	b.o.Logf("uncontended")
	elsewhere := machine.Elsewhere()
	if b.alone, err = b.measureUncontended(ctx); err != nil {
		return err
	}
	b.elsewhere = elsewhere()
	if b.handOffs, err = b.measureHandOffs(ctx); err != nil {
		return err
	}
	b.o.Logf("idle waiters")
	if b.waits, err = b.measureIdle(ctx); err != nil {
		return err
	}
	b.o.Logf("recovery")
	if b.recovery, err = b.measureRecovery(ctx); err != nil {
		return err
	}
	b.load[1] = machine.Load()
	return nil
}

func (b *bench) result() *suite.Result {
	var s strings.Builder
	fmt.Fprintf(&s, "%s; %s, GOMAXPROCS %d; %.1f cores busy with other processes than this one, the server among them, during the first measurement; load average %s before, %s after.\n\n",
		machine.Describe(), runtime.Version(), runtime.GOMAXPROCS(0), b.elsewhere, b.load[0], b.load[1])
	fmt.Fprintf(&s, "Server: %s; %s. %d rounds, of hand-offs %d. Ratios are medians of the rounds' ratios, with their quartiles; how far `%s` is from 1 shows what a difference means. Nobody used change streams. square/mongo-lock was not measured: [README.md](README.md) says why.\n\n",
		b.server, machine.Versions("go.mongodb.org/mongo-driver/v2"), b.o.Rounds, b.rounds(), nameAgain)
	s.WriteString("### Targets\n\n" + b.targets())
	fmt.Fprintf(&s, "\n### Uncontended acquire and release\n\nSpeed, %s = 1. Each contender has a name of its own, which it uses again and again, but for `%s`, where each name is a new one. `%s`: the same commands as Fencepost's without package lock around them. `%s`: two updates of a document that stays, nothing else.\n\n%s",
		nameInsert, nameNewNames, nameStore, nameLeast, b.aloneTable())
	fmt.Fprintf(&s, "\n### Hand-off between processes\n\nTime from the holder's call of Release until the next holder has the lock, by polling alone. Classic polls every 100 ms. Each waiter is a process; the lock is held for the time in the first column on average (uniform, from half to one and a half times as long).\n\n![Hand-off](plots/%s)\n\n%s\nCommands sent to the server per grant, by all processes together: polls, renewals, acquisition and release.\n\n%s",
		plotFile, b.handOffTable(), b.commandsTable())
	s.WriteString("\n### Idle cost\n\nCommands per second, per waiter, while the lock stays held; all lines of the table at the same time, for 10 s.\n\n" + b.idleTable())
	s.WriteString("\n### Recovery\n\nTime from SIGKILL of the holder until a process that waited gets the lock.\n\n" + b.recoveryTable())
	return &suite.Result{Markdown: s.String(), Plots: map[string]string{plotFile: b.plot()}}
}

// rounds is the number of rounds of hand-offs.
func (b *bench) rounds() int {
	for _, l := range b.handOffs.latencies {
		return len(l)
	}
	return 0
}

func (b *bench) targets() string {
	var rows [][]string
	speed := func(name string) string {
		return report.Spread(measure.Summarize(b.alone.times.Ratios(nameInsert, name)))
	}
	rows = append(rows, []string{"uncontended acquire + release / " + nameInsert, "", speed(nameFencepost), ""},
		[]string{"the same, " + nameLeast, "", speed(nameLeast), ""},
		[]string{"control: " + nameInsert + " / " + nameAgain, "", speed(nameAgain), ""})
	for _, hold := range b.handOffs.holds {
		for _, n := range b.handOffs.waiters {
			atLeast := fasterThanClassic(n, hold)
			s := measure.Summarize(b.handOffs.ratios(n, hold.name))
			rows = append(rows, []string{fmt.Sprintf("hand-off, waiters: %d, held %s: median of %s / of fencepost", n, hold.name, nameInsert),
				fmt.Sprintf("≥ %.0f", atLeast), report.Spread(s), report.Verdict(s, true, atLeast)})
		}
	}
	if many := (cell{nameFencepost, 32, shortHold}); b.handOffs.commands[many] != nil {
		s := measure.Summarize(b.handOffs.commands[many])
		rows = append(rows, []string{fmt.Sprintf("commands per grant, waiters: %d, held %s", many.waiters, many.hold), "≤ 10", report.Spread(s), report.Verdict(s, false, 10)})
	}
	return report.Table([]string{"work", "target", "measured", ""}, rows)
}

// fasterThanClassic is how many times faster than classic a hand-off must be: much faster with few waiters and short holds, and never
// slower.
func fasterThanClassic(waiters int, h hold) float64 {
	if waiters <= 8 && h.name == shortHold {
		return 5
	}
	return 1
}

func (b *bench) aloneTable() string {
	var rows [][]string
	for _, name := range uncontended {
		commands := "none"
		if n, ok := b.alone.commands[name]; ok {
			commands = fmt.Sprintf("%.1f", n)
		}
		rows = append(rows, []string{name, fmt.Sprintf("%.2f ms", b.alone.each(name).Seconds()*1e3),
			report.Spread(measure.Summarize(b.alone.times.Ratios(nameInsert, name))), report.Ratio(b.alone.times.Whole(nameInsert, name)), commands})
	}
	return report.Table([]string{"lock", "time", "speed", "of whole times", "commands to the server"}, rows)
}

func (b *bench) handOffTable() string {
	var rows [][]string
	h := &b.handOffs
	for _, hold := range h.holds {
		for _, n := range h.waiters {
			row := []string{hold.name, fmt.Sprint(n)}
			for _, contender := range handOffContenders {
				all := h.all(cell{contender, n, hold.name})
				row = append(row, fmt.Sprintf("%.1f ms", measure.Quantile(all, .5)), fmt.Sprintf("%.0f ms", measure.Quantile(all, .99)))
			}
			rows = append(rows, append(row, report.Spread(measure.Summarize(h.ratios(n, hold.name))), fmt.Sprint(len(h.all(cell{nameInsert, n, hold.name})))))
		}
	}
	return report.Table([]string{"held", "waiters", "classic p50", "p99", "fencepost p50", "p99", "classic / fencepost", "hand-offs of each"}, rows)
}

func (b *bench) commandsTable() string {
	var rows [][]string
	for _, hold := range b.handOffs.holds {
		for _, n := range b.handOffs.waiters {
			row := []string{hold.name, fmt.Sprint(n)}
			for _, contender := range handOffContenders {
				s := measure.Summarize(b.handOffs.commands[cell{contender, n, hold.name}])
				row = append(row, fmt.Sprintf("%.1f (%.1f–%.1f)", s.Median, s.Q1, s.Q3))
			}
			rows = append(rows, row)
		}
	}
	return report.Table([]string{"held", "waiters", "classic", "fencepost"}, rows)
}

func (b *bench) idleTable() string {
	var rows [][]string
	n := len(b.waits) / len(handOffContenders)
	for i := range n {
		row := []string{b.waits[i].what}
		for k := range handOffContenders {
			row = append(row, fmt.Sprintf("%.2f", b.waits[k*n+i].perSecond))
		}
		rows = append(rows, row)
	}
	return report.Table([]string{"", "classic (failing inserts)", "fencepost (reads; the holder: renewals)"}, rows)
}

func (b *bench) recoveryTable() string {
	var rows [][]string
	for _, r := range b.recovery {
		median, spread := "", ""
		if len(r.took) > 0 {
			var seconds []float64
			for _, d := range r.took {
				seconds = append(seconds, d.Seconds())
			}
			s := measure.Summarize(seconds)
			median, spread = fmt.Sprintf("%.2f s", s.Median), fmt.Sprintf("%.2f–%.2f s", s.Min, s.Max)
		}
		never := ""
		if r.never > 0 {
			never = fmt.Sprintf("%d not within %v", r.never, r.patience)
		}
		rows = append(rows, []string{r.contender, r.what, median, spread, fmt.Sprint(r.times), never})
	}
	return report.Table([]string{"lock", "the holder was on", "median", "all", "times", ""}, rows)
}

const plotFile = "lock-handoff.svg"

func (b *bench) plot() string {
	p := report.Plot{Title: "Hand-off between processes, by polling", XLabel: "waiters", YLabel: "milliseconds (lower is better)", Line: 100, LineName: "classic's poll interval"}
	for _, n := range b.handOffs.waiters {
		p.X = append(p.X, fmt.Sprint(n))
	}
	for _, hold := range b.handOffs.holds {
		panel := report.Panel{Title: "held " + hold.name}
		for _, contender := range handOffContenders {
			s := report.Series{Name: contender}
			for _, n := range b.handOffs.waiters {
				s.Values = append(s.Values, measure.Summarize(b.handOffs.all(cell{contender, n, hold.name})))
			}
			panel.Series = append(panel.Series, s)
		}
		p.Panels = append(p.Panels, panel)
	}
	return p.SVG()
}
