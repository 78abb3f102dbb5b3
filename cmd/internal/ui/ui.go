package ui

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/httpbody"
	"github.com/fencepost/fencepost/cmd/internal/ready"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

//go:embed assets templates
var content embed.FS

const (
	pageTimeout    = 15 * time.Second // bounds the queries and reads for one page
	filesTimeout   = 10 * time.Second // bounds the part of it that reads files
	sendTimeout    = 10 * time.Second // for a viewer to receive one event, a page, or a piece of a download
	heartbeatEvery = 5 * time.Second  // ui.js relies on it
	leisure        = 20               // an open page is rendered again after this many times as long as rendering it took
	heavyPages     = 2                // pages that concurrently read payloads or files, to bound memory; also the number of concurrent downloads
)

// pageLimit bounds a page of messages or letters, by number and by size.
var pageLimit = queue.Limit{Messages: pageRows, Bytes: 8 << 20}

// Options of a UI.
type Options struct {
	Backend      *fencepost.Backend
	Files        chain.Files
	BasePath     string // prefix of all paths, as in /fencepost; "": none
	HidePayloads bool
	Write        bool     // offer actions on the pages
	Writers      []string // users that may act; nil: all
	ReadOnly     string   // why there are no actions, and the remedy; "": a text about --write
	Frugal       bool     // shares the process with a worker: one page at a time reads payloads or files, and only a user's request reads a whole file
	Refresh      time.Duration
	CountUpTo    int
	Access       Access
	Log          zerolog.Logger
}

// UI serves the pages. Safe for concurrent use.
type UI struct {
	o       Options
	watch   *watcher
	scans   *scanner
	forms   *forms
	pages   map[string]*template.Template
	assets  map[string]asset
	heavy   chan struct{}
	sending chan struct{}   // downloads; separate from heavy, so that a slow viewer does not block pages
	stopped context.Context // when done, open pages end
	stop    context.CancelFunc
	queue   ready.Queue
}

// asset is a file that pages load. Its name changes with its content, so that browsers keep it.
type asset struct {
	name, kind string
	content    []byte
}

// New returns a UI, which queries the backend until Close.
func New(o Options) *UI {
	u := &UI{o: o, watch: newWatcher(o.Backend, o.Refresh, o.CountUpTo), scans: newScanner(o.Files, !o.Frugal), forms: newForms(), pages: map[string]*template.Template{},
		assets: map[string]asset{}, heavy: make(chan struct{}, heavyPages), sending: make(chan struct{}, heavyPages)}
	if o.Access.Users != nil {
		o.Access.Users.file.LogTo(o.Log)
	}
	if o.Frugal {
		u.heavy, u.sending = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	u.stopped, u.stop = context.WithCancel(context.Background())
	for name, kind := range map[string]string{"ui.css": "text/css; charset=utf-8", "ui.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		b, err := content.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		h := fnv.New64a()
		h.Write(b)
		ext := path.Ext(name)
		u.assets[name] = asset{fmt.Sprintf("%s.%016x%s", strings.TrimSuffix(name, ext), h.Sum64(), ext), kind, b}
	}
	layout := template.Must(template.New("").Funcs(template.FuncMap{"asset": func(name string) string { return u.link("assets", u.assets[name].name) }}).
		ParseFS(content, "templates/layout.html", "templates/parts.html"))
	files, err := fs.Glob(content, "templates/pages/*.html")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		u.pages[strings.TrimSuffix(path.Base(f), ".html")] = template.Must(template.Must(layout.Clone()).ParseFS(content, f))
	}
	return u
}

// Close ends the open pages, the actions in progress, and the reading of backend and files.
func (u *UI) Close() {
	u.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.forms.close()
		u.watch.close()
		u.scans.close()
	}()
	select {
	case <-ended:
	case <-time.After(closeWithin): // a hanging disk or server must not keep the program from exiting
	}
}

// link returns the path of a page or asset. Its parts may be any text.
func (u *UI) link(parts ...string) string {
	var b strings.Builder
	b.WriteString(u.o.BasePath)
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}

// typeLink is a type in a list.
type typeLink struct{ Name, Link string }

// typeLink returns a type, with a link unless its name is invalid for a type.
func (u *UI) typeLink(typ string) typeLink {
	if queue.ValidateType(typ) != nil {
		return typeLink{Name: typ}
	}
	return typeLink{typ, u.link("types", typ)}
}

// withQuery adds parameters to a path, names and values in turn. A later value replaces an earlier one, and an empty one leaves out its name.
func withQuery(path string, parameters ...string) string {
	v := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		if v.Set(parameters[i], parameters[i+1]); parameters[i+1] == "" {
			v.Del(parameters[i])
		}
	}
	return strings.TrimSuffix(path+"?"+v.Encode(), "?")
}

// Handler answers all requests. It serves the same paths with and without BasePath, so a proxy may strip it or not.
func (u *UI) Handler() http.Handler {
	mux := http.NewServeMux()
	home := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, u.link("types"), http.StatusSeeOther)
	}
	mux.HandleFunc("GET /{$}", home)
	if u.o.BasePath != "" {
		mux.HandleFunc("GET "+u.o.BasePath+"/{$}", home)
		mux.HandleFunc("GET "+u.o.BasePath, home)
	}
	for _, rt := range u.routes() {
		mux.HandleFunc(rt.method+" "+rt.pattern, rt.handle)
		if u.o.BasePath != "" {
			mux.HandleFunc(rt.method+" "+u.o.BasePath+rt.pattern, rt.handle)
		}
	}
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(u.refuseOthers))
	all := http.NewServeMux()
	all.Handle("/", u.o.Access.check(u, own.Handler(mux)))
	for _, rt := range u.probes() {
		for _, prefix := range slices.Compact([]string{"", u.o.BasePath}) {
			all.HandleFunc(rt.method+" "+prefix+rt.pattern, rt.handle)
		}
	}
	return headers(all)
}

// probes are routes that need no password.
func (u *UI) probes() []route {
	return []route{{"GET", "/livez", u.alive}, {"GET", "/readyz", u.ready}}
}

func (u *UI) alive(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") }

// ready reports whether the queue answers.
func (u *UI) ready(w http.ResponseWriter, _ *http.Request) {
	if err := u.queue.Check(u.o.Backend.Queue); err != nil {
		plain(w, http.StatusServiceUnavailable, "the queue is unusable: "+u.clean(err))
		return
	}
	plain(w, http.StatusOK, "ok")
}

// plain responds with one line.
func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	printable.Fprintf(w, "%s\n", strings.Join(strings.Fields(text), " "))
}

// route is the handler of one method and path.
type route struct {
	method, pattern string
	handle          http.HandlerFunc
}

func (u *UI) routes() []route {
	page := func(pattern, nav string, make maker) route { return route{"GET", pattern, u.page(nav, make)} }
	return []route{
		page("/types", "types", u.typesPage),
		page("/types/{type}", "types", u.slowly(u.typePage)),
		page("/types/{type}/records", "types", u.slowly(u.recordsPage)),
		page("/types/{type}/records/{index}", "types", u.slowly(u.recordPage)),
		page("/types/{type}/pending", "types", u.slowly(u.pendingPage)),
		page("/types/{type}/pending/{id}", "types", u.slowly(u.pendingMessagePage)),
		page("/dead", "dead", u.slowly(u.deadPage)),
		page("/dead/{type}/{id}", "dead", u.slowly(u.letterPage)),
		page("/delayed", "delayed", u.slowly(u.delayedPage)),
		page("/workers", "workers", u.workersPage),
		page("/locks", "locks", u.locksPage),
		page("/done/{id}", "", u.donePage),
		{"GET", "/act/{action}", u.confirm},
		{"POST", "/act/{action}", u.act},
		{"GET", "/types/{type}/records/{index}/payload", u.recordPayload},
		{"GET", "/types/{type}/pending/{id}/payload", u.pendingPayload},
		{"GET", "/dead/{type}/{id}/payload", u.letterPayload},
		{"GET", "/assets/{name}", u.asset},
		page("/", "", func(*http.Request, *snapshot) (*view, error) {
			return nil, notFound("There is no such page. The navigation above lists all pages.")
		}),
	}
}

// ownPath returns the first part of a path if a page has it as well, otherwise "". With such a base path, two pages could have the same path.
func ownPath(base string) string {
	first := func(path string) string {
		name, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		return name
	}
	name := first(base)
	if u := new(UI); slices.ContainsFunc(append(u.routes(), u.probes()...), func(rt route) bool { return first(rt.pattern) == name }) {
		return name
	}
	return ""
}

// headers sets the headers of every response.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		// rule: nothing in a page can run, or send requests to another server, whatever got into it.
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (u *UI) asset(w http.ResponseWriter, r *http.Request) {
	for _, a := range u.assets {
		if a.name == r.PathValue("name") {
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			w.Write(a.content)
			return
		}
	}
	http.NotFound(w, r)
}

// maker returns the content of a page, from the last snapshot and its own queries. The snapshot is never nil.
type maker func(r *http.Request, s *snapshot) (*view, error)

// view is the content of a page.
type view struct {
	template string
	Title    string
	Data     any
	status   int // 0 means 200
}

// frame is the data that all pages share.
type frame struct {
	Title   string
	Nav     []navItem
	Home    string
	Backend string
	User    string
	Version string
	Hidden  bool   // payloads are hidden
	Write   bool   // the user may act
	Still   string // time of a page that is not updated; "": the page is sent again when it changes
	Data    any
	Trouble string // why the data is old or missing
	Strays  []string
}

type navItem struct {
	Name, Link string
	Here       bool
}

// pageError is an error with the status and the text of its page.
type pageError struct {
	status int
	text   string
}

func (e *pageError) Error() string { return e.text }

func notFound(format string, args ...any) error {
	return &pageError{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return &pageError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// errUnknownPlace refuses an address whose parameter after is no place in a list.
var errUnknownPlace = badRequest("This address continues a list at a place that does not exist. Go back to its beginning.")

// page responds with a page, or with events that contain its changing part.
func (u *UI) page(nav string, make maker) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		httpbody.Take(w, r)
		w.Header().Add("Vary", "Accept")
		if strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream") {
			u.events(w, r, nav, make)
			return
		}
		u.once(w, r, nav, "page", make)
	}
}

// once responds with a page.
func (u *UI) once(w http.ResponseWriter, r *http.Request, nav, part string, make maker) {
	html, status, _ := u.make(r, nav, part, make)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	mayTake(w)
	w.WriteHeader(status)
	w.Write(html)
}

// mayTake gives a viewer time to receive the next write. The server's own deadline may have passed: it counts from the request, and
// rendering a page may take longer.
func mayTake(w http.ResponseWriter) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendTimeout))
}

// inTime returns the context for the queries and reads of a page.
func (u *UI) inTime(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.Context(), pageTimeout, fmt.Errorf("%s did not answer within %v", u.o.Backend.Name, pageTimeout))
}

// reachFiles returns the context for reading files for a page. It ends earlier than that of the page: without its files the page is still of
// use, and the reason is a store that does not answer, not the backend.
func (u *UI) reachFiles(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, filesTimeout, fmt.Errorf("%s did not answer within %v", u.here(), filesTimeout))
}

// here names the place of the files.
func (u *UI) here() string { return cmp.Or(u.o.Files.Name, "directory "+u.o.Files.Dir) }

// events sends the changing part of a page whenever it has changed.
func (u *UI) events(w http.ResponseWriter, r *http.Request, nav string, make maker) {
	c := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(u.stopped, cancel)()
	send := func(event []byte) bool {
		// Disconnect a client that does not read. Nothing else ends a connection whose other side has vanished silently.
		c.SetWriteDeadline(time.Now().Add(sendTimeout))
		_, err := w.Write(event)
		return err == nil && c.Flush() == nil
	}
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	// wait waits for c, and meanwhile sends heartbeats.
	wait := func(c <-chan struct{}) bool {
		for {
			select {
			case <-ctx.Done():
				return false
			case <-heartbeat.C:
				if !u.o.Access.stillAdmits(r) || !send([]byte("event: tick\ndata: unchanged\n\n")) {
					return false
				}
			case <-c:
				return true
			}
		}
	}
	var sent []byte
	for {
		began := time.Now()
		html, _, next := u.make(r.WithContext(ctx), nav, "live", make)
		if ctx.Err() != nil {
			return
		}
		if !bytes.Equal(html, sent) {
			sent = html
			if !send(append(append([]byte("data: "), bytes.ReplaceAll(bytes.TrimSpace(html), []byte("\n"), []byte("\ndata: "))...), "\n\n"...)) {
				return
			}
		}
		// An open page takes at most a twentieth of the time, whatever it reads.
		rested, cancel := context.WithTimeout(ctx, max(leisure*time.Since(began), u.o.Refresh/2))
		ok := wait(rested.Done()) && wait(next)
		cancel()
		// rule: an open page ends when its user is removed from the file of users.
		if !ok || !u.o.Access.stillAdmits(r) {
			return
		}
	}
}

// make renders a page, its live part, or a page that is not updated (still). next is closed when newer data is available.
func (u *UI) make(r *http.Request, nav, part string, make maker) (html []byte, status int, next <-chan struct{}) {
	ctx, cancel := u.inTime(r)
	defer cancel()
	s, next, failed := u.watch.current(ctx)
	status = http.StatusOK
	f := frame{Home: u.link("types"), Backend: u.o.Backend.Name, User: userOf(r), Hidden: u.o.HidePayloads, Write: u.readOnly(r) == "", Version: version}
	for _, n := range []navItem{{Name: "Types", Link: "types"}, {Name: "Dead letters", Link: "dead"}, {Name: "Delayed", Link: "delayed"}, {Name: "Workers", Link: "workers"}, {Name: "Locks", Link: "locks"}} {
		f.Nav = append(f.Nav, navItem{n.Name, u.link(n.Link), n.Link == nav})
	}
	v := &view{template: "error", Title: "Cannot look"}
	if s == nil {
		status = http.StatusServiceUnavailable
		f.Trouble = fmt.Sprintf("Cannot look at %s: %v", u.o.Backend.Name, u.clean(cmp.Or(failed, errors.New("it has not answered yet"))))
	} else {
		if failed != nil {
			f.Trouble = fmt.Sprintf("Cannot look at %s: %v. What you see is as of %s.", u.o.Backend.Name, u.clean(failed), clock(s.at))
		}
		for _, stray := range s.strays {
			f.Strays = append(f.Strays, stray.String())
		}
		made, err := make(r.WithContext(ctx), s)
		var e *pageError
		switch {
		case err == nil:
			v, status = made, cmp.Or(made.status, http.StatusOK)
		case errors.As(err, &e):
			status, v = e.status, &view{template: "error", Data: e.text}
			v.Title = cmp.Or(map[int]string{http.StatusBadRequest: "Bad request", http.StatusNotFound: "Not found"}[status], "Refused")
		default:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			status, v = http.StatusServiceUnavailable, &view{template: "error", Title: "Cannot look", Data: u.clean(err)}
		}
	}
	f.Title, f.Data = v.Title, v.Data
	if part == "still" {
		part, f.Still = "page", clock(time.Now())
	}
	var b strings.Builder
	if err := u.pages[v.template].ExecuteTemplate(&b, part, f); err != nil {
		u.o.Log.Error().Err(err).Str("page", v.template).Msg("a page cannot be rendered")
		return []byte("this page cannot be rendered; the log says why\n"), http.StatusInternalServerError, next
	}
	// rule: no text that is sent can reorder or hide the text beside it. Every page passes here, so no value can be forgotten.
	return []byte(string(printable.Lines(b.String(), ""))), status, next
}

// clean returns the text of an error without secrets, in which files of a store are named by their name and the store's.
func (u *UI) clean(err error) string {
	return redact.Text(cli.StoreText(err.Error(), u.o.Files.Name))
}

// reading limits how many pages read payloads or files concurrently.
func (u *UI) reading(ctx context.Context) (done func(), err error) { return place(ctx, u.heavy) }

// place acquires one of a few places.
func place(ctx context.Context, among chan struct{}) (leave func(), err error) {
	select {
	case among <- struct{}{}:
		return func() { <-among }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// slowly returns the maker of a page that reads payloads or files.
func (u *UI) slowly(make maker) maker {
	return func(r *http.Request, s *snapshot) (*view, error) {
		done, err := u.reading(r.Context())
		if err != nil {
			return nil, err
		}
		defer done()
		return make(r, s)
	}
}
