package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
)

const hostile = "\x1b]0;title\x07\u009b5m\u202e\u2066\u200b\u3164\x7f\r\nFORGED\ta\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301"

// hidden returns the characters of a text that would control a terminal or that it would not show.
func hidden(s string) (found []string) {
	for _, r := range s {
		if r != '\n' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) || r == '\u3164' {
			found = append(found, fmt.Sprintf("%+q", r))
		}
	}
	if strings.Contains(s, strings.Repeat("\u0301", 9)) {
		found = append(found, "marks")
	}
	return found
}

// Every event is one log line, which shows everything and cannot control a terminal.
func TestLogIsPrintable(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			flags := AddLogFlags(&cobra.Command{})
			flags.format.Value = format
			var out bytes.Buffer
			log := flags.Logger(&out)
			log.Error().Err(errors.Join(errors.New(hostile), errors.New("more"))).Str("why", hostile).Strs("types", []string{hostile}).Str("name", "größe").
				Any("any", map[string]string{hostile: hostile}).Msg("müde " + hostile)
			got := out.String()
			if bad := hidden(got); bad != nil || strings.Count(got, "\n") != 1 {
				t.Errorf("%q: %q", bad, got)
			}
			if strings.Count(got, "FORGED") != 6 || !strings.Contains(got, "müde ") || !strings.Contains(got, "größe") {
				t.Errorf("not everything is there: %q", got)
			}
			if format == "text" {
				return
			}
			var event struct {
				Message, Error, Why string
				Types               []string
			}
			if err := json.Unmarshal(out.Bytes(), &event); err != nil || event.Message != "müde "+hostile || event.Error != hostile+"\nmore" || event.Why != hostile || event.Types[0] != hostile {
				t.Errorf("%v: %+v", err, event)
			}
		})
	}
}

// Joined errors are printed on separate lines, each marked as an error. No value can begin a line.
func TestErrorsArePrintable(t *testing.T) {
	root := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error {
		return fmt.Errorf("both: %w", errors.Join(errors.New("one: "+hostile+"\nFORGED mongodb://bob:secret@h"), Usagef("two")))
	}}
	var out bytes.Buffer
	root.SetErr(&out)
	root.SetArgs(nil)
	if code := Run(t.Context(), root); code != ExitUsage {
		t.Errorf("exit code %d", code)
	}
	lines := strings.Split(out.String(), "\n")
	if hidden(out.String()) != nil || len(lines) != 3 || !strings.HasPrefix(lines[0], `error: both: one: \x1b]0;title\a`) || !strings.HasSuffix(lines[0], `\nFORGED mongodb://***@h`) || lines[1] != "error: two" {
		t.Errorf("%q", out.String())
	}
}
