package api

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue/queuetest"
	"go.yaml.in/yaml/v3"
)

// spec is docs/openapi.yaml, with the responses that the tests have seen. Every response that they see is compared with it.
type spec struct {
	doc  map[string]any
	mux  *http.ServeMux
	mu   sync.Mutex
	seen map[string]bool // "GET /v1/types 200 application/json"
}

var described = loadSpec()

func loadSpec() *spec {
	s := &spec{mux: http.NewServeMux(), seen: map[string]bool{}}
	text, err := os.ReadFile("../../../docs/openapi.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &s.doc)
	}
	if err != nil {
		panic(err)
	}
	for pattern := range s.paths() {
		s.mux.Handle(pattern, http.NotFoundHandler())
	}
	return s
}

func (s *spec) paths() map[string]any { return s.doc["paths"].(map[string]any) }

// at follows a reference.
func (s *spec) at(v any) map[string]any {
	m := v.(map[string]any)
	ref, ok := m["$ref"].(string)
	if !ok {
		return m
	}
	found := s.doc
	for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		next, ok := found[name].(map[string]any)
		if !ok {
			panic("docs/openapi.yaml has no " + ref)
		}
		found = next
	}
	return found
}

// query returns the names of an operation's parameters in the query.
func (s *spec) query(op any) (names []string) {
	all, _ := op.(map[string]any)["parameters"].([]any)
	for _, one := range all {
		if p := s.at(one); p["in"] == "query" {
			names = append(names, p["name"].(string))
		}
	}
	slices.Sort(names)
	return names
}

// answers calls do with each response in the description.
func (s *spec) answers(do func(method, pattern, status string, response map[string]any)) {
	for pattern, item := range s.paths() {
		for method, op := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			for status, response := range op.(map[string]any)["responses"].(map[string]any) {
				do(strings.ToUpper(method), pattern, status, s.at(response))
			}
		}
	}
}

// saw compares a response with its description.
func (s *spec) saw(t testing.TB, method, path string, a reply) {
	t.Helper()
	r, err := http.NewRequest(method, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, pattern := s.mux.Handler(r)
	item, ok := s.paths()[pattern].(map[string]any)
	if !ok || item[strings.ToLower(method)] == nil {
		return
	}
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	found := false
	s.answers(func(m, p, status string, response map[string]any) {
		if m != method || p != pattern || status != fmt.Sprint(a.status) {
			return
		}
		content, ok := response["content"].(map[string]any)[media].(map[string]any)
		if found = ok; !ok {
			return
		}
		headers, _ := response["headers"].(map[string]any)
		for name := range headers {
			if a.header.Get(name) == "" {
				t.Errorf("%s %s %d has no header %s", method, path, a.status, name)
			}
		}
		switch media {
		case "application/json", "application/problem+json":
			s.compare(t, content["schema"], a.body)
		case typeLines:
			for line := range strings.Lines(a.body) {
				s.compare(t, content["schema"], line)
			}
		}
	})
	if !found {
		t.Errorf("docs/openapi.yaml does not describe %s %s %d %s", method, pattern, a.status, media)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[fmt.Sprint(method, " ", pattern, " ", a.status, " ", media)] = true
}

func (s *spec) compare(t testing.TB, schema any, text string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%v: %.200s", err, text)
	} else if why := s.wrong(schema, v); why != "" {
		t.Errorf("not as docs/openapi.yaml says: %s: %.300s", why, text)
	}
}

// wrong returns how a value differs from a schema; it knows the features of schemas that the file uses.
func (s *spec) wrong(of any, v any) string {
	schema := s.at(of)
	if list, ok := schema["oneOf"].([]any); ok {
		fits := 0
		for _, one := range list {
			if s.wrong(one, v) == "" {
				fits++
			}
		}
		if fits != 1 {
			return fmt.Sprintf("it fits %d of the forms", fits)
		}
		return ""
	}
	ok := false
	switch v := v.(type) {
	case string:
		ok = schema["type"] == "string"
		if schema["format"] == "date-time" {
			_, err := time.Parse(time.RFC3339Nano, v)
			ok = ok && err == nil
		}
	case bool:
		ok = schema["type"] == "boolean"
	case float64:
		ok = schema["type"] == "number" || schema["type"] == "integer" && v == math.Trunc(v)
	case []any:
		ok = schema["type"] == "array"
		for _, e := range v {
			if why := s.wrong(schema["items"], e); why != "" {
				return why
			}
		}
	case map[string]any:
		ok = schema["type"] == "object"
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, there := v[name.(string)]; !there {
				return fmt.Sprintf("%s is missing", name)
			}
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, e := range v {
			property, known := properties[name]
			if !known {
				property, known = schema["additionalProperties"].(map[string]any)
			}
			if !known {
				return name + " is not described"
			}
			if why := s.wrong(property, e); why != "" {
				return name + ": " + why
			}
		}
	}
	if !ok {
		return fmt.Sprintf("%.50v is not of type %v", v, schema["type"])
	}
	return ""
}

// verdict reports, after all tests, which described responses no test has got.
func (s *spec) verdict() int {
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" || flag.Lookup("test.list").Value.String() != "" || flag.Lookup("test.bench").Value.String() != "" {
		return 0
	}
	var missing []string
	s.answers(func(method, pattern, status string, response map[string]any) {
		some := false
		for media := range response["content"].(map[string]any) {
			some = some || s.seen[strings.Join([]string{method, pattern, status, media}, " ")]
		}
		if !some {
			missing = append(missing, strings.Join([]string{method, pattern, status}, " "))
		}
	})
	if missing == nil {
		return 0
	}
	slices.Sort(missing)
	fmt.Printf("docs/openapi.yaml describes answers that no test has got:\n%s\n", strings.Join(missing, "\n"))
	return 1
}

// The operations match the description, with their parameters.
func TestOperationsAreDescribed(t *testing.T) {
	var got, want []string
	for _, rt := range start(t, nil).routes {
		got = append(got, fmt.Sprint(rt.method, " ", rt.pattern, " ", rt.parameters))
	}
	for pattern, item := range described.paths() {
		for method, op := range item.(map[string]any) {
			if method != "parameters" {
				want = append(want, fmt.Sprint(strings.ToUpper(method), " ", pattern, " ", described.query(op)))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	same(t, "operations", got, want)
}

// paths has one path for each operation.
var paths = [][2]string{{"POST", orders}, {"GET", "/v1/types"}, {"GET", "/v1/types/orders"}, {"GET", orders}, {"GET", orders + "/1"}, {"GET", "/v1/types/orders/tail"}, {"GET", "/metrics"}, {"GET", "/livez"}, {"GET", "/readyz"}}

// HEAD is answered like GET, without a body, except for a tail, which has no end.
func TestHead(t *testing.T) {
	s := start(t, nil)
	s.writer("orders").put(3)
	for _, p := range paths {
		if p[0] != "GET" || strings.HasSuffix(p[1], "/tail") {
			continue
		}
		get, head := s.do("GET", p[1], ""), s.do("HEAD", p[1], "")
		if head.status != 200 || head.body != "" || head.header.Get("Content-Type") != get.header.Get("Content-Type") {
			t.Errorf("%s: %d %q %q", p[1], head.status, head.header, head.body)
		}
	}
	for path, allow := range map[string]string{orders: "POST, GET, HEAD", "/livez": "GET, HEAD", "/v1/types/orders/tail": "GET"} {
		if a := s.do("PUT", path, ""); a.status != 405 || a.header.Get("Allow") != allow {
			t.Errorf("%s: %d, Allow %q", path, a.status, a.header.Get("Allow"))
		}
	}
	if a := s.do("HEAD", "/v1/types/orders/tail", ""); a.status != 405 {
		t.Errorf("%d", a.status)
	}
}

// All operations are refused in the same ways.
func TestEveryOperation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	secret := tokens(t, path, [3]string{"all", "publish,read", ""}, [3]string{"publish", "publish", "orders"}, [3]string{"read", "read", "orders"})
	file, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *Options) { o.Access.Tokens, o.Wait = file, 2*time.Second })
	s.writer("orders").put(3)
	open := func(path string) bool { return path == "/livez" || path == "/readyz" }
	for _, p := range paths {
		method, path := p[0], p[1]
		other := s.request(method, path, "x", "Authorization", secret["all"])
		other.Host = "rebound.example"
		if a := s.send(other); a.status != http.StatusMisdirectedRequest {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
		if open(path) {
			continue
		}
		s.do(method, path, "x").want(t, 401, "unauthorized")
		wrong := "publish"
		if method == "POST" {
			wrong = "read"
		}
		s.do(method, path, "x", "Authorization", secret[wrong]).want(t, 403, "forbidden")
		s.do(method, path+"?form=5", "x", "Authorization", secret["all"]).want(t, 400, "malformed")
		if strings.Contains(path, "orders") {
			s.do(method, strings.Replace(path, "orders", "or%2Fders", 1), "x", "Authorization", secret["all"]).want(t, 422, "invalid")
		}
	}
	for kind, want := range map[queuetest.Kind]struct {
		status int
		code   string
	}{queuetest.Refused: {500, "refused"}, queuetest.Unreachable: {503, "unavailable"}} {
		s.queue.Next = func(queuetest.Op, string, int) queuetest.Fault { return queuetest.Fault{Kind: kind} }
		for _, p := range paths {
			if !open(p[1]) && p[1] != "/metrics" {
				s.do(p[0], p[1], "x", "Authorization", secret["all"]).want(t, want.status, want.code)
			}
		}
	}
	s.Stop()
	for _, p := range paths {
		if a := s.do(p[0], p[1], "x", "Authorization", secret["all"]); p[1] == "/livez" {
			if a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		} else if p[1] == "/readyz" {
			if a.status != 503 {
				t.Errorf("%d %s", a.status, a.body)
			}
		} else {
			a.want(t, 503, "stopping")
		}
	}
}

// A part of a query that would be ignored is refused, with the name of the parameter. A probe's answer does not depend on its query.
func TestQueries(t *testing.T) {
	s := start(t, nil)
	s.writer("orders").put(3)
	for query, want := range map[string][2]string{
		"?from=%zz":                             {"from=%zz", "%25"},
		"?fr%6=1":                               {"fr%6=1", "%25"},
		"?from=0;limit=1":                       {"from=0;limit=1", "%3B"},
		"?limit=1&limit=2":                      {"limit", "once"},
		"?from=1&fro%6d=1":                      {"from", "once"},
		"?Limit=1":                              {"Limit", "from, limit"},
		"?from=0&form=5":                        {"form", "from, limit"},
		"?%1b%5bm=":                             {`\x1b[m`, "from, limit"},
		"?from":                                 {},
		"?&fro%6d=1&&limit=%32&":                {},
		"?from=2026-01-31T15:00:00Z":            {},
		"?from=2026-01-31T16%3A00%3A00%2B01:00": {},
		"?":                                     {},
	} {
		a := s.do("GET", orders+query, "")
		if want[0] == "" {
			if a.status != 200 {
				t.Errorf("%s: %d %s", query, a.status, a.body)
			}
		} else if p := a.want(t, 400, "malformed"); !strings.Contains(p.Detail, want[0]) || !strings.Contains(p.Remedy, want[1]) {
			t.Errorf("%s: %+v", query, p)
		}
	}
	s.do("POST", orders+"?limit=1", "x").want(t, 400, "malformed")
	if n := len(s.pending("orders")); n != 0 {
		t.Errorf("%d are stored", n)
	}
	for _, path := range []string{"/livez?verbose", "/readyz?_=1&_=2"} {
		if a := s.do("GET", path, ""); a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
