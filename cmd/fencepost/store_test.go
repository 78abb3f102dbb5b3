package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/worker/workertest"
)

// storeWith returns the address of a store with files, and the database from which they were filled:
// one message of audit, and three of orders in two generations.
func storeWith(t *testing.T) (store, url string) {
	t.Helper()
	store, url = "shared:"+t.TempDir(), "sqlite://"+filepath.Join(t.TempDir(), "queue.db")
	drain := func(typ string, payloads ...string) {
		publish(t, url, typ, payloads...)
		if code, _, errs := runRoot(t, "worker", "--url", url, "--store", store, "--type", typ, "--until-empty"); code != 0 {
			t.Fatalf("worker: %d, %s", code, errs)
		}
	}
	drain("audit", "login")
	drain("orders", "one", "two")
	if code, out, errs := runRoot(t, "compact", "--url", url, "--store", store, "orders"); code != 0 || !strings.HasPrefix(out, "orders@0002.fpl in "+store+"  2 records") {
		t.Fatalf("compact: %d, %s%s", code, out, errs)
	}
	drain("orders", "three")
	return store, url
}

// publish publishes messages to an embedded database.
func publish(t *testing.T, url, typ string, payloads ...string) {
	t.Helper()
	q, err := sqlitequeue.Open(t.Context(), strings.TrimPrefix(url, "sqlite://"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	workertest.Publish(t, q, typ, payloads...)
}

func runRoot(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	code = cli.Run(t.Context(), cmd)
	return code, out.String(), errs.String()
}

// TestCompactSeveralFilesInAStore: one file replaces several, with the same messages in fewer slots.
func TestCompactSeveralFilesInAStore(t *testing.T) {
	dir, url := t.TempDir(), "sqlite://"+filepath.Join(t.TempDir(), "queue.db")
	in := []string{"--url", url, "--store", "shared:" + dir}
	tool := func(command string, args ...string) string {
		t.Helper()
		code, out, errs := runRoot(t, slices.Concat([]string{command}, in, args)...)
		if code != 0 {
			t.Fatalf("%s: %d, %s", command, code, errs)
		}
		return out
	}
	slots := func(generation string) (n int) {
		t.Helper()
		err := filepath.WalkDir(filepath.Join(dir, "orders", generation), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 12 {
		publish(t, url, "orders", fmt.Sprintf("%02d%s", i, strings.Repeat("x", 400_000)))
		tool("worker", "--type", "orders", "--max-file-size", "1MiB", "--until-empty")
	}
	before, want := slots(""), tool("cat", "orders")
	if out := tool("verify"); !strings.Contains(out, "orders@0003.fpl") {
		t.Fatalf("there are not three files: %s", out)
	}
	if out := tool("compact", "--from", "1", "orders"); !strings.Contains(out, "  12 records  of 5 files  index 0..11  ") {
		t.Errorf("compact: %s", out)
	}
	tool("verify", "--deep")
	if out := tool("keep", "--replaced", "--yes", "orders"); !strings.Contains(out, "files: 1,") {
		t.Errorf("keep: %s", out)
	}
	if out := tool("cat", "orders"); out != want {
		t.Errorf("cat prints %d bytes, want %d", len(out), len(want))
	}
	tool("verify", "--deep")
	if after := slots("00000006"); after > before/2 {
		t.Errorf("%d slots became %d", before, after) // those of removed files are not counted: their fences stay
	}
	publish(t, url, "orders", "the next one")
	tool("worker", "--type", "orders", "--until-empty")
	if out := tool("tail", "-n", "1", "orders"); out != "the next one\n" {
		t.Errorf("the last message is %q", out)
	}
}

// Arguments for a store are types and names of files, and output lines name files and store.
func TestToolsReadAStore(t *testing.T) {
	t.Chdir(t.TempDir())
	store, url := storeWith(t)
	for _, test := range []struct {
		args string
		code int
		says []string // texts in the output
		not  string
	}{
		{"verify", 0, []string{"audit.fpl in " + store + "  OK", "orders.fpl in " + store + "  OK", "continues in orders@0002.fpl in " + store, "orders@0002.fpl in " + store + "  OK  3 messages", "3 files  OK 3  4 messages\n"}, ""},
		{"verify orders", 0, []string{"orders.fpl in", "orders@0002.fpl in"}, "audit"},
		{"verify -v orders@0002.fpl audit", 0, []string{"orders@0002.fpl in", "audit.fpl in", "generation 2"}, "orders.fpl"},
		{"cat orders", 0, []string{"one\ntwo\nthree\n", "orders.fpl in " + store + " was replaced by a compaction or repair"}, "login"},
		{"cat orders@0002.fpl audit", 0, []string{"one\ntwo\nthree\nlogin\n"}, ""},
		{"cat --salvage audit.fpl", 0, []string{"login\n"}, ""},
		{"cat --from 1 --count 1 orders", 0, []string{"two\n"}, "one"},
		{"tail -n 1 orders", 0, []string{"three\n"}, "two"},
		{"tail -n 2 orders.fpl", 0, []string{"two\nthree\n"}, "one"},

		{"doctor --url " + url, 0, []string{"ok       store      " + store + " let one of 32", "2 of 2 types", "fencepost verify --store " + store}, ""},
		{"repair --url " + url + " orders", cli.ExitNothing, []string{"orders@0002.fpl in " + store + ": nothing is damaged"}, ""},
		{"repair --url " + url + " orders.fpl", cli.ExitFailed, []string{"sealed", "fencepost cat --salvage --store " + store + " orders.fpl"}, ""},
		{"compact --url " + url + " orders.fpl", 0, []string{"orders@0003.fpl in " + store + "  3 records"}, ""},

		{"verify nothing", cli.ExitNothing, []string{"no files of type nothing in " + store}, ""},
		{"cat", cli.ExitUsage, []string{"no file"}, ""},
		{"tail nothing", cli.ExitNothing, []string{"no files of type nothing in " + store}, ""},
		{"compact nothing", cli.ExitNothing, []string{"no files of type nothing in " + store}, ""},
		{"verify orders@0009.fpl", cli.ExitUsage, []string{"orders@0009.fpl in " + store + " does not exist; the files of type orders there are orders.fpl to orders@0003.fpl"}, "open"},
		{"cat nothing.fpl", cli.ExitUsage, []string{"nothing.fpl in " + store + " does not exist; check its name, and that this is the right store"}, "open"},
		{"tail orders@0009.fpl", cli.ExitUsage, []string{"orders@0009.fpl in " + store + " does not exist; the files"}, "open"},
		{"compact orders@0009.fpl", cli.ExitUsage, []string{"orders@0009.fpl in " + store + " does not exist; the files"}, "open"},
		{"repair nothing.fpl", cli.ExitUsage, []string{"nothing.fpl in " + store + " does not exist", "--accept-loss"}, "volume"},
		{"verify data/orders.fpl", cli.ExitUsage, []string{`"data/orders.fpl"`, store, "without --store"}, ""},
		{"tail Orders", cli.ExitUsage, []string{`"Orders"`, store}, ""},
		{"doctor --dir data", cli.ExitUsage, []string{"--store and --dir"}, ""},
	} {
		args := strings.Fields(test.args)
		code, out, errs := runRoot(t, append([]string{args[0], "--store", store}, args[1:]...)...)
		for _, s := range test.says {
			if code != test.code || !strings.Contains(out+errs, s) || test.not != "" && strings.Contains(out+errs, test.not) || strings.Count(errs, "error: ") > 1 {
				t.Errorf("%s: exit code %d, want %d, with %q and not %q\nstdout: %s\nstderr: %s", test.args, code, test.code, s, test.not, out, errs)
			}
		}
	}
	// The name of a file in the json output is a valid argument, too.
	code, out, _ := runRoot(t, "verify", "--store", store, "--json", "audit")
	var row struct {
		File string
		OK   bool
	}
	if err := json.Unmarshal([]byte(out), &row); code != 0 || err != nil || !row.OK {
		t.Fatalf("%d, %v, %s", code, err, out)
	}
	if code, out, errs := runRoot(t, "cat", "--store", store, row.File); code != 0 || out != "login\n" {
		t.Errorf("cat %s: %d, %s, %s", row.File, code, out, errs)
	}
	// From the environment.
	t.Setenv("FENCEPOST_STORE", store)
	if code, out, _ := runRoot(t, "cat", "audit"); code != 0 || out != "login\n" {
		t.Errorf("cat: %d, %s", code, out)
	}
}

// If the arguments stand for a type or for all types, a series without the newest file is
// incomplete.
func TestVerifyMissesTheNewestFileInAStore(t *testing.T) {
	store, _ := storeWith(t)
	dir := strings.TrimPrefix(store, "shared:")
	s, err := dirslots.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "orders/generations/00000002"); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{"": cli.ExitIntegrity, "orders": cli.ExitIntegrity, "orders.fpl": cli.ExitOK, "audit": cli.ExitOK} {
		code, out, errs := runRoot(t, append([]string{"verify", "--store", store}, strings.Fields(args)...)...)
		if code != want || (want != 0) != strings.Contains(errs, "orders@0002.fpl") {
			t.Errorf("verify %s: exit code %d, want %d\n%s%s", args, code, want, out, errs)
		}
	}
}

// A store that does not exist, or cannot exist, is reported before anything else happens.
func TestToolsRefuseWrongStores(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, command := range []string{"verify", "cat orders", "tail orders", "compact orders", "repair orders", "doctor"} {
		for store, want := range map[string]string{"shared:" + missing: "does not exist", "shared:data": "absolute", "mongodb:": "embedded", "gs://bucket": "mongodb://host/database"} {
			code, _, errs := runRoot(t, append(strings.Fields(command), "--store", store)...)
			if code != cli.ExitUsage || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("%s --store %s: exit code %d: %s", command, store, code, errs)
			}
		}
	}
}

// TestGiveUpNothing: repair --accept-loss --dry-run says that no message is lost when the older files have all of them, and that nothing is
// missing when the registered file is there.
func TestGiveUpNothing(t *testing.T) {
	store, url := storeWith(t)
	accept := func(file string, code int, want string) {
		t.Helper()
		got, out, errs := runRoot(t, "repair", "--accept-loss", "--dry-run", "--url", url, "--store", store, file)
		if got != code || !strings.Contains(out+errs, want) || strings.Contains(out+errs, "below") {
			t.Errorf("%s: exit code %d, want %d with %q\n%s%s", file, got, code, want, out, errs)
		}
	}
	accept("orders@0009.fpl", cli.ExitNothing, "orders@0009.fpl in "+store+" does not exist, and according to the database no message is missing")
	if code, out, errs := runRoot(t, "compact", "--url", url, "--store", store, "orders"); code != 0 {
		t.Fatalf("compact: %d, %s%s", code, out, errs)
	}
	s, err := dirslots.Open(strings.TrimPrefix(store, "shared:"))
	if err == nil {
		err = s.Delete(t.Context(), "orders/generations/00000003")
	}
	if err != nil {
		t.Fatal(err)
	}
	accept("orders", cli.ExitIntegrity, "no message is given up")
}
