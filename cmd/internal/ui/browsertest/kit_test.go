package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/fencepost/fencepost/cmd/internal/ui"
)

// browser is the one process that has the tabs of the tests; nil: there is none on this machine.
var browser context.Context

func TestMain(m *testing.M) {
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	code := 0
	switch {
	case path != "":
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute))
		if os.Geteuid() == 0 {
			options = append(options, chromedp.NoSandbox) // root may not have one
		}
		allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, end := chromedp.NewContext(allocator)
		if err := chromedp.Do(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "the browser does not start:", err)
			code = 1
			break
		}
		browser = ctx
		code = m.Run()
		end()
		cancel()
	case os.Getenv("FENCEPOST_TEST_REQUIRE_BROWSER") != "":
		fmt.Fprintln(os.Stderr, "there is no Chromium in PATH; install chromium-headless-shell")
		code = 1
	default:
		code = m.Run()
	}
	os.Exit(code)
}

// tab is a page of the browser. Errors that it reports fail the test when it ends.
type tab struct {
	t    *testing.T
	ctx  context.Context
	mu   sync.Mutex
	said []string // errors in its console
	went []string // where it sent requests
}

func needBrowser(t *testing.T) {
	t.Helper()
	if browser == nil {
		t.Skip("there is no Chromium in PATH; install chromium-headless-shell")
	}
}

// newTab opens a tab.
func newTab(t *testing.T) *tab {
	t.Helper()
	needBrowser(t)
	ctx, cancel := chromedp.NewContext(browser)
	ctx, cancelTime := context.WithTimeout(ctx, 5*time.Minute)
	p := &tab{t: t, ctx: ctx}
	err := chromedp.Listen(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.said = append(p.said, "exception: "+e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			p.said = append(p.said, fmt.Sprintf("console.%s", e.Type))
		case *log.EventEntryAdded:
			p.said = append(p.said, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		case *network.EventRequestWillBeSent:
			p.went = append(p.went, e.Request.URL)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancelTime()
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.said {
			t.Errorf("the browser complains: %s", s)
		}
		for _, url := range p.went {
			if !strings.HasPrefix(url, "http://127.0.0.1:") && !strings.HasPrefix(url, "data:") {
				t.Errorf("a request went to %s", url)
			}
		}
	})
	return p
}

// leave leaves the page before its server stops, or the page would report that it cannot reconnect.
func (p *tab) leave() { p.run(chromedp.Navigate("about:blank")) }

// forgive drops errors that contain a text, if the test has caused them.
func (p *tab) forgive(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []string
	for _, s := range p.said {
		if !strings.Contains(s, text) {
			rest = append(rest, s)
		}
	}
	p.said = rest
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// call sends a command of the protocol.
func call[P, R any](p *tab, cmd cdp.Command[P, R], params P) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, cmd, params); err != nil {
		p.t.Fatal(err)
	}
}

// open loads a page, and waits until it is live.
func (p *tab) open(url string) {
	p.t.Helper()
	p.run(chromedp.Navigate(url))
	p.is(`document.getElementById("state").textContent`, "live")
}

// js returns the value of an expression, as text.
func (p *tab) js(expression string) string {
	p.t.Helper()
	s, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// is waits until an expression equals a text. It may fail while a page is loading.
func (p *tab) is(expression, want string) {
	p.t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("String("+expression+")"))
		if got = s; err != nil {
			got = err.Error()
		} else if got == want {
			return
		}
	}
	p.t.Fatalf("%s is %q, and was not %q within a minute", expression, got, want)
}

// look sets the width of the window in pixels, and the colours that its user prefers.
func (p *tab) look(width int64, scheme string) {
	p.t.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// serve serves a UI until the test ends.
func serve(t *testing.T, o ui.Options) *httptest.Server {
	t.Helper()
	u := ui.New(o)
	s := httptest.NewServer(u.Handler())
	t.Cleanup(func() { u.Close(); s.Close() })
	return s
}

// counting counts how many open pages a handler serves.
type counting struct {
	http.Handler
	mu   sync.Mutex
	open int
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream") {
		c.add(1)
		defer c.add(-1)
	}
	c.Handler.ServeHTTP(w, r)
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
}

func (c *counting) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}
