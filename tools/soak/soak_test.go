package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
)

// A soak of seconds: too short to see a leak, long enough to see that everything is sampled and drained.
func TestSoak(t *testing.T) {
	worker, err := buildWorker(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]func() string{
		"embedded": func() string { return "sqlite://" + filepath.Join(t.TempDir(), "fencepost.db") },
		"mongodb":  func() string { uri, _ := mongotest.Fresh(t); return uri },
	} {
		t.Run(name, func(t *testing.T) {
			o := optionsFor(&settings{duration: 6 * time.Second, types: 12, rate: 400, size: 64}, worker, url(), filepath.Join(t.TempDir(), "data"))
			o.out = t.Output()
			out, err := soak(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if out.published == 0 || out.verified != uint64(out.published) || out.sessions == "0" {
				t.Errorf("published %d, in the files %d, sessions %s", out.published, out.verified, out.sessions)
			}
			if len(out.samples) == 0 {
				t.Fatal("no sample")
			}
			last := out.samples[len(out.samples)-1]
			// docs/limits.md has these bounds.
			if types := float64(o.types); last[heap] > (64+types)*(1<<20) || last[openFiles] > 64+3*types || last[connections] > 120 {
				t.Errorf("a worker of %v types: heap %.0f MiB, %v open files, %v connections", types, last[heap]/(1<<20), last[openFiles], last[connections])
			}
			for f, v := range last {
				if v == 0 && !(figure(f) == connections && name == "embedded") { // its only sockets are those of this test
					t.Errorf("%s: nothing was seen of it", names[f])
				}
			}
		})
	}
}

// Growth is distinguished from fluctuation.
func TestGrowth(t *testing.T) {
	run := func(value func(i int) float64) []sample {
		samples := make([]sample, 100)
		for i := range samples {
			for f := range figures {
				samples[i][f] = value(i) * slack[f]
			}
		}
		return samples
	}
	for name, test := range map[string]struct {
		value func(i int) float64
		grew  bool
	}{
		"flat":                {func(int) float64 { return 5 }, false},
		"a start, then flat":  {func(i int) float64 { return 5 + 10*float64(min(i, 20)) }, false},
		"up and down":         {func(i int) float64 { return 5 + 3*float64(i%2) }, false},
		"a peak near the end": {func(i int) float64 { return 5 + 100*float64(i/97) }, false},
		"slow growth":         {func(i int) float64 { return 5 + float64(i)*0.05 }, true},
		"a step":              {func(i int) float64 { return 5 + 3*float64(i/60) }, true},
	} {
		changes, err := growth(run(test.value))
		if err != nil || len(changes) != int(figures) {
			t.Fatalf("%s: %d figures, %v", name, len(changes), err)
		}
		for _, c := range changes {
			if c.grew() != test.grew || strings.Contains(c.String(), "GREW") != test.grew {
				t.Errorf("%s: %v; want growth %t", name, c, test.grew)
			}
		}
	}
	if _, err := growth(make([]sample, 7)); err == nil {
		t.Error("a run of 7 samples was judged")
	}
}
