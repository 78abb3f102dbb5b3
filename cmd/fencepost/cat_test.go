package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/storage"
)

// On a terminal a payload is shown, but cannot control the terminal. A pipe or a file gets it unchanged.
func TestPayloadsOnATerminal(t *testing.T) {
	payload := "ü\x1b[2J\x9b\u202e\r\nFORGED"
	shown := `ü\x1b[2J\x9b\u202e\r\nFORGED`
	for format, want := range map[string]struct{ pipe, terminal string }{
		"lines": {payload + "\n", shown + "\n"},
		"raw":   {payload, shown},
		"len32": {"\x00\x00\x00\x12" + payload, `\x00\x00\x00\x12` + shown},
	} {
		for terminal, want := range map[bool]string{false: want.pipe, true: want.terminal} {
			var out bytes.Buffer
			w := newMessageWriter(&out, format)
			w.terminal = terminal
			if err := w.print(&storage.Record{Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
			w.Flush()
			if got := out.String(); got != want {
				t.Errorf("%s, terminal %v: %q, want %q", format, terminal, got, want)
			}
		}
	}
}

// A preview is short, and on one line, whatever the payload is.
func TestPreview(t *testing.T) {
	for payload, want := range map[string]string{
		"":                         "",
		"{\n\t\"id\":  1\r\n}\n":   `{ "id": 1 }\n`,
		"a\r":                      `a\r`,
		"b \t":                     `b\x20\t`,
		"\u00a0 c":                 `\u00a0\x20c`,
		" ":                        `\x20`,
		strings.Repeat("ä", 1<<20): strings.Repeat("ä", 500),
		"a\x1b[2J":                 "a\x1b[2J", // the table escapes it
	} {
		if got := preview([]byte(payload)); got != want {
			t.Errorf("%.20q: %q, want %q", payload, got, want)
		}
	}
}
