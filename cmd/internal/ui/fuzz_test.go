package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// FuzzUsers: user files. No error quotes them, and checking a password takes a bounded time.
func FuzzUsers(f *testing.F) {
	const hash = "$2y$04$7tKdpIcrFxpx16SLTFvcZuOXQXfIXzrUJVTI5WVrcQDAUcJBrS1Ri"
	for _, text := range []string{"# people\n\nanna:" + hash + "\n", "anna:" + hash + "\nanna:" + hash, ":" + hash, "anna", "anna:s3cret-s3cret", "anna:" + strings.Replace(hash, "04", "31", 1),
		"anna:" + strings.Replace(hash, "04", "03", 1), "anna:" + hash[:50], "anna:b:" + hash, "", strings.Repeat("x", 70_000)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		hashes, cost, err := parseHashes(text)
		if err != nil {
			for _, field := range strings.FieldsFunc(string(text), func(c rune) bool { return c == ':' || c == '\n' }) {
				if len(field) > 20 && strings.Contains(err.Error(), field) {
					t.Fatalf("the error tells %q: %v", field, err)
				}
			}
			return
		}
		var lines strings.Builder
		for name, hash := range hashes {
			fmt.Fprintf(&lines, "%s:%s\n", name, hash)
		}
		again, cost2, err := parseHashes([]byte(lines.String()))
		if err != nil || len(again) != len(hashes) || cost2 != cost || cost > mostCost {
			t.Fatalf("%q became %q, of cost %d and %d, %v", hashes, again, cost, cost2, err)
		}
	})
}

// FuzzForm: forms from browsers. A form that this program has not signed for this purpose is refused.
func FuzzForm(f *testing.F) {
	forms := newForms()
	f.Add("purge", "type=orders", "anna", 5, 0, byte('A'), "")
	f.Add("", "", "", -1, 200, byte('.'), "e30.AAAA")
	f.Add("purge", "type=orders", "anna", 5, 300, byte('\n'), ".")
	f.Fuzz(func(t *testing.T, action, query, user string, count, at int, changed byte, foreign string) {
		o := order{Action: action, Query: query, User: user, Count: count}
		form := forms.sign(o)
		if got, err := forms.read(form, action, user); err == nil != (utf8.ValidString(action) && utf8.ValidString(user)) || err == nil && utf8.ValidString(query) && (got.Query != query || got.Count != count) {
			t.Fatalf("%+v became %+v, %v", o, got, err)
		}
		if got, err := forms.read(foreign, action, user); err == nil {
			t.Fatalf("%q is taken for %+v", foreign, got)
		}
		b := []byte(form)
		if at = int(uint(at) % uint(len(b))); b[at] == changed {
			return
		}
		b[at] = changed
		got, err := forms.read(string(b), action, user)
		if want, _ := forms.read(form, action, user); err == nil && got != want {
			t.Fatalf("with %q at %d it is %+v", changed, at, got)
		}
	})
}

// FuzzPayload: payloads on pages. The text has a bounded size and nothing that hides or moves other text; JSON keeps its value.
func FuzzPayload(f *testing.F) {
	for _, p := range []string{"", "text\r\n\tmore", `{"a":[1,{"b":"<x>\u202e"}]}`, `{"a":`, "\xff\x00ab", "\u202eabc\x1b[2J", strings.Repeat("[", 200) + strings.Repeat("]", 200), strings.Repeat("ä", shownBytes),
		strings.Repeat("\xff", 2*shownBytes), `"` + strings.Repeat(`\\`, previewSize) + `"`, "[" + strings.Repeat("[],", 50_000) + "0]"} {
		f.Add([]byte(p))
	}
	u := &UI{}
	f.Fuzz(func(t *testing.T, p []byte) {
		if one := preview(p); strings.ContainsAny(one, "\n\r\t") || len(one) > 12*previewSize || printable.Text(one) != one {
			t.Fatalf("the preview is %q", one)
		}
		for _, as := range []string{"", "json", "text", "hex"} {
			v, err := u.payload(httptest.NewRequest("GET", "/?as="+as, nil), p, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(v.Text) > 12*shownBytes {
				t.Fatalf("%d bytes of a payload of %d as %q", len(v.Text), len(p), as)
			}
			for line := range strings.SplitSeq(v.Text, "\n") {
				if printable.Text(line) != line {
					t.Fatalf("as %q a line is %q", as, line)
				}
			}
		}
		if laidOut, whyNot := layOut(p); whyNot == "" {
			var was, is bytes.Buffer
			if err := json.Compact(&was, p); err != nil {
				t.Fatal(err)
			}
			if err := json.Compact(&is, laidOut); err != nil || !bytes.Equal(was.Bytes(), is.Bytes()) {
				t.Fatalf("%q became %q, %v", p, laidOut, err)
			}
		}
	})
}

// FuzzListPlace: addresses that continue a list. An accepted one is a place that a link of the pages names.
func FuzzListPlace(f *testing.F) {
	id := queue.NewLooseID(queue.ID{1}.Time()).String()
	for _, s := range []string{"", "1700000000000." + id + ".orders", "-1." + id + ".", "9223372036854775807." + id + ".a.b", "1..orders", id + ".orders", id, ".orders"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := parseSlot(s); err == nil && s != "" {
			if again, err := parseSlot(slotText(k)); err != nil || !again.Due.Equal(k.Due) || again.ID != k.ID || again.Type != k.Type {
				t.Fatalf("%q is %+v, and then %+v, %v", s, k, again, err)
			}
		}
		if typ, id, err := parseLetter(s); err == nil && s != "" && id.String()+"."+typ != s {
			t.Fatalf("%q is %s of %q", s, id, typ)
		}
	})
}
