package workercmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/clitest"
	"github.com/fencepost/fencepost/worker"
)

func TestWrongFlagValues(t *testing.T) {
	clitest.WrongValues(t, New, map[string]string{"worker": "--type t", "worker config": "--type t"})
}

// Values that are out of range, or contradict each other, are refused before the worker connects to the server.
func TestValuesOutOfRange(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, says := range map[string][]string{
		"--type t --batch 0":                {"--batch: 0", "1 to 100000", "--batch 1000"},
		"--type t --batch 100001":           {"--batch: 100001", "1 to 100000"},
		"--type t --batch-bytes 0":          {"--batch-bytes: 0B", "1 B to 32 MiB", "--batch-bytes 4.0MiB"},
		"--type t --batch-bytes 33MiB":      {"--batch-bytes: 33MiB", "1 B to 32 MiB"},
		"--type t --prefetch 65":            {"--prefetch: 65", "1 to 64"},
		"--type t --lease 999ms":            {"--lease: 999ms", "1s to 24h", "--lease 20s"},
		"--type t --lease 25h":              {"--lease: 25h0m0s", "1s to 24h"},
		"--type t --linger 0s":              {"--linger: 0s", "more than 0", "--linger 5ms"},
		"--type t --grace 0s":               {"--grace: 0s", "more than 0"},
		"--type t --connect-timeout -1s":    {"--connect-timeout", "-1s", "--connect-timeout 30s"},
		"--type t --max-file-size 1KiB":     {"--max-file-size", "1.0KiB", "1MiB"},
		"--type Orders":                     {"Orders", "a-z"},
		"--type orders,audit-* --all-types": {"--type and --all-types cannot be combined", "leave out --all-types", "orders, audit-*"},
		"":                                  {"--type", "--all-types"},
		"--type t --dir=":                   {"--dir is empty", "--dir data"},
		"--type t --pprof":                  {"--pprof", "--listen"},
		"--type t --listen-host a.b":        {"--listen-host", "--listen 0.0.0.0:9090"},
		"--type t --ui":                     {"--ui needs --listen"},

		"--type t --listen :0 --base-path /ops":         {"--base-path needs --ui"},
		"--type t --listen :0 --proxy 192.0.2.1":        {"--proxy needs --ui"},
		"--type t --listen 0.0.0.0:0 --ui":              {"--listen 0.0.0.0:0", "--auth-file"},
		"--type t --listen :0 --ui --auth-file no-such": {"--auth-file", "no-such"},

		"--type t --listen :0 --listen-host a.b:9090":  {`"a.b:9090"`, "without port"},
		"--type t --listen :0 --listen-host http://a/": {`"http://a/"`, "--listen-host worker.example.com"},
		"--type t --listen :0 --listen-host *.a.b":     {`"*.a.b"`, "--listen-host worker.example.com"},
	} {
		t.Run(args, func(t *testing.T) {
			var errs bytes.Buffer
			cmd := New()
			cmd.SetArgs(append(strings.Fields(args), "--url", "mongodb://127.0.0.1:1/x"))
			cmd.SetErr(&errs)
			code := cli.Run(t.Context(), cmd)
			for _, s := range says {
				if code != cli.ExitUsage || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), s) {
					t.Errorf("exit code %d, without %q: %s", code, s, errs.String())
				}
			}
		})
	}
}

// The default of --linger is that of the store; an explicit value takes precedence.
func TestLingerOfTheStore(t *testing.T) {
	for args, want := range map[string]string{
		"--type t":                                      "linger 5ms default",
		"--store shared:/mnt/share --type t":            "linger 20ms default",
		"--store s3://bucket/prefix --type t":           "linger 1s default",
		"--store s3://bucket/prefix --linger 5ms":       "linger 5ms flag",
		"--store mongodb://host/database --linger 70ms": "linger 70ms flag",
	} {
		var out bytes.Buffer
		cmd := New()
		cmd.SetArgs(append([]string{"config"}, strings.Fields(args)...))
		cmd.SetOut(&out)
		if code := cli.Run(t.Context(), cmd); code != 0 {
			t.Errorf("%s: exit code %d", args, code)
		}
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("%s: %q is not in %s", args, want, got)
		}
	}
}

// Deployments often have a variable of this name, with the tag of an image: it is no flag.
func TestVersion(t *testing.T) {
	t.Setenv("FENCEPOST_VERSION", "1.2")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"--version":          {cli.ExitOK, "worker version " + worker.Version() + "\n"},
		"--type t --batch 0": {cli.ExitUsage, "--batch: 0"},
	} {
		var out bytes.Buffer
		cmd := New()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if code := cli.Run(t.Context(), cmd); code != want.code || !strings.Contains(out.String(), want.says) {
			t.Errorf("worker %s: exit code %d: %s", args, code, out.String())
		}
	}
}
