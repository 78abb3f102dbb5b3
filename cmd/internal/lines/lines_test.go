package lines

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// read returns the lines of an input up to the first error, and the error.
func read(r io.Reader, limit int, grow func(int) error) (got []string, err error) {
	l := Reader{R: bufio.NewReaderSize(r, 16), Max: limit, Grow: grow}
	for {
		line, err := l.Next()
		if err != nil {
			return got, err
		}
		got = append(got, string(line))
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 40)
	for _, test := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"nothing", "", nil, io.EOF},
		{"the last line needs no newline", "a\nb", []string{"a", "b"}, io.EOF},
		{"an empty line is one", "a\n\nb\n", []string{"a", "", "b"}, io.EOF},
		{"longer than the buffer", long + "\nb\n", []string{long, "b"}, io.EOF},
	} {
		got, err := read(strings.NewReader(test.in), 40, nil)
		if strings.Join(got, "|") != strings.Join(test.want, "|") || err != test.err {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
	}
	if _, err := read(strings.NewReader(strings.Repeat("x", 100)), 40, nil); err != ErrTooLong {
		t.Errorf("a line of 100 bytes: %v", err)
	}
}

// A line at which the input breaks off is incomplete, and not returned.
func TestCutLineIsNoLine(t *testing.T) {
	broken := errors.New("connection reset")
	in := io.MultiReader(strings.NewReader("12\n34"), readerFunc(func([]byte) (int, error) { return 0, broken }))
	if got, err := read(in, 40, nil); strings.Join(got, "|") != "12" || err != broken {
		t.Errorf("%q, %v", got, err)
	}
}

// Grow is called before memory for a long line is taken.
func TestGrow(t *testing.T) {
	full := errors.New("no memory")
	if _, err := read(strings.NewReader(strings.Repeat("x", 100)), 1000, func(size int) error {
		if size > 32 {
			return full
		}
		return nil
	}); err != full {
		t.Error(err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// IsJSON agrees with encoding/json.
func TestIsJSON(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, line := range []string{
		`{"a":1}`, `[]`, `"text"`, `1`, `-0`, `1.5e+10`, `true`, `null`, ` {"a" : [ 1 , 2 ] } `, "\t1\r", `{"a":1,"a":2}`, "\"\xff\"", `"\ud800"`, `"\u00e4"`, "\"\u2028\"", `9999999999999999999999999`, `{"":{}}`, deep(10_000),
		``, ` `, `{`, `{"a"}`, `{"a":1,}`, `[1,]`, `{a:1}`, `'a'`, `01`, `+1`, `1.`, `.5`, `1e`, `NaN`, `Infinity`, `tru`, `1 2`, `{} x`, "\"\n\"", "\"\x01\"", `"\x41"`, `"\u12g4"`, `"`, "\xff", "\ufeff1", "// 1", deep(10_001), strings.Repeat("[", 1<<20),
	} {
		if got, want := IsJSON([]byte(line)), json.Valid([]byte(line)); got != want {
			t.Errorf("%.60q: %v, and encoding/json says %v", line, got, want)
		}
	}
}
