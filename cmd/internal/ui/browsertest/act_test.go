package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/cmd/internal/ui/uitest"
	"github.com/fencepost/fencepost/queue"
)

// acting is an estate whose pages have actions.
func acting(t *testing.T) (*uitest.Estate, ui.Options) {
	e := uitest.New(t)
	o := e.Options()
	o.Write = true
	return e, o
}

// title waits for the heading of a page.
func (p *tab) title(want string) {
	p.t.Helper()
	p.is(`document.readyState === "complete" && document.querySelector("h1")?.textContent`, want)
}

// way is how a user presses the element with a name.
type way struct {
	name  string
	press func(p *tab, selector string)
}

var ways = []way{
	{"mouse", func(p *tab, selector string) { p.t.Helper(); p.run(chromedp.Click(chromedp.CSS(selector))) }},
	{"keyboard", func(p *tab, selector string) {
		p.t.Helper()
		for range 100 {
			p.run(chromedp.KeyEvent(kb.Tab))
			if p.js(fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) == "true" {
				if style := p.js(`getComputedStyle(document.activeElement).outlineStyle`); style == "none" {
					p.t.Errorf("%s has focus, and does not show it", selector)
				}
				p.run(chromedp.KeyEvent(kb.Enter))
				return
			}
		}
		p.t.Fatalf("the keyboard does not lead to %s", selector)
	}},
}

// Each action with the mouse, and with the keyboard alone: from the page that shows what is wrong to the outcome, and back.
func TestActions(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			e, o := acting(t)
			s := serve(t, o)
			p := newTab(t)
			p.look(1280, "light")
			link := func(action string) string { return fmt.Sprintf(`a.act[href^="/act/%s?"]`, action) }
			for _, c := range []struct{ page, press, title, name, outcome, back string }{
				{"/types/orders", `a[href="/act/pause?type=orders&what=draining"]`, "Pause", "", "Set for type orders: drain paused, limit 1000.", "/types/orders"},
				{"/types/audit.us", `a[href="/act/resume?type=audit.us&what=draining"]`, "Resume", "", "Set for type audit.us: nothing.", "/types/audit.us"},
				{"/types/orders", `form[action="/act/limit"] button`, "Limit the backlog", "", "Set for type orders: drain paused, limit 1000.", "/types/orders"},
				{"/types/invoices", link("purge"), "Remove pending messages", "invoices", "40 pending messages were removed.", "/types/invoices"},
				{"/dead?reason=refused", link("requeue"), "Requeue dead letters", "", "1 dead letter was requeued.", "/dead"},
				{"/dead/hostile/" + e.Dead.String(), link("remove-letters"), "Remove dead letters", "hostile", "1 dead letter was removed.", "/dead"},
				{"/delayed?type=hostile", `td a.act`, "Remove delayed messages", "hostile", "1 delayed message was removed.", "/delayed"},
				{"/locks?q=audit.eu", link("ask"), "Ask for a lock's release", "", "The holder of audit.eu is asked to release it; it sees that at its next renewal.", "/locks"},
				{"/locks?q=report/*", link("force"), "Take a lock away", "", "", "/locks"},
			} {
				p.open(s.URL + c.page)
				w.press(p, c.press)
				p.title(c.title)
				if state := p.js(`document.getElementById("state").textContent`); !strings.HasPrefix(state, "as of ") {
					t.Errorf("%s is %q", c.title, state)
				}
				p.run(chromedp.Focus(chromedp.CSS(`input[name=why]`)), chromedp.KeyEvent("INC-1234"))
				if c.name != "" {
					p.run(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(c.name))
				}
				w.press(p, `form.confirm button`)
				p.is(`location.pathname.startsWith("/done/") && document.querySelector(".badge:not(.head .badge.quiet)") && document.querySelector("h1").nextElementSibling?.textContent`, "done")
				if said := p.js(`document.querySelector(".says").textContent`); c.outcome != "" && said != c.outcome {
					t.Errorf("%s: %q", c.title, said)
				}
				p.is(`document.getElementById("state").textContent`, "live")
				w.press(p, `ul.acts a.act`)
				p.is(`location.pathname`, c.back)
			}
			p.open(s.URL + "/types/orders")
			p.is(`[...document.querySelectorAll("a.act")].some((a) => a.textContent === "Resume draining…")`, "true")
		})
	}
}

// An unconfirmed action is refused, with a page that says so and keeps the input. It works without JavaScript, and a button that
// is pressed twice acts once.
func TestRefusalsAndRepeats(t *testing.T) {
	e, o := acting(t)
	s := serve(t, o)
	p := newTab(t)
	p.run(chromedp.Navigate(s.URL + "/act/purge?type=invoices"))
	p.title("Remove pending messages")
	p.run(chromedp.Click(chromedp.CSS(`form.confirm button`))) // the browser itself asks for missing input
	p.is(`document.querySelector("input[name=why]").matches(":invalid") && location.search`, "?type=invoices")
	p.run(chromedp.SendKeys(chromedp.CSS(`input[name=why]`), `<script>window.hurt=1</script>`), chromedp.SendKeys(chromedp.CSS(`input[name=name]`), "invoice"), chromedp.KeyEvent(kb.Enter))
	p.is(`document.getElementById("wrong")?.textContent`, "To confirm, type invoices. Nothing was done yet.")
	if why := p.js(`document.querySelector("input[name=why]").value`); why != `<script>window.hurt=1</script>` {
		t.Errorf("the reason is now %q", why)
	}
	p.forgive("422")
	if d, err := e.Backend.Queue.Depth(context.Background(), "invoices", 100); err != nil || d.Pending != 40 {
		t.Errorf("%d messages are pending, %v", d.Pending, err)
	}

	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	p.run(chromedp.Navigate(s.URL + "/act/requeue"))
	p.title("Requeue dead letters")
	p.run(chromedp.DoubleClick(chromedp.CSS(`form.confirm button`)))
	p.is(`document.querySelector(".says")?.textContent`, "2 dead letters were requeued.")
	if d, err := e.Backend.Queue.Depth(context.Background(), "payments", 100); err != nil || d.Pending != 8 {
		t.Errorf("%d messages are pending, want 8; %v", d.Pending, err)
	}
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false})

	o.Write = false
	readOnly := serve(t, o)
	p.run(chromedp.Navigate(readOnly.URL + "/act/purge?type=invoices"))
	p.is(`document.querySelector(".empty")?.textContent.includes("start this program with --write")`, "true")
	p.forgive("403")
}

// The pages of actions are readable, fit and have names, in light and dark, on a phone and on a large screen.
func TestActionsAreLegible(t *testing.T) {
	e, o := acting(t)
	s := serve(t, o)
	p := newTab(t)
	check := func(what string) {
		t.Helper()
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{320, 768, 1920} {
				p.look(width, scheme)
				if wrong := p.js(audit); wrong != "" {
					t.Errorf("%s, %s, %d px:\n%s", what, scheme, width, wrong)
				}
			}
		}
	}
	for _, path := range []string{"/types/orders", "/types/audit.us", "/types/" + uitest.LongType, "/types/hostile/pending/" + e.Large.String(), "/dead", "/dead/hostile/" + e.Dead.String(), "/delayed", "/delayed?type=returns", "/locks?all=1"} {
		p.open(s.URL + path)
		check(path)
	}
	lockName := ""
	for _, r := range e.Locks() {
		if strings.Contains(r, "<script>") {
			lockName = r
		}
	}
	for _, path := range []string{"/act/pause?type=" + uitest.LongType, "/act/purge?type=" + uitest.LongType, "/act/remove-delayed?type=" + uitest.LongType, "/act/limit?type=orders&max=100k", "/act/purge?type=hostile", "/act/purge?type=returns", "/act/requeue?reason=" + url.QueryEscape("script"), "/act/remove-letters?type=hostile",
		"/act/remove-delayed?type=hostile", "/act/force?lock=" + url.QueryEscape(lockName), "/act/ask?lock=report/7"} {
		p.run(chromedp.Navigate(s.URL + path))
		p.is(`document.readyState === "complete" && document.getElementById("state").textContent.startsWith("as of")`, "true")
		check(path)
	}
	p.run(chromedp.Navigate(s.URL + "/act/purge?type=hostile"))
	p.title("Remove pending messages")
	p.run(chromedp.SendKeys(chromedp.CSS(`input[name=why]`), uitest.Hostile[:60]), chromedp.SendKeys(chromedp.CSS(`input[name=name]`), "x"), chromedp.KeyEvent(kb.Enter))
	p.is(`document.getElementById("wrong") !== null`, "true")
	check("a refusal")
	p.forgive("422")
	p.run(chromedp.SendKeys(chromedp.CSS(`input[name=name]`), "hostile"), chromedp.KeyEvent(kb.Enter))
	p.is(`document.querySelector(".says")?.textContent`, "3 pending messages were removed.")
	p.is(`document.getElementById("state").textContent`, "live")
	check("an outcome")
	if n, err := e.Backend.Queue.Fetch(context.Background(), "hostile", queue.ID{}, queue.Limit{Messages: 1}); err != nil || len(n) != 0 {
		t.Errorf("%d messages are pending, %v", len(n), err)
	}
}
