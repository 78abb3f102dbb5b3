package ui_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/clitest"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/slotstest"
	"github.com/rs/zerolog"
	"golang.org/x/crypto/bcrypt"
)

// serve serves an estate until the test ends.
func serve(t *testing.T, o ui.Options) *httptest.Server {
	t.Helper()
	u := ui.New(o)
	s := httptest.NewServer(u.Handler())
	t.Cleanup(func() { u.Close(); s.Close() })
	return s
}

// get returns the response, with unescaped entities.
func get(t *testing.T, s *httptest.Server, path string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	client := http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

// page is get for a page that must exist.
func page(t *testing.T, s *httptest.Server, path string) string {
	t.Helper()
	res, body := get(t, s, path)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", path, res.Status, body)
	}
	return body
}

func has(t *testing.T, where, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not have %q:\n%s", where, want, text)
		}
	}
}

func TestPages(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	uitest.Until(t, "the file is read", func() bool { return strings.Contains(page(t, s, "/types/orders"), "void, which readers skip") })
	for path, want := range map[string][]string{
		"/types": {`<a href="/types/orders">orders</a>`, "node-1 pid 4711", "not drained", "drain paused", "limit 1,000", "failing", ">40<", `<b>9</b>`},
		"/types/orders": {"epoch 11: 40 to 239, written by node-1 pid 4100", "epoch 14: 422 to 511", "declared gap before index 360", "orders@0002.fpl", "orders.fpl", "1 declared gap", "1 message put aside (dead letter)",
			`class="void"`, `class="torn"`, "not acknowledged yet", `<a href="/types/orders/records/511">511</a>`, "<dt>limit</dt><dd>1,000 messages</dd>", "<b>holds it</b> node-1 pid 4711", "<b>stopping</b> node-2 pid 812"},
		"/types/payments":            {"The file is at node-2:/srv/fencepost, and this program reads node-1:/srv/fencepost", "181,204", "<dt>dead letters</dt><dd><a href=\"/dead?type=payments\">1</a>"},
		"/types/returns":             {"There is no file yet", "No worker serves this type", "Nothing is pending"},
		"/types/orders/records":      {"462 to 511 of 512", `rel="prev">older<`},
		"/types/orders/records/361":  {"epoch of its writer", "Record <span", "previous record", "next record"},
		"/types/orders/records/360":  {"after a declared gap"},
		"/types/orders/records/421":  {"put aside (dead letter)"},
		"/types/invoices/pending":    {"40 pending", "c-16"},
		"/dead":                      {"connection refused …", ">payments</a>", ">5<"},
		"/dead?reason=refused":       {"payments"},
		"/dead?type=orders":          {"No dead letter matches"},
		"/delayed":                   {"in 59 min", "returns", "in 1 h 29 min"},
		"/delayed?type=orders":       {"No message is delayed of this type"},
		"/workers":                   {"2 workers hold between 2 and 3 types each", "b3a1f0c92d11", "stopping", "at most 10", "1 type fails", "Types that no worker serves", ">invoices</a>"},
		"/locks":                     {"report/7", "node-2 pid 812", "weekly report", "1 in line", `<a href="/types/orders">orders</a>`},
		"/locks?q=report/*&all=1":    {"report/7"},
		"/types/audit.us":            {"the disk is being replaced", "<dt>paused</dt><dd>draining</dd>"},
		"/types?state=unserved":      {"invoices"},
		"/types?q=aud*&sort=backlog": {"audit.eu", "audit.us"},
	} {
		has(t, path, page(t, s, path), want...)
	}
	for path, status := range map[string]int{
		"/types/nothing": 404, "/types/orders/records/99999": 404, "/types/orders/records/x": 400, "/types?page=0": 400, "/types?state=x": 400, "/types?q=[": 400, "/dead/orders/x": 400,
		"/types/orders/pending/" + e.Dead.String(): 404, "/dead?after=x": 400, "/delayed?after=x": 400, "/nowhere": 404, "/assets/ui.css": 404, "/types/orders/records?at=soon": 400, "/types/orders/records/1?as=pdf": 400,
	} {
		if res, body := get(t, s, path); res.StatusCode != status {
			t.Errorf("%s: %s, want %d\n%s", path, res.Status, status, body)
		}
	}
	if res, _ := get(t, s, "/"); res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/types" {
		t.Errorf("the first page is %s %s", res.Status, res.Header.Get("Location"))
	}
}

// Records are found by index, ID and time, also across files.
func TestRecordsAreFound(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	at := func(what string) string {
		return page(t, s, "/types/orders/records?at="+url.QueryEscape(what))
	}
	has(t, "index 20", at("20"), "20 to 69 of 512", `/types/orders/records/39"`, `/types/orders/records/40"`)
	first := page(t, s, "/types/orders/records/100")
	id := first[strings.Index(first, "<dt>ID</dt><dd>")+len("<dt>ID</dt><dd>"):][:queue.IDLen]
	has(t, "ID "+id, at(id), "The message with this ID is record 100", "100 to 149")
	parsed, err := queue.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	has(t, "ID in hex", at(fmt.Sprintf("%x", parsed[:])), "is record 100")
	has(t, "time", at(parsed.Time().Format(time.RFC3339Nano)), "Record 100 is the first")
	has(t, "another ID", at(e.Dead.String()), "No record has this ID")
	has(t, "the future", at("2999-01-01T00:00:00Z"), "All records are from before")
	has(t, "behind the end", at("512"), "There is no record 512 yet")
}

// A damaged file shows where the damage is, and the records after it.
func TestDamageIsShown(t *testing.T) {
	e := uitest.New(t)
	f, err := os.OpenFile(e.File(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 9000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s := serve(t, e.Options())
	uitest.Until(t, "the damage is found", func() bool { return strings.Contains(page(t, s, "/types/orders"), `class="damage"`) })
	has(t, "type", page(t, s, "/types/orders"), "1 damaged place, as of")
	has(t, "records", page(t, s, "/types/orders/records?at=41"), "why bad")
}

// Untrusted text cannot run, reorder the text beside it, or end an element of a page.
func TestHostileTextsDoNoHarm(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	pending := page(t, s, "/types/hostile/pending")
	seen := 0
	paths := []string{"/types", "/types/hostile", "/types/orders", "/types/hostile/pending", "/types/orders/records?at=0", "/types/orders/records/4", "/types/orders/records/4?as=text", "/types/orders/records/421", "/dead", "/delayed", "/workers", "/locks",
		"/dead/hostile/" + e.Dead.String(), "/dead/hostile/" + e.Dead.String() + "?as=hex", "/types?q=" + url.QueryEscape(uitest.Hostile), "/locks?q=" + url.QueryEscape(uitest.Hostile), "/delayed?type=" + url.QueryEscape(uitest.Hostile),
		"/types/" + url.PathEscape(uitest.Hostile), "/types/orders/records?at=" + url.QueryEscape(uitest.Hostile), "/dead?reason=" + url.QueryEscape(uitest.Hostile), "/" + url.PathEscape(uitest.Hostile)}
	for _, part := range strings.Split(pending, `<a href="`) {
		if link, _, ok := strings.Cut(part, `"`); ok && strings.HasPrefix(link, "/types/hostile/pending/") {
			paths = append(paths, link)
			seen++
		}
	}
	if seen != 3 {
		t.Errorf("%d pending messages are linked, want 3", seen)
	}
	shown := 0
	for _, path := range paths {
		_, body := get(t, s, path)
		if strings.Count(body, "<script") != 1 || strings.Contains(body, "<img") || strings.Contains(body, `"><script>`) {
			t.Errorf("%s has markup of a message:\n%s", path, body)
		}
		if strings.Contains(body, `\u202egpj.exe`) {
			shown++
		}
		for i, r := range body {
			if r != '\n' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
				t.Errorf("%s has %U: %q", path, r, body[max(i-30, 0):i+10])
				break
			}
		}
	}
	if shown < 12 {
		t.Errorf("only %d pages show the text at all", shown)
	}
	for _, path := range []string{"/types/orders/records/4?as=text", "/dead/hostile/" + e.Dead.String() + "?as=text"} {
		has(t, path, page(t, s, path), `\u202egpj.exe\u2066\u200b\x00&#39;</pre>`)
	}
	large := page(t, s, "/types/hostile/pending/"+e.Large.String())
	if has(t, "large", large, "15 MiB (15,728,640 bytes)", "These are the first 64 KiB"); len(large) > 100<<10 {
		t.Errorf("the page of a large payload has %d bytes", len(large))
	}
	res, payload := get(t, s, "/types/hostile/pending/"+e.Large.String()+"/payload")
	if len(payload) != queue.MaxPayload/6*6 || res.Header.Get("Content-Disposition") == "" || res.Header.Get("Content-Type") != "application/octet-stream" || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("downloaded %d bytes, %v", len(payload), res.Header)
	}
	res, payload = get(t, s, "/dead/hostile/"+e.Dead.String()+"/payload")
	if payload != uitest.Hostile || !strings.HasPrefix(res.Header.Get("Content-Disposition"), "attachment;") {
		t.Errorf("downloaded %q, %v", payload, res.Header)
	}
	if _, payload = get(t, s, "/types/orders/records/4/payload"); payload != uitest.Hostile {
		t.Errorf("downloaded %q", payload)
	}
}

func TestNothingRunsAndNobodyElseIsAsked(t *testing.T) {
	s := serve(t, uitest.New(t).Options())
	for _, path := range []string{"/types", "/nowhere", "/dead"} {
		res, body := get(t, s, path)
		policy := res.Header.Get("Content-Security-Policy")
		has(t, "policy of "+path, policy, "default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'self'")
		if strings.Contains(policy, "unsafe") || strings.Contains(body, " style=") || strings.Contains(body, "<style") || strings.Contains(body, "://") && strings.Contains(strings.ReplaceAll(body, "mongodb://db1", ""), `="http`) {
			t.Errorf("%s: policy %s\n%s", path, policy, body)
		}
	}
	client := http.Client{Timeout: time.Minute}
	req, _ := http.NewRequest(http.MethodPost, s.URL+"/types", strings.NewReader("x"))
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode != http.StatusForbidden {
		t.Errorf("a form of another site: %s", res.Status)
	}
}

func TestHiddenPayloads(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	o.HidePayloads = true
	s := serve(t, o)
	for _, path := range []string{"/types/orders", "/types/orders/records", "/types/orders/records/100", "/types/invoices/pending", "/types/orders/pending", "/delayed", "/dead/hostile/" + e.Dead.String()} {
		if body := page(t, s, path); strings.Contains(body, "customer") || strings.Contains(body, "remind") || strings.Contains(body, "4bf92f3577b34da6") || strings.Contains(body, ">5</dd></dl></div></section>") {
			t.Errorf("%s shows payloads:\n%s", path, body)
		}
	}
	for _, path := range []string{"/types/orders/records/100/payload", "/dead/hostile/" + e.Dead.String() + "/payload", "/types/hostile/pending/" + e.Large.String() + "/payload"} {
		if res, body := get(t, s, path); res.StatusCode != http.StatusForbidden || len(body) > 200 {
			t.Errorf("%s: %s, %d bytes", path, res.Status, len(body))
		}
	}
	has(t, "headers", page(t, s, "/types/orders/records/4"), "comment", "hidden, ")
}

// The pages are the same under a base path, whether or not a proxy strips it, and all links begin with it.
func TestBasePath(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	o.BasePath = "/ops/fencepost"
	s := serve(t, o)
	for _, prefix := range []string{"", "/ops/fencepost"} {
		for _, path := range []string{"/types", "/types/orders", "/types/orders/records", "/dead", "/delayed", "/workers", "/locks"} {
			body := page(t, s, prefix+path)
			for _, attr := range []string{`href="`, `src="`, `action="`} {
				for _, part := range strings.Split(body, attr)[1:] {
					if link, _, _ := strings.Cut(part, `"`); !strings.HasPrefix(link, "/ops/fencepost/") && !strings.HasPrefix(link, "#") && !strings.HasPrefix(link, "?") {
						t.Errorf("%s: %s%s", prefix+path, attr, link)
					}
				}
			}
			_, css, _ := strings.Cut(body, `<link rel="stylesheet" href="`)
			css, _, _ = strings.Cut(css, `"`)
			if res, _ := get(t, s, strings.TrimPrefix(css, "/ops/fencepost")); res.StatusCode != 200 || !strings.Contains(res.Header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s: %s", css, res.Status)
			}
		}
	}
	for _, path := range []string{"/", "/ops/fencepost", "/ops/fencepost/"} {
		if res, _ := get(t, s, path); res.Header.Get("Location") != "/ops/fencepost/types" {
			t.Errorf("%s leads to %q", path, res.Header.Get("Location"))
		}
	}
}

// An open page is sent again after a change, and ends with the program.
func TestEvents(t *testing.T) {
	e := uitest.New(t)
	u := ui.New(e.Options())
	s := httptest.NewServer(u.Handler())
	defer s.Close()
	defer u.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/types/invoices", nil)
	r.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	read := func(want string) {
		t.Helper()
		for lines.Scan() {
			if line := lines.Text(); line != "" && !strings.HasPrefix(line, "data: ") && !strings.HasPrefix(line, "event: tick") {
				t.Fatalf("no event: %q", line)
			}
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("the page ended without %q: %v", want, lines.Err())
	}
	read(`/types/invoices/pending">40<`)
	msgs, err := e.Backend.Queue.Fetch(ctx, "invoices", queue.ID{}, queue.Limit{Messages: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Backend.Queue.Ack(ctx, "invoices", []queue.ID{msgs[0].ID, msgs[1].ID, msgs[2].ID}); err != nil {
		t.Fatal(err)
	}
	read(`/types/invoices/pending">37<`)
	u.Close()
	for lines.Scan() {
	}
}

// usersFile returns a file of users that all have the same password.
func usersFile(t *testing.T, password string, names ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	writeUsers(t, path, password, names...)
	return path
}

func writeUsers(t *testing.T, path, password string, names ...string) {
	t.Helper()
	text := "# people\n\n"
	for _, name := range names {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		text += name + ":" + string(hash) + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A user that is removed from the file, or gets another password, is soon refused, and the open pages end. An invalid file changes nothing; an
// empty or removed one admits nobody.
func TestRemovedUser(t *testing.T) {
	path := usersFile(t, "right", "anna", "bob")
	users, err := ui.LoadUsers(path)
	if err != nil {
		t.Fatal(err)
	}
	var log audited
	o := uitest.New(t).Options()
	o.Access.Users, o.Log = users, zerolog.New(&log)
	s := serve(t, o)
	as := func(name, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(name, password) }
	}
	ask := func(name, password string) int {
		t.Helper()
		res, _ := get(t, s, "/types", as(name, password))
		return res.StatusCode
	}
	open := func() (ended chan struct{}) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/locks", nil)
		r.Header.Set("Accept", "text/event-stream")
		as("anna", "right")(r)
		res, err := http.DefaultClient.Do(r)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%+v, %v", res, err)
		}
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			defer res.Body.Close()
			io.Copy(io.Discard, res.Body)
		}()
		return ended
	}
	opened := open()
	if err := os.WriteFile(path, []byte("broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	uitest.Until(t, "the log tells of the broken file", func() bool {
		return ask("anna", "right") == 200 && len(log.lines(t, "a file has changed and is invalid; its previous content stays in effect")) > 0
	})
	writeUsers(t, path, "right", "bob")
	uitest.Until(t, "anna is refused", func() bool { return ask("anna", "right") == 401 })
	if got := ask("bob", "right"); got != 200 {
		t.Errorf("bob: %d", got)
	}
	<-opened
	writeUsers(t, path, "right", "anna")
	uitest.Until(t, "anna is back", func() bool { return ask("anna", "right") == 200 })
	opened = open()
	writeUsers(t, path, "another", "anna", "carl")
	uitest.Until(t, "anna has another password", func() bool { return ask("anna", "another") == 200 })
	if got := ask("anna", "right"); got != 401 {
		t.Errorf("the old password: %d", got)
	}
	<-opened
	writeUsers(t, path, "another")
	uitest.Until(t, "nobody comes in", func() bool { return ask("anna", "another") == 401 })
	if len(log.lines(t, "the file no longer names a user: every request gets 401 until it does")) == 0 {
		t.Error("the log does not tell that nobody comes in")
	}
	writeUsers(t, path, "another", "anna")
	uitest.Until(t, "anna is back", func() bool { return ask("anna", "another") == 200 })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	uitest.Until(t, "nobody comes in without the file", func() bool { return ask("anna", "another") == 401 })
}

// No page denies that there is a type which is newer than what the pages know.
func TestNewType(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	o.Refresh, o.Write = time.Hour, true
	s := serve(t, o)
	page(t, s, "/types")
	if err := e.Backend.Queue.RegisterType(t.Context(), "brandnew"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/types/brandnew", "/types/brandnew/records", "/types/brandnew/pending", "/act/pause?type=brandnew&what=draining"} {
		res, body := get(t, s, path)
		if res.StatusCode != 404 || strings.Contains(body, "There is no type") || !strings.Contains(body, "a few seconds ago. A new type appears shortly.") {
			t.Errorf("%s: %s\n%s", path, res.Status, body)
		}
	}
}

// Probes need no password, and say whether the queue answers.
func TestProbes(t *testing.T) {
	users, err := ui.LoadUsers(usersFile(t, "right", "anna"))
	if err != nil {
		t.Fatal(err)
	}
	for name, access := range map[string]ui.Access{"passwords": {Users: users}, "a proxy": {Header: "X-User"}} {
		e := uitest.New(t)
		o := e.Options()
		o.Access, o.BasePath = access, "/ops"
		s := serve(t, o)
		b := *e.Backend
		b.Queue = clockless{b.Queue}
		o.Backend = &b
		unready := serve(t, o)
		for _, path := range []string{"/livez", "/readyz", "/ops/livez", "/ops/readyz"} {
			if res, body := get(t, s, path); res.StatusCode != 200 || body != "ok\n" {
				t.Errorf("%s, %s: %s %q", name, path, res.Status, body)
			}
			res, body := get(t, unready, path)
			if ready := strings.HasSuffix(path, "/readyz"); ready && (res.StatusCode != 503 || body != "the queue is unusable: queue unreachable: dial tcp\n") || !ready && res.StatusCode != 200 {
				t.Errorf("%s, %s of a queue that is away: %s %q", name, path, res.Status, body)
			}
		}
	}
}

// clockless is a queue that does not tell the time.
type clockless struct{ queue.Queue }

func (clockless) Now(context.Context) (time.Time, error) {
	return time.Time{}, fmt.Errorf("%w: dial\ntcp", queue.ErrUnreachable)
}

func TestAccess(t *testing.T) {
	users, err := ui.LoadUsers(usersFile(t, "right", "anna"))
	if err != nil {
		t.Fatal(err)
	}
	e := uitest.New(t)
	o := e.Options()
	o.Access.Users = users
	s := serve(t, o)
	for _, c := range []struct {
		name, password string
		want           int
	}{{"anna", "right", 200}, {"anna", "right", 200}, {"anna", "wrong", 401}, {"anna", "", 401}, {"bob", "right", 401}, {"", "", 401}, {"anna:right", "", 401}, {"anna", "right" + strings.Repeat("x", 100), 401}} {
		res, body := get(t, s, "/types", func(r *http.Request) { r.SetBasicAuth(c.name, c.password) })
		if res.StatusCode != c.want || c.want == 200 != strings.Contains(body, "<span>anna</span>") || c.want == 401 && res.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q %q: %s", c.name, c.password, res.Status)
		}
	}
	for _, path := range []string{"/types", "/assets/ui.css", "/types/orders/records/1/payload", "/nowhere"} {
		if res, _ := get(t, s, path); res.StatusCode != 401 {
			t.Errorf("%s without a password: %s", path, res.Status)
		}
	}
	o.Access = ui.Access{Header: "X-Forwarded-User", Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	near := serve(t, o)
	o.Access.Proxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	far := serve(t, o)
	named := func(names ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["X-Forwarded-User"] = names }
	}
	for _, c := range []struct {
		s     *httptest.Server
		names []string
		want  int
	}{{near, []string{"carl"}, 200}, {near, nil, 403}, {near, []string{""}, 403}, {near, []string{"carl", "root"}, 403}, {far, []string{"carl"}, 403}} {
		if res, body := get(t, c.s, "/types", named(c.names...)); res.StatusCode != c.want || c.want == 200 && !strings.Contains(body, "<span>carl</span>") {
			t.Errorf("%q: %s", c.names, res.Status)
		}
	}
}

func TestUsersThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "names no user",
		"anna":                      "line 1",
		"# x\nroot:$6$salt$s3cret":  "line 2",
		"anna:s3cret":               "bcrypt",
		":$2y$04$abcdefghijklmnop.": "line 1",
		"anna:$2y$31$ABCDEFGHIJKLMNOPQRSTUuABCDEFGHIJKLMNOPQRSTUVWXYZabcde":                      "cost 31, which takes too long",
		strings.Repeat("anna:$2a$04$ABCDEFGHIJKLMNOPQRSTUuABCDEFGHIJKLMNOPQRSTUVWXYZabcde\n", 2): "line 2 repeats",
	} {
		path := filepath.Join(t.TempDir(), "users")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ui.LoadUsers(path); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// away is a queue whose server is unreachable.
type away struct {
	queue.Queue
	err error
}

func (a *away) Types(ctx context.Context) ([]string, error) {
	if a.err != nil {
		return nil, a.err
	}
	return a.Queue.Types(ctx)
}

func TestServerIsAway(t *testing.T) {
	e := uitest.New(t)
	b := *e.Backend
	b.Queue = &away{b.Queue, fmt.Errorf("dial mongodb://bob:s3cret@db1: %w", queue.ErrUnreachable)}
	o := e.Options()
	o.Backend = &b
	s := serve(t, o)
	res, body := get(t, s, "/types")
	if res.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "s3cret") {
		t.Errorf("%s\n%s", res.Status, body)
	}
	has(t, "page", body, "Cannot look at mongodb://db1,db2,db3/shop", "queue unreachable", `role="alert"`)
}

// ask sends a GET to a server configured as in the programs, and returns the raw response. It is for a synctest bubble.
func ask(t *testing.T, o ui.Options) func(path string) *http.Response {
	t.Helper()
	u := ui.New(o)
	p := clitest.NewPipes()
	s := ops.NewServer(u.Handler(), "", nil)
	go s.Serve(p)
	t.Cleanup(func() { u.Close(); s.Close() })
	return func(path string) *http.Response {
		t.Helper()
		client := p.Dial(t)
		client.SetDeadline(time.Now().Add(time.Hour))
		if _, err := io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReaderSize(client, 16), nil)
		if err != nil {
			t.Fatalf("%s: no answer: %v", path, err)
		}
		return res
	}
}

// hanging is a queue that leaves some queries unanswered.
type hanging struct {
	queue.Queue
	types, fetch bool
}

func (h *hanging) Types(ctx context.Context) ([]string, error) {
	if h.types {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Queue.Types(ctx)
}

func (h *hanging) Fetch(ctx context.Context, typ string, after queue.ID, most queue.Limit) ([]queue.Message, error) {
	if h.fetch {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Queue.Fetch(ctx, typ, after, most)
}

// A page reports that the server does not answer, however long it waited.
func TestServerHangs(t *testing.T) {
	for _, test := range []struct {
		name, path, want string
		queue            hanging
	}{
		{"everything", "/types", "did not answer within 10s", hanging{types: true}},
		{"one page", "/types/orders/pending", "did not answer within 15s", hanging{fetch: true}},
		{"a download", "/types/orders/pending/" + queue.ID{}.String() + "/payload", "did not answer within 15s", hanging{fetch: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := uitest.New(t)
				b := *e.Backend
				test.queue.Queue = b.Queue
				b.Queue = &test.queue
				o := e.Options()
				o.Backend = &b
				res := ask(t, o)(test.path)
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%s, %v", res.Status, err)
				}
				has(t, test.path, string(body), test.want)
			})
		})
	}
}

// silent is a store that never answers.
type silent struct{ slots.Store }

func (silent) List(ctx context.Context, _ string) ([]slots.Entry, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A store that does not answer is named, and the type's page shows what the database has.
func TestStoreHangs(t *testing.T) {
	for path, want := range map[string][]string{
		"/types/orders":         {"memory: did not answer within 10s", "Pending"},
		"/types/orders/records": {"memory: did not answer within 10s"},
	} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := uitest.New(t).Options()
				store := slots.New(t.Context(), silent{slotstest.NewMem(1 << 20)})
				o.Files = chain.Files{Dir: "memory:", Name: "memory:", Until: func(ctx context.Context) storage.FS { return store.Until(ctx) }}
				res := ask(t, o)(path)
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != http.StatusOK || strings.Contains(string(body), o.Backend.Name+" did not answer") {
					t.Errorf("%s, %v:\n%s", res.Status, err, body)
				}
				has(t, path, string(body), want...)
			})
		})
	}
}

// A download lasts as long as its client reads it, and does not block the reads of pages.
func TestSlowDownload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := uitest.New(t)
		o := e.Options()
		o.Frugal = true
		get := ask(t, o)
		res := get("/types/hostile/pending/" + e.Large.String() + "/payload")
		n, err, asked := int64(0), error(nil), false
		for begun := time.Now(); err == nil; time.Sleep(time.Second) {
			var some int64
			some, err = io.CopyN(io.Discard, res.Body, 64<<10)
			n += some
			if time.Since(begun) >= time.Minute && !asked {
				asked = true
				if page := get("/types/hostile/pending"); page.StatusCode != http.StatusOK {
					t.Errorf("a page beside the download: %s", page.Status)
				}
			}
		}
		if err != io.EOF || !asked || n != res.ContentLength || n < queue.MaxPayload-6 {
			t.Errorf("%d bytes of %d: %v", n, res.ContentLength, err)
		}
	})
}

// many is a queue of 10,000 types.
type many struct{ queue.Queue }

func (many) Types(context.Context) ([]string, error) {
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("type-%05d", i)
	}
	return names, nil
}

func (many) Depth(_ context.Context, typ string, _ int) (d queue.Depth, err error) {
	if strings.HasSuffix(typ, "77") {
		d.Pending, d.Oldest = len(typ)+int(typ[6]), queue.NewID(time.Now().Add(-time.Hour), 1, 1)
	}
	return d, nil
}

func TestTenThousandTypes(t *testing.T) {
	e := uitest.New(t)
	b := *e.Backend
	b.Queue = many{b.Queue}
	o := e.Options()
	o.Backend, o.CountUpTo = &b, backlog.DefaultMax
	s := serve(t, o)
	uitest.Until(t, "all were counted", func() bool { return strings.Contains(page(t, s, "/types"), "With backlog <b>100</b>") })
	body := page(t, s, "/types")
	has(t, "types", body, "1–50 of 10,000", "<dd>10,000</dd>", `/types?page=2"`)
	if n := strings.Count(body, "<tr data-key"); n != 50 || len(body) > 80<<10 {
		t.Errorf("a page has %d rows, %d bytes", n, len(body))
	}
	has(t, "the last page", page(t, s, "/types?page=200"), "9,951–10,000 of 10,000", "type-09999")
	has(t, "behind the last page", page(t, s, "/types?page=999"), "type-09999")
	has(t, "filtered", page(t, s, "/types?q=0777"), "type-00777", "type-07770", "Not drained <b>2</b>")
	has(t, "by backlog", page(t, s, "/types?state=backlog&sort=backlog&page=2"), "51–100 of 100", "state=backlog")
	if body := page(t, s, "/types?q=zzz"); !strings.Contains(body, "No type matches") {
		t.Error(body)
	}
	var slowest time.Duration
	for range 5 {
		began := time.Now()
		page(t, s, "/types?sort=oldest&q=type&state=backlog")
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("a page of 10,000 types takes %v at most", slowest)
}
