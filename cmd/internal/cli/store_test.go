package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

func TestStoreName(t *testing.T) {
	for address, want := range map[string]string{
		"":         "",
		"mongodb:": "mongodb:",
		"mongodb://bob:secret@db1,db2/files?tlsCertificateKeyFilePassword=secret": "mongodb://db1,db2/files",
		"mongodb:/bob:secret@db1/files":                                           "mongodb://***@db1/files",
		"shared:/srv//fencepost/":                                                 "shared:/srv/fencepost",
		"shared:/srv/a@b?c":                                                       "shared:/srv/a@b?c",
		"s3://bucket/a":                                                           "s3://bucket/a",
		"s3://bucket/a?endpoint=http://127.0.0.1:9000&path-style=true&key=secret&region=x": "s3://bucket/a?endpoint=http://127.0.0.1:9000&path-style=true&region=x",
		"s3://bob:secret@bucket/a?endpoint=http://bob:secret@host&region=x":                "s3://bucket/a?region=x",
		"shared:": "shared:",
	} {
		if got := StoreName(address); got != want {
			t.Errorf("%q is called %q, want %q", address, got, want)
		}
	}
}

// The settings for writing are part of commands that a user may run, but not of the name that identifies a place.
func TestStoreAddress(t *testing.T) {
	const address = "s3://bucket/a?sse=aws:kms&region=x&key=secret&sse-kms-key-id=arn:aws:kms:x:1:key/2&sse-c-key=secret"
	if got, want := StoreAddress(address), "s3://bucket/a?sse=aws:kms&region=x&sse-kms-key-id=arn:aws:kms:x:1:key/2"; got != want {
		t.Errorf("the address is %q, want %q", got, want)
	}
	if got, want := StoreName(address), "s3://bucket/a?region=x"; got != want || StoreName(StoreAddress(address)) != want {
		t.Errorf("the name is %q, and that of its address %q, want %q", got, StoreName(StoreAddress(address)), want)
	}
}

func TestStoreArgument(t *testing.T) {
	for name, want := range map[string]string{
		"mongodb:":                          "--store mongodb:",
		"s3://bucket/a_b-c":                 "--store s3://bucket/a_b-c",
		"s3://bucket/a?endpoint=http://h:1": "--store 's3://bucket/a?endpoint=http://h:1'",
		"shared:/srv/it's mine":             `--store 'shared:/srv/it'\''s mine'`,
	} {
		if got := StoreArgument(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

// A path that package storage builds from a store and a name is split into both again; nothing else changes.
func TestStoreText(t *testing.T) {
	for _, test := range []struct{ store, text, want string }{
		{"mongodb:", "storage: mongodb:/orders.fpl: damaged", "storage: orders.fpl in mongodb:: damaged"},
		{"mongodb:", "mongodb:/orders@0002.fpl and mongodb:/a.b-c.fpl.", "orders@0002.fpl in mongodb: and a.b-c.fpl in mongodb:."},
		{"mongodb://db2/files", "mongodb:/db2/files/orders.fpl, generation 1", "orders.fpl in mongodb://db2/files, generation 1"},
		{"s3://b/p?endpoint=http://h:1&path-style=true", "s3:/b/p?endpoint=http:/h:1&path-style=true/orders.fpl: damaged",
			"orders.fpl in s3://b/p?endpoint=http://h:1&path-style=true: damaged"},
		{"s3://b/p?sse=AES256&region=x", "s3:/b/p?region=x/orders.fpl: damaged", "orders.fpl in s3://b/p?region=x: damaged"},
		{"shared:/srv/$1", `"file":"shared:/srv/$1/orders.fpl"`, `"file":"orders.fpl in shared:/srv/$1"`},
		{"shared:/srv", "shared:/srv/generations/00000001 of shared:/srv", "shared:/srv/generations/00000001 of shared:/srv"},
		{"shared:/srv", "data/orders.fpl shared:/srv2/orders.fpl", "data/orders.fpl shared:/srv2/orders.fpl"},
		{"s3://b/p", "s3:/b/p/.orders@0002.fpl.ac46fb496692334c.tmp: no room", ".orders@0002.fpl.ac46fb496692334c.tmp in s3://b/p: no room"},
		{"", "data/orders.fpl", "data/orders.fpl"},
	} {
		if got := StoreText(test.text, test.store); got != test.want {
			t.Errorf("%s: %q becomes %q, want %q", test.store, test.text, got, test.want)
		}
		var b bytes.Buffer
		if n, err := StoreWriter(&b, test.store).Write([]byte(test.text)); n != len(test.text) || err != nil || b.String() != test.want {
			t.Errorf("%s: %d, %v, %q written", test.store, n, err, b.String())
		}
	}
}

// The command that helps is for the store, and errors name files by their store.
func TestRemediesForFilesInAStore(t *testing.T) {
	const path = "mongodb:/orders@0002.fpl"
	for name, err := range map[string]error{
		"--accept-loss": &storage.CutError{Path: path},
		"--adopt":       &storage.RegistryMismatch{Path: path, Newer: 2},
	} {
		var errs bytes.Buffer
		cmd := &cobra.Command{Use: "worker", RunE: func(*cobra.Command, []string) error { return errors.Join(err, errors.New("and more")) }}
		StoreFlag(cmd, "files")
		cmd.SetArgs([]string{"--store", "mongodb:"})
		cmd.SetErr(&errs)
		Run(context.Background(), cmd)
		want := "fencepost repair --store mongodb: " + name + " orders@0002.fpl\n"
		if !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), "orders@0002.fpl in mongodb:") || strings.Contains(errs.String(), path) {
			t.Errorf("%q; want %q", errs.String(), want)
		}
	}
}

// A command that gets its stores without --store reports errors in the same way.
func TestInStore(t *testing.T) {
	err := fmt.Errorf("type orders: %w", &storage.CutError{Path: "mongodb:/orders@0002.fpl"})
	got := InStore(err, "mongodb:")
	if text := got.Error(); !strings.Contains(text, "orders@0002.fpl in mongodb:") || strings.Contains(text, "mongodb:/") || !errors.Is(got, err) ||
		!strings.HasSuffix(text, "; to give up the missing messages: fencepost repair --store mongodb: --accept-loss orders@0002.fpl") {
		t.Errorf("%q", text)
	}
	if again := WithRemedy(got); again.Error() != got.Error() {
		t.Errorf("a remedy is told twice: %q", again)
	}
	err = fmt.Errorf("type orders: %w", &storage.CutError{Path: "s3:/b/p/orders.fpl"})
	if text := InStore(err, "s3://b/p?sse=AES256").Error(); !strings.Contains(text, "orders.fpl in s3://b/p: ") || !strings.HasSuffix(text, "repair --store 's3://b/p?sse=AES256' --accept-loss orders.fpl") {
		t.Errorf("the command writes without encryption: %q", text)
	}
	if got := InStore(err, ""); got != err {
		t.Errorf("in a directory: %v", got)
	}
}

// A directory on the command line is refused together with a store; one from another source, such as the
// container image, does not count.
func TestNoDirWithStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "store")
	write(t, file, "mongodb:\n")
	for _, test := range []struct {
		args, store, dir string
		says             string
	}{
		{args: "--store mongodb: --dir data", says: "--store and --dir"},
		{args: "--dir data", store: "mongodb:", says: "FENCEPOST_STORE"},
		{args: "--store-file /no/such --dir data", says: "--store-file /no/such: cannot be read"},
		{args: "--store-file " + file + " --dir data", says: "--store-file " + file + " and --dir"},
		{args: "--store-file " + file, store: "shared:/srv", dir: "/data"},
		{args: "--store mongodb:", dir: "/data"},
		{store: "mongodb:", dir: "/data"},
		{args: "--dir data"},
		{args: "--dir data --store=", store: "mongodb:", says: "--store is empty"},
	} {
		if test.store != "" {
			t.Setenv("FENCEPOST_STORE", test.store)
		}
		if test.dir != "" {
			t.Setenv("FENCEPOST_DIR", test.dir)
		}
		var errs bytes.Buffer
		cmd := &cobra.Command{Use: "worker", RunE: func(cmd *cobra.Command, _ []string) error { return NoDirWithStore(cmd) }}
		StoreFlag(cmd, "files")
		cmd.Flags().String("dir", "data", "")
		cmd.SetArgs(strings.Fields(test.args))
		cmd.SetErr(&errs)
		code := Run(context.Background(), cmd)
		if (code == ExitUsage) != (test.says != "") || !strings.Contains(errs.String(), test.says) || code != ExitUsage && code != ExitOK {
			t.Errorf("%+v: exit code %d: %s", test, code, errs.String())
		}
		os.Unsetenv("FENCEPOST_STORE")
		t.Setenv("FENCEPOST_DIR", "data")
	}
}

// Settings are shown without the store's password.
func TestEffectiveHidesTheStoresPassword(t *testing.T) {
	cmd := &cobra.Command{Use: "worker"}
	StoreFlag(cmd, "files")
	if err := cmd.ParseFlags([]string{"--store", "mongodb://bob:secret@db2/files?proxyPassword=secret"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range Effective(cmd) {
		if s.Name == "store" && s.Value != "mongodb://db2/files" {
			t.Errorf("%+v", s)
		}
	}
}
