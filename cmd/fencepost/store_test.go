package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue/sqlitequeue"
	"github.com/fencepost/fencepost/storage/slots/dirslots"
	"github.com/fencepost/fencepost/worker/workertest"
)

// storeWith returns the address of a store with files, and the database that they were filled from:
// of audit one message, and of orders three in two generations.
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

// publish publishes messages in an embedded database.
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

// Types and names of files are arguments for a store, and lines name files and store.
func TestToolsReadAStore(t *testing.T) {
	t.Chdir(t.TempDir())
	store, url := storeWith(t)
	for _, test := range []struct {
		args string
		code int
		says []string // in what is printed
		not  string
	}{
		{"verify", 0, []string{"audit.fpl in " + store + "  OK", "orders.fpl in " + store + "  OK", "goes on in orders@0002.fpl in " + store, "orders@0002.fpl in " + store + "  OK  3 messages", "3 files  OK 3  4 messages\n"}, ""},
		{"verify orders", 0, []string{"orders.fpl in", "orders@0002.fpl in"}, "audit"},
		{"verify -v orders@0002.fpl audit", 0, []string{"orders@0002.fpl in", "audit.fpl in", "generation 2"}, "orders.fpl"},
		{"cat orders", 0, []string{"one\ntwo\nthree\n", "orders.fpl in " + store + ": a compaction or repair replaced it"}, "login"},
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
		{"compact orders@0009.fpl", cli.ExitFailed, []string{"orders@0009.fpl in " + store}, ""},
		{"repair nothing.fpl", cli.ExitFailed, []string{"nothing.fpl in " + store + " does not exist", "--accept-loss"}, "volume"},
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
	// What the json form calls a file is an argument, too.
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

// Without the newest file, a series is not complete: so it is when the arguments stand for a type,
// or for all of them.
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

// A store that is not there, or cannot be, is told before anything is looked at.
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
