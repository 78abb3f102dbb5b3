package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/httpbody"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/lock"
	"github.com/rs/zerolog"
)

const (
	mostForm    = 64 << 10        // bytes of a submitted form
	soonDone    = time.Second     // an action that takes longer is shown while it is in progress
	closeWithin = 5 * time.Second // how long Close waits for actions and queries in progress
)

// local is the user name if users are not identified.
const local = "local"

// userName returns the name of a request's user for logs and forms.
func userName(r *http.Request) string { return cmp.Or(userOf(r), local) }

// readOnly returns why the user of a request may not act, and the remedy; "" if the user may.
func (u *UI) readOnly(r *http.Request) string {
	switch {
	case !u.o.Write:
		return cmp.Or(u.o.ReadOnly, "These pages are read-only. To act on them, start this program with --write.")
	case u.o.Writers != nil && !slices.Contains(u.o.Writers, userOf(r)):
		return "User " + userOf(r) + " may only read. --writers names the users that may act."
	}
	return ""
}

// audit logs an action or a refusal, regardless of --log-level.
func (u *UI) audit(r *http.Request, level zerolog.Level, action string) *zerolog.Event {
	// rule: no log level hides a change, or a refusal.
	log := u.o.Log.Level(min(u.o.Log.GetLevel(), zerolog.InfoLevel))
	return log.WithLevel(level).Str("user", userName(r)).Str("from", r.RemoteAddr).Str("action", action)
}

// refuse responds that nothing was done, and why.
func (u *UI) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	u.audit(r, zerolog.WarnLevel, r.PathValue("action")).Str("reason", text).Str("about", r.URL.RawQuery).Msg("an action was refused")
	u.answer(w, r, func(*http.Request, *snapshot) (*view, error) {
		return nil, &pageError{status, text + " Nothing was done."}
	})
}

// answer responds with a page that is not updated.
func (u *UI) answer(w http.ResponseWriter, r *http.Request, make maker) {
	httpbody.Take(w, r)
	u.once(w, r, "", "still", make)
}

// refuseOthers refuses a form sent by another site.
func (u *UI) refuseOthers(w http.ResponseWriter, r *http.Request) {
	u.audit(r, zerolog.WarnLevel, r.URL.Path).Str("origin", r.Header.Get("Origin")).Str("reason", "cross-origin request").Msg("an action was refused")
	http.Error(w, "this form was sent by a page of another site; nothing was done", http.StatusForbidden)
}

// confirmData is the data of a confirmation page.
type confirmData struct {
	*plan
	Post  string // where the form goes
	Form  string // its hidden field
	Wrong string // the error in the submitted form
	Why   string // the submitted reason
}

// confirm shows what an action would do, and asks for confirmation.
func (u *UI) confirm(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream") {
		http.Error(w, "this page is not updated", http.StatusNotAcceptable)
		return
	}
	if refused := u.readOnly(r); refused != "" {
		u.refuse(w, r, http.StatusForbidden, refused)
		return
	}
	u.answer(w, r, u.slowly(func(r *http.Request, s *snapshot) (*view, error) {
		return u.describe(r, s, r.PathValue("action"), r.URL.Query(), "", "")
	}))
}

// describe returns a confirmation page.
func (u *UI) describe(r *http.Request, s *snapshot, action string, q url.Values, wrong, why string) (*view, error) {
	a := actions[action]
	if a == nil {
		return nil, notFound("There is no such action.")
	}
	now, err := u.o.Backend.Queue.Now(r.Context())
	if err != nil {
		return nil, err
	}
	p := &plan{order: order{Action: action, Query: q.Encode(), Before: now, User: userName(r)}}
	if err := a.plan(u, r.Context(), q, s, p); err != nil {
		return nil, err
	}
	d := &confirmData{plan: p, Post: u.link("act", action), Wrong: wrong, Why: why}
	if p.Nothing == "" {
		d.Form = u.forms.sign(p.order)
	}
	v := &view{template: "confirm", Title: p.Title, Data: d}
	if wrong != "" {
		v.status = http.StatusUnprocessableEntity
	}
	return v, nil
}

// act carries out the action that a confirmation page has described.
func (u *UI) act(w http.ResponseWriter, r *http.Request) {
	if refused := u.readOnly(r); refused != "" { // rule: a user that may only read changes nothing
		u.refuse(w, r, http.StatusForbidden, refused)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		u.refuse(w, r, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	httpbody.Take(w, r) // it was read
	name := r.PathValue("action")
	o, err := u.forms.read(r.PostForm.Get("form"), name, userName(r))
	if err != nil {
		u.refuse(w, r, http.StatusConflict, "It was not confirmed: "+err.Error()+". Go back to the page where the action started, and begin again.")
		return
	}
	q, _ := url.ParseQuery(o.Query) // encoded by describe
	why := strings.TrimSpace(r.PostForm.Get("why"))
	if wrong := u.wrongInput(name, q, why, strings.TrimSpace(r.PostForm.Get("name"))); wrong != "" {
		u.audit(r, zerolog.WarnLevel, name).Str("about", o.Query).Str("why", why).Str("reason", wrong).Msg("an action was refused")
		u.answer(w, r, u.slowly(func(r *http.Request, s *snapshot) (*view, error) { return u.describe(r, s, name, q, wrong, why) }))
		return
	}
	out, first, err := u.forms.begin(o, why)
	if err != nil {
		u.refuse(w, r, http.StatusServiceUnavailable, "It cannot begin now: "+err.Error()+".")
		return
	}
	if first {
		u.carryOut(r, out, q)
	}
	out.wait(r.Context(), soonDone)
	mayTake(w)
	http.Redirect(w, r, u.link("done", o.Nonce), http.StatusSeeOther)
}

// wrongInput returns what is wrong with the user's input, "" if nothing is.
func (u *UI) wrongInput(action string, q url.Values, why, typed string) string {
	a := actions[action]
	switch name := a.confirmed(q); {
	case a.why && why == "":
		return "Give a reason: it is logged."
	case len(why) > lock.MaxWhy || !utf8.ValidString(why):
		return fmt.Sprintf("The reason is longer than %d bytes, or not valid text.", lock.MaxWhy)
	// rule: the removal of messages is confirmed by typing the name of their type.
	case name != "" && typed != name && typed != printable.Text(name):
		return fmt.Sprintf("To confirm, type %s.", name)
	}
	return ""
}

// carryOut starts an action, which continues after the request has ended.
func (u *UI) carryOut(r *http.Request, out *outcome, q url.Values) {
	a, o := actions[out.order.Action], out.order
	log := func(level zerolog.Level) *zerolog.Event {
		return u.audit(r, level, o.Action).Str("about", o.Query).Str("why", out.why).Int("confirmed", o.Count)
	}
	log(zerolog.InfoLevel).Msg("an action begins")
	go func() {
		defer u.forms.end(out)
		turn := admin.Turn{Why: shorten("fencepost ui, "+o.User+": "+o.Action, lock.MaxWhy), Wait: admin.Wait}
		did, err := a.do(u, u.stopped, &doing{order: o, q: q, why: out.why, turn: turn, tell: func(now admin.Outcome) {
			out.mu.Lock()
			defer out.mu.Unlock()
			out.sofar = now.Done
		}})
		out.mu.Lock()
		defer out.mu.Unlock()
		out.ended, out.said, out.sofar = time.Now(), did.said, did.Done
		out.state = stateOf(did, err)
		level := zerolog.InfoLevel
		if err != nil {
			level = zerolog.WarnLevel
			out.failed = u.clean(cli.WithRemedy(err))
			if errors.Is(err, context.Canceled) && u.stopped.Err() != nil {
				out.failed = "the program was stopped"
			}
		}
		log(level).Str("result", out.state).Int("done", did.Done).Int("left", did.Left).AnErr("error", err).Msg("an action has ended")
	}()
}

// stateOf returns the final state of an action.
func stateOf(did did, err error) string {
	var partial *admin.PartialError
	switch {
	case err == nil && did.Chosen == 0:
		return nothing
	case err == nil && did.Left == 0:
		return complete
	case err == nil, errors.As(err, &partial), did.Done > 0:
		return partly
	}
	return failed
}

// shorten returns at most so many bytes of a text.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// doneData is the data of an outcome's page.
type doneData struct {
	Title  string
	Badge  badge
	Said   []string
	Failed string
	Facts  []fact
	Back   fact
	Again  string // link to the confirmation page, if something is left
}

// donePage shows the outcome of an action.
func (u *UI) donePage(r *http.Request, s *snapshot) (*view, error) {
	out := u.forms.find(r.PathValue("id"), userName(r))
	if out == nil {
		return nil, notFound("The outcome of this action is no longer kept. It is in the log of this program.")
	}
	a := actions[out.order.Action]
	q, _ := url.ParseQuery(out.order.Query)
	out.mu.Lock()
	defer out.mu.Unlock()
	tone := map[string]string{underWay: "note", complete: "good", partly: "warn", nothing: "quiet", failed: "bad"}[out.state]
	d := &doneData{Title: a.title, Badge: badge{tone, out.state, ""}, Said: out.said, Failed: out.failed, Back: a.back(u, q)}
	d.Facts = append(aboutFacts(q), fact{Name: "by", Value: out.order.User}, fact{Name: "reason", Value: cmp.Or(out.why, "–")}, fact{Name: "began", Value: date(out.began)})
	if out.state == underWay {
		if out.sofar > 0 {
			d.Said = []string{fmt.Sprintf("%s so far, of about %s.", count(out.sofar), count(out.order.Count))}
		}
		d.Said = append(d.Said, "It continues when this page is closed.")
	} else {
		d.Facts = append(d.Facts, fact{Name: "ended", Value: date(out.ended)})
		if out.state == partly || out.state == failed {
			d.Again = u.link("act", out.order.Action) + "?" + out.order.Query
		}
	}
	return &view{template: "done", Title: a.title + ": " + out.state, Data: d}, nil
}
