//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

var orders = stream{"p1", "orders"}

// history returns what two producers sent of orders, and the file that holds it. Of p1, 5 was refused and 6 is unknown and present;
// of p2, 3 is unknown and missing.
func history() (ledger, []entry) {
	l := ledger{
		orders:           {confirmed, confirmed, confirmed, confirmed, refused, unknown, confirmed, confirmed},
		{"p2", "orders"}: {confirmed, confirmed, unknown, confirmed},
		{"p1", "audit"}:  {confirmed},
	}
	var file []entry
	counters := map[string]uint64{}
	for _, m := range []struct {
		producer string
		n        int
	}{{"p1", 1}, {"p1", 2}, {"p2", 1}, {"p1", 3}, {"p2", 2}, {"p1", 4}, {"p1", 6}, {"p1", 7}, {"p2", 4}, {"p1", 8}} {
		counters[m.producer]++
		id := queue.NewID(time.UnixMilli(1), uint64(m.producer[1]), counters[m.producer])
		file = append(file, entry{Index: uint64(len(file)), ID: id.String(), Epoch: 7 + uint64(len(file)/5), Payload: string(stream{m.producer, "orders"}.payload(m.n))})
	}
	return l, file
}

// renumber gives the messages of a file the indexes and counters that a writer and a publisher would have given them.
func renumber(file []entry) []entry {
	for i := range file {
		file[i].Index = uint64(i)
		file[i].ID = queue.NewID(time.UnixMilli(1), 1, uint64(i+1)).String()
	}
	return file
}

// The checker finds nothing in a correct file, and finds a single fault in a faulty one.
func TestCheckerFinds(t *testing.T) {
	swap := func(i, j int) func(ledger, []entry) []entry {
		return func(_ ledger, f []entry) []entry {
			f[i].Payload, f[j].Payload = f[j].Payload, f[i].Payload
			return f
		}
	}
	for name, c := range map[string]struct {
		want string // a kind; "" = nothing
		harm func(ledger, []entry) []entry
	}{
		"nothing wrong":          {"", func(_ ledger, f []entry) []entry { return f }},
		"producers interleaved":  {"", func(_ ledger, f []entry) []entry { f[1], f[2] = f[2], f[1]; f[1].Index, f[2].Index = 1, 2; return f }},
		"an unknown one missing": {"", func(_ ledger, f []entry) []entry { return renumber(slices.Delete(f, 6, 7)) }},
		"a confirmed one lost":   {"lost", func(_ ledger, f []entry) []entry { return renumber(slices.Delete(f, 3, 4)) }},
		"the last one lost":      {"lost", func(_ ledger, f []entry) []entry { return f[:len(f)-1] }},
		"all lost":               {"lost", func(ledger, []entry) []entry { return nil }},
		"one doubled":            {"doubled", func(_ ledger, f []entry) []entry { return renumber(slices.Insert(f, 4, f[3])) }},
		"an unknown one doubled": {"doubled", func(_ ledger, f []entry) []entry { return renumber(append(f, f[6])) }},
		"reordered":              {"order", swap(0, 1)},
		"reordered far":          {"order", swap(0, 9)},
		"an ID's counter back":   {"order", func(_ ledger, f []entry) []entry { f[9].ID = f[5].ID; return f }},
		"an unknown one early": {"", func(_ ledger, f []entry) []entry { // it may have arrived at any time
			early := f[6]
			early.Epoch = f[0].Epoch
			return renumber(append([]entry{early}, slices.Delete(f, 6, 7)...))
		}},
		"a refused one": {"refused", func(_ ledger, f []entry) []entry {
			return renumber(append(f, entry{Epoch: 9, Payload: string(orders.payload(5))}))
		}},
		"never sent": {"foreign", func(_ ledger, f []entry) []entry {
			return renumber(append(f, entry{Epoch: 9, Payload: string(orders.payload(9))}))
		}},
		"of another type": {"foreign", func(_ ledger, f []entry) []entry {
			return renumber(append(f, entry{Epoch: 9, Payload: string(stream{"p1", "audit"}.payload(1))}))
		}},
		"of nobody":         {"foreign", func(_ ledger, f []entry) []entry { return renumber(append(f, entry{Epoch: 9, Payload: "hello"})) }},
		"a bit flipped":     {"corrupt", func(_ ledger, f []entry) []entry { f[2].Payload = flip(f[2].Payload); return f }},
		"cut short":         {"corrupt", func(_ ledger, f []entry) []entry { f[2].Payload = f[2].Payload[:len(f[2].Payload)-1]; return f }},
		"a malformed ID":    {"corrupt", func(_ ledger, f []entry) []entry { f[2].ID = "x"; return f }},
		"an index left out": {"index", func(_ ledger, f []entry) []entry { f[9].Index++; return f }},
		"an epoch back":     {"epoch", func(_ ledger, f []entry) []entry { f[9].Epoch = 7; return f }},
		"a declared gap":    {"gap", func(_ ledger, f []entry) []entry { f[9].AfterGap = true; return f }},
	} {
		t.Run(name, func(t *testing.T) {
			l, file := history()
			var v violations
			checkType("orders", l, c.harm(l, file), &v)
			found := v.all()
			if c.want == "" {
				if len(found) > 0 {
					t.Errorf("found %q", found)
				}
				return
			}
			if !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, c.want+": ") }) {
				t.Errorf("found %q, want one of kind %q", found, c.want)
			}
		})
	}
}

// flip changes the last byte of a text.
func flip(s string) string { return s[:len(s)-1] + string(s[len(s)-1]^1) }

func TestJournal(t *testing.T) {
	dir := t.TempDir()
	j, err := newJournal(dir, "p1")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []struct {
		word     string
		from, to int
	}{{"sent", 1, 4}, {"confirmed", 1, 2}, {"refused", 3, 3}, {"unknown", 4, 4}, {"sent", 5, 6}} {
		if err := j.note(n.word, "orders", n.from, n.to); err != nil {
			t.Fatal(err)
		}
	}
	l, err := readJournals(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l[orders], []outcome{confirmed, confirmed, refused, unknown, unknown, unknown}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if l.count(unknown) != 3 || l.count(confirmed) != 2 || l.count(refused) != 1 {
		t.Errorf("counts of %v", l)
	}
	if _, err := newJournal(dir, "p1"); err == nil {
		t.Error("a producer may reuse its numbers")
	}
	for _, bad := range []string{"confirmed orders 1 1", "sent orders 2 3", "sent orders 1", "lost orders 1 1"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "p2"+journalSuffix), []byte(bad+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readJournals(dir); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q is accepted: %v", bad, err)
		}
	}
}

func TestPayloadsTellWhoseTheyAre(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range []stream{orders, {"p1", "audit"}, {"p11", "orders"}, {"p1.2", "orders"}} {
		for n := 1; n <= 200; n++ {
			b := s.payload(n)
			if got, m, ok := parsePayload(b); !ok || got != s || m != n {
				t.Fatalf("%q is read as %v %d", b, got, m)
			}
			if seen[string(b)] {
				t.Fatalf("%q twice", b)
			}
			seen[string(b)] = true
		}
	}
}

// The registry may be behind the files, and never ahead of them.
func TestRegistryIsNeverAhead(t *testing.T) {
	file := func(id string, next int, epochs ...uint64) verified {
		v := verified{FileID: id, Next: next}
		for _, e := range epochs {
			v.Regions = append(v.Regions, struct {
				Epoch uint64 `json:"epoch"`
			}{e})
		}
		return v
	}
	files := []verified{file("a", 10, 1, 3), file("b", 20, 3, 4)}
	for name, tc := range map[string]struct {
		shown shownType
		ahead bool
	}{
		"level":                {shownType{FileID: "b", Durable: 20, Epoch: 4}, false},
		"behind by messages":   {shownType{FileID: "b", Durable: 12, Epoch: 4}, false},
		"behind by an epoch":   {shownType{FileID: "b", Durable: 12, Epoch: 3}, false},
		"behind by a file":     {shownType{FileID: "a", Durable: 10, Epoch: 3}, false},
		"more messages":        {shownType{FileID: "b", Durable: 21, Epoch: 4}, true},
		"more than in a's":     {shownType{FileID: "a", Durable: 11, Epoch: 3}, true},
		"a later epoch":        {shownType{FileID: "b", Durable: 20, Epoch: 5}, true},
		"a later epoch of a's": {shownType{FileID: "a", Durable: 10, Epoch: 4}, true},
		"another file":         {shownType{FileID: "c"}, true},
		"no file":              {shownType{}, true},
	} {
		if problem := tc.shown.ahead(files); (problem != "") != tc.ahead {
			t.Errorf("%s: %q", name, problem)
		}
	}
	if problem := (shownType{}).ahead(nil); problem != "" {
		t.Error(problem)
	}
}
