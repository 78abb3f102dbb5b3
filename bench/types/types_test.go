package types

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
	"github.com/fencepost/fencepost/bench/internal/suite/suitetest"
	"github.com/fencepost/fencepost/internal/mongotest"
)

func TestMain(m *testing.M) {
	if code, ok := Worker(); ok {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func databases(t *testing.T, uri string) []string {
	t.Helper()
	names, err := server.Databases(t.Context(), uri, "types")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestQuick runs the whole suite on tiny sizes. The suite itself checks what it measures: every message, once, in order.
func TestQuick(t *testing.T) {
	uri := mongotest.URI(t)
	before := databases(t, uri)
	o := suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: uri}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	suitetest.Check(t, o, res, []string{"≤ 2 ms", "| 16 | 10 |", nameAgain, nameFour, "### Embedded", "| delete messages |", "| together |", "workers: 4", "| 16 | " + stateHolds + " | 16 |", "| 16 | " + stateFree + " | 0 |", stateOther, stateNobody},
		[]string{"| n/a", "(n/a", "Inf"})
	if svg := res.Plots[plotDrain]; !strings.HasPrefix(svg, "<svg") || strings.Contains(svg, "NaN") {
		t.Errorf("plot: %.100q", svg)
	}
	if after := databases(t, uri); len(after) > len(before) {
		t.Errorf("databases were left behind: %v, before %v", after, before)
	}
}

func TestCancelledRunEnds(t *testing.T) {
	uri := mongotest.URI(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, suite.Options{Dir: t.TempDir(), Rounds: 1, Quick: true, Logf: t.Logf, MongoDB: uri}); err == nil || err != ctx.Err() {
		t.Errorf("got %v", err)
	}
}

// TestEmbedded needs no server.
func TestEmbedded(t *testing.T) {
	b := &bench{o: suite.Options{Dir: t.TempDir(), Rounds: 2, Quick: true, Logf: t.Logf}}
	e, err := b.measureEmbedded(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range e.counts {
		for _, workers := range e.workers {
			if ms := e.perType(n, workers); len(ms) != b.half() || ms[0] <= 0 {
				t.Errorf("%d types, %d workers: %v ms", n, workers, ms)
			}
		}
	}
	if left, err := os.ReadDir(b.o.Dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestReplicaThatFails: the error has the order and the cause, and the replica's process continues.
func TestReplicaThatFails(t *testing.T) {
	g, err := startGroup(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []order{{Do: "dance"}, {Do: doOpen, URL: "sqlite://" + t.TempDir()}} {
		if _, err := g.tell(o); err == nil || !strings.Contains(err.Error(), "replica: "+o.Do+": ") {
			t.Errorf("%s: got %v", o.Do, err)
		}
	}
	if err := g.end(); err != nil {
		t.Error(err)
	}
	if _, err := g[0].tell(order{Do: doMemory}); err == nil {
		t.Error("a process that has ended answers")
	}
}

// TestDrainThatIsIncomplete: replicas that did not drain everything are no valid comparison.
func TestDrainThatIsIncomplete(t *testing.T) {
	g, err := startGroup(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := g.tell(order{Do: doOpen, URL: "sqlite://" + dir + "/q.db", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.drain(2, 3); err == nil || !strings.Contains(err.Error(), "appended 0 messages, want 3") {
		t.Errorf("got %v", err)
	}
	if _, err := g.tell(order{Do: doClose}); err != nil {
		t.Error(err)
	}
	if err := g.end(); err != nil {
		t.Error(err)
	}
}
