package ui

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// action is a change that the pages offer. Its name is in addresses and in the log.
type action struct {
	title    string
	page     string // the page that leads to it: dead or delayed; "": that of the type, or of the locks
	why      bool   // a reason is required
	destroys bool   // it removes messages or letters: the user must type the name of their type
	plan     func(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error
	do       func(u *UI, ctx context.Context, d *doing) (did, error)
}

// plan describes what an action would do.
type plan struct {
	order    order
	Title    string
	Says     []string // what happens
	Facts    []fact   // the objects of the action
	Warnings []string
	Older    *olderForm
	Nothing  string // why there is nothing to do; "" if there is something
	NeedsWhy bool
	Hint     string // where the reason will be shown
	Confirm  string // the name to type; "": none
	Button   string
	Danger   bool
	Back     fact
}

// olderForm asks how old messages have to be to be purged.
type olderForm struct{ Action, Type, Older string }

// doing is an action in progress.
type doing struct {
	order order
	q     url.Values
	why   string
	turn  admin.Turn
	tell  admin.Progress
}

// did is the result of an action.
type did struct {
	admin.Outcome
	said []string
}

var actions map[string]*action

func init() { // not in the declaration: the functions refer to actions
	actions = map[string]*action{
		"pause":          {title: "Pause", plan: planPause, do: doPause},
		"resume":         {title: "Resume", plan: planPause, do: doPause},
		"limit":          {title: "Limit the backlog", plan: planLimit, do: doLimit},
		"purge":          {title: "Remove pending messages", why: true, destroys: true, plan: planPurge, do: doPurge},
		"purge-foreign":  {title: "Remove foreign keys", why: true, destroys: true, plan: planForeign, do: doForeign},
		"requeue":        {title: "Requeue dead letters", page: "dead", plan: planLetters, do: doLetters},
		"remove-letters": {title: "Remove dead letters", page: "dead", why: true, destroys: true, plan: planLetters, do: doLetters},
		"remove-delayed": {title: "Remove delayed messages", page: "delayed", why: true, destroys: true, plan: planDelayed, do: doDelayed},
		"ask":            {title: "Ask for a lock's release", why: true, plan: planLock, do: doLock},
		"force":          {title: "Take a lock away", why: true, plan: planLock, do: doLock},
	}
}

// confirmed returns what the user must type to confirm an action; "": nothing.
func (a *action) confirmed(q url.Values) string {
	switch {
	case !a.destroys:
		return ""
	case q.Get("type") == "":
		return "all"
	}
	return q.Get("type")
}

// back returns the link to the page from which an action was started.
func (a *action) back(u *UI, q url.Values) fact {
	filter := func(page string) string {
		return withQuery(u.link(page), "type", q.Get("type"), "reason", q.Get("reason"))
	}
	switch typ := q.Get("type"); {
	case q.Get("lock") != "":
		return fact{"", "Locks", u.link("locks")}
	case a.page == "delayed":
		return fact{"", "Delayed messages", filter("delayed")}
	case a.page == "dead":
		return fact{"", "Dead letters", filter("dead")}
	default:
		return fact{"", "Type " + typ, u.link("types", typ)}
	}
}

// aboutFacts returns the objects of an action, from its query.
func aboutFacts(q url.Values) (all []fact) {
	for _, f := range []struct{ key, name string }{{"type", "type"}, {"id", "ID"}, {"reason", "reason contains"}, {"older", "published longer ago than"}, {"lock", "lock"}, {"what", "only"}, {"max", "limit"}} {
		if v := q.Get(f.key); v != "" {
			all = append(all, fact{Name: f.name, Value: v})
		}
	}
	return all
}

// begin fills in the fields that all plans share.
func (p *plan) begin(u *UI, q url.Values) {
	a := actions[p.order.Action]
	p.Title, p.Button, p.NeedsWhy, p.Danger = a.title, a.title, a.why, a.destroys
	p.Confirm, p.Back, p.Facts, p.order.Count = a.confirmed(q), a.back(u, q), aboutFacts(q), 1
}

// known returns the type that an action applies to.
func known(q url.Values, s *snapshot) (*typeState, error) { return s.mustHave(q.Get("type")) }

func (p *plan) say(format string, args ...any) { p.Says = append(p.Says, fmt.Sprintf(format, args...)) }

// halves reads whether draining or publishing is meant; neither means both.
func halves(q url.Values) (drain, publish bool, err error) {
	switch q.Get("what") {
	case "":
	case "draining":
		drain = true
	case "publishing":
		publish = true
	default:
		err = badRequest("Only draining, publishing, or both can be paused or resumed.")
	}
	return drain, publish, err
}

func planPause(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error {
	t, err := known(q, s)
	if err != nil {
		return err
	}
	drain, publish, err := halves(q)
	if err != nil {
		return err
	}
	p.begin(u, q)
	set, err := u.o.Backend.Queue.Settings(ctx, t.name)
	if err != nil {
		return err
	}
	p.Facts = append(p.Facts, fact{Name: "now", Value: strings.Replace(admin.State(set), "-", "nothing is set", 1)})
	p.Hint = "Publishers' errors and the page of the type show it."
	pause := p.order.Action == "pause"
	if drain || !publish {
		if pause {
			p.say("Workers release type %s within a few seconds and do not drain it. Its messages stay in the queue; new ones pile up there.", t.name)
		} else {
			p.say("Workers drain type %s again within a few seconds.", t.name)
		}
	}
	if publish || !drain {
		if pause {
			p.say("Publishers refuse new messages of type %s within a few seconds. Messages that they have already sent are still stored.", t.name)
		} else {
			p.say("Publishers take new messages of type %s again within a few seconds.", t.name)
		}
	}
	return nil
}

func doPause(u *UI, ctx context.Context, d *doing) (did, error) {
	drain, publish, err := halves(d.q)
	if err != nil {
		return did{}, err
	}
	return u.set(ctx, d, admin.Pause(drain, publish, d.order.Action == "pause"))
}

// set changes the settings of a type.
func (u *UI) set(ctx context.Context, d *doing, c queue.SettingsPatch) (did, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	c.Why = d.why
	set, err := admin.Change(ctx, u.o.Backend.Queue, d.q.Get("type"), c)
	if err != nil {
		return did{}, err
	}
	return did{admin.Outcome{Chosen: 1, Done: 1}, []string{fmt.Sprintf("Set for type %s: %s.", d.q.Get("type"), strings.Replace(admin.State(set), "-", "nothing", 1))}}, nil
}

func limitOf(q url.Values) (int, error) {
	var n cli.Count
	if err := n.Set(q.Get("max")); err != nil || n > queue.MaxBacklogLimit {
		return 0, badRequest("%q is not a limit: write a number up to %s, as in 1000 or 100k, or 0 for no limit.", q.Get("max"), count(queue.MaxBacklogLimit))
	}
	return int(n), nil
}

func planLimit(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error {
	t, err := known(q, s)
	if err != nil {
		return err
	}
	n, err := limitOf(q)
	if err != nil {
		return err
	}
	p.begin(u, q)
	p.Hint = "The page of the type shows it."
	pending, _ := t.backlogText()
	p.Facts = append(p.Facts, fact{Name: "pending now", Value: pending})
	if n == 0 {
		p.say("The backlog of type %s no longer has a limit.", t.name)
		return nil
	}
	p.say("Publishers of type %s wait while %s are pending, and give up after a while. Several publishers together may exceed the limit by what they send in two seconds.", t.name, plural(n, "message", "messages"))
	return nil
}

func doLimit(u *UI, ctx context.Context, d *doing) (did, error) {
	n, err := limitOf(d.q)
	if err != nil {
		return did{}, err
	}
	return u.set(ctx, d, queue.SettingsPatch{MaxBacklog: &n})
}
