package printable

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// EncodeJSON prints v as JSON and a newline. Unprintable characters in its strings become \u escapes, so the value is the same.
func EncodeJSON(w io.Writer, v any, indent string) error {
	marshal := json.Marshal
	if indent != "" {
		marshal = func(v any) ([]byte, error) { return json.MarshalIndent(v, "", indent) }
	}
	b, err := marshal(v)
	if err != nil {
		return err
	}
	_, err = JSONWriter(w).Write(append(b, '\n'))
	return err
}

// JSONWriter makes JSON printable whose control characters below U+0020 are already escaped, as by every JSON encoder. Each Write must
// contain whole characters: it is for logs, which write a line at a time.
func JSONWriter(w io.Writer) io.Writer { return jsonWriter{w} }

type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(p []byte) (int, error) {
	if !slices.ContainsFunc(p, func(b byte) bool { return b > '~' }) {
		return j.w.Write(p) // the common case
	}
	_, err := io.WriteString(j.w, escapeJSON(string(p)))
	return len(p), err
}

// escapeJSON escapes unprintable characters of JSON, where they occur only in strings.
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
