package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// Arguments that are not files of types: every command says what to name instead.
func TestArgumentsThatAreNoFiles(t *testing.T) {
	dir := t.TempDir()
	url := "sqlite://" + filepath.Join(dir, "fencepost.db")
	for range 2 {
		publish(t, url, "orders", "one")
		if code, _, errs := runRoot(t, "worker", "--url", url, "--dir", dir, "--type", "orders", "--until-empty", "--allow-overlay"); code != 0 {
			t.Fatalf("worker: %d, %s", code, errs)
		}
		if code, _, _ := runRoot(t, "compact", "--url", url, "--allow-overlay", dir+"/orders@0002.fpl"); code != 0 {
			if code, _, errs := runRoot(t, "compact", "--url", url, "--allow-overlay", dir+"/orders.fpl"); code != 0 {
				t.Fatalf("compact: %d, %s", code, errs)
			}
		}
	}
	if code, _, errs := runRoot(t, "keep", "--url", url, "--replaced", "--yes", dir); code != 0 {
		t.Fatalf("keep: %d, %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "list.txt"), []byte("milk"), 0o600); err != nil {
		t.Fatal(err)
	}
	there := []string{"--url", url}
	for _, command := range [][]string{{"verify"}, {"cat"}, {"tail"}, append([]string{"compact"}, there...), append([]string{"repair"}, there...)} {
		for arg, want := range map[string]string{
			"orders.fpl":   "orders.fpl does not exist; the file of type orders there is orders@0003.fpl: name that one, or restore orders.fpl",
			"nope.fpl":     "nope.fpl does not exist; check the path, and that its volume is mounted",
			"fencepost.db": "belongs to the embedded database, which holds queue, registry and locks; leave it there; name a type's file",
			"list.txt":     "list.txt is not a Fencepost file; name a type's file",
			"orders":       "orders does not exist; name a type's file",
			"":             "is a directory; name a type's file in it, as in fencepost " + command[0],
		} {
			if arg == "" && command[0] == "verify" || arg == "orders.fpl" && succeeds(command[0]) {
				continue
			}
			code, out, errs := runRoot(t, append(command, filepath.Join(dir, arg))...)
			if code != cli.ExitUsage || out != "" || !strings.Contains(errs, want) || strings.Contains(errs, "--accept-loss") != (command[0] == "repair" && arg == "nope.fpl") {
				t.Errorf("%s %s: exit code %d, want %q: %s%s", command[0], arg, code, want, out, errs)
			}
		}
	}
	// All files of a type, of which keep has removed this one.
	if code, out, errs := runRoot(t, "keep", "--url", url, "--replaced", "--yes", filepath.Join(dir, "orders.fpl")); code != 0 || !strings.Contains(out, "removed=0") {
		t.Errorf("keep: %d, %s%s", code, out, errs)
	}
	// The command lines of the help work each time, for files in a directory and in a store.
	store := "shared:" + t.TempDir()
	for _, in := range [][]string{{filepath.Join(dir, "orders.fpl")}, {"--store", store, "orders.fpl"}} {
		if in[0] == "--store" {
			if code, _, errs := runRoot(t, "copy", "--url", url, "--allow-overlay", "--yes", dir, store); code != 0 {
				t.Fatalf("copy: %d, %s", code, errs)
			}
		}
		for _, command := range []string{"compact --allow-overlay", "keep --replaced --yes", "tail -n 5", "tail --from 0"} {
			args := append(strings.Fields(command), append(in, "--url", url)...)
			if code, out, errs := runRoot(t, args...); code != 0 || args[0] == "tail" && out != "one\none\n" {
				t.Errorf("%s: %d, %s%s", args, code, out, errs)
			}
		}
	}
	// Names do not sort as generations do.
	gone := missing("d/orders@9998.fpl", []string{"d/orders.fpl", "d/orders@10000.fpl", "d/orders@9999.fpl", "d/audit.fpl"}, false, "").(*cli.Error).Err.(*missingError)
	if want := []string{"d/orders@9999.fpl", "d/orders@10000.fpl"}; !slices.Equal(gone.later, want) || oldest(gone.others) != "d/orders.fpl" {
		t.Errorf("later: %q of %q", gone.later, gone.others)
	}
}

// The address of a store in place of a file gets the flag for it, and shows no password.
func TestAddressInPlaceOfAFile(t *testing.T) {
	for arg, want := range map[string]string{
		"shared:/srv/fencepost":              "--store shared:/srv/fencepost",
		"s3://bucket/logs":                   "--store s3://bucket/logs",
		"mongodb:":                           "--store mongodb:",
		"mongodb://user:secret@db1/shop?w=1": "--store ",
	} {
		for _, command := range []string{"verify", "cat", "tail"} {
			code, _, errs := runRoot(t, command, arg)
			if code != cli.ExitUsage || !strings.Contains(errs, "looks like the address of a store; give it as "+want) || strings.Contains(errs, "secret") {
				t.Errorf("%s %s: exit code %d: %s", command, arg, code, errs)
			}
		}
	}
}
