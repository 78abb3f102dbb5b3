package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// Reading can continue at every position as if it had never stopped.
func TestSourcesGoOnAtEveryPosition(t *testing.T) {
	var len32 []byte
	for _, s := range []string{"", "abc", strings.Repeat("x", 70_000), "d"} {
		len32 = append(binary.BigEndian.AppendUint32(len32, uint32(len(s))), s...)
	}
	long := strings.Repeat("y", 3<<20) // longer than the buffer
	for format, inputs := range map[string][]string{
		"lines":  {"", "a", "a\n", "a\nb", "\n\n", "a\r\n" + long + "\nb\n", "a\n\nb\n"},
		"ndjson": {"", "1\n2\n", "1\n\n  \n2\n\n", "\n[1]\n\"" + long + "\"\n3"},
		"len32":  {"", string(len32)},
	} {
		for _, input := range inputs {
			type read struct {
				payload, where string
				behind         Position
			}
			all := func(from Position) (found []read, end Position) {
				src := newSourceAt(format, strings.NewReader(input[from.Offset:]), from)
				for {
					payload, where, err := src.next()
					p := src.(positioned).position()
					if errors.Is(err, io.EOF) {
						return found, p
					} else if err != nil {
						t.Fatalf("%s %.20q: %v", format, input, err)
					}
					found = append(found, read{string(payload), where, p})
				}
			}
			whole, end := all(Position{})
			if end.Offset != int64(len(input)) {
				t.Errorf("%s %.20q ends at %+v, it has %d bytes", format, input, end, len(input))
			}
			for i := range whole {
				rest, restEnd := all(whole[i].behind)
				if len(rest) != len(whole)-i-1 || restEnd != end {
					t.Fatalf("%s %.20q behind message %d: %d messages to %+v, want %d to %+v", format, input, i, len(rest), restEnd, len(whole)-i-1, end)
				}
				for k := range rest {
					if rest[k] != whole[i+1+k] {
						t.Errorf("%s %.20q behind message %d: message %d differs: %s, %+v", format, input, i, k, rest[k].where, rest[k].behind)
					}
				}
			}
		}
	}
}

// JSON is UTF-8: another line is refused, with its number.
func TestJSONIsUTF8(t *testing.T) {
	src := newSourceAt("ndjson", strings.NewReader("\"ä\"\n\"\xff\"\n"), Position{})
	if payload, _, err := src.next(); string(payload) != `"ä"` || err != nil {
		t.Errorf("%q %v", payload, err)
	}
	var wrong *inputError
	if payload, where, err := src.next(); !errors.As(err, &wrong) || where != "line 2" || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("%q at %s: %v", payload, where, err)
	}
}

// Of a payload that is too long only the beginning is read: its size is not known, and no other one is named.
func TestPayloadThatIsTooLong(t *testing.T) {
	for _, format := range []string{"lines", "raw"} {
		_, _, err := newSource(format, strings.NewReader(strings.Repeat("x", 2*queue.MaxPayload))).next()
		if !errors.Is(err, queue.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprintf("payload of more than %d bytes", queue.MaxPayload)) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
