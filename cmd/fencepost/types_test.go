package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker/workertest"
)

// entries counts the reads of files' entries.
type entries struct {
	queue.Queue
	read atomic.Int32
}

func (e *entries) RegistryEntry(ctx context.Context, typ string) (queue.RegistryEntry, bool, error) {
	e.read.Add(1)
	return e.Queue.RegistryEntry(ctx, typ)
}

// manyTypes has n types; every tenth has a pending message.
func manyTypes(t *testing.T, n int) (*fencepost.Backend, *entries) {
	t.Helper()
	b := workertest.Backend(t)
	for i := range n {
		typ := fmt.Sprintf("t%04d", i)
		if err := b.Queue.RegisterType(t.Context(), typ); err != nil {
			t.Fatal(err)
		}
		if i%10 == 5 {
			workertest.Publish(t, b.Queue, typ, "x")
		}
	}
	e := &entries{Queue: b.Queue}
	b.Queue = e
	return b, e
}

func typeRows(ctx context.Context, b *fencepost.Backend, look lookAtTypes) (rows []typeRow, err error) {
	err = look.each(ctx, b, func(r typeRow) error { rows = append(rows, r); return nil })
	return rows, err
}

// TestTypesLsWritesPageByPage: rows are written before all types were queried, and an array written in parts equals one that is written at once.
func TestTypesLsWritesPageByPage(t *testing.T) {
	b, e := manyTypes(t, 2*rowsPage+1)
	var rows []typeRow
	var out strings.Builder
	list := jsonArray{w: &out}
	err := lookAtTypes{most: 10}.each(t.Context(), b, func(r typeRow) error {
		if len(rows) == 0 && int(e.read.Load()) > rowsPage {
			t.Errorf("%d entries were read before the first row", e.read.Load())
		}
		rows = append(rows, r)
		return list.add(r)
	})
	if err != nil || list.end() != nil || len(rows) != 2*rowsPage+1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, rows := range [][]typeRow{rows, {}, {{Type: "\u202e"}}} {
		var all, parts strings.Builder
		if err := printable.EncodeJSON(&all, rows, "  "); err != nil {
			t.Fatal(err)
		}
		list := jsonArray{w: &parts}
		for _, r := range rows {
			if err := list.add(r); err != nil {
				t.Fatal(err)
			}
		}
		if list.end() != nil || parts.String() != all.String() {
			t.Errorf("%d rows: in parts %.300q, at once %.300q", len(rows), parts.String(), all.String())
		}
	}
}

// With --pending only the listed types are queried further; a glob chooses types.
func TestTypesLsOfManyTypes(t *testing.T) {
	b, e := manyTypes(t, 1000)
	for _, c := range []struct {
		args    []string
		pending bool
		want    int
	}{{nil, false, 1000}, {nil, true, 100}, {[]string{"t00*"}, false, 100}, {[]string{"t00*", "t0005"}, true, 10}} {
		e.read.Store(0)
		rows, err := typeRows(t.Context(), b, lookAtTypes{args: c.args, most: 10, pending: c.pending})
		if err != nil || len(rows) != c.want || int(e.read.Load()) != c.want {
			t.Errorf("%v, pending %v: %d rows, %d entries read, %v; want %d", c.args, c.pending, len(rows), e.read.Load(), err, c.want)
		}
		for i := 1; i < len(rows); i++ {
			if rows[i-1].Type >= rows[i].Type {
				t.Fatalf("%s stands before %s", rows[i-1].Type, rows[i].Type)
			}
		}
	}
	if _, err := typeRows(t.Context(), b, lookAtTypes{args: []string{"x*"}, most: 10}); cli.Code(err) != cli.ExitNothing {
		t.Errorf("a glob that matches nothing: %v", err)
	}
}

// Top reads the entries of the types that it shows, those with backlog first, and reports the number of the others.
func TestTopOfManyTypes(t *testing.T) {
	b, e := manyTypes(t, 1000)
	v := newView(b, []string{"t0*"}, 10, lookTimeout)
	defer v.depths.Close()
	v.rows = 20
	s, err := v.look(t.Context())
	if err != nil || len(s.Rows) != 20 || s.others != 980 || s.unknown != 0 || e.read.Load() != 20 {
		t.Fatalf("%+v, %d entries read, %v", s, e.read.Load(), err)
	}
	for _, r := range s.Rows {
		if r.Backlog == nil || *r.Backlog != 1 {
			t.Errorf("%s is shown, and others have backlog", r.Type)
		}
	}
	if got := screen("db", s, nil, 100, 10, s.at); !strings.Contains(got, "1000 types") || !strings.Contains(got, "… and 994 more types") || strings.Contains(got, "not known") {
		t.Errorf("%s", got)
	}
	s.unknown = 7
	if got := screen("db", s, nil, 100, 50, s.at); !strings.Contains(got, "… and 980 more types; the backlog of 7 types is not known yet") {
		t.Errorf("%s", got)
	}
}

// Command lines as users type them.
func TestListsTakeTypes(t *testing.T) {
	_, url := storeWith(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"types ls aud*", 0, `["audit"]`},
		{"types ls", 0, `["audit","orders"]`},
		{"types ls --pending", cli.ExitNothing, "no type has pending messages"},
		{"types ls --pending -o text", cli.ExitNothing, "no type has pending messages"},
		{"types ls x*", cli.ExitNothing, "no type"},
		{"types ls [", cli.ExitUsage, "glob"},
		{"top --once orders", 0, `["orders"]`},
		{"top --once -n 1", 0, `["audit"]`},
		{"top --once [", cli.ExitUsage, "glob"},
		{"doctor nosuch", cli.ExitNothing, ""},
		{"doctor --within 0s", cli.ExitUsage, "--within"},
	} {
		code, out, errs := runRoot(t, append(withJSON(c.args), "--url", url)...)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s%s", c.args, code, c.code, out, errs)
		}
		if code != 0 {
			if !strings.Contains(errs, c.want) {
				t.Errorf("%s: %q, want %q", c.args, errs, c.want)
			}
			continue
		}
		var rows []struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
		names := []string{}
		for _, r := range rows {
			names = append(names, r.Type)
		}
		if got, _ := json.Marshal(names); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
}

// withJSON returns the arguments with json output, unless they name another format.
func withJSON(args string) []string {
	if !strings.Contains(args, " -o ") {
		args += " -o json"
	}
	return strings.Fields(args)
}

// An empty list of IDs, such as an empty shell variable leaves behind, does not mean all messages.
func TestPurgeOfNothingNamed(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "orders", "one")
	if code, out, errs := runRoot(t, "types", "purge", "orders", "--url", url, "--yes"); code != cli.ExitUsage || !strings.Contains(errs, "--all") {
		t.Errorf("%d, %s%s", code, out, errs)
	}
	if code, out, errs := runRoot(t, "types", "purge", "orders", "--url", url, "--all", "--yes"); code != 0 || out != "purged=1 bytes=3\n" {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

// No time that a user can give means "no time".
func TestPurgeBeforeTheFirstYear(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "orders", "one")
	if code, out, errs := runRoot(t, "types", "purge", "orders", "--url", url, "--older", "2d", "--yes"); code != cli.ExitNothing {
		t.Errorf("--older 2d: %d, %s%s", code, out, errs)
	}
	for _, before := range []string{"0001-01-01T00:00:00Z", "0001-01-01", "1969-12-31"} {
		if code, out, errs := runRoot(t, "types", "purge", "orders", "--url", url, "--before", before, "--yes"); code != cli.ExitNothing {
			t.Errorf("--before %s: %d, %s%s", before, code, out, errs)
		}
	}
	if code, out, errs := runRoot(t, "types", "purge", "orders", "--url", url, "--all", "--yes"); code != 0 || out != "purged=1 bytes=3\n" {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

// An error that keeps a worker from draining a type is shown where runbooks begin.
func TestTypesThatFail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.db")
	url := "sqlite://" + path
	publish(t, url, "orders", "one")
	publish(t, url, "audit", "login")
	q, err := sqlitequeue.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	why := "orders.fpl: the file is damaged " + strings.Repeat("x", 300) + " end"
	if err := q.Heartbeat(t.Context(), queue.Member{Instance: "1", Host: "node-1", Types: []string{"*"}, Errors: map[string]string{"orders": why}, Beat: 1}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, says, not string }{
		{"types ls", "failing: fencepost types show orders\n", "failing: fencepost types show audit"},
		{"types ls -o json", `"last_error": "` + why + `"`, "none"},
		{"types show orders", "error     " + why + "\n", "none yet\nerror"},
		{"types show orders -o json", `"last_error": "` + why + `"`, "none"},
		{"types show audit", "dead ", "error"},
	} {
		code, out, errs := runRoot(t, append(strings.Fields(test.args), "--url", url)...)
		if code != 0 || !strings.Contains(out, test.says) || strings.Contains(out, test.not) {
			t.Errorf("%s: exit code %d, want %q: %s%s", test.args, code, test.says, out, errs)
		}
	}
}

// The reason of a pause stays while the pause lasts, whatever else changes, unless another pause gives one.
func TestReasonOfAPause(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	publish(t, url, "o", "one")
	for _, c := range []struct{ args, says, state string }{
		{"limit o --max-backlog 9 --why small", "o: limit 9\n", "limit 9 (small)"},
		{"pause o --publish --why INC-1", "o: publish paused, limit 9\n", "publish paused, limit 9 (INC-1)"},
		{"pause o --drain", "o: paused, limit 9\n", "paused, limit 9 (INC-1)"},
		{"limit o --max-backlog 0 --why roomy", "o: limit removed; paused\n", "paused (INC-1)"},
		{"resume o --publish --why done", "o: publishing resumed; drain paused\n", "drain paused (INC-1)"},
		{"pause o --drain --why INC-2", "o: drain paused\n", "drain paused (INC-2)"},
		{"resume o --drain --why done", "o: draining resumed\n", "-"},
		{"pause o", "o: paused\n", "paused"},
		{"resume o", "o: resumed\n", "-"},
	} {
		args := append(strings.Fields("types "+c.args), "--url", url)
		if code, out, errs := runRoot(t, args...); code != 0 || out != c.says {
			t.Errorf("%s: %d, %q, want %q; %s", c.args, code, out, c.says, errs)
		}
		_, out, _ := runRoot(t, "types", "ls", "--url", url)
		if want := regexp.MustCompile(`(?m) ` + regexp.QuoteMeta(c.state) + ` *$`); !want.MatchString(out) {
			t.Errorf("%s: types ls does not say %q:\n%s", c.args, c.state, out)
		}
	}
}

// A healthy system has empty lists: they are no error. A filter that matches nothing is one. Both hold in each format.
func TestEmptyLists(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for args, want := range map[string]string{
		"dead ls": "no dead letters\n", "scheduled ls": "no delayed messages\n", "types ls": "no types; publish something with producer publish\n", "locks ls": "no lock is held\n",
		"dead ls --type o": "", "dead ls --since 1h": "", "dead ls --reason x": "", "scheduled ls --type o": "", "types ls o": "", "types ls --pending": "",
	} {
		wantCode := cli.ExitOK
		if want == "" {
			wantCode = cli.ExitNothing
		}
		for _, format := range []string{"text", "json"} {
			code, out, errs := runRoot(t, append(strings.Fields(args), "--url", url, "-o", format)...)
			if code != wantCode || (errs == "") != (code == 0) || format == "text" && out != want || format == "json" && code == 0 && strings.TrimSpace(out) != "[]" {
				t.Errorf("%s -o %s: exit code %d, %q, %s", args, format, code, out, errs)
			}
		}
	}
}

// STATE is free text and the last column. A type without a file has no index, epoch or generation. Counts are written as everywhere.
func TestTypesLsTable(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "queue.db")
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, typ := range []string{"audit", "orders"} {
		if err := q.RegisterType(t.Context(), typ); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.RegisterFile(t.Context(), "orders", queue.RegistryEntry{FileID: [16]byte{1}, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runRoot(t, "types", "ls", "--url", url, "--count-up-to", "1k")
	want := regexp.MustCompile(`^TYPE +PENDING +OLDEST +IN FILE +EPOCH +GENERATION +STATE\naudit +0 +- +- +- +- +-\norders +0 +- +0 +0 +1 +-\n$`)
	if code != 0 || !want.MatchString(out) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	for _, args := range []string{"types show orders --count-up-to 1k", "top --once --count-up-to 1k --count 1k"} {
		if code, out, errs := runRoot(t, append(strings.Fields(args), "--url", url)...); code != 0 {
			t.Errorf("%s: exit code %d: %s%s", args, code, out, errs)
		}
	}
	for _, command := range []string{"cat", "tail"} { // the file is not there
		if _, _, errs := runRoot(t, command, "--from", "1k", "nowhere.fpl"); strings.Contains(errs, "--from") || errs == "" {
			t.Errorf("%s: %s", command, errs)
		}
	}
}

// An empty file has no range of indexes.
func TestIndexesOfACompactedFile(t *testing.T) {
	for want, r := range map[string]storage.CompactReport{
		"next index 2": {FirstIndex: 2, NextIndex: 2}, "next index 0": {}, "index 2..2": {FirstIndex: 2, NextIndex: 3},
	} {
		if got := indexes(&r); got != want {
			t.Errorf("%+v: %s, want %s", r, got, want)
		}
	}
}
