package ui

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue"
)

// pageLimit bounds a page of messages or letters, by number and by size.
var pageLimit = queue.Limit{Messages: pageRows, Bytes: 8 << 20}

// workerRow is a worker replica.
type workerRow struct {
	Instance, Host, Version, Seen string
	Holds, Idle, Leaving          string
	Share                         int // types held, in percent of the most that any worker holds, for a bar
	Most                          string
	Serves                        string
	Badges                        []badge
	Errors                        []typeError
}

type typeError struct{ Type, Link, Text string }

type workersData struct {
	Rows     []workerRow
	Spread   string
	Unserved []typeLink
	More     int
}

type typeLink struct{ Name, Link string }

func (u *UI) workersPage(_ *http.Request, s *snapshot) (*view, error) {
	d := &workersData{}
	most, least := 0, -1
	for _, m := range s.members {
		if s.now.Sub(m.Seen) >= cli.MemberSilent {
			continue
		}
		if most = max(most, len(m.Held)); least < 0 || len(m.Held) < least {
			least = len(m.Held)
		}
	}
	for _, m := range s.members {
		row := workerRow{Instance: m.Instance, Host: fmt.Sprintf("%s pid %d", m.Host, m.PID), Version: m.Version, Seen: span(s.now.Sub(m.Seen)) + " ago",
			Holds: count(len(m.Held)), Idle: count(len(m.Idle)), Leaving: count(len(m.Leaving)), Most: "no limit", Serves: strings.Join(m.Types, ", ")}
		if most > 0 {
			row.Share = min(100*len(m.Held)/most, 100)
		}
		if m.MaxTypes > 0 {
			row.Most = "at most " + count(m.MaxTypes)
		}
		switch {
		case s.now.Sub(m.Seen) >= cli.MemberSilent:
			row.Holds, row.Idle, row.Leaving, row.Share = "–", "–", "–", 0 // its last report no longer applies
			row.Badges = append(row.Badges, badge{"bad", "not seen", "It has sent no heartbeat for a while: it is dead, or cut off. Others take over its types."})
		case m.Stopping:
			row.Badges = append(row.Badges, badge{"note", "stopping", "It takes no new types, and hands its types over to others."})
		default:
			row.Badges = append(row.Badges, badge{"good", "alive", ""})
		}
		for _, typ := range slices.Sorted(maps.Keys(m.Errors)) {
			row.Errors = append(row.Errors, typeError{typ, u.typeLink(typ).Link, m.Errors[typ]})
		}
		if len(row.Errors) > 0 {
			row.Badges = append(row.Badges, badge{"bad", plural(len(row.Errors), "type fails", "types fail"), ""})
		}
		d.Rows = append(d.Rows, row)
	}
	if n := living(s); n > 1 {
		d.Spread = fmt.Sprintf("%s hold between %s and %s types each.", plural(n, "worker", "workers"), count(least), count(most))
	}
	for i := range s.types {
		t := &s.types[i]
		if !slices.ContainsFunc(s.members, func(m queue.Member) bool { return serves(m, t.name) && s.now.Sub(m.Seen) < cli.MemberSilent }) {
			if len(d.Unserved) == 20 {
				d.More++
				continue
			}
			d.Unserved = append(d.Unserved, u.typeLink(t.name))
		}
	}
	return &view{template: "workers", Title: "Workers", Data: d}, nil
}

// serves reports whether a worker would take a type.
func serves(m queue.Member, typ string) bool {
	return globs.Match(m.Types, typ)
}

// typeLink returns a type, with a link unless its name is invalid for a type.
func (u *UI) typeLink(typ string) typeLink {
	if queue.ValidateType(typ) != nil {
		return typeLink{Name: typ}
	}
	return typeLink{typ, u.link("types", typ)}
}

// lockRow is a lock with its holders and waiters.
type lockRow struct {
	Name, Link     string // of the type, if it is the lock of one
	Token          string
	Since, Renewed string
	Badges         []badge
	Holders        []holderRow
	Waiting        []holderRow
	MoreHolders    int
	MoreWaiting    int
	Forced         string
	Acts           actLinks
	Damaged        string
}

type holderRow struct{ Who, Lease, Why, Kind, Asked string }

type locksData struct {
	Action, Query string
	All           bool
	Rows          []lockRow
	Pager         pager
	Held, Free    string
	HeldLink      string
	AllLink       string
}

func (u *UI) locksPage(r *http.Request, s *snapshot) (*view, error) {
	q := r.URL.Query()
	d := &locksData{Action: u.link("locks"), Query: q.Get("q"), All: q.Get("all") == "1"}
	match, err := matcher(d.Query)
	if err != nil {
		return nil, err
	}
	page, err := pageNumber(q)
	if err != nil {
		return nil, err
	}
	var found []lock.Record
	held, free := 0, 0
	for _, l := range s.locks {
		if !match(l.Name) {
			continue
		}
		shown := l.Held() || l.Damaged != nil || len(l.Queue) > 0
		if shown {
			held++
		} else {
			free++
		}
		if shown || d.All {
			found = append(found, l)
		}
	}
	d.Held, d.Free = count(held), count(free)
	link := func(all, page string) string { return withQuery(d.Action, "q", d.Query, "all", all, "page", page) }
	d.HeldLink, d.AllLink = link("", ""), link("1", "")
	all := ""
	if d.All {
		all = "1"
	}
	var shown []lock.Record
	shown, d.Pager = pageOf(found, page, func(page int) string { return link(all, pageText(page)) })
	for _, l := range shown {
		row := u.lockRow(l, s)
		row.Acts = u.lockActs(r, l, true)
		d.Rows = append(d.Rows, row)
	}
	return &view{template: "locks", Title: "Locks", Data: d}, nil
}

func (u *UI) lockRow(l lock.Record, s *snapshot) lockRow {
	const most = 20 // holders and waiters by name
	row := lockRow{Name: l.Name, Token: strconv.FormatInt(l.Token, 10), Since: "–", Renewed: "–"}
	if s.typ(l.Name) != nil {
		row.Link = u.typeLink(l.Name).Link
	}
	if l.Damaged != nil {
		row.Damaged, row.Token = l.Damaged.Error(), "?"
		row.Badges = []badge{{"bad", "damaged", ""}}
		return row
	}
	if !l.Since.IsZero() {
		row.Since = span(max(s.now.Sub(l.Since), 0)) + " ago"
	}
	silent := false
	holds := l.Holds()
	if !l.At.IsZero() {
		renewed := max(s.now.Sub(l.At), 0)
		row.Renewed = span(renewed) + " ago"
		silent = len(holds) > 0 && renewed > holds[0].Lease
	}
	switch {
	case silent:
		row.Badges = append(row.Badges, badge{"warn", "holder silent", "The holder has not renewed the lock for a whole lease. It stays listed until another program wants the lock."})
	case len(holds) > 1:
		row.Badges = append(row.Badges, badge{"good", "shared", ""})
	case len(holds) == 1:
		row.Badges = append(row.Badges, badge{"good", "held", ""})
	default:
		row.Badges = append(row.Badges, badge{"quiet", "free", ""})
	}
	if n := len(l.Queue); n > 0 {
		row.Badges = append(row.Badges, badge{"note", count(n) + " in line", ""})
	}
	for _, h := range holds[:min(len(holds), most)] {
		row.Holders = append(row.Holders, holderOf(h))
	}
	for _, e := range l.Queue[:min(len(l.Queue), most)] {
		row.Waiting = append(row.Waiting, holderOf(e.Hold))
	}
	row.MoreHolders, row.MoreWaiting = len(holds)-len(row.Holders), len(l.Queue)-len(row.Waiting)
	if l.Forced != nil {
		row.Forced = l.Forced.Why
	}
	return row
}

func holderOf(h lock.Hold) holderRow {
	row := holderRow{Who: fmt.Sprintf("%s pid %d", h.Owner.Host, h.Owner.PID), Lease: span(h.Lease), Why: h.Why, Asked: h.Asked, Kind: "alone"}
	if h.Permits > 0 {
		row.Kind = fmt.Sprintf("one of at most %s", count(h.Permits))
	}
	return row
}

// delayedMessage is a row of the delayed messages.
type delayedMessage struct {
	typeLink
	Act                                          *actLink
	ID, Due, In, Published, Size, Preview, Wrong string
}

type delayedData struct {
	Action, Type string
	Rows         []delayedMessage
	First, Next  string
	Looked       string // says how far the search went, if a filter hides many messages
	Hidden       bool
	Acts         actLinks
	Act          bool // the rows have an action
}

func (u *UI) delayedPage(r *http.Request, s *snapshot) (*view, error) {
	q := r.URL.Query()
	d := &delayedData{Action: u.link("delayed"), Type: q.Get("type"), Hidden: u.o.HidePayloads}
	after, err := parseSlot(q.Get("after"))
	if err != nil {
		return nil, err
	}
	if q.Get("after") != "" {
		d.First = withQuery(d.Action, "type", d.Type)
	}
	d.Act = u.readOnly(r) == ""
	if d.Act && d.Type != "" {
		d.Acts = actLinks{u.actLink("Remove all of this type…", "remove-delayed", "type", d.Type)}
	}
	const pages = 20 // how many pages without a match are read for a filter
	for range pages {
		msgs, err := u.o.Backend.Queue.Delayed(r.Context(), after, pageLimit)
		if err != nil {
			return nil, err
		}
		for i := range msgs {
			m := &msgs[i]
			after = queue.ScheduleKeyOf(m)
			if d.Type != "" && m.Type != d.Type {
				continue
			}
			if d.Rows = append(d.Rows, u.delayedRow(m, s.now, d.Act)); len(d.Rows) == pageRows {
				break
			}
		}
		if len(msgs) == 0 {
			return &view{template: "delayed", Title: "Delayed messages", Data: d}, nil
		}
		if len(d.Rows) > 0 {
			break
		}
	}
	if more, err := u.o.Backend.Queue.Delayed(r.Context(), after, queue.Limit{Messages: 1}); err != nil {
		return nil, err
	} else if len(more) > 0 {
		d.Next = withQuery(d.Action, "type", d.Type, "after", slotText(after))
	}
	if len(d.Rows) == 0 {
		d.Looked = "No message of this type is among the first " + count(pages*pageRows) + "."
	}
	return &view{template: "delayed", Title: "Delayed messages", Data: d}, nil
}

func (u *UI) delayedRow(m *queue.Message, now time.Time, act bool) delayedMessage {
	row := delayedMessage{typeLink: u.typeLink(m.Type), ID: m.ID.String(), Due: date(m.Due), In: "in " + span(m.Due.Sub(now)), Published: date(m.ID.Time()), Size: size(int64(len(m.Payload)))}
	if act {
		row.Act = new(u.actLink("remove…", "remove-delayed", "type", m.Type, "slot", slotText(queue.ScheduleKeyOf(m))))
	}
	if m.Due.Before(now) {
		row.In = "due for " + span(now.Sub(m.Due))
	}
	if m.Incomplete {
		row.Wrong = "cannot be promoted: " + m.Why
	} else if !u.o.HidePayloads {
		row.Preview = preview(m.Payload)
	}
	return row
}

// slotText names a slot in a link.
func slotText(k queue.ScheduleKey) string {
	return fmt.Sprintf("%d.%s.%s", k.Due.UnixMilli(), k.ID, k.Type)
}

func parseSlot(s string) (k queue.ScheduleKey, err error) {
	if s == "" {
		return k, nil
	}
	parts := strings.SplitN(s, ".", 3)
	if len(parts) == 3 {
		ms, errDue := strconv.ParseInt(parts[0], 10, 64)
		id, errID := queue.ParseID(parts[1])
		if errDue == nil && errID == nil {
			return queue.ScheduleKey{Due: time.UnixMilli(ms).UTC(), ID: id, Type: parts[2]}, nil
		}
	}
	return k, badRequest("This address continues a list at a place that does not exist. Go back to its beginning.")
}

// letterRow is a dead letter in the list.
type letterRow struct {
	typeLink
	ID, Open, Died, Reason, Attempts, Size, Damaged string
}

type deadData struct {
	Action, Type, Reason string
	Rows                 []letterRow
	First, Next          string
	Looked               string
	Acts                 actLinks
}

func (u *UI) deadPage(r *http.Request, s *snapshot) (*view, error) {
	q := r.URL.Query()
	d := &deadData{Action: u.link("dead"), Type: q.Get("type"), Reason: q.Get("reason")}
	afterType, afterID, err := parseLetter(q.Get("after"))
	if err != nil {
		return nil, err
	}
	if q.Get("after") != "" {
		d.First = withQuery(d.Action, "type", d.Type, "reason", d.Reason)
	}
	if u.readOnly(r) == "" {
		which := "all…"
		if d.Type != "" || d.Reason != "" {
			which = "those that match…"
		}
		d.Acts = actLinks{u.actLink("Requeue "+which, "requeue", "type", d.Type, "reason", d.Reason), u.actLink("Remove "+which, "remove-letters", "type", d.Type, "reason", d.Reason)}
	}
	types := []string{d.Type}
	if d.Type == "" {
		types = types[:0]
		for i := range s.types {
			types = append(types, s.types[i].name)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout/3)
	defer cancel()
	typ, last, err := u.findLetters(ctx, d, types, afterType, afterID)
	switch {
	case err != nil && ctx.Err() != nil && r.Context().Err() == nil: // types that were not searched are reported, not taken for empty
		d.Looked = "The search takes long: type " + typ + " and those after it were not searched yet."
	case err != nil:
		return nil, err
	}
	if d.Looked != "" || len(d.Rows) == pageRows {
		d.Next = withQuery(d.Action, "type", d.Type, "reason", d.Reason, "after", last.String()+"."+typ)
	}
	return &view{template: "dead", Title: "Dead letters", Data: d}, nil
}

// findLetters adds rows for the letters after a place, until the page is full, and returns the place that it has reached.
func (u *UI) findLetters(ctx context.Context, d *deadData, types []string, from string, after queue.ID) (typ string, last queue.ID, err error) {
	for _, typ = range types {
		switch {
		case typ < from:
			continue
		case typ > from:
			after = queue.ID{}
		}
		for {
			letters, err := u.o.Backend.Queue.DeadLetters(ctx, typ, after, pageLimit)
			if err != nil {
				return typ, after, err
			}
			if len(letters) == 0 {
				break
			}
			for i := range letters {
				l := &letters[i]
				after = l.ID
				if strings.Contains(l.Reason, d.Reason) {
					d.Rows = append(d.Rows, letterRow{u.typeLink(typ), l.ID.String(), u.link("dead", typ, l.ID.String()), date(l.Time), firstLine(l.Reason), count(l.Attempts), size(int64(len(l.Payload))), l.Damaged})
				}
				if len(d.Rows) == pageRows {
					return typ, after, nil
				}
			}
		}
	}
	return typ, after, nil
}

func parseLetter(s string) (typ string, id queue.ID, err error) {
	if s == "" {
		return "", id, nil
	}
	text, typ, ok := strings.Cut(s, ".")
	if id, err = queue.ParseID(text); err != nil || !ok {
		return "", id, badRequest("This address continues a list at a place that does not exist. Go back to its beginning.")
	}
	return typ, id, nil
}

// firstLine returns the beginning of a text that may have several lines.
func firstLine(s string) string {
	line, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(line); len(r) > 200 {
		line, more = string(r[:200]), true
	}
	if more {
		line += " …"
	}
	return line
}
