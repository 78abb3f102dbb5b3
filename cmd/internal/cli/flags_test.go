package cli

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	for text, want := range map[string]Count{"0": 0, "5k": 5000, "1e6": 1e6, "1.5M": 1.5e6, "20/s": 20, "1e15": 1e15} {
		var c Count
		if err := c.Set(text); err != nil || c != want {
			t.Errorf("%s: %d, %v", text, c, err)
		}
	}
	for text, says := range map[string]string{
		"": "not a whole number", "-1": "not a whole number", "1.5": "not a whole number", "x": "not a whole number", "NaN": "not a whole number",
		"9223372036854775807": "at most 1e15", "2e15": "at most 1e15",
	} {
		var c Count
		if err := c.Set(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
