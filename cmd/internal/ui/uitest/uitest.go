// Package uitest creates test data for the pages: types in all states, files with every kind of record, and hostile texts. It is for
// the tests of package ui, including those in a browser.
package uitest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/lock/locktest"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
	"github.com/rs/zerolog"
)

// Hostile contains text that could deceive a browser or a reader: markup that would run, and characters that reorder or hide text.
const (
	Hostile = markup + "\x1b[31m\u202egpj.exe\u2066\u200b\x00'"
	markup  = `"><script>window.hurt=1</script><img src=x onerror="window.hurt=2">`
)

// LongType is a type whose name is as long as allowed, and has no place to break a line.
var LongType = strings.Repeat("averylongtypename", 4)[:64]

// Until waits, for up to a minute, until done returns true.
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Estate is a backend and a directory of files.
type Estate struct {
	Backend *fencepost.Backend
	Dir     string
	Place   string // of the directory, as in the registry
	Large   queue.ID
	Dead    queue.ID // of the hostile dead letter
}

// New makes an estate.
func New(t testing.TB) *Estate {
	t.Helper()
	ctx := context.Background()
	q := queuetest.NewMemory()
	locks := locktest.NewMemory()
	locker := func(host string, pid int) *lock.Locker {
		l, err := lock.New(locks.Open(), lock.Options{Owner: lock.Process{Host: host, PID: pid, Instance: fmt.Sprintf("%012x", pid*7919)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(ctx) })
		return l
	}
	e := &Estate{Backend: &fencepost.Backend{Queue: q, Locker: locker("desk", 100), Name: "mongodb://db1,db2,db3/shop"}, Dir: t.TempDir()}
	e.Place = "node-1:/srv/fencepost"
	p, err := queue.NewPublisher(ctx, q, queue.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(ctx) })
	publish := func(typ string, n int, headers map[string]string) {
		for i := range n {
			e.publish(t, p, typ, fmt.Sprintf(`{"order":%d,"customer":"c-%d","lines":[{"sku":"chair","qty":%d}],"total":%d.50}`, 1000+i, i%17, 1+i%4, 20+i), headers)
		}
	}
	publish("orders", 3, map[string]string{"trace": "4bf92f3577b34da6", "source": "shop"})
	publish("invoices", 40, nil)
	publish("payments", 7, nil)
	e.publish(t, p, "hostile", Hostile, map[string]string{"comment": Hostile})
	e.publish(t, p, "hostile", "\xff\xfe\x80 not text", nil)
	e.Large = e.publish(t, p, "hostile", strings.Repeat("large ", queue.MaxPayload/6), nil)
	for _, typ := range []string{"audit.eu", "audit.us", "shipments", "returns", LongType} {
		check(t, q.RegisterType(ctx, typ))
	}

	one, two := locker("node-1", 4711), locker("node-2", 812)
	hold := func(l *lock.Locker, name string, o ...lock.Option) {
		if _, err := l.Acquire(ctx, name, o...); err != nil {
			t.Fatal(err)
		}
	}
	for _, typ := range []string{"orders", "audit.eu", "hostile"} {
		hold(one, typ, lock.WithWhy("worker b3a1"))
	}
	for _, typ := range []string{"payments", "shipments"} {
		hold(two, typ, lock.WithWhy("worker 77c0"))
	}
	hold(one, "report/"+markup, lock.WithWhy(Hostile))
	hold(two, "report/7", lock.WithWhy("monthly report"))
	waiting, stop := context.WithCancel(ctx)
	queued := make(chan struct{})
	go func() {
		defer close(queued)
		one.Acquire(waiting, "report/7", lock.WithFair(), lock.WithWhy("weekly report"))
	}()
	t.Cleanup(func() { stop(); <-queued })
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until it waits in line
		if r, ok := locks.Get("report/7"); ok && len(r.Queue) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits for the lock")
		}
	}
	for _, m := range []queue.Member{
		{Instance: "b3a1f0c92d11", Host: "node-1", PID: 4711, Version: "v0.3.0", Types: []string{"orders", "audit.*", "hostile", "shipments"}, Held: []string{"orders", "audit.eu", "hostile"}, Idle: []string{"audit.eu"},
			Errors: map[string]string{"hostile": "append: " + Hostile}},
		{Instance: "77c0aa31be02", Host: "node-2", PID: 812, Version: "v0.3.0", Types: []string{"payments", "shipments", "orders"}, Held: []string{"payments", "shipments"}, Idle: []string{"shipments"}, MaxTypes: 10, Stopping: true},
	} {
		check(t, q.Heartbeat(ctx, m))
	}
	pause := true
	limit := 1000
	_, err = q.PatchSettings(ctx, "audit.us", queue.SettingsPatch{DrainPaused: &pause, Why: "the disk is being replaced"})
	check(t, err)
	_, err = q.PatchSettings(ctx, "orders", queue.SettingsPatch{MaxBacklog: &limit, Why: Hostile})
	check(t, err)

	now, err := q.Now(ctx)
	check(t, err)
	letter := func(typ, payload, reason string, n uint64) queue.ID {
		id := queue.NewID(now.Add(-time.Hour), 77, n)
		check(t, q.MoveToDeadLetters(ctx, typ, []queue.DeadLetter{{Message: queue.Message{Type: typ, ID: id, Payload: []byte(payload), Headers: map[string]string{"attempt": "5"}}, Reason: reason, Attempts: 5, Worker: "node-1 pid 4711"}}))
		return id
	}
	letter("payments", `{"payment":17,"amount":"12.00"}`, "handler: card service: connection refused\nat pay.go:71", 1)
	e.Dead = letter("hostile", Hostile, Hostile, 2)
	for i := range 3 {
		_, err := p.PublishAfter(ctx, time.Duration(i+1)*time.Hour, "returns", []byte(`{"remind":true}`), nil)
		check(t, err)
	}
	_, err = p.PublishAfter(ctx, 90*time.Minute, "hostile", []byte(Hostile), nil)
	check(t, err)
	e.files(t)
	return e
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (e *Estate) publish(t testing.TB, p *queue.Publisher, typ, payload string, headers map[string]string) queue.ID {
	t.Helper()
	id, err := p.Publish(context.Background(), typ, []byte(payload), headers)
	check(t, err)
	return id
}

// files writes the file of orders: two generations, three writers, void bytes, a declared gap, a message put aside, a torn end.
func (e *Estate) files(t testing.TB) {
	t.Helper()
	began := time.Now().Add(-time.Hour)
	n := uint64(0)
	put := func(w *storage.Writer, many int, kind storage.Kind) {
		var recs []storage.Record
		for range many {
			n++
			id := queue.NewID(began.Add(time.Duration(n)*time.Second), 42, n)
			rec := storage.Record{Kind: kind, ID: id[:], Time: id.Time().UnixNano(), Payload: fmt.Appendf(nil, `{"order":%d,"customer":"c-%d","total":%d.50}`, n, n%17, n%90)}
			switch {
			case kind == storage.KindSkipped:
				rec.Payload = []byte("put aside: " + Hostile)
			case n == 5:
				rec.Payload, rec.Headers = []byte(Hostile), []storage.Header{{Key: "comment", Value: Hostile}, {Key: strings.Repeat("LongHeader", 300), Value: "x"}}
			}
			recs = append(recs, rec)
		}
		check(t, w.Append(recs))
	}
	open := func(epoch uint64, host string, pid int) *storage.Writer {
		w, err := storage.Open(context.Background(), e.Dir, "orders", epoch, storage.Options{Holder: storage.Holder{Host: host, PID: pid}})
		check(t, err)
		return w
	}
	w := open(11, "node-1", 4100)
	put(w, 40, storage.KindMessage)
	w, err := w.Rotate(context.Background(), []byte("state"))
	check(t, err)
	for range 8 {
		put(w, 25, storage.KindMessage)
	}
	check(t, w.Close())
	e.litter(t, w.Path(), 3000)
	w = open(12, "node-2", 812)
	put(w, 120, storage.KindMessage)
	put(w, 1, storage.KindAfterGap)
	put(w, 60, storage.KindMessage)
	put(w, 1, storage.KindSkipped)
	check(t, w.Close())
	w = open(14, "node-1", 4711)
	put(w, 90, storage.KindMessage)
	_, err = w.Sync()
	check(t, err)
	entry := w.Entry()
	check(t, w.Close())
	e.litter(t, w.Path(), 700)
	_, err = e.Backend.Queue.RegisterFile(context.Background(), "orders", queue.RegistryEntry{FileID: entry.FileID, Generation: entry.Generation, Epoch: entry.Epoch, DurableIndex: entry.DurableIndex - 2, Place: e.Place})
	check(t, err)
	_, err = e.Backend.Queue.RegisterFile(context.Background(), "payments", queue.RegistryEntry{FileID: [16]byte{9}, Generation: 1, Epoch: 7, DurableIndex: 181_204, Place: "node-2:/srv/fencepost"})
	check(t, err)
}

// litter appends to a file what a dying writer leaves.
func (e *Estate) litter(t testing.TB, path string, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	check(t, err)
	_, err = f.Write([]byte(strings.Repeat("half a batch ", n/13)))
	check(t, err)
	check(t, f.Close())
}

// Options returns options for a UI of the estate.
func (e *Estate) Options() ui.Options {
	return ui.Options{Backend: e.Backend, Files: chain.Files{Dir: e.Dir, Place: e.Place}, Refresh: 500 * time.Millisecond, CountUpTo: 10_000, Log: zerolog.Nop()}
}

// File returns the path of the newest file of orders.
func (e *Estate) File() string { return filepath.Join(e.Dir, storage.GenerationName("orders", 2)) }

// Locks returns the names of all locks.
func (e *Estate) Locks() (names []string) {
	records, err := e.Backend.Locker.List(context.Background())
	if err != nil {
		panic(err) // it is in memory
	}
	for _, r := range records {
		names = append(names, r.Name)
	}
	return names
}
