package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Ordinary text in any language is printed unchanged.
func TestOrdinaryTextStaysAsItIs(t *testing.T) {
	for _, s := range []string{
		"", "orders", `C:\temp\x1b`, "a \"quoted\" word", "Grüße, Ærø, žluťoučký kůň", "prix :\u00a05\u202f€", "Ελληνικά", "Привет, мир",
		"e\u0301 and a\u0302\u0323\u0300", "tiếng Việt", "שָׁלוֹם", "مَرْحَبًا", "می\u200cخواهم", "हिन्दी, क्\u200dष, क्\u200cष", "ශ්\u200dරී ලංකා", "ภาษาไทย ที่นี่",
		"日本語\u3000テキスト", "中文，标点。", "한국어", "葛\U000e0100飾区",
		"\u0f67\u0f90\u0fb5\u0fa8\u0fb3\u0fba\u0fbc\u0fbb\u0f82", // the tallest stack of Tibetan
		"😀 👩\u200d👩\u200d👧 ❤\ufe0f 1\ufe0f\u20e3 👍🏽 🇪🇺", "½ µm² ∑ → …", "replaced: \ufffd",
	} {
		if got := Text(s); got != s {
			t.Errorf("%+q became %q", s, got)
		}
	}
}

// Characters that a terminal would execute, or not show, are printed as in a Go string.
func TestTextIsEscaped(t *testing.T) {
	for s, want := range map[string]string{
		"a\nb\rc\td\x00\x07\x1b[31m\x7f":                 `a\nb\rc\td\x00\a\x1b[31m\x7f`,
		"\u009b31m \u009d \u0085":                        `\u009b31m \u009d \u0085`,
		"\x9b31m \xff\xfe \xe2\x80 \xed\xa0\x80":         `\x9b31m \xff\xfe \xe2\x80 \xed\xa0\x80`,
		"\u202egpj.exe\u202c \u2066x\u2069 \u200e\u061c": `\u202egpj.exe\u202c \u2066x\u2069 \u200e\u061c`,
		"a\u2028b\u2029c":                                `a\u2028b\u2029c`,
		"or\u200bders \ufeff or\u00adders \u2060":        `or\u200bders \ufeff or\u00adders \u2060`,
		"or\u200cders or\u200dders ب\u200d \u200dب":      `or\u200cders or\u200dders ب\u200d \u200dب`,
		"\u3164 \u115f \uffa0 a\u034fb":                  `\u3164 \u115f \uffa0 a\u034fb`,
		"x\U000e0041\U000e007f":                          `x\U000e0041\U000e007f`,
		"\U000f0000 \ue000 \ufff9 \uffff":                `\U000f0000 \ue000 \ufff9 \uffff`,
		"\u0338first \u20dd \"\u0301":                    `\u0338first \u20dd "\u0301`,
		"a" + strings.Repeat("\u0301", 10) + "b":         "a" + strings.Repeat("\u0301", 8) + `\u0301\u0301b`,
		"\x1b\u0301":                                     `\x1b\u0301`,
	} {
		if got := Text(s); got != want {
			t.Errorf("%+q became %q, want %q", s, got, want)
		}
	}
}

// evil has everything that a terminal could execute. Each part of it is a problem by itself.
const evil = "\x1b]0;title\x07\x1b[2J\u009b31m\u009d\x9b31m\u202e\u2066\u200b\u0085\u2028\x00\x7f\r\nFORGED\u0301\tX\v\f"

// obeyed returns what a terminal would execute in a text, except line feeds.
func obeyed(s string) (found []string) {
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		if r != '\n' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) || r == utf8.RuneError && size == 1 {
			found = append(found, fmt.Sprintf("%+q", s[i:i+size]))
		}
	}
	return found
}

func FuzzText(f *testing.F) {
	f.Add(evil)
	f.Add("a\u0301\u200d👩")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if bad := obeyed(strings.NewReplacer("\u200c", "", "\u200d", "").Replace(got)); bad != nil || strings.Contains(got, "\n") {
			t.Errorf("%+q became %+q", s, got)
		}
		if again := Text(got); again != got {
			t.Errorf("%+q became %+q, and then %+q", s, got, again)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var is, want string
		clean := escapeJSON(string(b))
		if err := errors.Join(json.Unmarshal([]byte(clean), &is), json.Unmarshal(b, &want)); err != nil || is != want {
			t.Errorf("%s became %s: %v", b, clean, err)
		}
		if n := len([]rune(Short(s))); n > 10*mostCell+2 || strings.Contains(Short(s), "\n") {
			t.Errorf("%+q in short is %+q", s, Short(s))
		}
	})
}

func TestShort(t *testing.T) {
	for s, want := range map[string]string{
		" one line\n":             "one line",
		"two\nlines":              "two …",
		"\x1b[1m\r\nx":            `\x1b[1m\r …`,
		strings.Repeat("ä", 100):  strings.Repeat("ä", 100),
		strings.Repeat("ä", 101):  strings.Repeat("ä", 100) + " …",
		strings.Repeat("\x00", 9): strings.Repeat(`\x00`, 9),
	} {
		if got := Short(s); got != want {
			t.Errorf("%+q in short is %q, want %q", s, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	if got := Lines("a\x1b\nb\r\n", "  "); got != "a\\x1b\n  b\\r\n  " {
		t.Errorf("%q", got)
	}
}

// The value of a verb is escaped, whatever its kind; the format is not.
func TestFprintf(t *testing.T) {
	var b bytes.Buffer
	n, err := Fprintf(&b, "%s|%v|%q|%-6s|%v|%06.2f|%x|%d%%|%s\n\n", evil, errors.New(evil), "ü\n", "ab", []string{"\x1b"}, 1.5, "\n", 7, Lines("x\ny\x1b", "  "))
	want := Text(evil) + "|" + Text(evil) + `|"ü\n"|ab    |[\x1b]|001.50|0a|7%|x` + "\n" + `  y\x1b` + "\n\n"
	if b.String() != want || n != len(want) || err != nil {
		t.Errorf("%d, %v, %q, want %q", n, err, b.String(), want)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	table := NewTable(&b, "NAME", "N")
	table.Row("a\tb\vc\fd\x1b", 5)
	table.Row(strings.Repeat("x", 200), "")
	whole := NewWholeTable(&b)
	whole.Row("long", strings.Repeat("x", 200)+"\n")
	if err := errors.Join(table.Flush(), whole.Flush()); err != nil {
		t.Fatal(err)
	}
	want := "NAME" + strings.Repeat(" ", 100) + "N\n" + `a\tb\vc\fd\x1b` + strings.Repeat(" ", 104-14) + "5\n" +
		strings.Repeat("x", 100) + " …  \n" + "long  " + strings.Repeat("x", 200) + `\n` + "\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

type ownError struct{ cause error }

func (e ownError) Error() string   { return "own: " + evil + e.cause.Error() }
func (e ownError) Unwrap() []error { return []error{errors.ErrUnsupported, nil, e.cause} }

// Joined errors are printed on separate lines, at any depth; a value in an error begins no line.
func TestError(t *testing.T) {
	a, b := errors.New("a: "+evil), errors.New("b")
	joined := errors.Join(a, b)
	safe := Text("a: " + evil)
	for _, c := range []struct {
		err  error
		want string
	}{
		{a, safe},
		{joined, safe + "\nb"},
		{fmt.Errorf("x\n: %w; y\n", joined), `x\n: ` + safe + "\nb" + `; y\n`},
		{errors.Join(fmt.Errorf("1: %w", joined), b), "1: " + safe + "\nb\nb"},
		{fmt.Errorf("%w (%w)", b, joined), "b (" + safe + "\nb)"},
		{fmt.Errorf("%w\n%s", b, "FORGED"), `b\nFORGED`},
		{fmt.Errorf("b\nb: %w", b), `b\nb: b`},
		{ownError{joined}, "own: " + Text(evil) + safe + "\nb"},
	} {
		if got := Error(c.err); got != c.want {
			t.Errorf("%q is printed as %q, want %q", c.err, got, c.want)
		}
	}
}

func TestEncodeJSON(t *testing.T) {
	type value struct {
		Text string            `json:"text"`
		Map  map[string]string `json:"map"`
	}
	v := value{"ü, \u3000, " + strings.ToValidUTF8(evil, "") + "\U000e0041", map[string]string{"k\u009b": "\u202e"}}
	var b bytes.Buffer
	if err := EncodeJSON(&b, v, "  "); err != nil {
		t.Fatal(err)
	}
	var back value
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back.Text != v.Text || back.Map["k\u009b"] != "\u202e" {
		t.Errorf("%v: %+v, want %+v", err, back, v)
	}
	if got := b.String(); obeyed(got) != nil || !strings.Contains(got, `ü, 　, \u001b]0;title\u0007`) || !strings.Contains(got, `\udb40\udc41`) || strings.Count(got, "\n") != 6 {
		t.Errorf("%q", got)
	}
}
