package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/queue"
)

// Every line gets an answer, and the IDs are valid. The conformance tests in integration judge it further.
func TestEveryLineIsAnswered(t *testing.T) {
	in := `{"line":1,"type":"orders","payload":"eA==","headers":{"a":"b"}}
{"line":2,"type":"Orders","payload":"eA=="}
{"line":3,"type":"orders","payload":"","key":"k"}
`
	var out strings.Builder
	if err := run(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "queue.db"), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	answers := map[string][]string{}
	for text := range strings.Lines(out.String()) {
		fields := strings.Fields(text)
		answers[fields[1]] = fields
	}
	for n, want := range map[string]string{"1": "ok", "2": "rejected", "3": "ok"} {
		if got := answers[n]; len(got) < 3 || got[0] != want {
			t.Errorf("line %s: %q", n, out.String())
		} else if want == "ok" {
			if _, err := queue.ParseID(got[2]); err != nil {
				t.Error(err)
			}
		}
	}
	if err := run(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "queue.db"), strings.NewReader("x"), &out); err == nil {
		t.Error("a line that is not JSON is accepted")
	}
}
