//go:build unix

package main

import "testing"

func TestURIs(t *testing.T) {
	for _, c := range []struct{ uri, in, through string }{
		{"mongodb://h:1", "mongodb://h:1/db?directConnection=true", "mongodb://l:9/db?directConnection=true"},
		{"mongodb://h:1/?directConnection=true", "mongodb://h:1/db?directConnection=true", "mongodb://l:9/db?directConnection=true"},
		{"mongodb://u:p@h:1/shop?tls=true", "mongodb://u:p@h:1/db?tls=true&authSource=shop&directConnection=true",
			"mongodb://u:p@l:9/db?tls=true&authSource=shop&directConnection=true"},
		{"mongodb://u:p@h:1", "mongodb://u:p@h:1/db?authSource=admin&directConnection=true", "mongodb://u:p@l:9/db?authSource=admin&directConnection=true"},
	} {
		in, err := inDatabase(c.uri, "db")
		if err != nil || in != c.in || through(in, "l:9") != c.through || databaseOf(in) != "db" {
			t.Errorf("%s: %s, %v, through %s", c.uri, in, err, through(in, "l:9"))
		}
	}
	if _, err := inDatabase("mongodb+srv://h", "db"); err == nil {
		t.Error("a name for several hosts is accepted")
	}
}
