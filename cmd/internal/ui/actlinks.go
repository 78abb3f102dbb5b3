package ui

import (
	"net/http"

	"github.com/fencepost/fencepost/lock"
)

// actLink is a link to a confirmation page.
type actLink struct {
	Name, Link string
	Label      string // for screen readers, which may read it without its context; "": Name
	Danger     bool
}

// actLinks are links to confirmation pages; nil: the user may not act.
type actLinks []actLink

func (u *UI) actLink(name, action string, query ...string) actLink {
	return actLink{Name: name, Link: withQuery(u.link("act", action), query...), Danger: actions[action].destroys || action == "force"}
}

// limitForm asks for the limit of a type's backlog.
type limitForm struct {
	Action, Type string
	Now          int
}

// typeActs adds the actions on a type.
func (u *UI) typeActs(r *http.Request, d *typeData, t *typeState) {
	if u.readOnly(r) != "" {
		return
	}
	turn := func(what string, paused bool) actLink {
		if paused {
			return u.actLink("Resume "+what+"…", "resume", "type", t.name, "what", what)
		}
		return u.actLink("Pause "+what+"…", "pause", "type", t.name, "what", what)
	}
	d.Acts = actLinks{turn("draining", t.settings.DrainPaused), turn("publishing", t.settings.PublishPaused)}
	switch set := t.settings; {
	case set.DrainPaused && set.PublishPaused:
		d.Acts = append(d.Acts, u.actLink("Resume both…", "resume", "type", t.name))
	case !set.DrainPaused && !set.PublishPaused:
		d.Acts = append(d.Acts, u.actLink("Pause both…", "pause", "type", t.name))
	}
	d.Acts = append(d.Acts, u.actLink("Remove pending messages…", "purge", "type", t.name))
	if t.backlog.Foreign > 0 {
		d.Acts = append(d.Acts, u.actLink("Remove foreign keys…", "purge-foreign", "type", t.name))
	}
	d.Limit = &limitForm{u.link("act", "limit"), t.name, t.settings.MaxBacklog}
	d.LockActs = u.lockActs(r, t.lock, false)
}

// lockActs returns the actions on a lock; nil: there are none, or the user may not act. In a list their names are short.
func (u *UI) lockActs(r *http.Request, l lock.Record, list bool) (acts actLinks) {
	if u.readOnly(r) != "" || len(l.Holds()) == 0 && l.Damaged == nil {
		return nil
	}
	ask, force := "Ask for its release…", "Take it away…"
	if list {
		ask, force = "Ask…", "Take away…"
	}
	if l.Damaged == nil {
		acts = append(acts, u.actLink(ask, "ask", "lock", l.Name))
		acts[0].Label = ask + " for the release of " + l.Name
	}
	acts = append(acts, u.actLink(force, "force", "lock", l.Name))
	acts[len(acts)-1].Label = force + " " + l.Name
	return acts
}
