// Package metrics exports what a worker.Pool does to Prometheus.
//
//	m := metrics.New()
//	cfg.Observe = m.Observe // durations and batch sizes
//	pool, err := worker.New(cfg)
//	…
//	m.Attach(pool, cfg) // counters, states, backlog
//	registry.MustRegister(m)
//
// You provide the registry and serve it (promhttp.HandlerFor). All names begin with fencepost_;
// docs/metrics.md lists them. The only label is type, and cause for lost sessions. When the pool no
// longer serves a type, the type's series end.
//
// # Many types
//
// A type has about 130 series. At most 100 types, or [MaxTypes], have series of their own; the others
// are added up under type="_other", which is not a valid name of a type. While there are no more types
// than that, there is no "_other". Otherwise types with traffic come first. A type that needs attention
// or has far more traffic can take the place of another, but only a tenth of the places changes within
// 10 minutes. No counter jumps or falls when a type changes its group: "_other" keeps the counts that it
// has of the type, and the type's own counters begin at 0.
//
// A type with series of its own takes about 10 KiB, any other one 250 bytes.
//
// # Several pools in a process
//
// Each pool needs Metrics of its own. Register each with a label, because the names are the same:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"pool": "files"}, registry).MustRegister(m)
//
// fencepost_lock_acquired_total and the other counters of locks count the locks of the Locker. They are
// the same for all pools that share it.
//
// # What a scrape costs
//
// A scrape queries the server for the backlog of at most 500 types, at most once in 5 s, with a few
// requests at a time, and waits at most one second for the answers. Everything else comes from memory.
// If there are more types, the next scrapes query the others in turn. An unknown value is absent, not
// 0: backlog and age while the server is unreachable, those of "_other" until all of its types have
// been queried, and token and index of a type that is not held.
package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/volume"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/worker"
	"github.com/prometheus/client_golang/prometheus"
)

// Buckets, in seconds and in messages.
var (
	quick   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}
	handled = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}
	waited  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 20, 60}
	sizes   = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000}
)

// steps are the histograms of Observe.
var steps = map[worker.Step]struct {
	name, help string
	buckets    []float64
}{
	worker.StepFetch:   {"fencepost_fetch_duration_seconds", "Time of a read from the queue, also of one that found nothing.", quick},
	worker.StepAppend:  {"fencepost_append_duration_seconds", "Time of writing one record batch to the file, without the fsync.", quick},
	worker.StepSync:    {"fencepost_fsync_duration_seconds", "Time of making what was written durable.", quick},
	worker.StepAck:     {"fencepost_ack_duration_seconds", "Time of removing durable messages from the queue.", quick},
	worker.StepHandle:  {"fencepost_handle_duration_seconds", "Time of one call of the handler.", handled},
	worker.StepAcquire: {"fencepost_acquire_wait_seconds", "Time from requesting a type's lock to holding it.", waited},
}

// Metrics is a prometheus.Collector of one Pool. Safe for concurrent use.
type Metrics struct {
	vecs map[worker.Step]*prometheus.HistogramVec // by step, and 0 for the batch size

	counting sync.Mutex // one scrape counts at a time, so that a later scrape never reports less

	mu     sync.RWMutex
	groups groups
	seen   map[series]prometheus.Observer
	pool   *worker.Pool
	locker *lock.Locker
	depths *backlog.Sampler
	dir    string // of the files; "" if there is none
}

// Option configures [New].
type Option func(*Metrics)

// MaxTypes sets how many types have series of their own: 0 for none, [AllTypes] for all. Without it the
// number is [DefaultTypes].
func MaxTypes(n int) Option {
	return func(m *Metrics) { m.groups.most = max(n, 0) }
}

// series is a histogram of one type, or of Other; step 0 stands for the batch size.
type series struct {
	typ  string
	step worker.Step
}

// New returns Metrics without a pool: see [Metrics.Attach].
func New(options ...Option) *Metrics {
	m := &Metrics{vecs: map[worker.Step]*prometheus.HistogramVec{}, seen: map[series]prometheus.Observer{}, groups: newGroups(DefaultTypes)}
	for _, o := range options {
		o(m)
	}
	vec := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"})
	}
	for step, s := range steps {
		m.vecs[step] = vec(s.name, s.help, s.buckets)
	}
	m.vecs[0] = vec("fencepost_batch_messages", "Messages per record batch, or per call of the handler.", sizes)
	return m
}

// Attach sets the pool to report about, and the configuration that it was created with, of which it
// uses Queue and Locker; it panics without them. Without a pool there are no samples.
func (m *Metrics) Attach(pool *worker.Pool, cfg worker.Config) {
	if cfg.Queue == nil || cfg.Locker == nil {
		panic("metrics: Attach without Queue or Locker; pass the Config that the pool was created with")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool, m.locker, m.depths = pool, cfg.Locker, &backlog.Sampler{Queue: cfg.Queue, Questions: questions}
	if files, ok := cfg.To.(worker.Files); ok && files.Storage.FS == nil {
		m.dir = files.Dir
	}
}

// Close ends requests to the server that a scrape may have left running. Call it before you close the
// queue.
func (m *Metrics) Close() {
	m.mu.RLock()
	depths := m.depths
	m.mu.RUnlock()
	if depths != nil {
		depths.Close()
	}
}

// Backlog is the recent backlog of a type.
type Backlog struct {
	queue.Depth
	Age time.Duration // of the oldest pending message at the time of the query; 0 when there is none
	At  time.Time     // time of the query
}

// Backlog returns the backlog of types as a scrape sees it; types whose backlog is unknown are absent.
// Like a scrape it queries at most 500 types.
func (m *Metrics) Backlog(ctx context.Context, types []string) map[string]Backlog {
	m.mu.RLock()
	depths := m.depths
	m.mu.RUnlock()
	if depths == nil {
		return nil
	}
	known := map[string]Backlog{}
	for typ, sample := range depths.Samples(ctx, types) {
		known[typ] = Backlog(sample)
	}
	return known
}

// Observe is for worker.Config.Observe. It allocates only for the first observation of a step of a
// type.
func (m *Metrics) Observe(o worker.Observation) {
	if errors.Is(o.Err, context.Canceled) || m.vecs[o.Step] == nil {
		return
	}
	m.histogram(o.Type, o.Step).Observe(o.Took.Seconds())
	if o.Step == worker.StepAppend || o.Step == worker.StepHandle {
		m.histogram(o.Type, 0).Observe(float64(o.Messages))
	}
}

// histogram returns the histogram of a type, or of Other. The usual case needs only the read lock.
func (m *Metrics) histogram(typ string, step worker.Step) prometheus.Observer {
	m.mu.RLock()
	if m.groups.mayName(typ) { // firstCome gives it series of its own
		m.mu.RUnlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.makeHistogram(series{m.groups.firstCome(typ), step})
	}
	s := series{m.groups.label(typ), step}
	h := m.seen[s]
	m.mu.RUnlock()
	if h != nil {
		return h
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.makeHistogram(series{m.groups.label(typ), step}) // its group may have changed
}

// makeHistogram finds or creates a histogram; m.mu is held.
func (m *Metrics) makeHistogram(s series) prometheus.Observer {
	if m.seen[s] == nil {
		m.seen[s] = m.vecs[s.step].WithLabelValues(s.typ)
	}
	return m.seen[s]
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// perType are the counters of a type that come from its status.
var perType = []typeCounter{
	counter("fencepost_appended_messages_total", "Messages made durable in the file.", func(s *worker.TypeStatus) uint64 { return s.Appended }),
	counter("fencepost_appended_bytes_total", "Payload bytes of the messages made durable in the file.", func(s *worker.TypeStatus) uint64 { return s.Bytes }),
	counter("fencepost_handled_messages_total", "Messages that the handler has handled.", func(s *worker.TypeStatus) uint64 { return s.Handled }),
	counter("fencepost_duplicate_messages_total", "Redelivered messages that were refused as duplicates.", func(s *worker.TypeStatus) uint64 { return s.Duplicates }),
	counter("fencepost_repeated_messages_total", "Messages not appended because one with their idempotency key was.", func(s *worker.TypeStatus) uint64 { return s.Repeated }),
	counter("fencepost_declared_gaps_total", "Messages taken although earlier ones of their producer were missing for good.", func(s *worker.TypeStatus) uint64 { return s.Gaps }),
	counter("fencepost_forgotten_producers_total", "Producers forgotten early, as they were more than a file remembers.", func(s *worker.TypeStatus) uint64 { return s.Forgotten }),
	counter("fencepost_dead_messages_total", "Messages put aside as dead letters.", func(s *worker.TypeStatus) uint64 { return s.Dead }),
	counter("fencepost_retries_total", "Calls of the handler after one that failed.", func(s *worker.TypeStatus) uint64 { return s.Retries }),
	counter("fencepost_sessions_total", "Times that a type was held and opened.", func(s *worker.TypeStatus) uint64 { return s.Sessions }),
	counter("fencepost_fenced_writes_total", "Times that another writer's fence voided this pool's writes.", func(s *worker.TypeStatus) uint64 { return s.Losses[worker.CauseFenced] }),
}

type typeCounter struct {
	desc  *prometheus.Desc
	value func(*worker.TypeStatus) uint64
}

func counter(name, help string, value func(*worker.TypeStatus) uint64) typeCounter {
	return typeCounter{desc(name, help, "type"), value}
}

// states are the gauges of a type that come from its status.
var states = []typeGauge{
	gauge("fencepost_lock_held", "1 while this pool holds the lock of the type.", func(s *worker.TypeStatus) (float64, bool) { return truth(s.Held), true }, sum),
	gauge("fencepost_lock_token", "Fencing token of the lock that this pool holds; absent while it holds none.", func(s *worker.TypeStatus) (float64, bool) {
		return float64(s.Token), s.Held
	}, nil),
	gauge("fencepost_durable_index", "Records of the file below this index are durable; absent while the type is not held.", func(s *worker.TypeStatus) (float64, bool) {
		return float64(s.Index), s.Held && s.Path != ""
	}, nil),
	gauge("fencepost_type_blocked", "1 while the type needs attention: something keeps failing, its file cannot be used, or something in the queue cannot be appended.", func(s *worker.TypeStatus) (float64, bool) {
		return truth(s.State == worker.Blocked || s.State == worker.Refused), true
	}, sum),
	gauge("fencepost_type_paused", "1 while an operator has paused the type.", func(s *worker.TypeStatus) (float64, bool) { return truth(s.State == worker.Paused), true }, sum),
	gauge("fencepost_last_commit_timestamp_seconds", "When this pool last made messages durable, or handled some; absent if it never has.", func(s *worker.TypeStatus) (float64, bool) {
		return float64(s.LastCommit.UnixMilli()) / 1000, !s.LastCommit.IsZero()
	}, latest),
}

type typeGauge struct {
	desc *prometheus.Desc
	// value returns ok = false if there is no value to report.
	value func(*worker.TypeStatus) (v float64, ok bool)
	// combine adds a type to the gauge of Other; nil: Other does not have this gauge.
	combine func(all, v float64) float64
}

func gauge(name, help string, value func(*worker.TypeStatus) (float64, bool), combine func(all, v float64) float64) typeGauge {
	return typeGauge{desc(name, help, "type"), value, combine}
}

func sum(all, v float64) float64    { return all + v }
func latest(all, v float64) float64 { return max(all, v) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// perLocker are the counters of the pool's Locker, which does not count by type.
var perLocker = []struct {
	desc  *prometheus.Desc
	value func(lock.Stats) int64
}{
	{desc("fencepost_lock_acquired_total", "Locks acquired."), func(s lock.Stats) int64 { return s.Acquired }},
	{desc("fencepost_lock_takeovers_total", "Locks taken over from a holder presumed dead."), func(s lock.Stats) int64 { return s.TakenOver }},
	{desc("fencepost_lock_renewals_total", "Renewals of leases that were acknowledged."), func(s lock.Stats) int64 { return s.Renewed }},
	{desc("fencepost_lock_renewal_failures_total", "Renewals of leases that failed or got no answer."), func(s lock.Stats) int64 { return s.RenewFailed }},
}

var (
	lossesDesc  = desc("fencepost_sessions_lost_total", "Sessions that ended early, by cause.", "type", "cause")
	ageDesc     = desc("fencepost_oldest_pending_age_seconds", "Age of the oldest message in the queue, 0 when it is empty; absent when not known.", "type")
	backlogDesc = desc("fencepost_backlog_messages", "Messages in the queue, counted up to 10000; absent when not known.", "type")
	upDesc      = desc("fencepost_server_up", "1 while the server answers the pool.")
	freeDesc    = desc("fencepost_volume_free_bytes", "Free space on the volume of the files; absent when not known, and for files in a store.")
	sizeDesc    = desc("fencepost_volume_size_bytes", "Size of the volume of the files; absent when not known, and for files in a store.")
)

// causes are the values of the label cause.
var causes = []worker.Cause{worker.CauseExpired, worker.CauseGone, worker.CauseForced, worker.CauseMaxHold, worker.CauseFenced, worker.CauseError}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range perType {
		ch <- s.desc
	}
	for _, s := range states {
		ch <- s.desc
	}
	for _, s := range perLocker {
		ch <- s.desc
	}
	for _, d := range []*prometheus.Desc{lossesDesc, ageDesc, backlogDesc, upDesc, freeDesc, sizeDesc} {
		ch <- d
	}
	for _, vec := range m.vecs {
		vec.Describe(ch)
	}
}

// Collect implements prometheus.Collector. It returns within about a second, even if the server is
// unresponsive.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.RLock()
	pool, locker, depths, dir := m.pool, m.locker, m.depths, m.dir
	m.mu.RUnlock()
	if pool == nil {
		return
	}
	status, told, others := m.count(pool)
	for i := range told {
		told[i].collect(ch)
	}
	m.collectStates(ch, status.Types, others)
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, truth(status.Outage == nil))
	// Local file systems answer this from memory, also when their disk hangs.
	if room, err := volume.Of(dir); dir != "" && err == nil {
		ch <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(room.Free))
		ch <- prometheus.MustNewConstMetric(sizeDesc, prometheus.GaugeValue, float64(room.Size))
	}
	stats := locker.Stats()
	for _, p := range perLocker {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.CounterValue, float64(p.value(stats)))
	}
	for _, vec := range m.vecs {
		vec.Collect(ch)
	}
	m.collectBacklog(ch, depths, status.Types, others)
}

// count processes the counters of the pool. It returns the counters to report, and the types that belong
// to Other.
func (m *Metrics) count(pool *worker.Pool) (status worker.Status, told []typeCounts, others map[string]bool) {
	m.counting.Lock()
	defer m.counting.Unlock()
	status = pool.Status()
	m.mu.Lock()
	defer m.mu.Unlock()
	told = m.groups.take(status.Types, time.Now())
	for h := range m.seen {
		if m.groups.label(h.typ) != h.typ {
			delete(m.seen, h)
			m.vecs[h.step].DeleteLabelValues(h.typ)
		}
	}
	others = map[string]bool{}
	for i := range status.Types {
		if typ := status.Types[i].Type; m.groups.label(typ) == Other {
			others[typ] = true
		}
	}
	return status, told, others
}

// collectStates reports the gauges of the types.
func (m *Metrics) collectStates(ch chan<- prometheus.Metric, types []worker.TypeStatus, others map[string]bool) {
	for _, g := range states {
		all, any := 0.0, false
		for i := range types {
			switch v, ok := g.value(&types[i]); {
			case !ok:
			case !others[types[i].Type]:
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v, types[i].Type)
			case g.combine != nil:
				all, any = g.combine(all, v), true
			}
		}
		if any {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, all, Other)
		}
	}
}

// collectBacklog queries the server, and reports the answers that arrive in time.
func (m *Metrics) collectBacklog(ch chan<- prometheus.Metric, depths *backlog.Sampler, types []worker.TypeStatus, others map[string]bool) {
	var first, rest []string
	paused := map[string]bool{}
	for i := range types {
		typ := types[i].Type
		if paused[typ] = types[i].State == worker.Paused; others[typ] {
			rest = append(rest, typ)
		} else {
			first = append(first, typ)
		}
	}
	known, complete := depths.SamplesOf(context.Background(), first, rest)
	tell := func(typ string, age time.Duration, pending int) {
		ch <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, age.Seconds(), typ)
		ch <- prometheus.MustNewConstMetric(backlogDesc, prometheus.GaugeValue, float64(pending), typ)
	}
	var oldest time.Duration
	pending := 0
	for typ, sample := range known {
		if !others[typ] {
			tell(typ, sample.Age, sample.Pending)
			continue
		}
		pending += sample.Pending
		if !paused[typ] { // rule: types that are paused on purpose must not make the age of the others look like trouble
			oldest = max(oldest, sample.Age)
		}
	}
	// rule: a sum over some of the types is not reported as one over all.
	if complete && len(rest) > 0 {
		tell(Other, oldest, pending)
	}
}
