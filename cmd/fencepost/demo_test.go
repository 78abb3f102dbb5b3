package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
)

// Invalid arguments of the demo are usage errors, reported before anything is published; nothing is left behind.
func TestDemoRefusesWrongPlaces(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	shared := t.TempDir()
	for args, want := range map[string]string{
		"--store mongodb:":                                      "add --url mongodb://host/",
		"--store mongodb://bob:secret@db1/shop":                 "leave out the database name",
		"--url mongodb://bob:secret@db1/shop":                   "leave out the database name",
		"--store gs://bucket/prefix":                            "is not the address of a store",
		"--store s3://":                                         "bucket",
		"--store s3://bucket/x?zone=secret":                     "endpoint, region, path-style, sse",
		"--store shared:" + shared + "/missing":                 "does not exist",
		"--store shared:data":                                   "absolute",
		"--keep --store data":                                   "by its path",
		"--dir " + shared + "/x --store shared:" + shared:       "cannot be combined",
		"--store shared:" + shared + " --source /no/such/place": "is not a readable directory",
		"--store shared:" + shared + " --workers 1":             "at least 2",
	} {
		code, out, errs := runRoot(t, append([]string{"demo"}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 || out != "" || strings.Contains(errs, "secret") {
			t.Errorf("demo %s: exit code %d, want %d and %q: %s%s", args, code, cli.ExitUsage, want, out, errs)
		}
	}
	for _, dir := range []string{temp, shared} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s has %v (%v)", dir, left, err)
		}
	}
}

// FENCEPOST_DIR is for files, so it is accepted beside --store, and the directory is not touched.
func TestDemoInAStoreLeavesTheDirectoryAlone(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "orders.fpl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCEPOST_DIR", dir)
	empty := t.TempDir()
	code, _, errs := runRoot(t, "demo", "--store", "shared:"+t.TempDir(), "--source", empty)
	if code != cli.ExitNothing || !strings.Contains(errs, empty+" has no files") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// The demo has its own database; users are still authenticated where the URL says.
func TestDemoMakesADatabaseOfItsOwn(t *testing.T) {
	for given, want := range map[string]string{
		"mongodb://db1/":                                "mongodb://db1/NAME",
		"mongodb://db1,db2?replicaSet=rs0":              "mongodb://db1,db2/NAME?replicaSet=rs0",
		"mongodb://bob:pw@db1":                          "mongodb://bob:pw@db1/NAME?authSource=admin",
		"mongodb://bob:pw@db1/?authSource=users&tls=on": "mongodb://bob:pw@db1/NAME?authSource=users&tls=on",
	} {
		got, _, err := ownDatabase("demo", "--url", given)
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		i := strings.Index(got, "fencepost_demo_")
		if i < 0 || strings.Replace(got, got[i:i+len("fencepost_demo_")+8], "NAME", 1) != want {
			t.Errorf("%s becomes %s, want %s", given, got, want)
		}
	}
}
