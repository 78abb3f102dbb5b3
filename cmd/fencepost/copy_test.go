package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/lock"
)

// Places with a password may be given in files, because every user can see command lines.
func TestCopyTakesPlacesFromFiles(t *testing.T) {
	store, url := storeWith(t)
	file := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(file, []byte(store+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(t.TempDir(), "data")
	if code, out, errs := runRoot(t, "copy", "--yes", "--url", url, "@"+file, there, "audit"); code != 0 || !strings.Contains(out, "from "+store+" to "+there) {
		t.Errorf("copy: %d, %s%s", code, out, errs)
	}
	for places, want := range map[string]string{
		"@" + file + " " + store:                     store + " and " + store + " are the same place",
		"data @" + file + ".missing":                 "@" + file + ".missing: cannot be read",
		"data nowhere:secret":                        "is not the address of a store",
		"s3:bucket data":                             "s3://bucket/prefix",
		"data shared:data":                           "shared:data: the directory must be",
		"data mongodb:":                              "mongodb: means the database of --url",
		"s3://bucket/x?zone=1 data":                  "endpoint, region",
		"data mongodb:/bob:secret@127.0.0.1:1/files": "is not the address of a store",
	} {
		code, out, errs := runRoot(t, append([]string{"copy", "--yes", "--url", url}, strings.Fields(places)...)...)
		if code != cli.ExitUsage || !strings.Contains(errs, want) || out != "" || strings.Contains(errs, "--store") || strings.Contains(errs, "bob") {
			t.Errorf("copy %s: %d, want %q and no flag that copy does not have: %s%s", places, code, want, out, errs)
		}
	}
}

// A destination that cannot be used is reported once, and nothing is sealed for it.
func TestCopyToNoDirectory(t *testing.T) {
	store, url := storeWith(t)
	file := filepath.Join(t.TempDir(), "notadir")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runRoot(t, "copy", "--yes", "--url", url, store, file)
	if code != cli.ExitFailed || out != "" || strings.Count(errs, "error: ") != 1 || !strings.Contains(errs, file+": not a directory; name a directory") {
		t.Errorf("copy: %d, %s%s", code, out, errs)
	}
	if code, out, errs := runRoot(t, "verify", "--store", store); code != 0 {
		t.Errorf("verify: %d, %s%s", code, out, errs)
	}
}

// Copy moves types only when it was told so explicitly; --dry-run says what would happen, and changes nothing.
func TestCopyAsksFirst(t *testing.T) {
	store, url := storeWith(t)
	dir := filepath.Join(t.TempDir(), "data")
	for _, test := range []struct {
		flags string
		code  int
		says  string
	}{
		{"", cli.ExitUsage, "check first with --dry-run, then give --yes"},
		{"--dry-run --yes", 0, "would be moved"},
		{"--dry-run", 0, "orders  from " + store + " to " + dir + "  files: 2, "},
		{"--dry-run nothing", cli.ExitNothing, "no registered file of type nothing"},
	} {
		code, out, errs := runRoot(t, append([]string{"copy", "--url", url, store, dir}, strings.Fields(test.flags)...)...)
		if code != test.code || !strings.Contains(out+errs, test.says) {
			t.Errorf("copy %s: %d, want %d and %q: %s%s", test.flags, code, test.code, test.says, out, errs)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Fatalf("copy %s made the destination", test.flags)
		}
	}
	publish(t, url, "orders", "four")
	if code, _, errs := runRoot(t, "worker", "--url", url, "--store", store, "--type", "orders", "--until-empty"); code != 0 {
		t.Errorf("workers do not continue in the old place: %d, %s", code, errs)
	}
	if code, _, errs := runRoot(t, "copy", "--yes", "--url", url, store, dir, "orders"); code != 0 {
		t.Errorf("copy: %d, %s", code, errs)
	}
	if code, out, errs := runRoot(t, "copy", "--dry-run", "--url", url, store, dir, "orders"); code != 0 || !strings.Contains(out, "is already in") {
		t.Errorf("copy: %d, %s%s", code, out, errs)
	}
}

// A copy that cannot have its type says who holds what: a worker the type, or another command the lock of commands.
func TestCopyOfAHeldType(t *testing.T) {
	store, url := storeWith(t)
	b, err := fencepost.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	err = b.Locker.Do(t.Context(), "orders", func(context.Context) error {
		code, out, errs := runRoot(t, "copy", "--yes", "--url", url, store, t.TempDir(), "orders")
		if code != cli.ExitHeld || !strings.Contains(errs, `lock "orders" is held by `) || !strings.Contains(errs, "; stop the workers of type orders") || strings.Contains(errs, "_admin") {
			t.Errorf("copy: %d, %s%s", code, out, errs)
		}
		return nil
	}, lock.WithWhy("worker 7"))
	if err != nil {
		t.Fatal(err)
	}
	err = copyError("orders", &admin.BusyError{Type: "orders", Lock: "_admin.orders", Holder: &lock.HeldError{Why: "fencepost keep"}})
	if !strings.Contains(err.Error(), "is being changed by fencepost keep") || strings.Contains(err.Error(), "workers") {
		t.Errorf("copy beside keep: %v", err)
	}
}
