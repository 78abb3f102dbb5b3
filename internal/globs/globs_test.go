package globs

import "testing"

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
	}
}
