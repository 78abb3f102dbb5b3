package browsertest

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/queue"
)

//go:embed audit.js
var audit string

// Each page, in light and dark, on a phone, a tablet and a large screen: everything is readable, has a name, and fits.
func TestEveryPageIsLegible(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	p := newTab(t)
	for _, path := range []string{"/types", "/types?state=silent", "/types/orders", "/types/hostile", "/types/payments", "/types/returns", "/types/orders/records", "/types/orders/records/4", "/types/orders/records/4?as=hex",
		"/types/orders/records/100", "/types/invoices/pending", "/types/hostile/pending/" + e.Large.String(), "/types/" + uitest.LongType + "/records", "/types/" + uitest.LongType + "/pending",
		"/dead", "/dead/hostile/" + e.Dead.String(), "/delayed", "/workers", "/locks", "/locks?all=1"} {
		p.look(1920, "light")
		p.open(s.URL + path)
		if path == "/types/orders" {
			p.is(`document.querySelectorAll(".bar .void").length > 0`, "true")
		}
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{320, 768, 1920} {
				p.look(width, scheme)
				if wrong := p.js(audit); wrong != "" {
					t.Errorf("%s, %s, %d px:\n%s", path, scheme, width, wrong)
				}
			}
		}
		if dark, light := p.js(`getComputedStyle(document.documentElement).backgroundColor`), "rgb(244, 246, 248)"; dark == light {
			t.Errorf("%s is not dark: %s", path, dark)
		}
	}
	p.run(chromedp.Navigate(s.URL + "/types/nothing"))
	p.is(`document.querySelector(".empty").textContent.startsWith("There was no type nothing")`, "true")
	if wrong := p.js(strings.Replace(audit, "looked < 15", "looked < 10", 1)); !strings.HasPrefix(wrong, "not one h1") || strings.Contains(wrong, "\n") {
		t.Errorf("the page that is not there: %s", wrong)
	}
	p.forgive("404")
}

// Everything can be reached with the keyboard alone, and the focus is visible.
func TestKeyboardAlone(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	p := newTab(t)
	p.look(1280, "light")
	p.open(s.URL + "/types")
	tab := func() string {
		p.run(chromedp.KeyEvent(kb.Tab))
		if style := p.js(`getComputedStyle(document.activeElement).outlineStyle`); style == "none" {
			t.Errorf("%s has focus, and does not show it", p.js(`document.activeElement.outerHTML`))
		}
		return p.js(`document.activeElement.textContent.trim() || document.activeElement.name`)
	}
	var went []string
	for range 60 {
		at := tab()
		if went = append(went, at); at == "orders" {
			break
		}
	}
	for _, want := range []string{"Skip to the content", "Fencepost", "Types", "Dead letters", "Delayed", "Workers", "Locks", "q", "Show", "audit.eu", "invoices", "orders"} {
		if !strings.Contains("|"+strings.Join(went, "|")+"|", "|"+want+"|") {
			t.Errorf("the keyboard does not lead to %q: %q", want, went)
		}
	}
	p.run(chromedp.KeyEvent(kb.Enter))
	p.is(`location.pathname`, "/types/orders")
	p.is(`document.getElementById("state").textContent`, "live")
	p.run(chromedp.NavigateBack())
	p.is(`location.pathname`, "/types")
	p.is(`document.getElementById("state").textContent`, "live")
	call(p, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Text: "/"})
	p.is(`document.activeElement.name`, "q")
	p.run(chromedp.KeyEvent("inv"), chromedp.KeyEvent(kb.Enter))
	p.is(`location.search`, "?q=inv&sort=")
	p.is(`[...document.querySelectorAll("tbody tr")].map((r) => r.dataset.key).join()`, "invoices")
	p.run(chromedp.Navigate(s.URL + "/types"))
	p.is(`document.getElementById("state").textContent`, "live")
	p.run(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	p.is(`document.activeElement.id`, "main")
}

// ack removes the oldest pending messages of a type, as a worker does.
func ack(t *testing.T, q queue.Queue, typ string, n int) {
	t.Helper()
	msgs, err := q.Fetch(context.Background(), typ, queue.ID{}, queue.Limit{Messages: n})
	if err != nil {
		t.Fatal(err)
	}
	var ids []queue.ID
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	if err := q.Ack(context.Background(), typ, ids); err != nil {
		t.Fatal(err)
	}
}

const backlog = `document.querySelector('[data-key=invoices] [data-label=Backlog]').textContent`

// An open page is updated without disturbing its reader: focus, text being typed, the row in view.
func TestAnOpenPageStaysTrue(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	u := ui.New(o)
	c := &counting{Handler: u.Handler()}
	s := httptest.NewServer(c)
	t.Cleanup(func() { u.Close(); s.Close() })
	p := newTab(t)
	p.open(s.URL + "/types?sort=backlog")
	p.is(backlog, "40")
	p.run(chromedp.SendKeys(chromedp.CSS(`input[name=q]`), "half a wo"), chromedp.Focus(chromedp.CSS(`a[href="/types/invoices"]`)))
	p.js(`(window.row = document.querySelector('[data-key=invoices]'), 1)`)
	ack(t, e.Backend.Queue, "invoices", 38)
	p.is(backlog, "2")
	p.is(`[...document.querySelectorAll("tbody tr")].map((r) => r.dataset.key).indexOf("invoices")`, "3")
	for expression, want := range map[string]string{`document.activeElement.getAttribute("href")`: "/types/invoices", `document.querySelector("input[name=q]").value`: "half a wo",
		`window.row === document.querySelector('[data-key=invoices]')`: "true"} {
		if got := p.js(expression); got != want {
			t.Errorf("%s is %q, want %q", expression, got, want)
		}
	}
	// A hidden page sends no requests.
	hide := func(hidden bool) string {
		return fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %v, configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`, hidden)
	}
	p.js(hide(true))
	p.is(`document.getElementById("state").textContent`, "paused")
	uitest.Until(t, "the server has no open page", func() bool { return c.now() == 0 })
	ack(t, e.Backend.Queue, "invoices", 1)
	p.js(hide(false))
	p.is(backlog, "1")
	p.is(`document.getElementById("state").textContent`, "live")
}

// A page reconnects to its server after a restart, with and without a proxy that answers in the meantime.
func TestRestart(t *testing.T) {
	e := uitest.New(t)
	o := e.Options()
	o.BasePath = "/ops/fencepost"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	start := func(l net.Listener) (stop func()) {
		u := ui.New(o)
		s := &http.Server{Handler: u.Handler()}
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		return func() { u.Close(); s.Close(); <-done }
	}
	stop := start(l)
	t.Cleanup(func() { stop() })
	var refused atomic.Int64
	backend, _ := url.Parse("http://" + addr)
	strip := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(backend) }, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.WriteHeader(http.StatusBadGateway)
		refused.Add(1)
	}}
	proxy := httptest.NewServer(http.StripPrefix("/ops/fencepost", strip))
	t.Cleanup(proxy.Close)

	direct, behind := newTab(t), newTab(t)
	direct.open("http://" + addr + "/types")
	behind.open(proxy.URL + "/ops/fencepost/types")
	behind.run(chromedp.Click(chromedp.CSS(`a[href="/ops/fencepost/workers"]`)))
	behind.is(`location.pathname + document.querySelector("h1").textContent`, "/ops/fencepost/workersWorkers")
	behind.open(proxy.URL + "/ops/fencepost/types")
	stop()
	for _, p := range []*tab{direct, behind} {
		p.is(`document.getElementById("state").textContent`, "not connected, trying again")
		p.is(backlog, "40")
	}
	uitest.Until(t, "the proxy has answered without its server", func() bool { return refused.Load() > 0 })
	ack(t, e.Backend.Queue, "invoices", 15)
	uitest.Until(t, "the address is free", func() bool { // another program may have got it in the meantime
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	stop = start(l)
	for _, p := range []*tab{direct, behind} {
		p.is(backlog, "25")
		p.is(`document.getElementById("state").textContent`, "live")
		for _, brought := range []string{"ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "502", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"} {
			p.forgive(brought)
		}
	}
}

// Untrusted text is shown as text, and nothing of it runs, even while a page is updated.
func TestHostileTextsAreShownHarmlessly(t *testing.T) {
	e := uitest.New(t)
	s := serve(t, e.Options())
	p := newTab(t)
	const markup = `<script>window.hurt=1</script><img src=x onerror="window.hurt=2">`
	for path, selector := range map[string]string{"/types/orders/records/4?as=text": "pre", "/dead/hostile/" + e.Dead.String() + "?as=text": "pre", "/types/hostile": ".banner", "/dead": "table", "/workers": "table", "/delayed": "table", "/locks": "table"} {
		p.open(s.URL + path)
		if text := p.js(fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.textContent).join()`, selector)); !strings.Contains(text, markup) {
			t.Errorf("%s does not show the text: %q", path, text)
		}
		if got := p.js(`[document.scripts.length, document.images.length, window.hurt, document.querySelectorAll("[onerror]").length].join()`); got != "1,0,,0" {
			t.Errorf("%s: %s", path, got)
		}
	}
	p.open(s.URL + "/types/hostile/pending/" + e.Large.String())
	if n := p.js(`document.querySelector("pre").textContent.length`); n != "65536" {
		t.Errorf("%s characters of a large payload are shown", n)
	}
	// The same in an event for an open page.
	p.open(s.URL + "/types/returns/pending")
	id := queue.NewID(queue.MaxDue, 5, 1)
	if err := e.Backend.Queue.Insert(context.Background(), "returns", []queue.Message{{Type: "returns", ID: id, Payload: []byte(uitest.Hostile)}}); err != nil {
		t.Fatal(err)
	}
	p.is(`document.querySelector("td.preview")?.textContent.includes("<script>window.hurt=1")`, "true")
	if got := p.js(`[document.scripts.length, document.images.length, window.hurt].join()`); got != "1,0," {
		t.Errorf("after an event: %s", got)
	}
}
