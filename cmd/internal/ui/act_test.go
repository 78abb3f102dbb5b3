package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/rs/zerolog"
)

// audited is a log that can be read while it is written.
type audited struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (a *audited) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.b.Write(p)
}

// lines returns the events with a message.
func (a *audited) lines(t *testing.T, message string) (found []map[string]any) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range bytes.Lines(a.b.Bytes()) {
		var event map[string]any
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatal(err)
		}
		if event["message"] == message {
			found = append(found, event)
		}
	}
	return found
}

// shop is an embedded backend with data of every kind, and pages with actions.
type shop struct {
	*httptest.Server
	t    *testing.T
	b    *fencepost.Backend
	log  *audited
	ids  []queue.ID // of the pending messages of orders
	dead []queue.ID // of the dead letters of orders
}

func openShop(t *testing.T, change ...func(*ui.Options)) *shop {
	t.Helper()
	ctx := context.Background()
	b, err := fencepost.Open(ctx, "sqlite://"+filepath.Join(t.TempDir(), "fencepost.db"))
	must(t, err)
	t.Cleanup(func() { b.Close(ctx) })
	s := &shop{t: t, b: b, log: &audited{}}
	p, err := queue.NewPublisher(ctx, b.Queue, queue.PublisherOptions{})
	must(t, err)
	defer p.Close(ctx)
	for range 5 {
		id, err := p.Publish(ctx, "orders", []byte(`{"order":1}`), nil)
		must(t, err)
		s.ids = append(s.ids, id)
	}
	for range 3 {
		_, err := p.PublishAfter(ctx, time.Hour, "orders", []byte("remind"), nil)
		must(t, err)
	}
	_, err = p.Publish(ctx, "audit", []byte("x"), nil)
	must(t, err)
	for i, reason := range []string{"timeout", "timeout", uitest.Hostile} {
		s.dead = append(s.dead, s.bury("orders", uint64(i+1), reason))
	}
	s.bury("audit", 9, "timeout")
	o := ui.Options{Backend: b, Files: chain.Files{Dir: t.TempDir(), Place: "here"}, Write: true, Refresh: 500 * time.Millisecond, CountUpTo: 1000, Log: zerolog.New(s.log).Level(zerolog.ErrorLevel)}
	for _, f := range change {
		f(&o)
	}
	s.Server = serve(t, o)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shop) bury(typ string, n uint64, reason string) queue.ID {
	s.t.Helper()
	id := queue.NewID(time.UnixMilli(1000), 7, n)
	must(s.t, s.b.Queue.MoveToDeadLetters(context.Background(), typ, []queue.DeadLetter{{Message: queue.Message{Type: typ, ID: id, Payload: []byte("p")}, Reason: reason, Attempts: 5}}))
	return id
}

// confirm opens a confirmation page, and returns it with the value of its form.
func (s *shop) confirm(action string, query ...string) (body, form string) {
	s.t.Helper()
	body = page(s.t, s.Server, "/act/"+action+"?"+pairs(query).Encode())
	_, form, _ = strings.Cut(body, `name="form" value="`)
	form, _, _ = strings.Cut(form, `"`)
	return body, form
}

func pairs(all []string) url.Values {
	v := url.Values{}
	for i := 0; i < len(all); i += 2 {
		v.Set(all[i], all[i+1])
	}
	return v
}

// send sends a form, follows to the page of the outcome, and waits for the end of the action.
func (s *shop) send(action string, fields ...string) (res *http.Response, body string) {
	s.t.Helper()
	res, body = s.post(action, fields...)
	uitest.Until(s.t, "the action ends", func() bool {
		if !strings.Contains(body, ">under way<") {
			return true
		}
		body = page(s.t, s.Server, res.Request.URL.Path)
		return false
	})
	return res, body
}

// post sends a form, and follows to the page of the outcome, or to the page of the action in progress.
func (s *shop) post(action string, fields ...string) (*http.Response, string) {
	s.t.Helper()
	client := http.Client{Timeout: time.Minute}
	res, err := client.PostForm(s.URL+"/act/"+action, pairs(fields))
	must(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(s.t, err)
	return res, string(body)
}

// do confirms an action, carries it out, and returns both pages.
func (s *shop) do(action string, query []string, fields ...string) (confirm, done string) {
	s.t.Helper()
	confirm, form := s.confirm(action, query...)
	if form == "" {
		s.t.Fatalf("%s %q has no form:\n%s", action, query, confirm)
	}
	res, done := s.send(action, append(fields, "form", form)...)
	if res.StatusCode != 200 || !strings.HasPrefix(res.Request.URL.Path, "/done/") {
		s.t.Fatalf("%s %q: %s %s\n%s", action, query, res.Status, res.Request.URL, done)
	}
	return confirm, done
}

func (s *shop) pending(typ string) int {
	s.t.Helper()
	d, err := s.b.Queue.Depth(context.Background(), typ, 1000)
	must(s.t, err)
	return d.Pending
}

func (s *shop) letters(l admin.Letters) (n int) {
	s.t.Helper()
	must(s.t, l.Each(context.Background(), s.b.Queue, func(queue.DeadLetter) error { n++; return nil }))
	return n
}

func (s *shop) delayed() (n int) {
	s.t.Helper()
	must(s.t, admin.Delayed{}.Each(context.Background(), s.b.Queue, func(queue.Message) bool { n++; return true }))
	return n
}

// Each action says beforehand what it will do and to how many, does that, and reports the result, on the page and in the log.
func TestActions(t *testing.T) {
	s := openShop(t)
	settings := func() queue.Settings {
		set, err := s.b.Queue.Settings(context.Background(), "orders")
		must(t, err)
		return set
	}
	for _, c := range []struct {
		action  string
		query   []string
		fields  []string
		confirm []string
		done    []string
		check   func() bool
	}{
		{"pause", []string{"type", "orders", "what", "draining"}, []string{"why", "disk"}, []string{"Workers release type orders", "<dt>now</dt><dd>nothing is set"}, []string{"Set for type orders: drain paused."},
			func() bool { return settings().DrainPaused && !settings().PublishPaused && settings().Why == "disk" }},
		{"pause", []string{"type", "orders", "what", "publishing"}, nil, []string{"Publishers refuse new messages", "<dt>now</dt><dd>drain paused"}, []string{"Set for type orders: paused."},
			func() bool { return settings().DrainPaused && settings().PublishPaused }},
		{"resume", []string{"type", "orders"}, nil, []string{"Workers drain type orders again", "Publishers take new messages"}, []string{"nothing."}, func() bool { return settings().IsZero() }},
		{"limit", []string{"type", "orders", "max", "2k"}, []string{"why", uitest.Hostile}, []string{"wait while 2,000 messages are pending", "<dt>pending now</dt><dd>5"}, []string{"limit 2000"}, func() bool { return settings().MaxBacklog == 2000 }},
		{"limit", []string{"type", "orders", "max", "0"}, nil, []string{"no longer has a limit"}, []string{"nothing."}, func() bool { return settings().MaxBacklog == 0 }},
		{"purge", []string{"type", "orders", "id", s.ids[2].String()}, []string{"why", "test", "name", "orders"}, []string{"The pending message is removed", "waits for the missing numbers"}, []string{"1 pending message was removed."}, func() bool { return s.pending("orders") == 4 }},
		{"purge", []string{"type", "orders"}, []string{"why", "test", "name", "orders"}, []string{"4 pending messages of type orders", "type <code>orders</code>", "Count again"}, []string{"4 pending messages were removed."}, func() bool { return s.pending("orders") == 0 && s.pending("audit") == 1 }},
		{"requeue", []string{"type", "orders", "id", s.dead[0].String()}, nil, []string{"1 dead letter: published again"}, []string{"1 dead letter was requeued."}, func() bool {
			return s.pending("orders") == 1 && s.letters(admin.Letters{Types: []string{"orders"}}) == 2
		}},
		{"remove-letters", []string{"type", "orders", "reason", "<script>"}, []string{"why", "test", "name", "orders"}, []string{"1 dead letter: removed", "&lt;script&gt;"}, []string{"1 dead letter was removed."},
			func() bool { return s.letters(admin.Letters{Types: []string{"orders"}}) == 1 }},
		{"requeue", []string{"reason", "timeout"}, nil, []string{"2 dead letters: published again", "<dt>of orders</dt><dd>1", "<dt>of audit</dt><dd>1"}, []string{"2 dead letters were requeued."},
			func() bool {
				return s.letters(admin.Letters{}) == 0 && s.pending("audit") == 2 && s.pending("orders") == 2
			}},
		{"remove-delayed", []string{"type", "orders"}, []string{"why", "test", "name", "orders"}, []string{"3 delayed messages of type orders"}, []string{"3 delayed messages were removed."}, func() bool { return s.delayed() == 0 }},
	} {
		before := len(s.log.lines(t, "an action has ended"))
		confirm, done := s.do(c.action, c.query, c.fields...)
		has(t, c.action+" before", confirm, c.confirm...)
		has(t, c.action+" behind", done, append(c.done, ">done<", "<dt>by</dt><dd>local")...)
		if !c.check() {
			t.Errorf("%s %q was not done:\n%s", c.action, c.query, done)
		}
		begun, ended := s.log.lines(t, "an action begins"), s.log.lines(t, "an action has ended")
		if len(ended) != before+1 || len(begun) != len(ended) {
			t.Fatalf("%s: %d lines in the log, %d before", c.action, len(ended), before)
		}
		line := ended[before]
		why := pairs(c.fields).Get("why")
		if line["action"] != c.action || line["user"] != "local" || line["result"] != "done" || line["confirmed"] != line["done"] || line["about"] != pairs(c.query).Encode() || line["why"] != why || line["level"] != "info" || !strings.HasPrefix(fmt.Sprint(line["from"]), "127.0.0.1:") {
			t.Errorf("%s: the log says %v", c.action, line)
		}
	}
	has(t, "nothing", page(t, s.Server, "/act/requeue?type=orders"), "No dead letter matches")
	has(t, "nothing", page(t, s.Server, "/act/purge?type=orders&older=24h"), "No pending message matches")
	for path, status := range map[string]int{"/act/nothing": 404, "/act/pause?type=x": 404, "/act/pause?type=orders&what=x": 400, "/act/limit?type=orders&max=many": 400, "/act/limit?type=orders&max=99M": 400, "/act/purge?type=orders&id=x": 400,
		"/act/purge?type=orders&older=soon": 400, "/act/requeue?id=" + s.dead[0].String(): 400, "/act/remove-delayed": 400, "/act/remove-delayed?type=orders&slot=x": 400, "/act/ask?lock=nobody": 404, "/done/x": 404} {
		if res, body := get(t, s.Server, path); res.StatusCode != status {
			t.Errorf("%s: %s, want %d\n%s", path, res.Status, status, body)
		}
	}
}

// Messages from after the confirmation page are not included, and those that disappeared since are reported.
func TestWhatWasConfirmedIsDone(t *testing.T) {
	s := openShop(t)
	_, purge := s.confirm("purge", "type", "orders")
	_, remove := s.confirm("remove-letters", "type", "orders")
	_, delayed := s.confirm("remove-delayed", "type", "orders")
	time.Sleep(2 * time.Millisecond) // the clock of the backend has milliseconds
	p, err := queue.NewPublisher(t.Context(), s.b.Queue, queue.PublisherOptions{})
	must(t, err)
	_, err = p.Publish(t.Context(), "orders", []byte("later"), nil)
	must(t, err)
	_, err = p.PublishAfter(t.Context(), time.Hour, "orders", []byte("later"), nil)
	must(t, err)
	must(t, p.Close(t.Context()))
	must(t, s.b.Queue.Ack(t.Context(), "orders", s.ids[:2]))
	s.bury("orders", 20, "later")
	must(t, s.b.Queue.RemoveDeadLetters(t.Context(), "orders", s.dead[:1]))
	if _, done := s.send("purge", "form", purge, "why", "test", "name", "orders"); s.pending("orders") != 1 {
		t.Errorf("%d messages are pending\n%s", s.pending("orders"), done)
	} else {
		has(t, "purge", done, "3 pending messages were removed.", "2 of the 5 on the confirmation page were no longer there.")
	}
	if _, done := s.send("remove-letters", "form", remove, "why", "test", "name", "orders"); s.letters(admin.Letters{Types: []string{"orders"}}) != 1 {
		t.Errorf("%d letters are left\n%s", s.letters(admin.Letters{}), done)
	} else {
		has(t, "letters", done, "2 dead letters were removed.", "1 of the 3 on the confirmation page were no longer there")
	}
	if _, done := s.send("remove-delayed", "form", delayed, "why", "test", "name", "orders"); s.delayed() != 1 {
		t.Errorf("%d messages are delayed\n%s", s.delayed(), done)
	}
}

// A delayed message is removed by its row.
func TestOneDelayedMessage(t *testing.T) {
	s := openShop(t)
	body := page(t, s.Server, "/delayed?type=orders")
	_, link, _ := strings.Cut(body, `href="/act/remove-delayed?slot=`)
	slot, _, _ := strings.Cut(link, "&amp;")
	slot, err := url.QueryUnescape(slot)
	must(t, err)
	confirm, done := s.do("remove-delayed", []string{"type", "orders", "slot", slot}, "why", "test", "name", "orders")
	has(t, "confirm", confirm, "1 delayed message of type orders", "<dt>due</dt>")
	has(t, "done", done, "1 delayed message was removed.")
	if n := s.delayed(); n != 2 {
		t.Errorf("%d messages are delayed, want 2", n)
	}
	has(t, "again", page(t, s.Server, "/act/remove-delayed?type=orders&slot="+url.QueryEscape(slot)), "No delayed message matches")
}

// A lock action applies to the holder that was shown.
func TestLockActions(t *testing.T) {
	s := openShop(t)
	hold := func() *lock.Lease {
		l, err := s.b.Locker.Acquire(t.Context(), "report", lock.WithWhy("monthly report"))
		must(t, err)
		return l
	}
	lease := hold()
	uitest.Until(t, "the lock is in the list", func() bool { return strings.Contains(page(t, s.Server, "/locks"), "monthly report") })
	has(t, "locks", page(t, s.Server, "/locks"), `href="/act/ask?lock=report" aria-label="Ask… for the release of report"`, `class="act danger" href="/act/force?lock=report"`)
	confirm, done := s.do("ask", []string{"lock", "report"}, "why", "maintenance")
	has(t, "ask", confirm, "is asked to release it", "monthly report")
	has(t, "asked", done, "The holder of report is asked to release it; it sees that at its next renewal.")
	r, err := s.b.Locker.Inspect(t.Context(), "report")
	must(t, err)
	if r.Holds()[0].Asked != "maintenance" {
		t.Errorf("asked %q", r.Holds()[0].Asked)
	}
	_, form := s.confirm("force", "lock", "report")
	must(t, lease.Release(t.Context()))
	lease = hold()
	_, done = s.send("force", "form", form, "why", "it hangs")
	has(t, "another holder", done, "The lock has changed hands", ">nothing to do<")
	if r, err = s.b.Locker.Inspect(t.Context(), "report"); err != nil || !r.Held() {
		t.Errorf("the lock of another holder was taken away: %v %v", r, err)
	}
	confirm, done = s.do("force", []string{"lock", "report"}, "why", "it hangs")
	has(t, "force", confirm, "is taken away", "A dead holder loses the lock without this")
	has(t, "forced", done, "Report is free.")
	if r, err = s.b.Locker.Inspect(t.Context(), "report"); err != nil || r.Held() || r.Forced.Why != "it hangs" {
		t.Errorf("%v %v", r, err)
	}
	<-lease.Context().Done()
	has(t, "free", page(t, s.Server, "/act/force?lock=report"), "Nobody holds this lock")
}

// Unconfirmed actions are not carried out: each refusal says why, and is logged.
func TestRefusals(t *testing.T) {
	s := openShop(t)
	_, purge := s.confirm("purge", "type", "orders")
	_, resume := s.confirm("resume", "type", "orders")
	for _, c := range []struct {
		action string
		fields []string
		status int
		says   string
	}{
		{"purge", []string{"form", purge, "why", "test"}, 422, "To confirm, type orders."},
		{"purge", []string{"form", purge, "why", "test", "name", "order"}, 422, "To confirm, type orders."},
		{"purge", []string{"form", purge, "why", " ", "name", "orders"}, 422, "Give a reason"},
		{"purge", []string{"form", purge, "why", strings.Repeat("x", 600), "name", "orders"}, 422, "longer than 512 bytes"},
		{"purge", []string{"form", purge, "why", "\xff", "name", "orders"}, 422, "not valid text"},
		{"purge", []string{"form", resume, "why", "test", "name", "orders"}, 409, "was not confirmed"},
		{"purge", []string{"form", purge[:len(purge)-4] + "AAAA", "why", "test", "name", "orders"}, 409, "was not confirmed"},
		{"purge", []string{"why", "test", "name", "orders"}, 409, "was not confirmed"},
		{"purge", []string{"form", "x.y", "why", "test", "name", "orders"}, 409, "was not confirmed"},
		{"purge", []string{"form", purge, "why", strings.Repeat("x", 100_000), "name", "orders"}, 400, "cannot be read"},
		{"nothing", []string{"form", purge}, 409, "was not confirmed"},
	} {
		before := len(s.log.lines(t, "an action was refused"))
		res, body := s.send(c.action, c.fields...)
		if has(t, c.says, body, c.says, "Nothing was done"); res.StatusCode != c.status {
			t.Errorf("%q: %s, want %d", c.says, res.Status, c.status)
		}
		if c.status != 400 && strings.Contains(body, "<script>w") {
			t.Error(body)
		}
		refused := s.log.lines(t, "an action was refused")
		if len(refused) != before+1 || refused[before]["level"] != "warn" || refused[before]["action"] != c.action || refused[before]["user"] != "local" {
			t.Errorf("%q: the log says %v", c.says, refused[before:])
		}
	}
	if n := s.pending("orders"); n != 5 {
		t.Errorf("%d messages are pending, want 5", n)
	}
	// The form shows the previous input again, and is carried out once it has the right name.
	_, again := s.send("purge", "form", purge, "why", uitest.Hostile, "name", "x")
	has(t, "again", again, `name="why" value="&#34;&gt;&lt;script&gt;`, `role="alert"`)
	_, done := s.send("purge", "form", purge, "why", uitest.Hostile, "name", "orders")
	has(t, "done", done, "5 pending messages were removed", `\u202egpj.exe`)

	req, err := http.NewRequest(http.MethodPost, s.URL+"/act/resume", strings.NewReader(url.Values{"form": {resume}}.Encode()))
	must(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	if res.Body.Close(); res.StatusCode != http.StatusForbidden {
		t.Errorf("a form of another site: %s", res.Status)
	}
	refused := s.log.lines(t, "an action was refused")
	if last := refused[len(refused)-1]; last["reason"] != "cross-origin request" {
		t.Errorf("the log says %v", last)
	}
}

var everyAction = []string{"pause?type=orders", "resume?type=orders", "limit?type=orders&max=1", "purge?type=orders", "purge-foreign?type=orders", "requeue", "remove-letters", "remove-delayed?type=orders", "ask?lock=orders", "force?lock=orders"}

// Without --write nothing can be changed, and no page offers an action.
func TestReadOnly(t *testing.T) {
	users, err := ui.LoadUsers(usersFile(t, "right", "anna", "bob"))
	must(t, err)
	pagesOf := func(s *shop) []string {
		return []string{"/types/orders", "/dead", "/dead?type=orders", "/dead/orders/" + s.dead[0].String(), "/delayed?type=orders", "/locks", "/types/orders/pending/" + s.ids[0].String()}
	}
	refuses := func(t *testing.T, s *shop, says string, as ...func(*http.Request)) {
		t.Helper()
		for _, path := range pagesOf(s) {
			if res, body := get(t, s.Server, path, as...); res.StatusCode != 200 || strings.Contains(body, "/act/") || !strings.Contains(body, ">read-only<") {
				t.Errorf("%s: %s\n%s", path, res.Status, body)
			}
		}
		for _, action := range everyAction {
			if res, body := get(t, s.Server, "/act/"+action, as...); res.StatusCode != http.StatusForbidden || !strings.Contains(body, says) {
				t.Errorf("%s: %s\n%s", action, res.Status, body)
			}
			before := len(s.log.lines(t, "an action was refused"))
			post := append(slices.Clone(as), func(r *http.Request) { r.Method = http.MethodPost })
			if res, body := get(t, s.Server, "/act/"+action, post...); res.StatusCode != http.StatusForbidden || !strings.Contains(body, says) || !strings.Contains(body, "Nothing was done") {
				t.Errorf("%s: %s\n%s", action, res.Status, body)
			}
			if n := len(s.log.lines(t, "an action was refused")); n != before+1 {
				t.Errorf("%s: %d lines in the log, want %d", action, n, before+1)
			}
		}
		if s.pending("orders") != 5 || s.letters(admin.Letters{}) != 4 || s.delayed() != 3 {
			t.Error("something was changed")
		}
	}
	t.Run("without --write", func(t *testing.T) {
		refuses(t, openShop(t, func(o *ui.Options) { o.Write = false }), "start this program with --write")
	})
	t.Run("a program's own remedy", func(t *testing.T) {
		refuses(t, openShop(t, func(o *ui.Options) { o.Write, o.ReadOnly = false, "Act elsewhere." }), "Act elsewhere.")
	})
	t.Run("another user", func(t *testing.T) {
		s := openShop(t, func(o *ui.Options) { o.Access.Users, o.Writers = users, []string{"anna"} })
		as := func(name string) func(*http.Request) {
			return func(r *http.Request) { r.SetBasicAuth(name, "right") }
		}
		refuses(t, s, "User bob may only read", as("bob"))
		for _, path := range pagesOf(s)[:5] {
			if res, body := get(t, s.Server, path, as("anna")); res.StatusCode != 200 || !strings.Contains(body, "/act/") || strings.Contains(body, ">read-only<") {
				t.Errorf("%s: %s\n%s", path, res.Status, body)
			}
		}
		_, confirm := get(t, s.Server, "/act/pause?type=orders", as("anna"))
		_, form, _ := strings.Cut(confirm, `name="form" value="`)
		form, _, _ = strings.Cut(form, `"`)
		res, body := get(t, s.Server, "/act/pause", as("anna"), func(r *http.Request) {
			r.Method, r.Body = http.MethodPost, io.NopCloser(strings.NewReader(url.Values{"form": {form}}.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		})
		if res.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s\n%s", res.Status, body)
		}
		done := res.Header.Get("Location")
		if res, _ := get(t, s.Server, done, as("bob")); res.StatusCode != http.StatusNotFound {
			t.Errorf("another user's outcome: %s", res.Status)
		}
		uitest.Until(t, "the action ends", func() bool {
			_, body := get(t, s.Server, done, as("anna"))
			if !strings.Contains(body, "<dt>by</dt><dd>anna") {
				t.Fatal(body)
			}
			return !strings.Contains(body, ">under way<")
		})
		if ended := s.log.lines(t, "an action has ended"); len(ended) != 1 || ended[0]["user"] != "anna" {
			t.Errorf("the log says %v", ended)
		}
	})
}

// The log has every action and every refusal, at any level.
func TestAudit(t *testing.T) {
	for _, level := range []zerolog.Level{zerolog.DebugLevel, zerolog.InfoLevel, zerolog.ErrorLevel} {
		s := openShop(t, func(o *ui.Options) { o.Log = o.Log.Level(level) })
		_, _ = s.do("pause", []string{"type", "orders"}, "why", "disk")
		s.send("pause", "form", "x")
		if len(s.log.lines(t, "an action begins")) != 1 || len(s.log.lines(t, "an action has ended")) != 1 || len(s.log.lines(t, "an action was refused")) != 1 {
			t.Errorf("at level %v the log has:\n%s", level, s.log.b.String())
		}
	}
}

// A form that is sent several times, even concurrently, is carried out once, and each response leads to the same outcome.
func TestSentTwice(t *testing.T) {
	s := openShop(t)
	_, form := s.confirm("requeue", "type", "orders")
	var wg sync.WaitGroup
	var mu sync.Mutex
	led := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			res, body := s.send("requeue", "form", form)
			mu.Lock()
			defer mu.Unlock()
			led[res.Request.URL.Path] = true
			has(t, "outcome", body, "3 dead letters were requeued.")
		})
	}
	wg.Wait()
	if n := s.pending("orders"); n != 8 || len(led) != 1 || len(s.log.lines(t, "an action has ended")) != 1 {
		t.Errorf("%d messages are pending, want 8; led to %v", n, led)
	}
}

// An action done in part reports exactly that.
func TestPartlyDone(t *testing.T) {
	s := openShop(t)
	pause := true
	_, err := s.b.Queue.PatchSettings(t.Context(), "orders", queue.SettingsPatch{PublishPaused: &pause, Why: "moving"})
	must(t, err)
	_, done := s.do("requeue", nil)
	has(t, "outcome", done, ">partly done<", "1 dead letter was requeued.", "3 dead letters stay.", "moving", "Continue with the rest")
	line := s.log.lines(t, "an action has ended")[0]
	if line["result"] != "partly done" || line["done"] != 1.0 || line["left"] != 3.0 || !strings.Contains(fmt.Sprint(line["error"]), "moving") {
		t.Errorf("the log says %v", line)
	}
	if n := s.letters(admin.Letters{Types: []string{"orders"}}); n != 3 {
		t.Errorf("%d letters are left, want 3", n)
	}
}

// While another program changes the type, an action waits, and continues when its page is closed.
func TestActionUnderWay(t *testing.T) {
	s := openShop(t)
	lease, err := s.b.Locker.Acquire(t.Context(), queue.AdminLock("orders"), lock.WithWhy("another program"))
	must(t, err)
	_, form := s.confirm("remove-letters", "type", "orders")
	res, body := s.post("remove-letters", "form", form, "why", "test", "name", "orders")
	has(t, "under way", body, ">under way<", "It continues when this page is closed.")
	if s.letters(admin.Letters{}) != 4 {
		t.Error("it did not wait")
	}
	must(t, lease.Release(t.Context()))
	uitest.Until(t, "it has ended", func() bool {
		return strings.Contains(page(t, s.Server, res.Request.URL.Path), "3 dead letters were removed.")
	})
}

// When the program stops, actions that wait for their turn end, and the log says so. Later forms are refused.
func TestEndOfTheProgram(t *testing.T) {
	s := openShop(t)
	u := ui.New(ui.Options{Backend: s.b, Write: true, Refresh: 500 * time.Millisecond, CountUpTo: 1000, Log: zerolog.New(s.log)})
	s.Server = httptest.NewServer(u.Handler())
	t.Cleanup(s.Server.Close)
	lease, err := s.b.Locker.Acquire(t.Context(), queue.AdminLock("orders"))
	must(t, err)
	defer lease.Release(context.Background())
	_, form := s.confirm("remove-letters", "type", "orders")
	_, later := s.confirm("resume", "type", "orders")
	s.post("remove-letters", "form", form, "why", "test", "name", "orders")
	u.Close()
	ended := s.log.lines(t, "an action has ended")
	if len(ended) != 1 || ended[0]["result"] != "failed" || ended[0]["done"] != 0.0 {
		t.Errorf("the log says %v", ended)
	}
	if res, _ := s.send("resume", "form", later); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("an action behind the end: %s", res.Status)
	}
	if s.letters(admin.Letters{}) != 4 {
		t.Error("letters were removed")
	}
}

// Documents that other programs have stored among the messages of a type can be removed without removing a message.
func TestForeignKeysAreRemoved(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	o.Write, o.Log = true, zerolog.Nop()
	s := &shop{Server: serve(t, o), t: t, b: e.Backend, log: &audited{}}
	e.Backend.Queue.(*queuetest.Memory).PlantForeign("invoices", "x1", "x2")
	uitest.Until(t, "the type page links to it", func() bool {
		return strings.Contains(page(t, s.Server, "/types/invoices"), `href="/act/purge-foreign?type=invoices"`)
	})
	confirm, done := s.do("purge-foreign", []string{"type", "invoices"}, "why", "test", "name", "invoices")
	has(t, "confirm", confirm, "2 foreign keys among the messages of type invoices")
	has(t, "done", done, "2 foreign keys were removed.")
	if keys, err := e.Backend.Queue.ForeignKeys(t.Context(), "invoices", "", 10); err != nil || len(keys) > 0 || s.pending("invoices") != 40 {
		t.Errorf("%q are left, %v, and %d messages", keys, err, s.pending("invoices"))
	}
	has(t, "again", page(t, s.Server, "/act/purge-foreign?type=invoices"), "has no foreign keys")
}
