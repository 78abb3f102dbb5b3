package integration

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/storage"
)

var filesEpoch = time.UnixMilli(1_700_000_000_000).UTC()

// orderID returns the ID of message n of producer 7, one per second.
func orderID(n int) queue.ID {
	return queue.NewID(filesEpoch.Add(time.Duration(n)*time.Second), 7, uint64(n))
}

func orders(from, to int) (recs []storage.Record) {
	for n := from; n <= to; n++ {
		id := orderID(n)
		recs = append(recs, storage.Record{ID: id[:], Time: id.Time().UnixNano(), Payload: fmt.Appendf(nil, "order %d%s", n, strings.Repeat(".", 2000))})
	}
	return recs
}

// ordersState returns the worker's state after messages 1 to n of producer 7.
func ordersState(n int) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1, 1}, 7)
	return append(binary.AppendUvarint(b, uint64(n)), 1, 0)
}

// ordersFiles writes 1 to 600 into orders.fpl, with message 300 put aside and a declared gap before 401, and 601 to 700 into its
// successor. It returns the directory and both paths.
func ordersFiles(t *testing.T) (dir, first, second string) {
	t.Helper()
	dir = t.TempDir()
	w, err := storage.Open(t.Context(), dir, "orders", 1, storage.Options{AllowOverlay: true, Holder: storage.Holder{Host: "host-a"}})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 600; n += 10 {
		recs := orders(n, n+9)
		switch n {
		case 291:
			recs[9].Kind, recs[9].Payload = storage.KindSkipped, []byte("no such customer")
		case 391:
			recs = recs[:5]
		case 401:
			recs[0].Kind = storage.KindAfterGap
		}
		if err := w.Append(recs); err != nil {
			t.Fatal(err)
		}
		if n%50 == 1 {
			if _, err := w.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	next, err := w.Rotate(t.Context(), ordersState(600))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Append(orders(601, 700)); err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, w.Path(), next.Path()
}

// damage flips a bit in the middle of a file, in the part that is known to be durable.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte("order 205."))
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func lines(s string) int { return strings.Count(s, "\n") }

func TestCatFindsMessages(t *testing.T) {
	dir, first, second := ordersFiles(t)
	all := mustRun(t, nil, "fencepost", "cat", first)
	if lines(all.stdout) != 594 || !strings.Contains(all.stderr, "orders@0002.fpl") {
		t.Errorf("%d lines, stderr %q", lines(all.stdout), all.stderr)
	}
	for args, want := range map[string]int{
		"--from 590":                   5,
		"--from 590 --count 2":         2,
		"--since 2023-11-14T22:23:19Z": 600 - 599 + 1,
		"--since 1s":                   0,
		"--since 876000h":              594,
		"--from 10 --since " + filesEpoch.Add(500*time.Second).Format(time.RFC3339): 101,
	} {
		r := mustRun(t, nil, "fencepost", append([]string{"cat", first}, strings.Fields(args)...)...)
		if lines(r.stdout) != want {
			t.Errorf("cat %s: %d lines, want %d", args, lines(r.stdout), want)
		}
	}
	id, foreign := orderID(42).String(), orderID(650)
	hex := fmt.Sprintf("%x", foreign[:])
	r := mustRun(t, nil, "fencepost", "cat", "--id", id, "--id", hex, "--format", "json", first, second)
	if lines(r.stdout) != 2 || !strings.Contains(r.stdout, id) || !strings.Contains(r.stdout, `order 650.`) {
		t.Errorf("cat --id: %v", r)
	}
	r = mustRun(t, nil, "fencepost", "cat", "--id", orderID(300).String(), first)
	if r.stdout != "" || !strings.Contains(r.stderr, "no such customer") {
		t.Errorf("a message that was put aside: %v", r)
	}
	r = run(t, nil, "fencepost", "cat", "--id", id, "--id", orderID(701).String(), first, second)
	refused(t, r, nothing, orderID(701).String())
	if lines(r.stdout) != 1 || strings.Contains(strings.SplitN(r.stderr, "error:", 2)[1], id) {
		t.Errorf("the one that is there: %v", r)
	}
	refused(t, run(t, nil, "fencepost", "cat", "--id", "nonsense", first), usage, "nonsense", "32")
	refused(t, run(t, nil, "fencepost", "cat", "--since", "yesterday", first), usage, "yesterday", "90m")
	refused(t, run(t, nil, "fencepost", "cat", dir), usage, "directory", "orders.fpl")
}

func TestCatSalvages(t *testing.T) {
	_, path, _ := ordersFiles(t)
	damage(t, path)
	stopped := run(t, nil, "fencepost", "cat", path)
	refused(t, stopped, integrity, path, "records 200 to")
	if n := lines(stopped.stdout); n != 200 {
		t.Errorf("%d lines before the damage", n)
	}
	r := run(t, nil, "fencepost", "cat", "--salvage", path)
	refused(t, r, integrity, "1 gap", path)
	if n := lines(r.stdout); n != 584 || !strings.Contains(r.stderr, "gap: ") {
		t.Errorf("%d lines, stderr %q", n, r.stderr)
	}
	r = run(t, nil, "fencepost", "cat", "--salvage", "--format", "json", path)
	refused(t, r, integrity, "1 gap")
	var line struct {
		Gap *struct {
			From   uint64 `json:"from_index"`
			To     uint64 `json:"to_index"`
			Offset int64
			End    int64
			Reason string
		}
		Index uint64
	}
	next := uint64(0)
	for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
		line.Gap = nil
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		switch {
		case line.Gap != nil:
			if next != 200 || line.Gap.From != 200 || line.Gap.To != 210 || line.Gap.End <= line.Gap.Offset || line.Gap.Reason == "" {
				t.Errorf("at %d: %+v", next, line.Gap)
			}
			next = line.Gap.To
		case line.Index != next && next != 299: // 299 was put aside
			t.Fatalf("index %d, want %d", line.Index, next)
		default:
			next = line.Index + 1
		}
	}
	if next != 595 {
		t.Errorf("it ends before %d", next)
	}
}

func TestVerifyDetails(t *testing.T) {
	dir, path, second := ordersFiles(t)
	// A declared gap is followed by its message, so that only the numbers 396 to 400 are missing.
	r := mustRun(t, nil, "fencepost", "verify", "-v", "--device", dir)
	for _, want := range []string{"epoch 1  host-a pid ", "index 0..594", "declared gap before index 395, message " + orderID(401).String(), "it continues in " + second,
		"producer 0000000000000007: n 1..395, 401..600", "producer 0000000000000007: n 601..700", "checkpoints 1  generation 1", "generation 2"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("verify -v does not say %q:\n%s", want, r.stdout)
		}
	}
	if quiet := mustRun(t, nil, "fencepost", "verify", dir); lines(quiet.stdout) >= lines(r.stdout) {
		t.Errorf("without -v: %s", quiet.stdout)
	}
	r = mustRun(t, nil, "fencepost", "verify", "--json", path, second)
	type report struct {
		OK         bool
		Void       [][2]int64 `json:"void_ranges"`
		Torn       *[2]int64  `json:"torn_range"`
		Gaps       []struct{ Index uint64 }
		Generation uint64
		Sealed     *struct {
			Generation uint64
			File       string
		}
	}
	var reports []report
	for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
		var rep report
		if err := d.Decode(&rep); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, rep)
	}
	if len(reports) != 2 || !reports[0].OK || len(reports[0].Gaps) != 1 || reports[0].Gaps[0].Index != 395 || reports[0].Generation != 1 ||
		reports[0].Sealed == nil || reports[0].Sealed.File != second || reports[0].Torn != nil || reports[0].Void == nil || reports[1].Generation != 2 || reports[1].Sealed != nil {
		t.Errorf("%+v\n%s", reports, r.stdout)
	}
	// A torn tail is reported with its position, and the file still counts as healthy.
	f, err := os.OpenFile(second, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("FPB1 torn")
	f.Close()
	if r := mustRun(t, nil, "fencepost", "verify", "-v", second); !strings.Contains(r.stdout, "torn bytes ") {
		t.Errorf("got %s", r.stdout)
	}
}

func TestTypesLsShowsGenerations(t *testing.T) {
	b := embedded(t)
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(b.url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	first := queue.RegistryEntry{FileID: [16]byte{1}}
	if err := q.RegisterType(t.Context(), "audit"); err != nil {
		t.Fatal(err)
	}
	if err := q.RegisterType(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := q.RegisterFile(t.Context(), "orders", first); err != nil {
		t.Fatal(err)
	}
	if r := mustRun(t, nil, "fencepost", "types", "ls", "--url", b.url); !regexp.MustCompile(`(?m)^audit +0 +- +- +- +- +-$`).MatchString(r.stdout) || !regexp.MustCompile(`(?m)^orders +0 +- +0 +0 +1 +-$`).MatchString(r.stdout) {
		t.Errorf("a type without a file, and one with its first: %v", r)
	}
	if _, _, err := q.SucceedFile(t.Context(), "orders", first.FileID, queue.RegistryEntry{FileID: [16]byte{2}, Generation: 2}); err != nil {
		t.Fatal(err)
	}
	if r := mustRun(t, nil, "fencepost", "types", "ls", "--url", b.url); !regexp.MustCompile(`(?m)^TYPE .* GENERATION +STATE$`).MatchString(r.stdout) || !regexp.MustCompile(`(?m)^orders .* 2 +-$`).MatchString(r.stdout) {
		t.Errorf("got %v", r)
	}
	var rows []struct{ Generation uint64 }
	r := mustRun(t, nil, "fencepost", "types", "ls", "--url", b.url, "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil || len(rows) != 2 || rows[0].Generation != 0 || rows[1].Generation != 2 {
		t.Errorf("%v: %v", err, r)
	}
}
