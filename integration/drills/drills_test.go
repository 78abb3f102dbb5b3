package drills

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/integration/kit"
	"github.com/fencepost/fencepost/internal/mongotest"
)

// programs is the directory of the built programs.
var programs string

var (
	sequences = flag.Int("sequences", 2, "number of random sequences on each backend")
	firstSeed = flag.Uint64("first", 1, "seed of the first one")
	length    = flag.Int("length", 25, "steps of each")
	record    = flag.String("record", "", "write a page about the played sequences to this file")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "drills:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "fencepost-drills-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	programs = dir
	if err := kit.Build(dir, false); err != nil {
		return 1, err
	}
	began := time.Now()
	code := m.Run()
	if *record != "" {
		return code, writeRecord(*record, began)
	}
	return code, nil
}

// onEachBackend runs f with an estate on the embedded backend and with one on a MongoDB server.
func onEachBackend(t *testing.T, seed uint64, f func(t *testing.T, e *estate)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "fencepost.db")
		f(t, newEstate(t, seed, "sqlite://"+path, kit.Embedded{Path: path}))
	})
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		uri, db := mongotest.Fresh(t)
		f(t, newEstate(t, seed, uri, kit.Server{Database: db}))
	})
}

// runbooks lists the situations of docs/operations.md, each as the steps that lead into it and out of it.
var runbooks = []struct {
	name  string
	steps []string
}{
	{"host lost", []string{"publish", "drain, killed", "host lost", "publish", "drain", "go on with a killed publish"}},
	{"newest copy of the files", []string{"publish", "drain", "back up the files", "publish", "files set back", "drain"}},
	{"older copy of the files", []string{"publish", "drain", "back up the files", "publish", "drain", "publish", "files set back", "drain"}},
	{"database set back", []string{"publish", "publish delayed messages", "drain", "publish", "back up the database", "publish delayed messages",
		"publish", "drain", "publish", "database set back", "publish", "publish delayed messages", "drain", "dead letters"}},
	{"database set back behind two generations", []string{"publish", "drain", "back up the database", "compact", "publish", "drain", "compact",
		"publish", "drain", "database set back", "publish", "drain"}},
	{"database lost", []string{"publish", "drain", "publish", "database lost", "publish", "drain", "database lost", "publish", "drain"}},
	{"database and files set back, files older", []string{"publish", "drain", "back up the files", "publish", "drain", "back up the database",
		"publish", "drain", "database and files set back", "publish", "drain"}},
	{"database and files set back, files newer", []string{"publish", "drain", "publish", "back up the database", "publish", "drain",
		"back up the files", "publish", "drain", "database and files set back", "publish", "drain"}},
	{"parts of the database lost", []string{"publish", "drain", "publish", "part of the database lost", "drain", "publish",
		"part of the database lost", "part of the database lost", "drain", "part of the database lost", "publish", "drain"}},
	{"files moved", []string{"publish", "drain", "publish", "files moved", "drain"}},
	{"files cloned", []string{"publish", "drain", "publish", "files cloned", "drain"}},
	{"newest file lost", []string{"publish", "drain", "compact", "publish", "drain", "publish", "newest file lost", "drain", "publish", "drain"}},
	{"all files lost", []string{"publish", "drain", "publish", "all files lost", "drain", "publish", "drain"}},
	{"publisher set back", []string{"publish", "publish, killed", "drain", "publisher set back", "drain"}},
}

func TestRunbooks(t *testing.T) {
	for i, book := range runbooks {
		t.Run(book.name, func(t *testing.T) {
			t.Parallel()
			onEachBackend(t, uint64(i), func(t *testing.T, e *estate) {
				for _, name := range book.steps {
					if s := stepNamed(name); !e.play(s) && s.disaster {
						e.fatalf("%s cannot happen here", name)
					}
				}
				e.finish()
			})
		})
	}
}

// play does a step, and checks the guarantee after it.
func (e *estate) play(s step) bool {
	e.t.Helper()
	if !s.do(e) {
		return false
	}
	e.played[s.name]++
	e.keep(s.name)
	return true
}

// TestRandomDisasters plays random sequences of steps. A failure prints all of them; the same seed plays the same plan.
func TestRandomDisasters(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+uint64(*sequences); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // most of it is waiting for leases
			onEachBackend(t, seed, func(t *testing.T, e *estate) {
				defer func() { e.note(t, path.Base(t.Name())) }()
				for range *length {
					for !e.play(e.draw()) {
					}
				}
				e.finish()
			})
		})
	}
}

// draw draws a step: one of three is a disaster.
func (e *estate) draw() step {
	disaster := e.rng.IntN(3) == 0
	for {
		if s := steps[e.rng.IntN(len(steps))]; s.disaster == disaster {
			return s
		}
	}
}
