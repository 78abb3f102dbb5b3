package globs

import (
	"errors"
	"path"
	"testing"
)

func TestCheck(t *testing.T) {
	for glob, malformed := range map[string]bool{"orders": false, "orders*": false, "a[b-c]?": false, "": false, "[": true, "orders*[a": true, `orders\\`: false, `*\`: true} {
		if err := Check(glob); errors.Is(err, path.ErrBadPattern) != malformed || (err != nil) != malformed {
			t.Errorf("%q: %v", glob, err)
		}
	}
	for text, want := range map[string]bool{"orders.eu-1": false, "orders*": true, "order?": true, "[o]": true, `orders\`: true, "": false} {
		if Is(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func TestLiterals(t *testing.T) {
	for glob, want := range map[string]string{"orders": "orders", "a*b?c": "abc", "a[B-D]e": "ae", `[^\]X]y`: "y", `\*\[z`: "*[z", "Ä*": "Ä"} {
		if got := Literals(glob); got != want {
			t.Errorf("%q: %q, want %q", glob, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		globs []string
		name  string
		want  bool
	}{
		{nil, "orders", false},
		{[]string{"orders"}, "orders", true},
		{[]string{"orders"}, "orders.eu", false},
		{[]string{"audit", "orders*"}, "orders.eu", true},
		{[]string{"order?"}, "orders", true},
		{[]string{"[", "orders"}, "orders", true},
		{[]string{"["}, "[", false},
	} {
		if got := Match(test.globs, test.name); got != test.want {
			t.Errorf("%q %q: %v", test.globs, test.name, got)
		}
		if got := NewSet(test.globs).Match(test.name); got != test.want {
			t.Errorf("set of %q, %q: %v", test.globs, test.name, got)
		}
	}
}
