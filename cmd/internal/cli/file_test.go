package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// --config may name another kind of file, such as one with passwords: errors give the position, but quote nothing.
func TestErrorsTellNoLine(t *testing.T) {
	for name, test := range map[string]struct{ file, where string }{
		"passwords of the system":   {"root:$6$s3cret$s3cret:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n", ":1"},
		"one password":              {"s3cret+", ":1"},
		"a URL as key":              {"mongodb://bob:s3cret@h/db: x", ":1"},
		"a key twice":               {"? 's3cret+'\n: 1\n? 's3cret+'\n: 2\n", ":3"},
		"a list":                    {"- s3cret", ":1"},
		"a key that is a list":      {"? [s3cret]\n: 1", ":1"},
		"unknown anchor":            {"url: *s3cret", ""},
		"anchor in itself":          {"url: &s3cret [*s3cret]", ""},
		"unknown handle":            {"url: !s3cret! x", ""},
		"no mapping":                {"url: s3cret: s3cret", ""},
		"quotes that are not ended": {"lease: 3s\nurl: \"s3cret", ":2"},
		"key of a private kind":     {"-----BEGIN PRIVATE KEY-----\ns3cret==\n-----END PRIVATE KEY-----\n", ":"},
		"settings of a shell":       {"export PGPASSWORD=s3cret\n", ":1"},
		"a value without quotes":    {"url: @s3cret", ""},
		"bytes":                     {"\xff\xfes3cret\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			write(t, path, test.file)
			check(t, path, []string{"--config", path}, "", ExitUsage, []string{"config file F" + test.where}) // and not s3cret
		})
	}
}

// A file that every user can read causes one warning, and is used: Kubernetes mounts secrets like that. A file without a password causes none.
func TestPasswordsThatEverybodyMayRead(t *testing.T) {
	const secret, plain = "mongodb://bob:s3cret@h/db", "mongodb://h/db"
	for name, test := range map[string]struct {
		content string
		mode    os.FileMode
		flag    string
		warns   bool
	}{
		"url file":                      {secret, 0o644, "--url-file", true},
		"url file of a group":           {secret, 0o640, "--url-file", false},
		"url file without a password":   {plain, 0o644, "--url-file", false},
		"store file":                    {secret, 0o644, "--store-file", true},
		"configuration":                 {"url: " + secret, 0o604, "--config", true},
		"a program's section":           {"worker:\n  url: " + secret, 0o644, "--config", true},
		"a store":                       {"store: " + secret, 0o644, "--config", true},
		"a store in a section":          {"worker:\n  store: " + secret, 0o604, "--config", true},
		"a store beside a URL":          {"url: " + secret + "\nstore: " + secret, 0o644, "--config", true},
		"a store of one":                {"store: " + secret, 0o640, "--config", false},
		"a store without a password":    {"url: " + plain + "\nstore: s3://bucket/prefix?sse=AES256", 0o644, "--config", false},
		"configuration of one":          {"url: " + secret, 0o600, "--config", false},
		"configuration without any URL": {"lease: 3s", 0o644, "--config", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
			write(t, path, test.content)
			if err := os.Chmod(path, test.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("file", link); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{path, link} {
				root, _ := program("worker")
				var stderr bytes.Buffer
				root.SetErr(&stderr)
				root.SetArgs([]string{test.flag, path})
				if code := Run(context.Background(), root); code != ExitOK {
					t.Errorf("exit code %d", code)
				}
				want := 0
				if test.warns {
					want = 1
				}
				if text := stderr.String(); strings.Count(text, "\n") != want || test.warns && !strings.Contains(text, path) || strings.Contains(text, "s3cret") {
					t.Errorf("%d lines are wanted: %q", want, text)
				}
			}
		})
	}
}
