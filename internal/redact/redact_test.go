package redact_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/redact"
)

func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"mongodb://user:secret@a,b:1/db?tlsCertificateKeyFilePassword=secret": "mongodb://a,b:1/db",
		"mongodb://u:p@ss@host/db":                                 "mongodb://host/db",
		"mongodb://user:se/cret@host/db":                           "mongodb://host/db",
		"mongodb://user:sec?ret@host/db":                           "mongodb://***",
		"mongodb://host/db?authMechanismProperties=TOKEN:a@secret": "mongodb://***",
		"mongodb+srv://u:secret@h":                                 "mongodb+srv://h",
		"user:secret@host?x":                                       "host",
		"sqlite://data/x@y.db":                                     "sqlite://data/x@y.db",
		"sqlite://./x:y@z.db":                                      "sqlite://./x:y@z.db",
		"sqlite://u:secret@h/db":                                   "sqlite://h/db",
		"sqlite://u:sec/ret@h/db":                                  "sqlite://h/db",
		"bob:secret@h://x":                                         "h://x",
		"bob:secret://x@h":                                         "h",
		"?secret://x":                                              "",
		"":                                                         "",
	} {
		if got := redact.URL(in); got != want {
			t.Errorf("URL(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPassword(t *testing.T) {
	for _, test := range []struct{ text, url, want string }{
		{"cannot parse p%40ss or p@ss", "mongodb://bob:p%40ss@h", "cannot parse *** or ***"},
		{"nothing to hide", "mongodb://h/db", "nothing to hide"},
		{"no password, bob", "mongodb://bob@h/db", "no password, bob"},
		{"no URL at all", "bob", "no URL at all"},
		{"secret of no scheme", "bob:secret@h", "*** of no scheme"},
	} {
		if got := redact.Password(test.text, test.url); got != test.want {
			t.Errorf("%q of %q: %q, want %q", test.text, test.url, got, test.want)
		}
	}
}

func TestHasSecret(t *testing.T) {
	for in, want := range map[string]bool{
		"mongodb://bob:secret@h/db":                           true,
		"mongodb://h/db?tlsCertificateKeyFilePassword=secret": true,
		"mongodb://bob@h/db":                                  false,
		"mongodb://h/db?tls=true":                             false,
		"sqlite://data/x.db":                                  false,
	} {
		if got := redact.HasSecret(in); got != want {
			t.Errorf("HasSecret(%q) = %v", in, got)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		`unexpected argument "mongodb://bob:secret@h/db"; see`:                  `unexpected argument "mongodb://***@h/db"; see`,
		"mongodb://bob:sec@ret?@h/db?a=b":                                       "mongodb://***@h/db?a=b",
		"one slash: mongodb:/bob:secret@h":                                      "one slash: mongodb://***@h",
		"two: mongodb://a:secret@h and mongodb+srv://b:secret@i":                "two: mongodb://***@h and mongodb+srv://***@i",
		"x://h/?tlsCertificateKeyFilePassword=secret&tls=true":                  "x://h/?tlsCertificateKeyFilePassword=***&tls=true",
		"authmechanismproperties=AWS_SESSION_TOKEN:secret failed":               "authmechanismproperties=*** failed",
		"mongodb://h1,h2/db: no answer; write to admin@example.com":             "mongodb://h1,h2/db: no answer; write to admin@example.com",
		`{"url":"mongodb://h/db","error":"orders@0002.fpl","why":"x=y"}` + "\n": `{"url":"mongodb://h/db","error":"orders@0002.fpl","why":"x=y"}` + "\n",
	} {
		if got := redact.Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
		var b strings.Builder
		if n, err := redact.Writer(&b).Write([]byte(in)); n != len(in) || err != nil || b.String() != want {
			t.Errorf("Writer: %q, %d of %d bytes, %v", b.String(), n, len(in), err)
		}
	}
}

// Whatever a URL looks like, none of the text between the first ':' after the scheme and the last '@' remains.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"mongodb://u:p@h/db?x=y", "u:p@h", "mongodb://u:p?@h", "mongodb://u:p/@@h", "a://b://c:d@e", "sqlite://u:p@h", "?://", "u:secret@h://x", "u:secret://p@h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := redact.URL(raw)
		if path, ok := strings.CutPrefix(raw, "sqlite://"); ok && !redact.MistakenPath(path) {
			return
		}
		if strings.Contains(got, "@") || strings.Contains(got, "?") {
			t.Errorf("URL(%q) = %q", raw, got)
		}
		if secret := redact.Userinfo(raw); len(secret) > len(raw)/2 && strings.Contains(got, secret) {
			t.Errorf("URL(%q) = %q reveals %q", raw, got, secret)
		}
	})
}
