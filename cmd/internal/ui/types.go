package ui

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/queue"
)

const pageRows = 50 // rows on a page of a table

// badge is a short remark about a type. Its tone is good, note, warn, bad or quiet; the text says the same.
type badge struct{ Tone, Text, Why string }

// typeRow is a type in the list.
type typeRow struct {
	Name, Link      string
	Backlog, Oldest string
	Busy            bool // something is pending
	Rate            string
	Line, Area      string
	InFile          string
	Holder          string
	Lease           string
	Token           string
	Badges          []badge
}

// typeFilter is a value of the state filter, typeOrder a value of the sort order.
type (
	typeFilter struct {
		value, name string
		is          func(*typeState) bool
		alarm       bool // these types may need attention
	}
	typeOrder struct {
		value, name string
		compare     func(a, b *typeState) int
	}
)

var typeStates = []typeFilter{
	{"", "All", func(*typeState) bool { return true }, false},
	{"backlog", "With backlog", func(t *typeState) bool { return t.backlog.Pending > 0 }, false},
	{"held", "Held", func(t *typeState) bool { return t.held && !t.silent }, false},
	{"unserved", "Not drained", (*typeState).unserved, true},
	{"silent", "Holder silent", func(t *typeState) bool { return t.silent }, true},
	{"failing", "Failing", func(t *typeState) bool { return t.failing != "" || t.file.damaged != "" }, true},
	{"paused", "Paused or limited", func(t *typeState) bool { return !t.settings.IsZero() }, false},
}

var typeSorts = []typeOrder{
	{"", "name", func(a, b *typeState) int { return 0 }},
	{"oldest", "oldest message", func(a, b *typeState) int { return cmp.Compare(b.backlog.Age, a.backlog.Age) }},
	{"backlog", "backlog", func(a, b *typeState) int { return cmp.Compare(b.backlog.Pending, a.backlog.Pending) }},
	{"rate", "rate", func(a, b *typeState) int { return cmp.Compare(b.rate, a.rate) }},
	{"records", "records in the file", func(a, b *typeState) int { return cmp.Compare(b.file.DurableIndex, a.file.DurableIndex) }},
}

func (t *typeState) unserved() bool {
	return !t.held && t.counted && t.backlog.Pending > 0 && !t.settings.DrainPaused
}

// badges returns the badges for the state of a type, the worst first.
func (t *typeState) badges() (all []badge) {
	add := func(tone, text, why string) { all = append(all, badge{tone, text, why}) }
	if t.file.damaged != "" {
		add("bad", "file entry damaged", t.file.damaged)
	}
	if t.failing != "" {
		add("bad", "failing", t.failing)
	}
	if t.lock.Damaged != nil {
		add("bad", "lock damaged", t.lock.Damaged.Error())
	}
	if t.unserved() {
		add("warn", "not drained", "Messages are pending, and no worker holds the lock of the type.")
	}
	if t.silent {
		add("warn", "holder silent", "The holder has not renewed the lock for a whole lease. Another worker takes over once there are messages to drain.")
	}
	switch s := t.settings; {
	case s.DrainPaused && s.PublishPaused:
		add("note", "paused", s.Why)
	case s.DrainPaused:
		add("note", "drain paused", s.Why)
	case s.PublishPaused:
		add("note", "publish paused", s.Why)
	}
	if t.settings.MaxBacklog > 0 {
		add("note", "limit "+count(t.settings.MaxBacklog), t.settings.Why)
	}
	if t.backlog.Foreign > 0 {
		add("note", "foreign keys", "Among the messages are entries that are not messages.")
	}
	for _, h := range t.lock.Holds() {
		if h.Asked != "" {
			add("note", "asked to release", h.Asked)
			break
		}
	}
	switch {
	case t.held && !t.silent && (t.backlog.Pending > 0 || t.rate > 0):
		add("good", "draining", "")
	case t.held && !t.silent:
		add("good", "held", "")
	case len(all) == 0:
		add("quiet", "idle", "")
	}
	return all
}

func (u *UI) typeRow(t *typeState) typeRow {
	r := typeRow{Name: t.name, Backlog: "?", Oldest: "?", Rate: "–", InFile: "?", Holder: "–", Lease: "–", Token: "–", Badges: t.badges()}
	if queue.ValidateType(t.name) == nil {
		r.Link = u.link("types", t.name)
	}
	r.Backlog, r.Oldest = t.backlogText()
	r.Busy = t.backlog.Pending > 0
	if t.rated {
		r.Rate = perSecond(t.rate)
	}
	r.Line, r.Area = spark(t.rates)
	if t.file.known {
		r.InFile = count(t.file.DurableIndex)
		if !t.file.there {
			r.InFile = "–"
		}
	}
	if holds := t.lock.Holds(); len(holds) > 0 {
		h := holds[0]
		r.Holder, r.Token = fmt.Sprintf("%s pid %d", h.Owner.Host, h.Owner.PID), strconv.FormatInt(t.lock.Token, 10)
		r.Lease = span(h.Lease)
		if !t.lock.At.IsZero() {
			r.Lease = fmt.Sprintf("%s of %s", span(t.renewed), span(h.Lease))
		}
	}
	return r
}

// backlogText returns how many messages are pending, and the age of the oldest. Both are "?" if the server has not answered lately.
func (t *typeState) backlogText() (pending, oldest string) {
	if !t.counted {
		return "?", "?"
	}
	if t.backlog.Pending == 0 {
		return "0", "–"
	}
	pending = count(t.backlog.Pending)
	if t.backlog.Capped {
		pending += "+"
	}
	return pending, span(t.backlog.Age)
}

// typesData is the data of the page of all types.
type typesData struct {
	Action       string
	Query, State string
	Sorts        []option
	States       []option
	Rows         []typeRow
	All          int
	Pager        pager
	Totals       []total
}

type option struct {
	Value, Name, Link string
	Count             string
	Chosen, Empty     bool
	Alarm             bool // may need attention
}

type total struct{ Name, Value string }

// pager has the links to the other pages of a list.
type pager struct {
	Text                  string
	First, Previous, Next string // links; "": none
}

// pageOf returns the rows on a page of a list, and its pager. A page number beyond the last page means the last page.
func pageOf[T any](rows []T, page int, link func(page int) string) (shown []T, p pager) {
	n := len(rows)
	last := max((n+pageRows-1)/pageRows, 1)
	page = min(page, last)
	from := (page - 1) * pageRows
	shown = rows[from:min(from+pageRows, n)]
	if last == 1 {
		return shown, p
	}
	p.Text = fmt.Sprintf("%s–%s of %s", count(from+1), count(from+len(shown)), count(n))
	if page > 1 {
		p.First, p.Previous = link(1), link(page-1)
	}
	if page < last {
		p.Next = link(page + 1)
	}
	return shown, p
}

// pageNumber returns the page that an address asks for, starting at 1.
func pageNumber(q url.Values) (int, error) {
	page, err := strconv.Atoi(cmp.Or(q.Get("page"), "1"))
	if err != nil || page < 1 {
		return 0, badRequest("This address asks for a page that the list does not have.")
	}
	return page, nil
}

// pageText is the inverse of pageNumber: the value of the parameter page.
func pageText(page int) string {
	if page == 1 {
		return ""
	}
	return strconv.Itoa(page)
}

// typesFound has the types that match a filter, with their sums.
type typesFound struct {
	types   []*typeState // in the requested state
	counts  []int        // by state
	pending int          // messages …
	more    bool         // … at least
	oldest  time.Duration
	rate    float64
}

// find returns the types that match. state is the index of the requested state.
func (s *snapshot) find(match func(typ string) bool, state int) *typesFound {
	f := &typesFound{counts: make([]int, len(typeStates))}
	for i := range s.types {
		t := &s.types[i]
		if !match(t.name) {
			continue
		}
		for k, filter := range typeStates {
			if filter.is(t) {
				f.counts[k]++
				if k == state {
					f.types = append(f.types, t)
				}
			}
		}
		f.pending, f.oldest, f.rate = f.pending+t.backlog.Pending, max(f.oldest, t.backlog.Age), f.rate+t.rate
		f.more = f.more || t.backlog.Capped || !t.counted
	}
	return f
}

// totals returns the sums over the types found.
func (f *typesFound) totals(workers int) []total {
	pending, oldest := count(f.pending), "–"
	if f.more {
		pending += "+"
	}
	if f.pending > 0 {
		oldest = span(f.oldest)
	}
	return []total{{"types", count(f.counts[0])}, {"pending", pending}, {"oldest", oldest}, {"into files", perSecond(f.rate)}, {"workers", count(workers)}}
}

func (u *UI) typesPage(r *http.Request, s *snapshot) (*view, error) {
	q := r.URL.Query()
	d := &typesData{Action: u.link("types"), Query: q.Get("q"), State: q.Get("state"), All: len(s.types)}
	state := slices.IndexFunc(typeStates, func(f typeFilter) bool { return f.value == d.State })
	sorted := slices.IndexFunc(typeSorts, func(f typeOrder) bool { return f.value == q.Get("sort") })
	if state < 0 || sorted < 0 {
		return nil, badRequest("This address asks for a state or a sort order that does not exist.")
	}
	page, err := pageNumber(q)
	if err != nil {
		return nil, err
	}
	match, err := matcher(d.Query)
	if err != nil {
		return nil, err
	}
	found := s.find(match, state)
	slices.SortStableFunc(found.types, typeSorts[sorted].compare)
	link := func(key, value string) string {
		return withQuery(d.Action, "q", d.Query, "state", d.State, "sort", q.Get("sort"), key, value)
	}
	for k, f := range typeStates {
		n := found.counts[k]
		d.States = append(d.States, option{f.value, f.name, link("state", f.value), count(n), k == state, n == 0, f.alarm && n > 0})
	}
	for k, f := range typeSorts {
		d.Sorts = append(d.Sorts, option{Value: f.value, Name: f.name, Chosen: k == sorted})
	}
	var shown []*typeState
	shown, d.Pager = pageOf(found.types, page, func(page int) string { return link("page", pageText(page)) })
	for _, t := range shown {
		d.Rows = append(d.Rows, u.typeRow(t))
	}
	d.Totals = found.totals(living(s))
	return &view{template: "types", Title: "Types", Data: d}, nil
}

// living counts the workers that were seen lately.
func living(s *snapshot) (n int) {
	for _, m := range s.members {
		if s.now.Sub(m.Seen) < cli.MemberSilent {
			n++
		}
	}
	return n
}

// matcher returns the predicate of a filter: names that contain it or, if it has *, ? or [, names that match it.
func matcher(filter string) (func(string) bool, error) {
	if !strings.ContainsAny(filter, "*?[") {
		return func(name string) bool { return strings.Contains(name, filter) }, nil
	}
	if globs.Check(filter) != nil {
		return nil, badRequest("The filter %q is not a pattern: write * for any text and ? for one character.", filter)
	}
	return func(name string) bool { return globs.Match([]string{filter}, name) }, nil
}
