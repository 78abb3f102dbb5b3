package main

import (
	"strings"
	"testing"
)

func TestKeyFrom(t *testing.T) {
	for _, c := range []struct{ spec, payload, key, err string }{
		{"payload", "a", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", ""},
		{"json:id", `{"id":"x 1"}`, "x 1", ""},
		{"json:id", `{"id":12345678901234567890}`, "12345678901234567890", ""},
		{"json:order.id", `{"order":{"id":7},"id":8}`, "7", ""},
		{"json:id", `{"order":7}`, "", "no field id"},
		{"json:id.x", `{"id":7}`, "", "no field id.x"},
		{"json:id", `{"id":true}`, "", "neither a string nor a number"},
		{"json:id", `{"id":""}`, "", "empty"},
		{"json:id", `id=7`, "", "not JSON"},
		{"header", "", "", "use payload, or json:FIELD"},
		{"json:", "", "", "use payload, or json:FIELD"},
	} {
		f, err := keyFrom(c.spec)
		key := ""
		if err == nil {
			key, err = f([]byte(c.payload))
		}
		if key != c.key || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s of %s: %q, %v; want %q, %q", c.spec, c.payload, key, err, c.key, c.err)
		}
	}
	if f, err := keyFrom(""); f != nil || err != nil {
		t.Errorf("no --key-from: %v", err)
	}
}
