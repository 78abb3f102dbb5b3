package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// figure is something that must not grow.
type figure int

const (
	memory figure = iota // resident, in bytes
	heap                 // in use, in bytes
	goroutines
	openFiles   // sockets are not counted
	connections // sockets
	documents   // or rows, of all collections
	figures
)

var (
	names = [figures]string{"memory", "heap", "goroutines", "open files", "connections", "documents"}
	// slack is how much a figure may differ between two times without having grown: sessions come and go, and the collector
	// returns memory when it likes. A leak of a byte per message, or of a goroutine per session, is far more in half an hour.
	slack = [figures]float64{24 << 20, 24 << 20, 150, 40, 24, 400}
)

// relativeSlack is allowed in addition, as a fraction of the earlier value.
const relativeSlack = 0.15

// sample is all figures at one time.
type sample [figures]float64

// sample reads the figures from the worker, from the kernel about the worker, and from the backend.
func (w *workerProcess) sample(ctx context.Context, count func(context.Context) (int64, error)) (s sample, err error) {
	text, err := w.metrics(ctx)
	if err != nil {
		return s, err
	}
	for f, metric := range map[figure]string{memory: "process_resident_memory_bytes", heap: "go_memstats_heap_inuse_bytes", goroutines: "go_goroutines"} {
		_, rest, ok := strings.Cut(text, "\n"+metric+" ")
		if !ok {
			return s, fmt.Errorf("the worker has no metric %s", metric)
		}
		line, _, _ := strings.Cut(rest, "\n")
		if s[f], err = value(line); err != nil {
			return s, err
		}
	}
	dir := filepath.Join("/proc", strconv.Itoa(w.cmd.Process.Pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return s, err
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, fd.Name()))
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(target, "socket:"):
			s[connections]++
		default:
			s[openFiles]++
		}
	}
	n, err := count(ctx)
	s[documents] = float64(n)
	return s, err
}

// value returns the last word of a line.
func value(line string) (float64, error) {
	words := strings.Fields(line)
	return strconv.ParseFloat(words[len(words)-1], 64)
}

// counter returns a function that counts all documents of the backend.
func counter(b *fencepost.Backend, url string) (count func(context.Context) (int64, error), closer func() error, err error) {
	if q, ok := b.Queue.(*mongoqueue.Queue); ok {
		return func(ctx context.Context) (total int64, err error) {
			collections, err := q.DB().ListCollectionNames(ctx, bson.D{})
			for _, c := range collections {
				n, err := q.DB().Collection(c).CountDocuments(ctx, bson.D{})
				if err != nil {
					return 0, err
				}
				total += n
			}
			return total, err
		}, func() error { return nil }, nil
	}
	db, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(url, "sqlite://")+"?mode=ro")
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (total int64, err error) {
		rows, err := db.QueryContext(ctx, "SELECT name FROM sqlite_master WHERE type = 'table'")
		if err != nil {
			return 0, err
		}
		var tables []string
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return 0, err
			}
			tables = append(tables, name)
		}
		if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
			return 0, err
		}
		for _, table := range tables {
			var n int64
			if err := db.QueryRowContext(ctx, `SELECT count(*) FROM "`+table+`"`).Scan(&n); err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	}, db.Close, nil
}

// change compares a figure's medians in the second and in the last quarter of a run. In the first quarter everything is still
// being created.
type change struct {
	figure       figure
	before, then float64
	most         float64 // of the whole run
}

func (c change) grew() bool { return c.then > c.before*(1+relativeSlack)+slack[c.figure] }

func (c change) String() string {
	show := func(v float64) string {
		if c.figure == memory || c.figure == heap {
			return fmt.Sprintf("%.1f MiB", v/(1<<20))
		}
		return fmt.Sprintf("%.0f", v)
	}
	verdict := ""
	if c.grew() {
		verdict = "   GREW"
	}
	return fmt.Sprintf("%-12s second quarter %9s   last quarter %9s   most %9s%s", names[c.figure], show(c.before), show(c.then), show(c.most), verdict)
}

// growth compares the quarters of a run.
func growth(samples []sample) ([]change, error) {
	if len(samples) < 8 {
		return nil, fmt.Errorf("only %d samples; a run needs at least 8 to be judged", len(samples))
	}
	n := len(samples)
	var changes []change
	for f := range figures {
		of := func(part []sample) []float64 {
			var values []float64
			for _, s := range part {
				values = append(values, s[f])
			}
			slices.Sort(values)
			return values
		}
		changes = append(changes, change{f, median(of(samples[n/4 : n/2])), median(of(samples[n*3/4:])), of(samples)[n-1]})
	}
	return changes, nil
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
