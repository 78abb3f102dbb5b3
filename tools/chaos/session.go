//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
)

// session is one invocation of the command.
type session struct {
	scenarios, backends []string
	stores              []string
	seed                uint64
	runs, parallel      int
	duration, lease     time.Duration
	record, keep        string

	without string

	out      io.Writer
	base     programs // not built
	bin      string   // where the built ones are
	building sync.Mutex
	built    map[string]programs // by variant
	dir      string
	commit   string
	machine  string
	results  *os.File // nil: not recorded

	shared string // URI of the server shared by runs

	own struct { // the server that one run at a time may harm
		sync.Mutex
		server *mongotest.Server
		err    error
	}

	boxes struct { // for runs whose workers are in containers
		sync.Mutex
		hosts *hosts
		err   error
	}

	nodes func() error // says why this machine has none

	mu       sync.Mutex
	counts   map[string]int // by verdict
	missing  map[string]bool
	messages int
	checked  int
}

// job is a scenario on a backend.
type job struct {
	scenario
	backend string
	store   string // empty: files are in a directory
}

// where returns the backend, and the store if there is one.
func (j job) where() string {
	if j.store == "" {
		return j.backend
	}
	return j.backend + "+" + j.store
}

// jobs returns the jobs that runs take turns with.
func (s *session) jobs() (jobs []job, err error) {
	names := s.scenarios
	if len(names) == 0 {
		for _, sc := range scenarios {
			names = append(names, sc.name)
		}
	}
	for _, b := range s.backends {
		if !slices.Contains(backends, b) {
			return nil, usagef("there is no backend %q; there are %s", b, strings.Join(backends, ", "))
		}
	}
	for _, store := range s.stores {
		if !slices.Contains(stores, store) {
			return nil, usagef("there is no store %q; there are %s", store, strings.Join(stores, ", "))
		}
	}
	for _, name := range names {
		sc, err := findScenario(name)
		if err != nil {
			return nil, usagef("%w", err)
		}
		in := []string{""}
		if sc.nodes {
			in = stores
		}
		if len(s.stores) > 0 {
			in = s.stores
		}
		for _, b := range s.backends {
			for _, store := range in {
				if sc.on(b) && (store != "mongodb" || b == "mongodb") {
					jobs = append(jobs, job{sc, b, store})
				}
			}
		}
	}
	if len(jobs) == 0 {
		return nil, usagef("%s makes no sense on %s", strings.Join(names, ", "), strings.Join(s.backends, ", "))
	}
	return jobs, nil
}

func (s *session) main(ctx context.Context) error {
	// This program reads the stores of tests with the same environment as the programs that it starts.
	for _, e := range kit.Env() {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AWS_") {
			os.Setenv(name, value)
		}
	}
	jobs, err := s.jobs()
	switch {
	case err != nil:
		return err
	case s.runs < 0 || s.duration < 0 || s.parallel < 1:
		return usagef("--runs and --duration must not be negative, --parallel must be positive")
	case s.lease < time.Second || s.lease > time.Minute:
		return usagef("--lease is %v; use 1s to 1m", s.lease)
	case s.without != "" && rules[s.without].text == "":
		return usagef("there is no rule %q to go without; there are %s", s.without, strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
	case s.without != "" && s.record != "":
		return usagef("--record is for the product as it is, not --without %s", s.without)
	case s.runs == 0 && s.duration == 0:
		s.runs = len(jobs)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	if err := s.prepare(ctx, jobs); err != nil {
		return err
	}
	defer s.cleanUp()
	fmt.Fprintf(s.out, "chaos: commit %s on %s; seed %d\n", s.commit, s.machine, s.seed)
	s.play(ctx, jobs)
	return s.verdict(ctx)
}

// prepare sets up what all runs share.
func (s *session) prepare(ctx context.Context, jobs []job) (err error) {
	if s.record != "" {
		if s.results, err = os.OpenFile(s.record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return usagef("--record: %w", err)
		}
	}
	if s.keep != "" {
		if s.dir, err = filepath.Abs(s.keep); err == nil {
			err = os.MkdirAll(s.dir, 0o700)
		}
	} else {
		s.dir, err = os.MkdirTemp("", "fencepost-chaos-")
	}
	if err != nil {
		return err
	}
	if s.base, err = findPrograms(); err != nil {
		return err
	}
	if s.bin, err = os.MkdirTemp("", "fencepost-chaos-bin-"); err != nil {
		return err
	}
	if _, err := s.programs(""); err != nil {
		return err
	}
	s.commit, s.machine = commit(), machine()
	if slices.ContainsFunc(jobs, func(j job) bool { return j.backend == "mongodb" && !j.server }) {
		if s.shared = os.Getenv(mongotest.EnvURI); s.shared == "" {
			server, err := mongotest.Start(ctx, mongotest.Options{Build: true, Log: os.Stderr})
			if err != nil && !errors.Is(err, mongotest.ErrNone) {
				return err
			}
			if err != nil {
				s.lacks("mongodb", err)
			} else {
				s.shared = server.URI() // its guard ends it with this process
			}
		}
	}
	return nil
}

// programs returns a variant of the product, which is built on first use.
func (s *session) programs(name string) (p programs, err error) {
	s.building.Lock()
	defer s.building.Unlock()
	p, ok := s.built[name]
	if ok {
		return p, nil
	}
	v := variants[name]
	v.edits = append(slices.Clone(v.edits), rules[s.without].edits...)
	if p, err = s.base.build(s.bin, v); err == nil {
		s.built[name] = p
	}
	return p, err
}

// hosts builds the image on first use.
func (s *session) hosts(ctx context.Context, p programs) (*hosts, error) {
	s.boxes.Lock()
	defer s.boxes.Unlock()
	if s.boxes.hosts == nil && s.boxes.err == nil {
		s.boxes.hosts, s.boxes.err = newHosts(ctx, p)
	}
	return s.boxes.hosts, s.boxes.err
}

func (s *session) cleanUp() {
	if s.boxes.hosts != nil {
		bounded(context.Background(), s.boxes.hosts.remove)
	}
	os.RemoveAll(s.bin)
	os.Remove(s.dir) // unless something is kept in it
	if s.own.server != nil {
		bounded(context.Background(), s.own.server.Terminate)
	}
	if s.results != nil {
		s.results.Close()
	}
}

// lacks reports once what this machine does not support.
func (s *session) lacks(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.missing[what] {
		s.missing[what] = true
		fmt.Fprintf(s.out, "!!! NOT RUN: %s: %v\n", what, strings.Join(strings.Fields(err.Error()), " "))
	}
}

// play makes runs until there are enough.
func (s *session) play(ctx context.Context, jobs []job) {
	begin := time.Now()
	var mu sync.Mutex
	next := 0
	take := func() (j job, seed uint64, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		over := s.runs > 0 && next >= s.runs || s.duration > 0 && next > 0 && time.Since(begin) > s.duration
		if over || ctx.Err() != nil {
			return job{}, 0, false
		}
		j, seed = jobs[next%len(jobs)], s.seed+uint64(next)
		next++
		return j, seed, true
	}
	var playing sync.WaitGroup
	for range s.parallel {
		playing.Go(func() {
			for j, seed, ok := take(); ok; j, seed, ok = take() {
				s.one(ctx, j, seed)
			}
		})
	}
	playing.Wait()
}

const hangAfter = 20 * time.Minute

// one makes one run and reports its result.
func (s *session) one(ctx context.Context, j job, seed uint64) {
	r := &run{scenario: j.scenario, backend: j.backend, store: j.store, seed: seed, lease: s.lease}
	r.dir = filepath.Join(s.dir, fmt.Sprintf("%s-%s-%d-%s", j.name, j.where(), seed, strings.ToLower(rand.Text()[:4])))
	if err := s.place(ctx, r); err != nil {
		s.lacks(j.name+" on "+j.where(), err)
		os.RemoveAll(r.dir)
		return
	}
	if r.server != nil {
		defer s.own.Unlock()
	}
	// Every wait of a run has a bound, far below this. A wait without one is a defect, and must not keep CI
	// waiting.
	hung := time.AfterFunc(hangAfter, func() { panic(fmt.Sprintf("%s on %s, seed %d, hangs; files: %s", j.name, j.backend, seed, r.dir)) })
	defer hung.Stop()
	result := r.play(ctx)
	if ctx.Err() != nil {
		os.RemoveAll(r.dir)
		return // an interrupted run shows nothing
	}
	s.tell(r, result)
}

// place assigns a directory and a backend to a run.
func (s *session) place(ctx context.Context, r *run) (err error) {
	if r.programs, err = s.programs(r.scenario.variant); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	if r.scenario.nodes {
		if err := s.nodes(); err != nil {
			return fmt.Errorf("%w: %w", errNotHere, err)
		}
	}
	if r.backend == "sqlite" {
		r.url = "sqlite://" + filepath.Join(r.queueDir(), "queue.db")
		return os.MkdirAll(r.queueDir(), 0o700)
	}
	uri := s.shared
	if r.scenario.hosts {
		if r.hosts, err = s.hosts(ctx, r.programs); err != nil {
			return fmt.Errorf("%w: %w", errNotHere, err)
		}
	}
	if r.scenario.server {
		s.own.Lock()
		if s.own.server == nil && s.own.err == nil {
			s.own.server, s.own.err = mongotest.Start(ctx, mongotest.Options{Build: true, Log: os.Stderr})
		}
		if s.own.err != nil {
			s.own.Unlock()
			return fmt.Errorf("it needs its own server: %w", s.own.err)
		}
		r.server, uri = s.own.server, s.own.server.URI()
		defer func() {
			if err != nil {
				r.server = nil
				s.own.Unlock()
			}
		}()
	}
	if uri == "" {
		return mongotest.ErrNone
	}
	database := "chaos_" + strings.ToLower(rand.Text()[:12])
	if r.scenario.election {
		// Without links: the driver finds the members itself, and would bypass them.
		r.url, err = replicaSet(ctx, uri, database)
		return err
	}
	if r.url, err = inDatabase(uri, database); err != nil {
		return err
	}
	_, hosts, _, err := splitURI(r.url)
	r.target, _, _ = strings.Cut(hosts, ",")
	return err
}

// tell prints and records the outcome of a run.
func (s *session) tell(r *run, result result) {
	result.Commit, result.Machine = s.commit, s.machine
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[result.Verdict]++
	s.messages += result.Confirmed
	s.checked += result.InFiles
	fmt.Fprintf(s.out, "%-8s  %-8s %-15s seed %-12d %5d confirmed %4d unknown %4d refused %3d epochs  faults %v  recovered in %.1fs  %.1fs\n", result.Verdict,
		result.Scenario, job{backend: result.Backend, store: result.Store}.where(), result.Seed, result.Confirmed, result.Unknown, result.Refused, result.Epochs, faultList(result.Faults), result.Recovery, result.Seconds)
	for _, f := range result.Found {
		fmt.Fprintf(s.out, "          %s\n", strings.ReplaceAll(f, "\n", "\n          "))
	}
	switch {
	case result.Verdict == violated:
		again := fmt.Sprintf("--scenario %s --backend %s --seed %d --runs 1 --lease %v", result.Scenario, result.Backend, result.Seed, r.lease)
		if result.Store != "" {
			again += " --store " + result.Store
		}
		if s.without != "" {
			again += " --without " + s.without
		}
		fmt.Fprintf(s.out, "          again: make chaos ARGS='%s'\n          files: %s\n", again, r.dir)
	case s.keep == "":
		os.RemoveAll(r.dir)
	}
	if s.results != nil {
		line, err := json.Marshal(result)
		if err == nil {
			_, err = s.results.Write(append(line, '\n'))
		}
		if err != nil {
			fmt.Fprintf(s.out, "!!! not recorded: %v\n", err)
		}
	}
}

func faultList(faults map[string]int) string {
	var list []string
	for name, n := range faults {
		list = append(list, fmt.Sprintf("%s×%d", name, n))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// verdict returns the outcome of the session.
func (s *session) verdict(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%d runs held, %d violated, %d not run; %d confirmed messages, %d in files, every one checked\n",
		s.counts[held], s.counts[violated], s.counts[notRun], s.messages, s.checked)
	switch {
	case s.counts[violated] > 0:
		return fmt.Errorf("guarantees were violated in %d runs; see above for the seeds and the files", s.counts[violated])
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.counts[held] == 0:
		return errors.New("nothing could be run; see above")
	}
	return nil
}

// commit returns the last commit that changed the product, or "unknown" outside of git.
func commit() string {
	out, err := exec.Command("git", "log", "-1", "--format=%h", "--", ":/", ":!/integration", ":!/docs", ":!/*.md", ":!/internal/mongotest", ":!/.ci", ":!/Makefile").Output()
	if hash := strings.TrimSpace(string(out)); err == nil && hash != "" {
		return hash
	}
	return "unknown"
}

// machine describes the machine of the runs.
func machine() string {
	m := fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if out, err := exec.Command("uname", "-r").Output(); err == nil {
		m += ", kernel " + strings.TrimSpace(string(out))
	}
	return m
}
