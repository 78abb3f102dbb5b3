package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// EncodeJSON prints v as JSON and a newline. Its strings have what is not printable as \u escapes, so it is the same value.
func EncodeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeJSON(b.String()))
	return err
}

// JSONWriter makes JSON printable that has its control characters below U+0020 escaped already, as all that encodes JSON does. Each Write has
// whole characters: it is for logs, whose lines are written at once.
func JSONWriter(w io.Writer) io.Writer { return jsonWriter{w} }

type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(p []byte) (int, error) {
	text := string(p)
	if clean := escapeJSON(text); clean != text {
		_, err := io.WriteString(j.w, clean)
		return len(p), err
	}
	return j.w.Write(p)
}

// escapeJSON escapes what is not printable in JSON. It can only stand in strings there.
func escapeJSON(s string) string {
	return escape(s, func(b []byte, r rune, raw string) []byte {
		switch high, low := utf16.EncodeRune(r); {
		case r < ' ': // between values
			return append(b, raw...)
		case high != utf8.RuneError:
			return fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
			return fmt.Appendf(b, `\u%04x`, r)
		}
	})
}
