package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

// The order of the arguments, in which a shell puts @10000 before @9999, is not that of the messages. A file that is named twice is printed once.
func TestOrderOfFiles(t *testing.T) {
	args := []string{"b/t@10000.fpl", "b/t@9999.fpl", "x.bin", "a/t@0002.fpl", "b/./t@9999.fpl", "b/u.fpl", "a/t.fpl", "y.bin", "x.bin"}
	want := []string{"b/t@9999.fpl", "b/t@10000.fpl", "x.bin", "a/t.fpl", "a/t@0002.fpl", "b/u.fpl", "y.bin"}
	if got := inOrder(args); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	data := t.TempDir()
	w, err := storage.Open(t.Context(), data, "orders", 1, storage.Options{AllowOverlay: true})
	for i := 0; err == nil && i < 3; i++ {
		if err = w.Append([]storage.Record{{ID: []byte{1}, Payload: fmt.Append(nil, i)}}); err == nil && i < 2 {
			w, err = w.Rotate(t.Context(), nil)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second, third := filepath.Join(data, "orders.fpl"), filepath.Join(data, "orders@0002.fpl"), filepath.Join(data, "orders@0003.fpl")
	if code, out, errs := runRoot(t, "cat", third, second, first); code != 0 || out != "0\n1\n2\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	// Files after the last requested message are not read, as what follows it in its file.
	if err := os.Truncate(second, 4096); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runRoot(t, "cat", "--salvage", "--count", "1", "--format", "raw", first, second, third); code != 0 || out != "0" || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// An output that fails is reported once, with whatever else went wrong.
func TestFailedOutputIsReportedOnce(t *testing.T) {
	for _, size := range []int{1, 2 << 20} { // more than the buffer: printing fails, too
		w := newMessageWriter(full{}, "lines")
		other := errors.New("other")
		err := w.flushed(w.print(&storage.Record{Payload: make([]byte, size)}))
		if err == nil || strings.Count(err.Error(), "no space") != 1 {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err := w.flushed(other); !errors.Is(err, other) || !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}
	w := newMessageWriter(io.Discard, "lines")
	if err := w.flushed(nil); err != nil {
		t.Error(err)
	}
}
