package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// A file grows by 100 records per second, which its worker reports every 5 s; top looks every 2 s.
func TestTopRate(t *testing.T) {
	var g growth
	start := time.Unix(1000, 0)
	told := func(s int) uint64 { return uint64(7000 + 100*(s/5*5)) }
	for s := 0; s <= 60; s += 2 {
		now := start.Add(time.Duration(s) * time.Second)
		g = g.look(told(s), now)
		switch r := g.rate(now); {
		case s < 6 && r != nil:
			t.Errorf("after %d s: %v; one change is no rate", s, *r)
		case s >= 12 && (r == nil || *r < 60 || *r > 140):
			t.Errorf("after %d s: %v, want about 100", s, r)
		}
	}
	now := start.Add(2 * time.Minute)
	if g = g.look(told(60), now); *g.rate(now) != 0 {
		t.Errorf("a file that does not grow: %v", *g.rate(now))
	}
	if g = g.look(5, now); g.rate(now) != nil {
		t.Error("a file that went back has a rate")
	}
}

func TestTopState(t *testing.T) {
	now := time.Unix(2000, 0)
	held := lock.Record{Token: 7, Hold: &lock.Hold{Lease: 20 * time.Second, Owner: lock.Process{Host: "h", PID: 5}}, At: now.Add(-3 * time.Second)}
	silent, asked := held, held
	silent.At = now.Add(-time.Minute)
	asked.Hold = &lock.Hold{Lease: 20 * time.Second, Asked: "compaction"}
	for _, c := range []struct {
		lock    lock.Record
		set     queue.Settings
		backlog int
		want    string
	}{
		{lock.Record{}, queue.Settings{}, 0, "idle"},
		{lock.Record{}, queue.Settings{}, 3, "not drained"},
		{held, queue.Settings{}, 3, "held"},
		{silent, queue.Settings{}, 0, "holder silent"},
		{asked, queue.Settings{}, 0, "asked to release: compaction"},
		{lock.Record{}, queue.Settings{DrainPaused: true, PublishPaused: true}, 3, "paused"},
		{held, queue.Settings{MaxBacklog: 10}, 3, "limit 10"},
	} {
		r := topRow{Backlog: &c.backlog}
		if r.describe(c.lock, c.set, now); r.State != c.want {
			t.Errorf("%+v: %q, want %q", c, r.State, c.want)
		}
	}
}

// The screen is never larger than the terminal, and says why its data is old.
func TestTopScreen(t *testing.T) {
	now := time.Unix(3000, 0)
	s := &snapshot{at: now.Add(-4 * time.Second), workers: 2}
	count := 3
	age := 90.0
	for i := range 30 {
		s.Rows = append(s.Rows, topRow{Type: "type-" + string(rune('a'+i%26)), Backlog: &count, OldestSeconds: &age, State: strings.Repeat("ä", 100)})
	}
	for _, size := range []struct{ width, height int }{{80, 24}, {20, 4}, {300, 100}} {
		for _, failed := range []error{nil, errors.New("the server is away\nand more")} {
			got := screen("mongodb://db/shop", s, failed, size.width, size.height, now)
			lines := strings.Split(got, "\r\n")
			if len(lines) > size.height {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, line := range lines {
				line = strings.NewReplacer(home, "", clearLine, "", clearBelow, "").Replace(line)
				if n := len([]rune(line)); n > size.width {
					t.Errorf("%v: a line of %d: %q", size, n, line)
				}
			}
			if failed != nil && size.width > 80 && !strings.Contains(got, "cannot look: the server is away …; as of 4s ago:") {
				t.Errorf("the failure is not told: %q", lines[1])
			}
		}
	}
	if got := screen("mongodb://db/shop", s, nil, 80, 24, now); !strings.Contains(got, "… and 10 more types") {
		t.Errorf("rows left out are not told:\n%s", got)
	}
}

func TestTopLastError(t *testing.T) {
	now := time.Unix(2000, 0)
	said := func(id string, ago time.Duration, held []string, what string) queue.Member {
		return queue.Member{Instance: id, Seen: now.Add(-ago), Held: held, Errors: map[string]string{"orders": what}}
	}
	for _, c := range []struct {
		members []queue.Member
		want    string
	}{
		{nil, ""},
		{[]queue.Member{{Instance: "a", Seen: now}}, ""},
		{[]queue.Member{said("a", time.Second, nil, "two\nlines")}, "two\nlines"},
		{[]queue.Member{said("a", time.Second, []string{"orders"}, "the disk is full"), said("b", time.Second, nil, "no permission")}, "the disk is full"},
		{[]queue.Member{said("a", time.Hour, []string{"orders"}, "long ago")}, ""},
	} {
		if got := cli.Failures(c.members, now)["orders"]; got != c.want {
			t.Errorf("%+v: %q, want %q", c.members, got, c.want)
		}
	}
	var out strings.Builder
	if err := (&snapshot{Rows: []topRow{{Type: "orders", State: "held", LastError: "the disk is full\nand more"}}}).table(&out); err != nil || !strings.HasSuffix(out.String(), "  the disk is full …\n") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// The place of the files is shown once, and per type only if the files are in different places.
func TestTopTellsPlaces(t *testing.T) {
	rows := func(places ...string) *snapshot {
		s := &snapshot{}
		for i, p := range places {
			s.Rows = append(s.Rows, topRow{Type: string(rune('a' + i)), State: "held", Place: p})
		}
		return s
	}
	for _, c := range []struct {
		s             *snapshot
		title, column string // "": none
	}{
		{rows(), "", ""},
		{rows(""), "", ""},
		{rows("mongodb:", "mongodb:"), "files in mongodb:", ""},
		{rows("mongodb:", ""), "files in mongodb:", ""},
		{rows("mongodb:", "db1:/data", ""), "", "held   mongodb:   -\nheld   db1:/data  -\nheld   -          -\n"},
	} {
		title, table, _ := strings.Cut(screen("db", c.s, nil, 200, 50, time.Unix(0, 0)), "\r\n")
		if got := strings.Contains(title, "files in"); got != (c.title != "") || !strings.Contains(title, c.title) {
			t.Errorf("%+v: title %q, want %q", c.s.Rows, title, c.title)
		}
		if got := strings.Contains(table, "PLACE"); got != (c.column != "") {
			t.Errorf("%+v: %q", c.s.Rows, table)
		}
		var ends strings.Builder
		for _, line := range strings.Split(strings.ReplaceAll(table, clearLine, ""), "\r\n") {
			if i := strings.Index(line, "held "); i >= 0 && c.column != "" {
				ends.WriteString(strings.TrimSuffix(line[i:], clearBelow) + "\n")
			}
		}
		if ends.String() != c.column {
			t.Errorf("%+v: column %q, want %q", c.s.Rows, ends.String(), c.column)
		}
	}
}
