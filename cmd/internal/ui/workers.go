package ui

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/queue"
)

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
