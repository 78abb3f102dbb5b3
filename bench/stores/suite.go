// Package stores measures files in stores that every machine can reach: in a database, in object storage, in a shared
// directory. It compares each with the minimal work that any program must do to store the same messages there, and with a
// local disk.
package stores

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/bench/internal/machine"
	"github.com/fencepost/fencepost/bench/internal/measure"
	"github.com/fencepost/fencepost/bench/internal/messages"
	"github.com/fencepost/fencepost/bench/internal/report"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/worker"
)

const oneType = "orders"

// bench is a run of the suite.
type bench struct {
	o       suite.Options
	server  *messages.Server
	gateway *gateway
	all     []*kind // including those that are not available
	closers []io.Closer
	places  int // made so far

	load      [2]string // before and after
	elsewhere float64   // cores

	drain     drain
	takeOvers []takeOvers
	trickles  []trickle
}

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

// next numbers places.
func (b *bench) next() int {
	b.places++
	return b.places
}

// opened registers a store to be closed at the end.
func (b *bench) opened(s slots.Store) {
	if c, ok := s.(io.Closer); ok {
		b.closers = append(b.closers, c)
	}
}

func (b *bench) measure(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.server, err = messages.Connect(ctx, b.o, "stores"); err != nil {
		return err
	}
	defer func() {
		for _, c := range b.closers {
			err = errors.Join(err, c.Close())
		}
		err = errors.Join(err, b.server.Close(ctx))
		if b.gateway != nil {
			b.gateway.close()
		}
	}()
	if b.all, err = b.kinds(ctx); err != nil {
		return err
	}
	var kinds []*kind
	for _, k := range b.all {
		if k.why == nil {
			kinds = append(kinds, k)
		}
	}
	b.load[0] = machine.Load()
	b.o.Logf("drain")
	elsewhere := machine.Elsewhere()
	if b.drain, err = b.measureDrain(ctx, kinds); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	b.elsewhere = elsewhere()
	for _, k := range kinds {
		b.o.Logf("takeover: %s", k.name)
		t, err := b.measureTakeOver(ctx, k)
		if err != nil {
			return fmt.Errorf("takeover: %s: %w", k.name, err)
		}
		b.takeOvers = append(b.takeOvers, t)
	}
	for _, k := range kinds {
		for _, linger := range b.lingers(k) {
			b.o.Logf("trickle: %s", k.name)
			t, err := b.measureTrickle(ctx, k, linger)
			if err != nil {
				return fmt.Errorf("trickle: %s: %w", k.name, err)
			}
			b.trickles = append(b.trickles, t)
		}
	}
	b.load[1] = machine.Load()
	return nil
}

// drain is the measurement of the same backlog, drained into each kind of store.
type drain struct {
	n        int
	kinds    []*kind
	times    measure.Times
	places   map[*kind]*messages.Place // of Fencepost
	requests map[*kind]*counted
	sums     map[*kind]map[string]int // of the requests of all blocks that count and the first one, which does not
	drained  map[*kind]int            // messages in them
}

func bareOf(k *kind) string      { return "bare loop, " + k.name }
func fencepostOf(k *kind) string { return "fencepost, " + k.name }

const nameAgain = "bare loop again, " + nameLocal

func (b *bench) measureDrain(ctx context.Context, kinds []*kind) (d drain, err error) {
	d = drain{n: b.sized(50_000, 2000), kinds: kinds, places: map[*kind]*messages.Place{}, requests: map[*kind]*counted{}, sums: map[*kind]map[string]int{}, drained: map[*kind]int{}}
	var list []measure.Contender
	var places []*messages.Place
	contender := func(name string, p *messages.Place, run func(context.Context) error) {
		places = append(places, p)
		list = append(list, measure.Contender{
			Name:    name,
			Prepare: func() error { return errors.Join(p.Clear(ctx), p.Load(ctx, d.n, oneType)) },
			Run:     func() error { return run(ctx) },
			Check:   func() error { return p.Empty(ctx) },
		})
	}
	bare := func(k *kind, name string) error {
		p, err := b.bare(ctx, k, fmt.Sprintf("bare%d", b.next()))
		if err == nil {
			contender(name, p, func(ctx context.Context) error { return p.Bare(ctx, oneType, 0, nil) })
		}
		return err
	}
	for _, k := range kinds {
		if err := bare(k, bareOf(k)); err != nil {
			return d, err
		}
		if k.name == nameLocal {
			if err := bare(k, nameAgain); err != nil {
				return d, err
			}
		}
		p, requests, err := b.fencepost(ctx, k, fmt.Sprintf("drain%d", b.next()))
		if err != nil {
			return d, err
		}
		d.places[k], d.requests[k], d.sums[k] = p, requests, map[string]int{}
		contender(fencepostOf(k), p, func(ctx context.Context) error {
			requests.take()
			if err := p.Drain(ctx, oneType); err != nil {
				return err
			}
			for what, n := range requests.take() {
				d.sums[k][what] += n
			}
			d.drained[k] += d.n
			return nil
		})
	}
	if d.times, err = measure.Run(ctx, measure.Plan{Rounds: b.o.Rounds, Blocks: 1}, list); err != nil {
		return d, err
	}
	for _, p := range places {
		err = errors.Join(err, p.Verify(ctx))
	}
	return d, err
}

// perMillion returns how many requests of a kind a million messages take.
func (d *drain) perMillion(k *kind, what string) float64 {
	return float64(d.sums[k][what]) / float64(d.drained[k]) * 1e6
}

func (b *bench) find(name string) *kind {
	i := slices.IndexFunc(b.drain.kinds, func(k *kind) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return b.drain.kinds[i]
}

func (b *bench) result() *suite.Result {
	var s strings.Builder
	filesystem, _ := machine.FileSystem(b.o.Dir)
	fmt.Fprintf(&s, "%s; directory on %s; %s, GOMAXPROCS %d; %.1f cores busy with other processes than this one, the servers among them, during the first measurement; load average %s before, %s after.\n\n",
		machine.Describe(), filesystem, runtime.Version(), runtime.GOMAXPROCS(0), b.elsewhere, b.load[0], b.load[1])
	fmt.Fprintf(&s, "Server: %s; versitygw %s on the same directory; %s. %d rounds, %d of what takes long. Messages of %d B in batches of %d. Ratios are medians of the rounds' ratios, with their quartiles; how far `%s` is from 1 shows what a difference means. Everything was read back: each message is there, whole, once, and in order.\n\n",
		b.server.Name, gatewayVersion, machine.Versions("go.mongodb.org/mongo-driver/v2", "github.com/aws/aws-sdk-go-v2/service/s3"), b.o.Rounds, b.few(), messages.MessageSize, messages.BatchSize, nameAgain)
	s.WriteString("### Targets\n\n" + b.targets())
	fmt.Fprintf(&s, "\n### Drain into a store\n\n%d messages of one type, from the same server. The bare loops have no lock, no framing and no checks, and store each batch as one value. Fencepost's time is that of the whole life of a pool: acquire the lock, open the file, drain, see the type empty, write the checkpoint, close, release.\n\n%s", b.drain.n, b.drainTable())
	fmt.Fprintf(&s, "\nRequests to the store per million messages, in such drains:\n\n%s", b.requestsTable())
	fmt.Fprintf(&s, "\n### Taking over\n\nOpen with a new epoch, of files that end %d MiB behind their last checkpoint.\n\n%s", tail>>20, b.takeOverTable())
	fmt.Fprintf(&s, "\n### A trickle\n\nA message every %v, which one worker appends, for %v: requests to the store, and the time from the call of the publisher until the message is durable in the file.\n\n%s", every, time.Duration(b.sized(fullTrickle, quickTrickle))*every, b.trickleTable())
	return &suite.Result{Markdown: s.String()}
}

func (b *bench) targets() string {
	var rows [][]string
	row := func(work, target string, s measure.Summary, atLeast bool, limit float64) {
		verdict := ""
		if limit > 0 {
			verdict = report.Verdict(s, atLeast, limit)
		}
		rows = append(rows, []string{work, target, report.Spread(s), verdict})
	}
	ratio := func(a, b_ string) measure.Summary { return measure.Summarize(b.drain.times.Ratios(a, b_)) }
	local := b.find(nameLocal)
	row("drain to MongoDB slots / drain to a local disk, the same server", "≥ 0.7", ratio(fencepostOf(local), fencepostOf(b.find(nameMongo))), true, .7)
	if k := b.find(nameS3); k != nil {
		row("drain to S3 / its bare loop", "≥ 0.8", ratio(bareOf(k), fencepostOf(k)), true, .8)
	}
	row("control: bare loop, local disk / again", "", ratio(bareOf(local), nameAgain), true, 0)
	for _, t := range b.takeOvers {
		if b.o.Large && t.name != nameLocal {
			row("takeover of "+nameLarge+" / of "+nameSmall+", "+t.name, "≤ 2", measure.Summarize(t.times.Ratios(nameLarge, nameSmall)), false, 2)
		}
	}
	return report.Table([]string{"work", "target", "measured", ""}, rows)
}

func (b *bench) drainTable() string {
	var rows [][]string
	rate := func(name string) string {
		return fmt.Sprintf("%.0f", float64(b.drain.n)/b.drain.times.Median(name).Seconds())
	}
	local := b.find(nameLocal)
	for _, k := range b.all {
		if k.why != nil {
			rows = append(rows, []string{k.name, k.bare, oneLine(k.why), "", "", ""})
			continue
		}
		rows = append(rows, []string{k.name, k.bare, rate(bareOf(k)), rate(fencepostOf(k)),
			report.Spread(measure.Summarize(b.drain.times.Ratios(bareOf(k), fencepostOf(k)))),
			report.Spread(measure.Summarize(b.drain.times.Ratios(fencepostOf(local), fencepostOf(k))))})
	}
	return report.Table([]string{"", "bare loop", "bare loop, messages/s", "fencepost, messages/s", "speed, its bare loop = 1", "speed, fencepost on a local disk = 1"}, rows)
}

var requestKinds = []string{"create", "read", "size", "list", "folders", "delete"}

func (b *bench) requestsTable() string {
	var rows [][]string
	for _, k := range b.drain.kinds {
		if k.open == nil {
			continue
		}
		row := []string{k.name}
		for _, what := range requestKinds {
			row = append(row, fmt.Sprintf("%.0f", b.drain.perMillion(k, what)))
		}
		rows = append(rows, row)
	}
	return report.Table(append([]string{""}, requestKinds...), rows)
}

func (b *bench) takeOverTable() string {
	var rows [][]string
	for _, t := range b.takeOvers {
		row := []string{t.name, milliseconds(t.times.Median(nameSmall))}
		if b.o.Large {
			row = append(row, milliseconds(t.times.Median(nameLarge)), report.Spread(measure.Summarize(t.times.Ratios(nameLarge, nameSmall))))
		}
		rows = append(rows, row)
	}
	head := []string{"", nameSmall}
	if b.o.Large {
		head = append(head, nameLarge, nameLarge+" / "+nameSmall)
	}
	return report.Table(head, rows)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

func (b *bench) trickleTable() string {
	var rows [][]string
	for _, t := range b.trickles {
		creates, others := "none", "none"
		if t.open != nil {
			creates, others = fmt.Sprintf("%.1f", t.creates), fmt.Sprintf("%.1f", t.others)
		}
		rows = append(rows, []string{t.name, t.lingerName(), creates, others,
			fmt.Sprintf("%.0f ms", measure.Quantile(t.delays, .5)), fmt.Sprintf("%.0f ms", measure.Quantile(t.delays, .99))})
	}
	return report.Table([]string{"", "`--linger`", "creates per second", "other requests per second", "delay, median", "p99"}, rows)
}

func (t *trickle) lingerName() string {
	if t.linger == 0 {
		return "default"
	}
	return t.linger.String()
}

// lingers are the linger times that a kind of store is measured with; 0 is its default.
func (b *bench) lingers(k *kind) []time.Duration {
	if k.open == nil || b.o.Quick {
		return []time.Duration{0}
	}
	return []time.Duration{0, worker.DefaultLinger, 100 * time.Millisecond}
}

func oneLine(err error) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "|", "/")
}
