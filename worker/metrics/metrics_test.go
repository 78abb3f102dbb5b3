package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/volume"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/storagetest"
	"github.com/fencepost/fencepost/worker"
	"github.com/fencepost/fencepost/worker/metrics"
	"github.com/fencepost/fencepost/worker/workertest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// world is a backend in memory, a running pool and its metrics, under virtual time.
type world struct {
	*fencepost.Backend
	*metrics.Metrics
	registry *prometheus.Registry
	pool     *worker.Pool
	done     chan error
}

func onWorld(t *testing.T, configure func(*worker.Config), f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{Backend: workertest.Backend(t), Metrics: metrics.New(), registry: prometheus.NewPedanticRegistry(), done: make(chan error, 1)}
		cfg := worker.Config{Queue: w.Queue, Locker: w.Locker, Types: []string{"orders"}, To: worker.Files{Dir: "/data", Storage: storage.Options{FS: storagetest.NewMem(4096)}}, Observe: w.Observe}
		configure(&cfg)
		pool, err := worker.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.pool = pool
		w.registry.MustRegister(w.Metrics)
		if n, err := testutil.GatherAndCount(w.registry); n != 0 || err != nil {
			t.Errorf("%d samples before there is a pool (%v)", n, err)
		}
		w.Attach(pool, cfg)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { w.done <- pool.Run(ctx) }()
		defer func() {
			pool.Stop()
			defer time.AfterFunc(time.Minute, cancel).Stop() // a test may leave the queue hanging
			if err := <-w.done; err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			w.Metrics.Close()
		}()
		f(t, w)
	})
}

// has checks the samples of the named metrics.
func (w *world) has(t *testing.T, expected string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(w.registry, strings.NewReader(expected), names...); err != nil {
		t.Error(err)
	}
}

func TestMetricsOfAKnownRun(t *testing.T) {
	onWorld(t, func(c *worker.Config) { c.Types = []string{"orders", "quiet"} }, func(t *testing.T, w *world) {
		workertest.Publish(t, w.Queue, "orders", "a chair", "a table", "a lamp")
		time.Sleep(time.Second)
		problems, err := testutil.GatherAndLint(w.registry)
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", err, problems)
		}
		w.has(t, `
# HELP fencepost_appended_messages_total Messages made durable in the file.
# TYPE fencepost_appended_messages_total counter
fencepost_appended_messages_total{type="orders"} 3
fencepost_appended_messages_total{type="quiet"} 0
# HELP fencepost_appended_bytes_total Payload bytes of the messages made durable in the file.
# TYPE fencepost_appended_bytes_total counter
fencepost_appended_bytes_total{type="orders"} 20
fencepost_appended_bytes_total{type="quiet"} 0
# HELP fencepost_lock_held 1 while this pool holds the lock of the type.
# TYPE fencepost_lock_held gauge
fencepost_lock_held{type="orders"} 1
fencepost_lock_held{type="quiet"} 0
# HELP fencepost_durable_index Records of the file below this index are durable; absent while the type is not held.
# TYPE fencepost_durable_index gauge
fencepost_durable_index{type="orders"} 3
# HELP fencepost_backlog_messages Messages in the queue, counted up to 10000; absent when not known.
# TYPE fencepost_backlog_messages gauge
fencepost_backlog_messages{type="orders"} 0
fencepost_backlog_messages{type="quiet"} 0
# HELP fencepost_oldest_pending_age_seconds Age of the oldest message in the queue, 0 when it is empty; absent when not known.
# TYPE fencepost_oldest_pending_age_seconds gauge
fencepost_oldest_pending_age_seconds{type="orders"} 0
fencepost_oldest_pending_age_seconds{type="quiet"} 0
# HELP fencepost_server_up 1 while the server answers the pool.
# TYPE fencepost_server_up gauge
fencepost_server_up 1
# HELP fencepost_lock_acquired_total Locks acquired.
# TYPE fencepost_lock_acquired_total counter
fencepost_lock_acquired_total 1
`, "fencepost_appended_messages_total", "fencepost_appended_bytes_total", "fencepost_lock_held", "fencepost_durable_index", "fencepost_backlog_messages",
			"fencepost_oldest_pending_age_seconds", "fencepost_server_up", "fencepost_lock_acquired_total")
		for _, name := range []string{"fencepost_lock_token", "fencepost_fsync_duration_seconds", "fencepost_append_duration_seconds",
			"fencepost_ack_duration_seconds", "fencepost_fetch_duration_seconds", "fencepost_acquire_wait_seconds", "fencepost_batch_messages"} {
			if n := testutil.CollectAndCount(w.Metrics, name); n != 1 {
				t.Errorf("%s: %d samples, want one for orders", name, n)
			}
		}
		if got := histogram(t, w, "fencepost_batch_messages"); got.count == 0 || got.sum != 3 {
			t.Errorf("batch sizes: %+v, want a sum of 3", got)
		}
	})
}

type sum struct {
	count uint64
	sum   float64
}

func histogram(t *testing.T, w *world, name string) sum {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			h := f.GetMetric()[0].GetHistogram()
			return sum{h.GetSampleCount(), h.GetSampleSum()}
		}
	}
	return sum{}
}

// A handler's failures are counted, and the type shows as blocked until they end.
func TestMetricsOfAHandlerThatFails(t *testing.T) {
	failing := make(chan struct{})
	handler := worker.HandlerFunc(func(ctx context.Context, _ worker.Lease, msgs []queue.Message) error {
		time.Sleep(time.Second)
		select {
		case <-failing:
			return nil
		default:
			return errors.New("the shop is closed")
		}
	})
	onWorld(t, func(c *worker.Config) { c.To = worker.Handling{Handler: handler} }, func(t *testing.T, w *world) {
		failing = make(chan struct{}) // of the bubble
		workertest.Publish(t, w.Queue, "orders", "a chair")
		time.Sleep(20 * time.Second)
		w.has(t, `
# HELP fencepost_type_blocked 1 while the type needs attention: something keeps failing, its file cannot be used, or something in the queue cannot be appended.
# TYPE fencepost_type_blocked gauge
fencepost_type_blocked{type="orders"} 1
# HELP fencepost_handled_messages_total Messages that the handler has handled.
# TYPE fencepost_handled_messages_total counter
fencepost_handled_messages_total{type="orders"} 0
# HELP fencepost_backlog_messages Messages in the queue, counted up to 10000; absent when not known.
# TYPE fencepost_backlog_messages gauge
fencepost_backlog_messages{type="orders"} 1
`, "fencepost_type_blocked", "fencepost_handled_messages_total", "fencepost_backlog_messages", "fencepost_last_commit_timestamp_seconds")
		close(failing)
		time.Sleep(2 * time.Minute)
		w.has(t, `
# HELP fencepost_type_blocked 1 while the type needs attention: something keeps failing, its file cannot be used, or something in the queue cannot be appended.
# TYPE fencepost_type_blocked gauge
fencepost_type_blocked{type="orders"} 0
# HELP fencepost_handled_messages_total Messages that the handler has handled.
# TYPE fencepost_handled_messages_total counter
fencepost_handled_messages_total{type="orders"} 1
`, "fencepost_type_blocked", "fencepost_handled_messages_total")
		if h := histogram(t, w, "fencepost_handle_duration_seconds"); h.count < 2 || h.sum < float64(h.count) {
			t.Errorf("handle seconds: %+v; every call took a second", h)
		}
		if n := testutil.CollectAndCount(w.Metrics, "fencepost_retries_total"); n != 1 {
			t.Errorf("%d samples of retries", n)
		}
	})
}

// A scrape while the server is unreachable returns soon, without unknown values. Without a bound it would hang, as the queue does.
func TestScrapeDoesNotWaitForAServerThatIsAway(t *testing.T) {
	var away atomic.Bool
	onWorld(t, func(c *worker.Config) {
		c.Queue = &queuetest.Faulty{Queue: c.Queue, Next: func(op queuetest.Op, _ string, _ int) queuetest.Fault {
			if (op == queuetest.OpDepth || op == queuetest.OpPendingTypes) && away.Load() {
				return queuetest.Fault{Kind: queuetest.Hang}
			}
			return queuetest.Fault{}
		}}
	}, func(t *testing.T, w *world) {
		workertest.Publish(t, w.Queue, "orders", "a chair")
		time.Sleep(time.Second)
		if n := testutil.CollectAndCount(w.Metrics, "fencepost_backlog_messages"); n != 1 {
			t.Fatalf("%d samples of the backlog while the server is reachable", n)
		}
		away.Store(true)
		for range 3 {
			time.Sleep(30 * time.Second)
			began := time.Now()
			if n := testutil.CollectAndCount(w.Metrics, "fencepost_backlog_messages", "fencepost_oldest_pending_age_seconds"); n != 0 {
				t.Errorf("%d samples of unknown values", n)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the scrape took %v", took)
			}
		}
		w.has(t, `
# HELP fencepost_server_up 1 while the server answers the pool.
# TYPE fencepost_server_up gauge
fencepost_server_up 0
`, "fencepost_server_up")
		if n := testutil.CollectAndCount(w.Metrics, "fencepost_appended_messages_total"); n != 1 {
			t.Errorf("%d samples of values known without the server", n)
		}
	})
}

// Histograms of a type that the pool does not serve are dropped.
func TestTypesThatAreNotServedAreDropped(t *testing.T) {
	onWorld(t, func(*worker.Config) {}, func(t *testing.T, w *world) {
		synctest.Wait() // now the pool serves its type
		w.Observe(worker.Observation{Type: "gone", Step: worker.StepSync, Took: time.Second})
		w.Observe(worker.Observation{Type: "orders", Step: worker.StepSync, Took: time.Second})
		w.Observe(worker.Observation{Type: "orders", Step: worker.StepAck, Err: context.Canceled})
		if n := testutil.CollectAndCount(w.Metrics, "fencepost_fsync_duration_seconds"); n != 1 {
			t.Errorf("%d histograms, want that of orders", n)
		}
	})
}

func TestObserveAllocatesNothing(t *testing.T) {
	m := metrics.New()
	o := worker.Observation{Type: "orders", Step: worker.StepAppend, Took: time.Millisecond, Messages: 100}
	m.Observe(o)
	if n := testing.AllocsPerRun(100, func() { m.Observe(o) }); n > 0 {
		t.Errorf("%v allocations per observation", n)
	}
}

func TestPublisherMetrics(t *testing.T) {
	stats := queue.PublisherStats{Stored: 10, Unknown: 2, Rejected: 1, Batches: 3, Repeats: 4, Buffered: 5}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics.Publisher(func() queue.PublisherStats { return stats }))
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", err, problems)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, f := range families {
		got = append(got, f.GetMetric()[0].GetCounter().GetValue()+f.GetMetric()[0].GetGauge().GetValue())
	}
	slices.Sort(got)
	if want := []float64{1, 2, 3, 4, 5, 10}; !slices.Equal(got, want) {
		t.Errorf("values %v, want %v", got, want)
	}
}

func TestStoreMetrics(t *testing.T) {
	m, registry := metrics.NewStore(), prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	for _, r := range []slots.Request{
		{Kind: "create", Answer: "ok", Took: time.Millisecond, Bytes: 100}, {Kind: "create", Answer: "ok", Bytes: 20},
		{Kind: "create", Answer: "unclear", Took: time.Minute}, {Kind: "list", Answer: "ok"},
	} {
		m.Observe(r)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", err, problems)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP fencepost_store_bytes_total Bytes of the values that were created, or read.
# TYPE fencepost_store_bytes_total counter
fencepost_store_bytes_total{request="create"} 120
# HELP fencepost_store_requests_total Requests to the store of the files.
# TYPE fencepost_store_requests_total counter
fencepost_store_requests_total{answer="ok",request="create"} 2
fencepost_store_requests_total{answer="ok",request="list"} 1
fencepost_store_requests_total{answer="unclear",request="create"} 1
`), "fencepost_store_bytes_total", "fencepost_store_requests_total"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "fencepost_store_request_duration_seconds" {
			if h := f.GetMetric()[0].GetHistogram(); len(f.GetMetric()) != 2 || h.GetSampleCount() != 3 || h.GetSampleSum() < 60 || h.GetSampleSum() > 60.1 {
				t.Errorf("durations: %v", f)
			}
		}
	}
}

// Types without series of their own are added up: counters, histograms, states and backlog.
func TestTypesWithoutSeriesAreAddedUp(t *testing.T) {
	onWorld(t, func(c *worker.Config) { c.Types = []string{"audit", "billing", "orders", "quiet"}; c.MaxTypes = 1 }, func(t *testing.T, w *world) {
		few := metrics.New(metrics.MaxTypes(0))
		few.Attach(w.pool, worker.Config{Queue: w.Queue, Locker: w.Locker})
		defer few.Close()
		for _, typ := range []string{"audit", "orders"} {
			workertest.Publish(t, w.Queue, typ, "one", "two")
		}
		if _, err := w.Queue.PatchSettings(t.Context(), "billing", queue.SettingsPatch{DrainPaused: new(true)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		workertest.Publish(t, w.Queue, "billing", "three")
		time.Sleep(time.Minute)
		few.Observe(worker.Observation{Type: "audit", Step: worker.StepSync, Took: time.Second})
		few.Observe(worker.Observation{Type: "orders", Step: worker.StepSync, Took: time.Second})
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(few)
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", err, problems)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP fencepost_appended_messages_total Messages made durable in the file.
# TYPE fencepost_appended_messages_total counter
fencepost_appended_messages_total{type="_other"} 4
# HELP fencepost_backlog_messages Messages in the queue, counted up to 10000; absent when not known.
# TYPE fencepost_backlog_messages gauge
fencepost_backlog_messages{type="_other"} 1
# HELP fencepost_oldest_pending_age_seconds Age of the oldest message in the queue, 0 when it is empty; absent when not known.
# TYPE fencepost_oldest_pending_age_seconds gauge
fencepost_oldest_pending_age_seconds{type="_other"} 0
# HELP fencepost_type_paused 1 while an operator has paused the type.
# TYPE fencepost_type_paused gauge
fencepost_type_paused{type="_other"} 1
`), "fencepost_appended_messages_total", "fencepost_backlog_messages", "fencepost_oldest_pending_age_seconds", "fencepost_type_paused",
			"fencepost_lock_token", "fencepost_durable_index"); err != nil { // the last two are of one type only
			t.Error(err)
		}
		if n := testutil.CollectAndCount(few, "fencepost_fsync_duration_seconds"); n != 1 {
			t.Errorf("%d histograms, want one of all", n)
		}
	})
}

// asked counts the types whose backlog a scrape queries.
type asked struct {
	queue.Queue
	depths atomic.Int32
}

func (a *asked) Depth(ctx context.Context, typ string, most int) (queue.Depth, error) {
	if most == backlog.DefaultMax {
		a.depths.Add(1)
	}
	return a.Queue.Depth(ctx, typ, most)
}

// A scrape queries at most 500 types; the backlog of the others is reported once all of them were queried.
func TestScrapeAsksAboutAFewTypes(t *testing.T) {
	var q *asked
	types := make([]string, 1200)
	for i := range types {
		types[i] = fmt.Sprintf("t%d", i)
	}
	onWorld(t, func(c *worker.Config) { q = &asked{Queue: c.Queue}; c.Queue, c.Types = q, types }, func(t *testing.T, w *world) {
		synctest.Wait()
		for scrape, want := range []int{0, 0, 1} {
			before := q.depths.Load()
			if n := testutil.CollectAndCount(w.Metrics, "fencepost_backlog_messages"); n != want {
				t.Errorf("scrape %d: %d series of the backlog, want %d", scrape, n, want)
			}
			if n := q.depths.Load() - before; n == 0 || n > 500 {
				t.Errorf("scrape %d queried %d types", scrape, n)
			}
			if n := testutil.CollectAndCount(w.Metrics); n > 100*130 {
				t.Errorf("%d samples", n)
			}
			time.Sleep(15 * time.Second)
		}
	})
}

// Files in a directory have a volume, files in a store do not.
func TestRoomOnTheVolume(t *testing.T) {
	dir := t.TempDir()
	room, err := volume.Of(dir)
	if err != nil {
		t.Skipf("the room of a volume is not known here: %v", err)
	}
	b := workertest.Backend(t)
	for fsys, want := range map[storage.FS]int{nil: 1, storagetest.NewMem(4096): 0} {
		cfg := worker.Config{Queue: b.Queue, Locker: b.Locker, Types: []string{"orders"}, To: worker.Files{Dir: dir, Storage: storage.Options{FS: fsys}}}
		pool, err := worker.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m := metrics.New()
		m.Attach(pool, cfg)
		defer m.Close()
		for _, name := range []string{"fencepost_volume_free_bytes", "fencepost_volume_size_bytes"} {
			if n := testutil.CollectAndCount(m, name); n != want {
				t.Errorf("%s: %d samples with the file system %v, want %d", name, n, fsys, want)
			}
		}
		size := fmt.Sprintf("# HELP fencepost_volume_size_bytes Size of the volume of the files; absent when not known, and for files in a store.\n"+
			"# TYPE fencepost_volume_size_bytes gauge\nfencepost_volume_size_bytes %v\n", float64(room.Size))
		if err := testutil.CollectAndCompare(m, strings.NewReader(size), "fencepost_volume_size_bytes"); want == 1 && err != nil {
			t.Error(err)
		}
	}
}

// A wrong configuration shows at Attach, not when the first scrape ends the process.
func TestAttachWithoutAConfiguration(t *testing.T) {
	defer func() {
		if v := recover(); v == nil || !strings.Contains(v.(string), "Queue or Locker") {
			t.Errorf("panic: %v", v)
		}
	}()
	metrics.New().Attach(nil, worker.Config{})
}
