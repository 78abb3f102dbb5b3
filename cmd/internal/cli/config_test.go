package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// program is a worker-like program that prints its settings. It has a second command with its own flag.
func program(name string) (*cobra.Command, *bytes.Buffer) {
	var out bytes.Buffer
	root := &cobra.Command{Use: name, Args: NoArgs}
	root.Flags().Duration("lease", 20*time.Second, "")
	root.Flags().StringSlice("type", nil, "")
	root.Flags().StringArray("header", nil, "")
	root.Flags().Bool("compress", false, "")
	root.Flags().Int("batch", 1000, "")
	root.Flags().Bool("yes", false, "")
	URLFlag(root)
	StoreFlag(root, "files")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, s := range Effective(cmd) {
			if s.Source != "default" && s.Name != "config" {
				fmt.Fprintf(&out, "%s=%s (%s)\n", s.Name, s.Value, s.Source)
			}
		}
		return nil
	}
	other := &cobra.Command{Use: "other", RunE: func(*cobra.Command, []string) error { return nil }}
	other.Flags().Int("depth", 0, "")
	root.AddCommand(other)
	return root, &out
}

func TestConfigFile(t *testing.T) {
	for _, test := range []struct {
		name, file string
		env        map[string]string
		args       []string
		want       string // lines on stdout
		code       int
		says       []string // texts in the error
	}{
		{name: "values", file: "lease: 30s\ntype: [orders, 'audit-*']\ncompress: true\nbatch: 10\n",
			want: "batch=10 (F:4)\ncompress=true (F:3)\nlease=30s (F:1)\ntype=orders,audit-* (F:2)\n"},
		{name: "a list as one text", file: "type: orders,audit", want: "type=orders,audit (F:1)\n"},
		{name: "a text with a comma in a list of texts", file: "header: a=1,b=2", want: "header=a=1,b=2 (F:1)\n"},
		{name: "words that YAML knows", file: "type: [no, 'on', 1e3]", want: "type=no,on,1e3 (F:1)\n"},
		{name: "an alias", file: "worker:\n  lease: &d 3s\ntype: *d", want: "lease=3s (F:2)\ntype=3s (F:2)\n"},
		{name: "the environment wins", file: "lease: 30s\nbatch: 5", env: map[string]string{"FENCEPOST_LEASE": "40s"},
			want: "batch=5 (F:2)\nlease=40s (env FENCEPOST_LEASE)\n"},
		{name: "the command line wins", file: "lease: 30s", env: map[string]string{"FENCEPOST_LEASE": "40s"}, args: []string{"--lease", "50s"},
			want: "lease=50s (flag)\n"},
		{name: "sections", file: "lease: 30s\nproducer:\n  rate: 5k/s\nworker:\n  lease: 3s\n", want: "lease=3s (F:5)\n"},
		{name: "another command's flag", file: "depth: 3", want: ""},
		{name: "nothing in it", file: "# nothing\n", want: ""},
		{name: "empty", file: "", want: ""},
		{name: "secrets", file: "url: mongodb://bob:s3cret@h/db?x=s3cret", want: "url=mongodb://h/db (F:1)\n"},
		{name: "store", file: "store: s3://bucket/prefix?region=eu-central-1&sse=AES256\n", want: "store=s3://bucket/prefix?region=eu-central-1&sse=AES256 (F:1)\n"},
		{name: "the environment's store wins", file: "store: 'shared:/srv/a'", env: map[string]string{"FENCEPOST_STORE": "shared:/srv/b"}, want: "store=shared:/srv/b (env FENCEPOST_STORE)\n"},
		{name: "a program's store", file: "store: 'mongodb:'\nworker:\n  store: shared:/srv/a\nfencepost:\n  store: shared:/srv/b", want: "store=shared:/srv/a (F:3)\n"},
		{name: "the store's secrets", file: "store: mongodb://bob:s3cret@h/files?x=s3cret", want: "store=mongodb://h/files (F:1)\n"},
		{name: "two stores", file: "store: [shared:/srv/a, shared:/srv/b]", code: ExitUsage, says: []string{"F:1", "store", "one value"}},

		{name: "unknown key", file: "batch: 1\nleese: 3s\nxx: 1", code: ExitUsage, says: []string{"F:2", `"leese"`, `did you mean "lease"?`}},
		{name: "underscore", file: "worker:\n  ba_tch: 3", code: ExitUsage, says: []string{"F:2", `"batch"`}},
		{name: "another program's", file: "rate: 3s", code: ExitUsage, says: []string{"F:1", `"rate"`, "'producer:'"}},
		{name: "unlike anything", file: "worker:\n  zzzzzz: 3s", code: ExitUsage, says: []string{"F:2", `unknown key "zzzzzz"`}},
		{name: "wrong type", file: "batch: many", code: ExitUsage, says: []string{"F:1", "batch", "many"}},
		{name: "no unit", file: "\nlease: 30", code: ExitUsage, says: []string{"F:2", "lease", "missing unit"}},
		{name: "list for one", file: "lease: [1s, 2s]", code: ExitUsage, says: []string{"F:1", "lease", "one value"}},
		{name: "keys for one", file: "lease: {a: b}", code: ExitUsage, says: []string{"F:1", "lease", "value"}},
		{name: "no value", file: "lease:", code: ExitUsage, says: []string{"F:1", "lease", "no value"}},
		{name: "lists in lists", file: "type: [[a]]", code: ExitUsage, says: []string{"F:1", "type", "plain values"}},
		{name: "twice", file: "lease: 1s\nlease: 2s", code: ExitUsage, says: []string{"F:2", `"lease"`, "duplicate"}},
		{name: "no mapping", file: "lease", code: ExitUsage, says: []string{"F:1", "lease: 30s"}},
		{name: "section without keys", file: "worker: 1", code: ExitUsage, says: []string{"F:1"}},
		{name: "no YAML", file: "a: b\nlease: [", code: ExitUsage, says: []string{"F:2", "YAML"}},
		{name: "two documents", file: "batch: 1\n---\nbatch: 2", code: ExitUsage, says: []string{"F:2", "second document"}},
		{name: "about one call", file: "config: other.yaml", code: ExitUsage, says: []string{"F:1", `"config"`}},
		{name: "confirmed for good", file: "lease: 1s\nyes: true", code: ExitUsage, says: []string{"F:2", `"yes" cannot be set in a file`}},
		{name: "of one call, for another program", file: "worker:\n  count: 1", code: ExitUsage, says: []string{"F:2", `"count" cannot be set in a file`}},
		{name: "confirmed by the environment", env: map[string]string{"FENCEPOST_YES": "true"}, code: ExitUsage, says: []string{"FENCEPOST_YES", "--yes", "on the command line"}},
		{name: "another command's in the environment", env: map[string]string{"FENCEPOST_FORCE": "true"}},
		{name: "confirmed", env: map[string]string{"FENCEPOST_YES": "true"}, args: []string{"--yes"}, want: "yes=true (flag)\n"},
		{name: "given twice", file: "", args: []string{"--batch", "5", "--batch=6"}, code: ExitUsage, says: []string{`--batch: given twice`}},
		{name: "given twice, the same", file: "", args: []string{"--batch", "5", "--batch=5"}, want: "batch=5 (flag)\n"},
		{name: "a list given twice", file: "", args: []string{"--type", "a", "--type", "b"}, want: "type=a,b (flag)\n"},
		{name: "two stores given", file: "", args: []string{"--store", "shared:/a", "--store", "shared:/b"}, code: ExitUsage, says: []string{"--store: given twice"}},
		{name: "a secret given twice", file: "", args: []string{"--url", "mongodb://bob:s3cret@h/db", "--url", "mongodb://bob:s3cret@i/db"}, code: ExitUsage, says: []string{"--url: given twice"}},
		{name: "misspelt in the environment", file: "", env: map[string]string{"FENCEPOST_TYPES": "orders"}, says: []string{"warning: environment variable FENCEPOST_TYPES has no effect; did you mean FENCEPOST_TYPE?\n"}},
		{name: "wrong environment", file: "", env: map[string]string{"FENCEPOST_BATCH": "many"}, code: ExitUsage, says: []string{"FENCEPOST_BATCH"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.yaml")
			if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			for k, v := range test.env {
				t.Setenv(k, v)
			}
			t.Setenv("FENCEPOST_CONFIG", path)
			check(t, path, test.args, test.want, test.code, test.says)
			os.Unsetenv("FENCEPOST_CONFIG")
			check(t, path, append([]string{"--config", path}, test.args...), test.want, test.code, test.says)
		})
	}
}

// Only variables that look like a misspelt flag of this program are warned of.
func TestWarnOfVariables(t *testing.T) {
	root, _ := program("worker")
	for env, want := range map[string]string{
		"FENCEPOST_LAESE=30s":                      "", // two letters of five
		"FENCEPOST_LEASES=30s":                     "FENCEPOST_LEASE",
		"FENCEPOST_LEASE=30s":                      "",
		"FENCEPOST_COLOUR=red":                     "",
		"LEASES=30s":                               "",
		"FENCEPOST_URL_PORT=tcp://10.0.0.1:80":     "", // Kubernetes, for Services
		"FENCEPOST_URL_SERVICE_HOST=10.0.0.1":      "",
		"FENCEPOST_PORT_80_TCP_ADDR=10.0.0.1":      "",
		"FENCEPOST_TEST_MONGODB_URI=mongodb://h/t": "",
	} {
		var stderr bytes.Buffer
		root.SetErr(&stderr)
		if warnOfVariables(root, []string{env}); want == "" && stderr.Len() > 0 || want != "" && !strings.Contains(stderr.String(), "did you mean "+want+"?") {
			t.Errorf("%s: %q", env, stderr.String())
		}
	}
}

// check runs the program; F in the expectations stands for the file.
func check(t *testing.T, path string, args []string, want string, code int, says []string) {
	t.Helper()
	root, out := program("worker")
	var stderr bytes.Buffer
	root.SetErr(&stderr)
	root.SetArgs(args)
	if got := Run(context.Background(), root); got != code {
		t.Errorf("%q: exit code %d, want %d; %s", args, got, code, stderr.String())
	}
	if got := strings.ReplaceAll(out.String(), path, "F"); got != want {
		t.Errorf("%q: got\n%s\nwant\n%s", args, got, want)
	}
	if strings.Count(stderr.String(), "error:") > 1 || strings.Contains(out.String()+stderr.String(), "s3cret") {
		t.Errorf("%q: more than one error, or a secret: %s", args, stderr.String())
	}
	for _, w := range says {
		if !strings.Contains(strings.ReplaceAll(stderr.String(), path, "F"), w) {
			t.Errorf("%q: the error does not say %q: %s", args, w, stderr.String())
		}
	}
}

// The passwords of the URL and of the store may be in separate files. If one is given twice, the higher rank takes precedence.
func TestURLFile(t *testing.T) {
	const inFile, url = "mongodb://bob:s3cret@filed/db?x=s3cret\n", "mongodb://bob:s3cret@given/db"
	for name, test := range map[string]struct {
		content, config string
		env             map[string]string // F is the file
		args            []string
		want            string
		code            int
		says            []string
	}{
		"by flag":                   {content: inFile, args: []string{"--url-file", "F"}, want: "url-file=F (flag)\nurl=mongodb://filed/db (file F)\n"},
		"byte order mark":           {content: "\ufeff" + inFile, args: []string{"--url-file", "F"}, want: "url-file=F (flag)\nurl=mongodb://filed/db (file F)\n"},
		"by environment":            {content: inFile, env: map[string]string{"FENCEPOST_URL_FILE": "F"}, want: "url-file=F (env FENCEPOST_URL_FILE)\nurl=mongodb://filed/db (file F)\n"},
		"by configuration":          {content: inFile, config: "url-file: F", want: "url-file=F (C:1)\nurl=mongodb://filed/db (file F)\n"},
		"flag over environment":     {content: inFile, env: map[string]string{"FENCEPOST_URL": url}, args: []string{"--url-file", "F"}, want: "url-file=F (flag)\nurl=mongodb://filed/db (file F)\n"},
		"flag over that":            {content: inFile, env: map[string]string{"FENCEPOST_URL_FILE": "F"}, args: []string{"--url", url}, want: "url-file=F (env FENCEPOST_URL_FILE)\nurl=mongodb://given/db (flag)\n"},
		"environment over file":     {content: inFile, config: "url: " + url, env: map[string]string{"FENCEPOST_URL_FILE": "F"}, want: "url-file=F (env FENCEPOST_URL_FILE)\nurl=mongodb://filed/db (file F)\n"},
		"both by flag":              {content: inFile, args: []string{"--url", url, "--url-file", "F"}, code: ExitUsage, says: []string{"--url", "--url-file", "cannot be combined"}},
		"both by environment":       {content: inFile, env: map[string]string{"FENCEPOST_URL": url, "FENCEPOST_URL_FILE": "F"}, code: ExitUsage, says: []string{"cannot be combined"}},
		"empty":                     {content: "\n", args: []string{"--url-file", "F"}, code: ExitUsage, says: []string{"--url-file F", "only line", "mongodb://"}},
		"two lines":                 {content: inFile + inFile, args: []string{"--url-file", "F"}, code: ExitUsage, says: []string{"--url-file F", "only line"}},
		"far too large":             {content: strings.Repeat("x", maxAddressFile+1), args: []string{"--url-file", "F"}, code: ExitUsage, says: []string{"larger than"}},
		"nothing there":             {args: []string{"--url-file", "F"}, code: ExitUsage, says: []string{"--url-file F", "no such file"}},
		"no address by flag":        {args: []string{"--url", ""}, code: ExitUsage, says: []string{"--url is empty", "leave it out for"}},
		"no address by environment": {env: map[string]string{"FENCEPOST_URL": ""}, code: ExitUsage, says: []string{"FENCEPOST_URL", "is empty"}},
		"no address by file":        {config: `url: ""`, code: ExitUsage, says: []string{":1", "is empty"}},
		"none over one":             {env: map[string]string{"FENCEPOST_URL": url}, args: []string{"--url", ""}, code: ExitUsage, says: []string{"--url is empty"}},
		"one over none":             {env: map[string]string{"FENCEPOST_URL": ""}, args: []string{"--url", url}, want: "url=mongodb://given/db (flag)\n"},
		"a file over none":          {content: inFile, env: map[string]string{"FENCEPOST_URL": ""}, args: []string{"--url-file", "F"}, want: "url-file=F (flag)\nurl=mongodb://filed/db (file F)\n"},
		"no file":                   {args: []string{"--url-file", ""}, code: ExitUsage, says: []string{"--url-file is empty"}},
		"one address, and no file":  {env: map[string]string{"FENCEPOST_URL_FILE": ""}, args: []string{"--url", url}, want: "url-file= (env FENCEPOST_URL_FILE)\nurl=mongodb://given/db (flag)\n"},
		"no address, and no file":   {args: []string{"--url=", "--url-file="}, code: ExitUsage, says: []string{"--url is empty"}},
		"an argument that is none":  {content: inFile, args: []string{url}, code: ExitUsage, says: []string{"mongodb://***@given/db"}},
	} {
		for _, flag := range []string{"url", "store"} {
			t.Run(name+", "+flag, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "address")
				if test.content != "" {
					write(t, path, test.content)
				}
				of := strings.NewReplacer("url", flag, "URL", strings.ToUpper(flag))
				args := make([]string, len(test.args))
				for i, arg := range test.args {
					if args[i] = of.Replace(arg); arg == "F" {
						args[i] = path
					}
				}
				want := of.Replace(test.want)
				if test.config != "" {
					config := filepath.Join(t.TempDir(), "c.yaml")
					write(t, config, strings.ReplaceAll(of.Replace(test.config), "F", path))
					args = append(args, "--config", config)
					want = strings.ReplaceAll(want, "C:", config+":")
				}
				for k, v := range test.env {
					t.Setenv(of.Replace(k), strings.ReplaceAll(v, "F", path))
				}
				says := make([]string, len(test.says))
				for i, s := range test.says {
					says[i] = of.Replace(s)
				}
				// Settings are listed by name: url before url-file.
				if a, b, ok := strings.Cut(want, "\n"); ok {
					want = b + a + "\n"
				}
				check(t, path, args, want, test.code, says)
			})
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// docs/cli.md lists the flags that only the command line sets.
func TestFlagsOfOneCallAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	settings, _, _ := strings.Cut(string(doc), "**Output.**")
	for _, name := range ofOneCall {
		if !strings.Contains(settings, "`--"+name+"`") {
			t.Errorf("--%s is not among the settings", name)
		}
	}
}

func TestConfigFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte("#\n"), maxConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, word := range map[string]string{filepath.Join(dir, "none"): "no such file", dir: "is a directory", big: "larger than"} {
		check(t, path, []string{"--config", path}, "", ExitUsage, []string{"config file F", word})
	}
}
