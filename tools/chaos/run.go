//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/lock/mongolock"
)

// Bounds of a run, not measurements: the machine may be busy with other things, and only what never ends is a violation. The real
// times of a run are in its result.
const (
	startWithin   = 3 * time.Minute
	endWithin     = 2 * time.Minute // producers, after the faults have ended
	recoverWithin = 4 * time.Minute // until the backlog is drained: the README promises one lease and a few seconds after the faults
	checkWithin   = 6 * time.Minute
	connections   = 60 // concurrent ones of one member: the driver's pools of queue and locks, and its monitors
)

// result is the outcome of a run: a line of the results.
type result struct {
	Time      time.Time      `json:"time"`
	Commit    string         `json:"commit"`
	Machine   string         `json:"machine"`
	Scenario  string         `json:"scenario"`
	Backend   string         `json:"backend"`
	Store     string         `json:"store,omitempty"` // of the files; empty: a directory
	Seed      uint64         `json:"seed"`
	Faults    map[string]int `json:"faults"` // executed faults, by name
	Confirmed int            `json:"confirmed"`
	Unknown   int            `json:"unknown"`
	Refused   int            `json:"refused"`
	InFiles   int            `json:"in_files"`         // messages that were read and checked
	Epochs    int            `json:"epochs"`           // sessions that wrote
	Grants    int            `json:"grants,omitempty"` // in the history of the locks that was checked
	Late      lateCreates    `json:"late,omitzero"`    // creates of slots, delivered after the sender had given up
	Void      int64          `json:"void"`             // bytes of writers that came too late, or were killed in the middle of a write
	Recovery  float64        `json:"recovery"`         // seconds from the end of the faults until all was drained
	Seconds   float64        `json:"seconds"`
	Verdict   string         `json:"verdict"`
	Found     []string       `json:"found,omitempty"`
	Note      string         `json:"note,omitempty"` // what a person found out about a violation
}

// The verdicts.
const (
	held     = "held"     // no guarantee was violated
	violated = "violated" // a guarantee was violated
	notRun   = "not run"  // the run itself failed, or nothing happened in it
)

// errNotHere is wrapped by errors about things that this machine does not support.
var errNotHere = errors.New("not available here")

// run is one run of a scenario: its processes, their network and their faults.
type run struct {
	scenario scenario
	backend  string
	store    string // where the files are; empty: a directory
	seed     uint64
	lease    time.Duration

	programs programs
	dir      string // contains everything of the run
	data     string // the workers' --dir, or a shared one
	address  string // of the store, without a link; empty: none
	url      string // of the backend, without a link
	target   string // the server's host:port

	types     []string
	workers   []*member
	producers []*member
	links     []*link
	direct    *fencepost.Backend // without a link
	locks     *mongo.Collection  // nil: not with this backend
	server    *mongotest.Server  // of this run alone; nil: it has none
	disk      *disk              // of this run alone; nil: it has none
	hosts     *hosts             // of the workers; nil: they are processes of this machine
	objects   *kit.Objects       // the store of this run alone; nil: it uses another one
	// administrator deletes locks, and records that.
	administrator *locktest.Recorder
	harming       sync.Mutex // held by a fault that excludes others of its kind
	cleanup       []func()

	mu     sync.Mutex
	log    *os.File
	result result
	found  violations
	broken error // why the run itself failed
}

// logf writes a line to the run's log.
func (r *run) logf(format string, args ...any) {
	fmt.Fprintf(r.log, time.Now().UTC().Format("15:04:05.000 ")+format+"\n", args...)
}

// violate records that a guarantee was violated.
func (r *run) violate(kind, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found.addf(kind, format, args...)
	r.logf("VIOLATED: "+kind+": "+format, args...)
}

// failed records that the run itself failed.
func (r *run) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = errors.Join(r.broken, err)
	r.logf("not run: %v", err)
}

// play executes the run and returns its outcome. The directory is kept unless all guarantees held.
func (r *run) play(ctx context.Context) result {
	begin := time.Now()
	err := r.setUp(ctx)
	if err == nil {
		r.doHarm(ctx)
		r.end(ctx)
	}
	for i := range r.cleanup {
		r.cleanup[len(r.cleanup)-1-i]()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		r.failed(err)
	}
	r.result.Time, r.result.Seconds = begin.UTC().Truncate(time.Second), seconds(time.Since(begin))
	r.result.Scenario, r.result.Backend, r.result.Store, r.result.Seed = r.scenario.name, r.backend, r.store, r.seed
	r.result.Found = r.found.all()
	switch {
	case len(r.result.Found) > 0:
		r.result.Verdict = violated
	case r.broken != nil:
		r.result.Verdict, r.result.Found = notRun, []string{r.broken.Error()}
	case len(r.result.Faults) == 0 || r.result.Confirmed == 0:
		r.result.Verdict, r.result.Found = notRun, []string{"nothing happened in it"}
	default:
		r.result.Verdict = held
	}
	return r.result
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// setUp prepares the backend and starts all members.
func (r *run) setUp(ctx context.Context) (err error) {
	if r.log, err = os.Create(filepath.Join(r.dir, "run.log")); err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, func() { r.log.Close() })
	r.result.Faults = map[string]int{}
	history, err := os.Create(filepath.Join(r.dir, "administrator.history"))
	if err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, func() { history.Close() })
	r.administrator = locktest.Record(nil, "administrator", monotonic, history)
	r.data = filepath.Join(r.dir, "data")
	if r.scenario.disk || r.scenario.nodes && r.store == "shared" {
		if r.disk, err = newDisk(filepath.Join(r.dir, "disk.img"), r.data); err != nil {
			return fmt.Errorf("%w: %w", errNotHere, err)
		}
		r.cleanup = append(r.cleanup, func() {
			if err := r.disk.remove(len(r.found.list) > 0); err != nil {
				r.failed(err)
			}
		})
	}
	if err := os.MkdirAll(r.data, 0o777); err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if r.direct, err = fencepost.Open(opening, r.url); err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, func() { bounded(ctx, r.direct.Close) })
	if r.backend == "mongodb" {
		client, err := mongo.Connect(options.Client().ApplyURI(r.url))
		if err != nil {
			return err
		}
		db := client.Database(databaseOf(r.url))
		r.locks = db.Collection(mongolock.DefaultCollection)
		r.cleanup = append(r.cleanup, func() {
			bounded(ctx, db.Drop)
			bounded(ctx, client.Disconnect)
		})
	}
	if err := r.openStore(opening); err != nil {
		return err
	}
	return r.cast(rand.New(rand.NewPCG(r.seed, 1)))
}

// env is the environment of a member's programs, or of a tool's.
func (r *run) env(m *member) []string {
	env := append(kit.Env(), historyDir+"="+r.dir)
	if m != nil {
		env = append(env, clockFile+"="+r.clock(m))
	}
	return env
}

// clock is the file with the offset of a member's clock.
func (r *run) clock(m *member) string { return filepath.Join(r.dir, m.name+".clock") }

// cast starts workers and producers, as many as the seed determines.
func (r *run) cast(rng *rand.Rand) error {
	r.types = []string{"orders", "audit", "events"}[:1+rng.IntN(3)]
	options := r.workerOptions(rng)
	if err := r.startWorkers(2+rng.IntN(2), options); err != nil {
		return err
	}
	for i := range 1 + rng.IntN(3) {
		if err := r.startProducer(i+1, rng.Uint64(), []string{"5ms", "20ms", "80ms"}[rng.IntN(3)]); err != nil {
			return err
		}
	}
	r.logf("%s on %s, files in %s, seed %d: types %v, %d workers %v, %d producers", r.scenario.name, r.backend, cmp.Or(r.address, r.data), r.seed, r.types, len(r.workers), options, len(r.producers))
	return nil
}

// workerOptions are the flags of all workers, some of them drawn by lot.
func (r *run) workerOptions(rng *rand.Rand) []string {
	options := []string{"--lease", r.lease.String(), "--log-format", "json"}
	for _, o := range [][]string{{"--batch", "7"}, {"--batch", "100"}, {"--prefetch", "1"}, {"--compress"}, {"--max-file-size", "1MiB"}, {"--idle-timeout", "1s"}} {
		if rng.IntN(4) == 0 && (o[0] != "--compress" || r.programs.zstd) {
			options = append(options, o...)
		}
	}
	if rng.IntN(4) == 0 {
		return append(options, "--all-types")
	}
	return append(options, "--type", strings.Join(r.types, ","))
}

// startWorkers starts n workers: in containers, on hosts of their own, or as processes of this one.
func (r *run) startWorkers(n int, options []string) error {
	network, gateway := "", loopback
	if r.hosts != nil {
		var err error
		network, gateway, err = r.hosts.network(context.Background())
		if network != "" {
			r.cleanup = append(r.cleanup, func() {
				bounded(context.Background(), func(ctx context.Context) error { return r.hosts.removeNetwork(ctx, network) })
			})
		}
		if err != nil {
			return err
		}
	}
	for i := range n {
		m := r.member(fmt.Sprintf("worker-%d", i+1))
		r.workers = append(r.workers, m)
		if r.scenario.nodes {
			if err := r.node(m); err != nil {
				return err
			}
			gateway = m.node.Here
		}
		if err := r.connect(m, gateway, func(url string, start int) (body, error) {
			return r.startWorker(m, network, start, slices.Concat([]string{"--url", url}, r.files(m), options))
		}); err != nil {
			return err
		}
	}
	return nil
}

// startWorker starts a worker for the start-th time.
func (r *run) startWorker(m *member, network string, start int, args []string) (body, error) {
	if r.hosts != nil {
		return r.hosts.start(network, fmt.Sprintf("%s-%d", m.name, start), r.data, filepath.Join(r.dir, m.name+".log"),
			[]string{"FENCEPOST_ALLOW_OVERLAY=true"}, args)
	}
	cmd := exec.Command(r.programs.path("worker"), args...)
	cmd.Env = r.env(m)
	if m.node == nil {
		return startProcess(cmd, (*exec.Cmd).Start, r.dir, m.name, false)
	}
	cmd.Path = "/bin/worker"
	p, err := startProcess(cmd, m.node.Start, r.dir, m.name, false)
	return &guest{process: p, name: m.name, node: m.node}, err
}

// startProducer starts the n-th producer, which pauses between its messages.
func (r *run) startProducer(n int, seed uint64, pause string) error {
	m := r.member(fmt.Sprintf("producer-%d", n))
	r.producers = append(r.producers, m)
	return r.connect(m, loopback, func(url string, start int) (body, error) {
		cmd := exec.Command(r.programs.path("chaos"), "producer", "--url", url, "--journals", r.dir, "--types", strings.Join(r.types, ","),
			"--name", fmt.Sprintf("%s.%d", m.name, start), "--seed", fmt.Sprint(seed+uint64(start)), "--pause", pause)
		cmd.Env = r.env(m)
		return startProcess(cmd, (*exec.Cmd).Start, r.dir, m.name, true)
	})
}

func (r *run) member(name string) *member {
	return &member{name: name, failed: func(err error) { r.violate("refusal", "%v", err) }}
}

const loopback = "127.0.0.1"

// connect gives a member its link, at an address of this machine, and starts it.
func (r *run) connect(m *member, address string, launch func(url string, start int) (body, error)) error {
	url := r.url
	if r.target != "" {
		l, err := r.link(address, r.target, wireProtocol{})
		if err != nil {
			return err
		}
		m.link = l
		url = through(r.url, l.addr())
	}
	if slices.Contains(r.workers, m) {
		if err := r.connectStore(m, address); err != nil {
			return err
		}
	}
	m.launch = func(start int) (body, error) { return launch(url, start) }
	r.cleanup = append(r.cleanup, func() { m.stop(0) }) // if it still runs
	return m.up()
}

// link makes a link at an address of this machine.
func (r *run) link(address, target string, p protocol) (*link, error) {
	l, err := newLink(address, target, p)
	if err == nil {
		r.links = append(r.links, l)
		r.cleanup = append(r.cleanup, l.close)
	}
	return l, err
}

// holder returns the worker that holds a type; nil if none does, or it cannot be looked up.
func (r *run) holder(ctx context.Context, typ string) *member {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rec, err := r.direct.Locker.Inspect(ctx, typ)
	if err != nil || rec.Hold == nil {
		return nil
	}
	for _, m := range r.workers {
		if is, _ := m.with(func(b body) error {
			if !b.is(rec.Hold.Owner) {
				return errors.ErrUnsupported
			}
			return nil
		}); is {
			return m
		}
	}
	return nil
}

// doHarm executes the faults of the seed's plan, and undoes all of them.
func (r *run) doHarm(ctx context.Context) {
	// Something must be at stake first: a message is confirmed, and a worker holds a type.
	r.await(ctx, startWithin, func(ctx context.Context) bool {
		known, err := readJournals(r.dir)
		return err == nil && known.count(confirmed) > 0 && slices.ContainsFunc(r.types, func(typ string) bool { return r.holder(ctx, typ) != nil })
	})
	harm, heal := context.WithCancel(ctx)
	defer heal()
	begin := time.Now()
	var doing sync.WaitGroup
	for _, e := range r.scenario.plan(r.backend, r.store, r.lease, rand.New(rand.NewPCG(r.seed, 2))) {
		wait(harm, time.Until(begin.Add(e.at)))
		doing.Go(func() {
			what, err := e.do(harm, r, rand.New(rand.NewPCG(e.seed, 3)))
			r.mu.Lock()
			defer r.mu.Unlock()
			switch {
			case err != nil:
				r.broken = errors.Join(r.broken, fmt.Errorf("%s: %w", e.name, err))
				r.logf("fault %s: %v", e.name, err)
			case what != "":
				r.result.Faults[e.name]++
				r.logf("fault: %s", what)
			}
		})
	}
	wait(harm, time.Until(begin.Add((chaosLeases+1)*r.lease)))
	heal()
	doing.Wait()
	for _, l := range r.links {
		l.heal()
	}
	for _, m := range append(r.workers, r.producers...) {
		if err := m.up(); err != nil {
			r.failed(err)
		}
	}
}

// await polls until f returns true, within a bound.
func (r *run) await(ctx context.Context, within time.Duration, f func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !f(ctx) {
		if ctx.Err() != nil {
			return false
		}
		wait(ctx, 100*time.Millisecond)
	}
	return true
}

// end ends everything, without faults: the producers first, then the backlog, then the workers. Then it checks the result.
func (r *run) end(ctx context.Context) {
	healed := time.Now()
	wait(ctx, r.lease/4)
	var ending sync.WaitGroup
	for _, m := range r.producers {
		ending.Go(func() {
			if code, ok := m.stop(endWithin); !ok || code != 0 {
				r.violate("end", "%s did not end as it should, %v after the last fault: exit code %d", m.name, time.Since(healed).Round(time.Second), code)
			}
		})
	}
	ending.Wait()
	r.logf("the producers have ended")
	drained := 0
	if r.await(ctx, recoverWithin, func(ctx context.Context) bool {
		// Twice in a row: a request may still be in flight.
		if r.pending(ctx) == 0 {
			drained++
		} else {
			drained = 0
		}
		return drained >= 2
	}) {
		r.result.Recovery = seconds(time.Since(healed))
	} else if ctx.Err() == nil {
		r.violate("recovery", "%v after the last fault messages are still pending: %d", time.Since(healed).Round(time.Second), r.pending(ctx))
	}
	for _, m := range append(r.workers, r.producers...) {
		if m.link == nil {
			continue
		}
		if _, most := m.link.connections(); most > connections*m.starts {
			r.violate("connections", "%s had %d connections at once in %d starts", m.name, most, m.starts)
		}
	}
	for _, m := range r.workers {
		ending.Go(func() {
			// A host that has just come back with another address may have requests on connections of the old one, and then gives up
			// after its grace period: that is an exit code, and not a violation.
			if code, ok := m.stop(stopWithin); !ok || code != 0 && (code != 1 || r.hosts == nil) {
				r.violate("end", "%s did not end as it should on SIGTERM: exit code %d", m.name, code)
			}
		})
	}
	ending.Wait()
	for _, m := range r.workers {
		if m.store != nil {
			r.result.Late.Created += m.store.ended.Created
			r.result.Late.Taken += m.store.ended.Taken
		}
	}
	if ctx.Err() == nil {
		r.check(ctx)
	}
}

// pending returns how many messages are waiting; negative if that is unknown.
func (r *run) pending(ctx context.Context) (n int) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, typ := range r.types {
		d, err := r.direct.Queue.Depth(ctx, typ, 100_000)
		if err != nil {
			return -1
		}
		n += d.Pending
	}
	return n
}

// output runs fencepost and returns its standard output.
func (r *run) output(ctx context.Context, args ...string) (out []byte, code int, err error) {
	cmd := exec.CommandContext(ctx, r.programs.path("fencepost"), args...)
	cmd.Env = kit.Env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.logf("fencepost %v: %s", args, stderr.String())
		return out, exit.ExitCode(), nil
	}
	return out, 0, err
}
