package ops

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/worker"
)

// TestStatusOfManyTypes: a response has a size limit, and all types are reachable.
func TestStatusOfManyTypes(t *testing.T) {
	var types []worker.TypeStatus
	for i := range 2500 {
		s := worker.TypeStatus{Type: fmt.Sprintf("t%05d", i), Held: i%2 == 0}
		if i%100 == 0 {
			s.State = worker.Blocked
		}
		types = append(types, s)
	}
	page := func(query string) (names []string, shown typesJSON) {
		t.Helper()
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		c, err := chosen(q)
		if err != nil {
			t.Fatal(err)
		}
		some, shown := c.choose(types)
		for _, s := range some {
			names = append(names, s.Type)
		}
		return names, shown
	}
	seen, after := 0, ""
	for pages := 1; ; pages++ {
		names, shown := page("after=" + after)
		if len(names) > statusTypes || shown.Matching != 2500 || shown.Held != 1250 || shown.Blocked != 25 {
			t.Fatalf("%d types, %+v", len(names), shown)
		}
		for _, name := range names {
			if name != types[seen].Type {
				t.Fatalf("%s, want %s", name, types[seen].Type)
			}
			seen++
		}
		if after = shown.Next; after == "" {
			if seen != 2500 || pages != 3 {
				t.Errorf("%d types on %d pages", seen, pages)
			}
			break
		}
	}
	for query, want := range map[string]string{
		"type=t00007":                     "[t00007] {1 0 0 }",
		"type=none":                       "[] {0 0 0 }",
		"type=t0000[12]&type=t02499":      "[t00001 t00002 t02499] {3 1 0 }",
		"type=t000*&limit=2":              "[t00000 t00001] {100 50 1 t00001}",
		"type=t000*&limit=2&after=t00097": "[t00098 t00099] {100 50 1 }",
	} {
		if names, shown := page(query); fmt.Sprint(names, " ", shown) != want {
			t.Errorf("%s: %v %v, want %s", query, names, shown, want)
		}
	}
	s := listen(t, Options{})
	for _, query := range []string{"limit=0", "limit=10001", "limit=many", "limit=", "type=[a"} {
		if code, body := get(t, s, "/statusz?"+query); code != 400 || strings.Count(body, "\n") != 1 {
			t.Errorf("%s: %d %q", query, code, body)
		}
	}
	if code, body := get(t, s, "/statusz?limit=10000&type=a"); code != 200 || !json.Valid([]byte(body)) {
		t.Errorf("%d %s", code, body)
	}
}
