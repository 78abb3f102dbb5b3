package ui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/wait"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"golang.org/x/sync/errgroup"
)

const (
	lookTimeout = 10 * time.Second // bounds the queries for one snapshot
	nobodyLooks = time.Minute      // this long after the last request, the watcher stops querying
)

// snapshot is the state at one time. It is immutable.
type snapshot struct {
	at      time.Time // by this machine's clock
	now     time.Time // by the server's clock
	types   []typeState
	members []queue.Member
	locks   []lock.Record
	strays  []queue.Strays
}

// typeState is one type in a snapshot.
type typeState struct {
	name     string
	backlog  backlog.Sample
	counted  bool // the backlog is known
	file     fileEntry
	rate     float64
	rated    bool
	rates    []float64
	lock     lock.Record
	settings queue.Settings
	failing  string // the error that keeps a worker from draining it
	held     bool
	silent   bool          // its holder has not renewed for a whole lease
	renewed  time.Duration // how long ago the holder renewed the lock
}

// fileEntry is the registry's entry of a type's file.
type fileEntry struct {
	queue.RegistryEntry
	known   bool // the registry was queried
	there   bool
	damaged string
}

// typ returns the state of a type, nil if there is no such type.
func (s *snapshot) typ(name string) *typeState {
	i, ok := slices.BinarySearchFunc(s.types, name, func(t typeState, name string) int { return strings.Compare(t.name, name) })
	if !ok {
		return nil
	}
	return &s.types[i]
}

// watcher queries the backend once for all viewers, and only while there are any.
type watcher struct {
	b      *fencepost.Backend
	every  time.Duration
	source *source
	depths *backlog.Sampler

	mu      sync.Mutex
	last    *snapshot
	failed  error         // error of the last look; nil if it succeeded
	tried   time.Time     // when the last look ended
	changed chan struct{} // closed after the current look
	wanted  time.Time     // when a snapshot was last requested
	wake    chan struct{}

	cancel context.CancelFunc
	done   chan struct{}
}

// source is the queue of the sampler. With the backlog of a type it also reads the entry of its file, so that both are equally fresh, and
// the sampler limits the queries for both.
type source struct {
	queue.Queue
	mu    sync.Mutex
	files map[string]fileEntry
	rings map[string]*ring
}

// Depth implements backlog.Source.
func (s *source) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	e, there, err := s.Queue.RegistryEntry(ctx, typ)
	f := fileEntry{RegistryEntry: e, known: true, there: there}
	if errors.Is(err, queue.ErrDamaged) {
		f.damaged, err = err.Error(), nil
	}
	if err != nil {
		return queue.Depth{}, err
	}
	now := time.Now()
	s.mu.Lock()
	s.files[typ] = f
	if s.rings[typ] == nil {
		s.rings[typ] = &ring{}
	}
	s.rings[typ].add(now, e.DurableIndex)
	s.mu.Unlock()
	return s.Queue.Depth(ctx, typ, most)
}

// keep forgets all other types.
func (s *source) keep(types []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rings) <= len(types) {
		return
	}
	files, rings := make(map[string]fileEntry, len(types)), make(map[string]*ring, len(types))
	for _, t := range types {
		if r := s.rings[t]; r != nil {
			files[t], rings[t] = s.files[t], r
		}
	}
	s.files, s.rings = files, rings
}

// fill adds the known state of the type's file.
func (s *source) fill(t *typeState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.file = s.files[t.name]
	if r := s.rings[t.name]; r != nil {
		t.rate, t.rated = r.rate()
		t.rates = r.rates()
	}
}

func newWatcher(b *fencepost.Backend, every time.Duration, most int) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	src := &source{Queue: b.Queue, files: map[string]fileEntry{}, rings: map[string]*ring{}}
	w := &watcher{b: b, every: every, source: src, changed: make(chan struct{}), wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
		depths: &backlog.Sampler{Queue: src, Max: most, Every: every / 2, Patience: lookTimeout / 2}}
	go w.run(ctx)
	return w
}

// close stops the watcher, and waits for it.
func (w *watcher) close() {
	w.cancel()
	<-w.done
	w.depths.Close()
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.done)
	for {
		s, err := w.look(ctx)
		w.mu.Lock()
		if w.failed, w.tried = err, time.Now(); err == nil {
			w.last = s
		}
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
		_ = wait.For(ctx, w.every)
		for ctx.Err() == nil && w.idle() {
			select {
			case <-ctx.Done():
			case <-w.wake:
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// idle reports whether no snapshot was requested for nobodyLooks.
func (w *watcher) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.wanted) > nobodyLooks
}

// current returns the last snapshot, nil if there is none, and the error that prevents a fresher one, if any. next is closed after the next look.
// It waits for the first look, and for a fresh one after a pause.
func (w *watcher) current(ctx context.Context) (s *snapshot, next <-chan struct{}, failed error) {
	stale := max(3*w.every, lookTimeout)
	for {
		w.mu.Lock()
		w.wanted = time.Now()
		s, next, failed = w.last, w.changed, w.failed
		fresh := time.Since(w.tried) < stale
		w.mu.Unlock()
		select {
		case w.wake <- struct{}{}:
		default:
		}
		if fresh {
			return s, next, failed
		}
		select {
		case <-next:
		case <-w.done:
			return s, next, errors.New("the program is stopping")
		case <-ctx.Done():
			return s, next, context.Cause(ctx)
		}
	}
}

// look queries the server once and returns a snapshot.
func (w *watcher) look(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("%s did not answer within %v", w.b.Name, lookTimeout))
	defer cancel()
	s := &snapshot{}
	var settings map[string]queue.Settings
	var types []string
	var g errgroup.Group
	g.Go(func() (err error) { types, err = w.b.Queue.Types(ctx); return err })
	g.Go(func() (err error) { s.now, err = w.b.Queue.Now(ctx); return err })
	g.Go(func() (err error) { settings, err = w.b.Queue.AllSettings(ctx); return err })
	g.Go(func() (err error) { s.members, err = w.b.Queue.Members(ctx, "", 0); return err })
	g.Go(func() (err error) { s.locks, err = w.b.Locker.List(ctx); return err })
	if err := g.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	s.strays = w.b.Queue.Strays()
	types = slices.Clone(types)
	slices.Sort(types)
	w.source.keep(types)
	depths := w.depths.Samples(ctx, types)
	locks := make(map[string]lock.Record, len(s.locks))
	for _, r := range s.locks {
		locks[r.Name] = r
	}
	failing := cli.Failures(s.members, s.now)
	s.types = make([]typeState, len(types))
	for i, name := range types {
		t := &s.types[i]
		*t = typeState{name: name, lock: locks[name], settings: settings[name], failing: failing[name]}
		t.backlog, t.counted = depths[name]
		w.source.fill(t)
		t.describe(s.now)
	}
	s.at = time.Now()
	return s, nil
}

// describe sets whether the type is held, and whether its holder renews the lock.
func (t *typeState) describe(now time.Time) {
	t.held = t.lock.Held()
	if holds := t.lock.Holds(); len(holds) > 0 && !t.lock.At.IsZero() {
		t.renewed = max(now.Sub(t.lock.At), 0)
		t.silent = t.renewed > holds[0].Lease
	}
}
