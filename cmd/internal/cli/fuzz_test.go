package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// FuzzConfig: configuration files. One that is refused is a usage error that names the file. The settings of one that is taken are the same in a file
// that has them as plain texts.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{"lease: 30s\ntype: [orders, 'audit-*']\ncompress: true\nbatch: 10\n", "type: orders,audit", "header: a=1,b=2", "type: [no, 'on', 1e3]",
		"worker:\n  lease: &d 3s\ntype: *d", "lease: 30s\nproducer:\n  rate: 5k/s\nworker:\n  lease: 3s\n", "# nothing\n", "", "---", "batch: 1\n---\nbatch: 2", "a: b\nlease: [",
		"lease:", "type: [[a]]", "lease: 1s\nlease: 2s", "? [a]\n: b", "worker: &w\n  worker: *w", "&a [*a]", "type: &t [*t]", "url: mongodb://bob:s3cret@h/db", "url: !!binary aGFsbG8=",
		"\xff\xfeb\x00", "<<: {lease: 3s}", "batch: 0x10", "type: !!set {a, b}", "config: other.yaml", "leese: 3s", "{lease: 3s, batch: 1}"} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "config.yaml")
	load := func(t *testing.T, file []byte) (out, errors string, code int) {
		t.Helper()
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd, stdout := program("worker")
		var stderr bytes.Buffer
		cmd.SetErr(&stderr)
		cmd.SetArgs([]string{"--config", path})
		code = Run(t.Context(), cmd)
		return stdout.String(), stderr.String(), code
	}
	set := regexp.MustCompile(`(?m)^([a-z-]+)=((?s:.*?)) \(` + regexp.QuoteMeta(path) + `:\d+\)$`)
	f.Fuzz(func(t *testing.T, file []byte) {
		out, says, code := load(t, file)
		if code != ExitOK {
			if code != ExitUsage || !strings.Contains(says, path) || strings.Count(says, "error: ") != 1 {
				t.Fatalf("%q: exit code %d: %s", file, code, says)
			}
			return
		}
		if strings.Contains(string(file), "url") {
			return // shown without its secrets, and so is another one
		}
		values := map[string]any{}
		for _, m := range set.FindAllStringSubmatch(out, -1) {
			values[m[1]] = m[2]
			if m[1] == "type" { // a list: its elements may have commas
				delete(values, m[1])
			}
		}
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		again, says, code := load(t, text)
		if code != ExitOK {
			t.Fatalf("%q is taken as %q, and %q is not: %s", file, out, text, says)
		}
		for _, m := range set.FindAllStringSubmatch(again, -1) {
			if m[2] != values[m[1]] {
				t.Fatalf("%q: %s is %q, and then %q", file, m[1], values[m[1]], m[2])
			}
			delete(values, m[1])
		}
		if len(values) > 0 {
			t.Fatalf("%q: %v is not there any more in %q", file, values, again)
		}
	})
}

// FuzzPlace: places in a file, as for the HTTP API, tail and cat. A place is an index, IDs or a time, and its own text leads to it again.
func FuzzPlace(f *testing.F) {
	for _, s := range []string{"1234", "007", "-1", "+1", "18446744073709551615", "18446744073709551616", "065svpb8000i6hb7h6lsrro000000001", strings.Repeat("0", 32), strings.Repeat("ab", 20), "1234abcd", "AB", "abc",
		"2026-01-31T15:04:05Z", "0001-01-01T00:00:00Z", "90m", "7d", "365d", strings.Repeat("0", 30) + "7d", "-90m", "1e3s", "", "9223372036s", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := ParsePlace(text)
		switch {
		case !ok:
		case p.IsIndex:
			if again, ok := ParsePlace(strconv.FormatUint(p.Index, 10)); !ok || !again.IsIndex || again.Index != p.Index || p.IDs != nil || !p.Since.IsZero() {
				t.Fatalf("%q is %+v, and again %+v", text, p, again)
			}
		default:
			for _, id := range p.IDs {
				again, ok := ParsePlace(IDText([]byte(id)))
				if !ok || id == "" || !slices.Contains(again.IDs, id) || p.Since.After(again.Since) {
					t.Fatalf("%q has the ID %x, and again %+v", text, id, again)
				}
			}
		}
	})
}

// FuzzStoreName: addresses of stores. The name of one, which logs, errors and the registry have, is the name of itself, and has only settings that say where
// a bucket is. The address that is printed for commands has the same name, and no secret either.
func FuzzStoreName(f *testing.F) {
	for _, s := range []string{"mongodb:", "mongodb://u:s3cret@h/db?replicaSet=rs0&tls=true", "s3://b/p?region=x&endpoint=http://h:1&path-style=true", "s3://u:s3cret@b/p", "s3://b?endpoint=http://u:s3cret@h",
		"s3://b?secret=s3cret", "s3://b?", "shared:/a/../b/", "shared:", "shared:x", "ftp://u:s3cret@h", "s3:b", "", "s3://b?region=a?b", "mongodb://h/?a=b?c",
		"s3://b/p?sse=aws:kms&region=x&sse-kms-key-id=arn:aws:kms:x:1:key/2", "s3://b?sse=AES256", "s3://b?sse=u:s3cret@h", "s3://b?sse-c-key=s3cret&region=x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		name := StoreName(address)
		known := address == "mongodb:" || slices.ContainsFunc([]string{"s3://", "mongodb://", SharedScheme}, func(scheme string) bool { return strings.HasPrefix(address, scheme) })
		if again := StoreName(name); known && again != name {
			t.Fatalf("the name of %q is %q, whose name is %q", address, name, again)
		}
		shown := StoreAddress(address)
		if known && (StoreName(shown) != name || StoreAddress(shown) != shown) {
			t.Fatalf("the name of %q is %q, and that of %q is %q", address, name, shown, StoreName(shown))
		}
		if !strings.HasPrefix(address, "s3://") {
			return
		}
		place := []string{"endpoint", "region", "path-style"}
		for text, known := range map[string][]string{name: place, shown: append(place, "sse", "sse-kms-key-id")} {
			bucket, settings, some := strings.Cut(text, "?")
			for s := range strings.SplitSeq(settings, "&") {
				if key, _, _ := strings.Cut(s, "="); some && (!slices.Contains(known, key) || strings.Contains(s, "@")) {
					t.Fatalf("%q of the bucket %q", s, bucket)
				}
			}
		}
	})
}
