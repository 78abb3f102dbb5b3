// Package printable makes untrusted text safe to print. Names, reasons, hosts, headers, payloads, file names and errors come from anyone
// with write access to the database, a file or the network. A terminal executes some of their characters, and a line feed in them forges a
// line of output.
//
// The programs use it where they print, not where they create errors and values: escaping all text at the edge forgets none. [Fprintf]
// prints lines, a [Table] prints cells, [Error] is for errors, and [EncodeJSON] and [JSONWriter] are for JSON. Printable text in any
// language stays unchanged.
package printable

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

const (
	mostMarks = 8   // combining marks on one character; no orthography needs more
	mostCell  = 100 // characters per table cell

	zeroWidthNonJoiner = '\u200c'
	zeroWidthJoiner    = '\u200d'
)

// Text returns s with its unprintable characters escaped, as in a Go string: \n, \x1b, \u202e, and \xff for a byte that is not UTF-8.
// Unprintable are control characters, line and paragraph separators, characters that are invisible or change the direction of others,
// combining marks without a character or more than 8 on one, and unassigned code points. The joiners U+200C and U+200D stay between
// characters of scripts that use them, and of emoji. A backslash stays unchanged.
func Text(s string) string {
	return escape(s, func(b []byte, r rune, raw string) []byte {
		if r == utf8.RuneError {
			return fmt.Appendf(b, `\x%02x`, raw)
		}
		q := strconv.QuoteRuneToASCII(r)
		return append(b, q[1:len(q)-1]...)
	})
}

// Short is Text of the first line of s, shortened to 100 characters. It marks text that it cut.
func Short(s string) string {
	s, _, cut := strings.Cut(strings.TrimSpace(s), "\n")
	n := 0
	for i := range s {
		if n++; n > mostCell {
			s, cut = s[:i], true
			break
		}
	}
	if s = Text(s); cut {
		s += " …"
	}
	return s
}

// Safe is text that is already printable.
type Safe string

// Lines is Text that keeps line feeds. It indents each line but the first, so that none looks like the program's own.
func Lines(s, indent string) Safe {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Text(line)
	}
	return Safe(strings.Join(lines, "\n"+indent))
}

// escape returns s with every unprintable character passed to hidden, which appends its escape to b.
func escape(s string, hidden func(b []byte, r rune, raw string) []byte) string {
	var b []byte        // s[:copied], escaped
	copied := 0         // everything after it is printable so far
	before := rune(' ') // the character to which a mark or a joiner would belong
	marks := 0
	for i, size := 0, 0; i < len(s); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(s[i:])
		shown := false
		switch {
		case r < utf8.RuneSelf:
			shown, marks = ' ' <= r && r <= '~', 0
		case r == utf8.RuneError && size == 1: // not UTF-8
		case r == zeroWidthJoiner || r == zeroWidthNonJoiner:
			next, _ := utf8.DecodeRuneInString(s[i+size:])
			shown = joins(before) && joins(next)
		case unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r): // fillers, among others
		case unicode.In(r, unicode.Mn, unicode.Me):
			marks++
			shown = marks <= mostMarks && before != '"' && !unicode.IsSpace(before)
		default:
			shown, marks = unicode.IsGraphic(r), 0
		}
		if before = r; !shown {
			before = ' '
			b = hidden(append(b, s[copied:i]...), r, s[i:i+size])
			copied = i + size
		}
	}
	if copied == 0 {
		return s
	}
	return string(append(b, s[copied:]...))
}

// joins reports whether a joiner next to r can be meaningful: in Arabic and all scripts after it, and in emoji.
func joins(r rune) bool { return r >= '\u0600' && r != utf8.RuneError && unicode.IsGraphic(r) }

// Fprintf is fmt.Fprintf, but it makes the value of each verb printable. It prints the format, which is trusted, and arguments of type
// [Safe] unchanged.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	if false {
		_ = fmt.Sprintf(format, args...) // so that go vet compares format and arguments
	}
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = argument{arg}
	}
	return fmt.Fprintf(w, format, safe...)
}

type argument struct{ value any }

// Format implements fmt.Formatter.
//
// rule: the text printed for a verb is trusted or made printable.
func (a argument) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), a.value)
	if _, safe := a.value.(Safe); !safe {
		text = Text(text)
	}
	io.WriteString(f, text)
}

// Table prints rows with aligned columns. Every cell, whatever its text, stays on its line and in its column.
type Table struct {
	w     *tabwriter.Writer
	whole bool
}

// NewTable returns a table that makes each cell [Short].
func NewTable(w io.Writer, heads ...any) *Table { return newTable(w, false, heads) }

// NewWholeTable returns a table that shortens no cell.
func NewWholeTable(w io.Writer, heads ...any) *Table { return newTable(w, true, heads) }

func newTable(w io.Writer, whole bool, heads []any) *Table {
	t := &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), whole}
	if len(heads) > 0 {
		t.Row(heads...)
	}
	return t
}

// Row adds a row.
//
// rule: the text of a cell stays on its line and in its column.
func (t *Table) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if texts[i] = fmt.Sprint(cell); t.whole {
			texts[i] = Text(texts[i])
		} else {
			texts[i] = Short(texts[i])
		}
	}
	io.WriteString(t.w, strings.Join(texts, "\t")+"\n")
}

// Flush prints the rows, and returns the first error.
func (t *Table) Flush() error { return t.w.Flush() }
