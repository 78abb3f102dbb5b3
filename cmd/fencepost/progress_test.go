package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// One bar counts the bytes of all files, each once, and never more than they had at the start.
func TestProgressCountsBytes(t *testing.T) {
	sizes := map[string]int64{"a": 100, "b": 50}
	var out bytes.Buffer
	p := newByteProgress(&out, "verify", []string{"a", "b", "a", "missing"}, func(path string) (int64, error) {
		if n, ok := sizes[path]; ok {
			return n, nil
		}
		return 0, errors.New("is not there")
	})
	is := func(done, total int64) {
		t.Helper()
		if s := p.bar.State(); s.CurrentNum != done || s.Max != total {
			t.Errorf("%d of %d, want %d of %d", s.CurrentNum, s.Max, done, total)
		}
	}
	is(0, 150)
	a := p.file("a")
	a(30, 100)
	a(20, 100) // a second pass
	a(40, 100)
	is(40, 150)
	p.more("c", 200)
	p.more("c", 200)
	is(40, 350)
	p.file("b")(70, 70) // it has grown
	is(110, 370)
	p.finish("a") // the rest of a cannot be read
	p.finish("a")
	p.finish("missing")
	is(170, 370)
	p.file("c")(200, 200)
	is(370, 370)
	p.more("d", 100)
	p.file("d")(60, 100)
	is(430, 470)
	if p.bar.IsFinished() {
		t.Error("it ends with the files before the last")
	}
	if p.clear(); !strings.Contains(out.String(), "verify") {
		t.Errorf("it shows %q", out.String())
	}
	var none *byteProgress
	if none.finish("a"); none.file("a") != nil {
		t.Error("nothing is shown, and counted")
	}
	none.clear()
}
