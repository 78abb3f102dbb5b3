package ui

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/fencepost/fencepost/lock"
)

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
