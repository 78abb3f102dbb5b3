package measure

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want Summary
	}{
		{[]float64{7}, Summary{7, 7, 7, 7, 7}},
		{[]float64{4, 1, 3, 2}, Summary{1, 1.75, 2.5, 3.25, 4}},
		{[]float64{5, 1, 4, 2, 3}, Summary{1, 2, 3, 4, 5}},
	} {
		if got := Summarize(c.in); got != c.want {
			t.Errorf("Summarize(%v) = %v, want %v", c.in, got, c.want)
		}
	}
	if got := Summarize(nil); !math.IsNaN(got.Median) {
		t.Errorf("Summarize(nil) = %v", got)
	}
}

func TestTimes(t *testing.T) {
	times := Times{
		"slow": {{2, 4, 600}, {10, 10, 10}}, // medians 4, 10
		"fast": {{1, 2, 3}, {5, 5, 5}},      // medians 2, 5
	}
	if got := times.Ratios("slow", "fast"); got[0] != 2 || got[1] != 2 {
		t.Errorf("Ratios = %v, want 2 in each round, whatever the outlier", got)
	}
	if got, want := times.Whole("slow", "fast"), 636.0/21; math.Abs(got-want) > 1e-9 {
		t.Errorf("Whole = %v, want %v", got, want)
	}
	if got := times.Median("slow"); got != 7 {
		t.Errorf("Median = %v, want 7ns", got)
	}
}

func TestRun(t *testing.T) {
	counts := map[string]int{}
	prepared, ended := 0, 0
	var contenders []Contender
	for _, name := range []string{"a", "b", "c"} {
		contenders = append(contenders, Contender{Name: name,
			Prepare: func() error { prepared++; time.Sleep(50 * time.Millisecond); return nil },
			Run:     func() error { counts[name]++; return nil }})
	}
	times, err := Run(context.Background(), Plan{Rounds: 3, Blocks: 2, EndBlock: func() error { ended++; return nil }}, contenders)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range counts {
		if n != 1+3*2 || len(times[name]) != 3 || len(times[name][0]) != 2 {
			t.Errorf("%s ran %d times, times %v", name, n, times[name])
		}
		if d := times.Median(name); d > 25*time.Millisecond {
			t.Errorf("%s took %v: its preparation was measured, too", name, d)
		}
	}
	if prepared != 3*7 || ended != 3*2 {
		t.Errorf("prepared %d times, ended %d blocks", prepared, ended)
	}
}

func TestRunStops(t *testing.T) {
	boom := errors.New("boom")
	fails := []Contender{{Name: "x", Run: func() error { return boom }}}
	if _, err := Run(context.Background(), Plan{Rounds: 1, Blocks: 1}, fails); !errors.Is(err, boom) {
		t.Errorf("error of a contender: got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	runs := 0
	cancels := []Contender{{Name: "x", Run: func() error { runs++; cancel(); return nil }}}
	if _, err := Run(ctx, Plan{Rounds: 5, Blocks: 5}, cancels); !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("cancelled: %v after %d runs", err, runs)
	}
}
