package ui

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/admin"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
)

// countTime bounds the counting for a confirmation page.
const countTime = 5 * time.Second

// purgeBound returns the time before which the messages to purge were published.
func purgeBound(q url.Values, now time.Time) (time.Time, error) {
	if q.Get("older") == "" {
		return now, nil
	}
	var age cli.Age
	if err := age.Set(q.Get("older")); err != nil {
		return now, badRequest("%q is not an age: write it as in 30d, 12h or 90m.", q.Get("older"))
	}
	return now.Add(-time.Duration(age)), nil
}

func purgedIDs(q url.Values) ([]queue.ID, error) {
	if q.Get("id") == "" {
		return nil, nil
	}
	id, err := queue.ParseID(q.Get("id"))
	if err != nil {
		return nil, badRequest("%s is not a message ID.", q.Get("id"))
	}
	return []queue.ID{id}, nil
}

func planPurge(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error {
	t, err := known(q, s)
	if err != nil {
		return err
	}
	ids, err := purgedIDs(q)
	if err != nil {
		return err
	}
	before, err := purgeBound(q, p.order.Before)
	if err != nil {
		return err
	}
	p.begin(u, q)
	p.order.Before = before
	p.Warnings = append(p.Warnings, "A worker does not know what was purged: it waits for the missing numbers of a producer until its --gap-timeout, and then declares a gap in the file. It may still append what it has already fetched. "+
		"To avoid that, pause draining and wait until nothing changes any more, purge, and resume.")
	if len(ids) > 0 {
		o, err := admin.PurgeIDs(ctx, u.o.Backend, t.name, ids, true, admin.Turn{})
		if err != nil {
			return err
		}
		if p.order.Count = o.Chosen; o.Chosen == 0 {
			p.Nothing = "The message is not pending any more: it was appended to the file, or removed."
		}
		p.say("The pending message is removed for good. It does not get into the file.")
		return nil
	}
	p.Older = &olderForm{u.link("act", "purge"), t.name, q.Get("older")}
	var found queue.Purged
	if err := p.count(ctx, func(ctx context.Context) (err error) {
		found, err = queue.Purge(ctx, u.o.Backend.Queue, t.name, before, true)
		p.order.Count = int(found.Messages)
		return err
	}); err != nil {
		return err
	}
	if p.order.Count == 0 && !p.order.More {
		p.Nothing = "No pending message matches."
		return nil
	}
	p.say("%s of type %s, published before %s UTC, are removed for good. They do not get into the file.", p.counted("pending message", "pending messages"), t.name, date(before))
	p.Facts = append(p.Facts, fact{Name: "payloads", Value: size(found.Bytes)})
	if found.Messages > 0 {
		p.Facts = append(p.Facts, fact{Name: "published from", Value: date(found.First.Time())}, fact{Name: "to", Value: date(found.Last.Time())})
	}
	return nil
}

// count counts the objects of an action, for at most countTime. If that is too short, it sets p.order.More.
func (p *plan) count(ctx context.Context, count func(context.Context) error) error {
	counting, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	err := count(counting)
	if err != nil && (counting.Err() == nil || ctx.Err() != nil) {
		return err
	}
	p.order.More = err != nil
	return nil
}

// counted returns the number of objects of an action, in words.
func (p *plan) counted(one, many string) string {
	n := plural(p.order.Count, one, many)
	if p.order.More {
		n = "At least " + n + " (counting them takes long)"
	}
	return n
}

func doPurge(u *UI, ctx context.Context, d *doing) (did, error) {
	typ := d.q.Get("type")
	ids, err := purgedIDs(d.q)
	switch {
	case err != nil:
		return did{}, err
	case len(ids) > 0:
		o, err := admin.PurgeIDs(ctx, u.o.Backend, typ, ids, false, d.turn)
		return did{o, removedText(o.Done, d.order, "pending message", "pending messages", "They were appended to the file, or removed by another program.")}, err
	}
	// rule: messages published after the confirmation page was made are not removed.
	p, err := admin.Purge(ctx, u.o.Backend, typ, d.order.Before, d.turn)
	n := int(p.Messages)
	return did{admin.Outcome{Chosen: n, Done: n}, removedText(n, d.order, "pending message", "pending messages", "They were appended to the file, or removed by another program.")}, err
}

// removedText says how many were removed, and what happened to the others that were counted.
func removedText(n int, o order, one, many, gone string) []string {
	said := []string{sentence(n, one, many, "removed")}
	if missing := o.Count - n; missing > 0 {
		said = append(said, fmt.Sprintf("%s of the %s on the confirmation page were no longer there. %s", count(missing), count(o.Count), gone))
	}
	return said
}

// sentence returns a sentence that says what was done to how many.
func sentence(n int, one, many, done string) string {
	if n == 1 {
		return "1 " + one + " was " + done + "."
	}
	return count(n) + " " + many + " were " + done + "."
}

func planForeign(u *UI, ctx context.Context, q url.Values, s *snapshot, p *plan) error {
	t, err := known(q, s)
	if err != nil {
		return err
	}
	p.begin(u, q)
	o, err := admin.PurgeForeign(ctx, u.o.Backend, t.name, true, admin.Turn{})
	if err != nil {
		return err
	}
	if p.order.Count = o.Chosen; o.Chosen == 0 {
		p.Nothing = "The type has no foreign keys."
		return nil
	}
	p.say("%s among the messages of type %s: removed for good, with what another program has stored there. No message is removed.", plural(o.Chosen, "foreign key", "foreign keys"), t.name)
	return nil
}

func doForeign(u *UI, ctx context.Context, d *doing) (did, error) {
	o, err := admin.PurgeForeign(ctx, u.o.Backend, d.q.Get("type"), false, d.turn)
	return did{o, removedText(o.Done, d.order, "foreign key", "foreign keys", "They were removed by another program.")}, err
}

// lettersOf reads which dead letters are meant, of those that existed at a time.
func lettersOf(q url.Values, before time.Time) (admin.Letters, error) {
	// rule: letters that died after the confirmation page was made are not included.
	l := admin.Letters{Reason: q.Get("reason"), Before: before}
	if typ := q.Get("type"); typ != "" {
		l.Types = []string{typ}
	}
	ids, err := purgedIDs(q)
	if l.IDs = ids; len(ids) > 0 && len(l.Types) == 0 {
		err = badRequest("An ID requires its type.")
	}
	return l, err
}

func planLetters(u *UI, ctx context.Context, q url.Values, _ *snapshot, p *plan) error {
	// A letter's time is no later than this millisecond.
	p.order.Before = p.order.Before.Add(time.Millisecond)
	letters, err := lettersOf(q, p.order.Before)
	if err != nil {
		return err
	}
	p.begin(u, q)
	p.order.Count = 0
	var types []string
	n, bytes := map[string]int{}, int64(0)
	if err := p.count(ctx, func(ctx context.Context) error {
		return letters.Each(ctx, u.o.Backend.Queue, func(l queue.DeadLetter) error {
			if n[l.Type]++; n[l.Type] == 1 {
				types = append(types, l.Type)
			}
			p.order.Count++
			bytes += int64(len(l.Payload))
			return nil
		})
	}); err != nil {
		return err
	}
	if p.order.Count == 0 && !p.order.More {
		p.Nothing = "No dead letter matches. They may have been requeued or removed meanwhile."
		return nil
	}
	p.Facts = append(p.Facts, fact{Name: "payloads", Value: size(bytes)})
	if q.Get("type") == "" {
		for _, typ := range types[:min(len(types), someRows)] {
			p.Facts = append(p.Facts, fact{Name: "of " + typ, Value: count(n[typ])})
		}
		if more := len(types) - someRows; more > 0 {
			p.Facts = append(p.Facts, fact{Name: "of others", Value: plural(more, "type", "types")})
		}
	}
	what := p.counted("dead letter", "dead letters")
	if p.order.Action == "requeue" {
		p.say("%s: published again, as new messages with new IDs at the end of their types, in the order in which they were first published. Each is removed once its message is stored.", what)
		p.Warnings = append(p.Warnings, "Stopping it loses nothing. If this program dies after it stored a message and before it removed the letter, requeueing the letter again publishes the message twice.")
		return nil
	}
	p.say("%s: removed with their messages, for good.", what)
	return nil
}

func doLetters(u *UI, ctx context.Context, d *doing) (did, error) {
	letters, err := lettersOf(d.q, d.order.Before)
	if err != nil {
		return did{}, err
	}
	do, done := admin.Letters.Remove, "removed"
	if d.order.Action == "requeue" {
		do, done = admin.Letters.Requeue, "requeued"
	}
	o, err := do(letters, ctx, u.o.Backend, d.turn, d.tell)
	said := []string{sentence(o.Done, "dead letter", "dead letters", done)}
	if o.Left > 0 {
		said = append(said, plural(o.Left, "dead letter stays.", "dead letters stay."))
	}
	if missing := d.order.Count - o.Chosen; missing > 0 && err == nil {
		said = append(said, fmt.Sprintf("%s of the %s on the confirmation page were no longer there: requeued or removed by another program.", count(missing), count(d.order.Count)))
	}
	return did{o, said}, err
}

// delayedOf reads which delayed messages are meant, of those that existed at a time: the one in a slot, or all of a type.
func delayedOf(q url.Values, before time.Time) (d admin.Delayed, err error) {
	if q.Get("type") == "" {
		return d, badRequest("Name the type of the delayed messages.")
	}
	// rule: messages delayed after the confirmation page was made are not removed.
	d.Types, d.Before = []string{q.Get("type")}, before
	if q.Get("slot") != "" {
		var slot queue.ScheduleKey
		slot, err = parseSlot(q.Get("slot"))
		d.Slot = &slot
	}
	return d, err
}

func planDelayed(u *UI, ctx context.Context, q url.Values, _ *snapshot, p *plan) error {
	chosen, err := delayedOf(q, p.order.Before)
	if err != nil {
		return err
	}
	p.begin(u, q)
	p.order.Count = 0
	var first, last time.Time
	if err := p.count(ctx, func(ctx context.Context) error {
		return chosen.Each(ctx, u.o.Backend.Queue, func(m queue.Message) bool {
			if p.order.Count++; p.order.Count == 1 {
				first = m.Due
			}
			last = m.Due
			return true
		})
	}); err != nil {
		return err
	}
	if p.order.Count == 0 && !p.order.More {
		p.Nothing = "No delayed message matches. They may have been promoted or removed meanwhile."
		return nil
	}
	p.say("%s of type %s: removed for good. They never become due. Those that workers are promoting at the same moment stay.", p.counted("delayed message", "delayed messages"), q.Get("type"))
	if chosen.Slot != nil {
		p.Facts = append(p.Facts, fact{Name: "ID", Value: chosen.Slot.ID.String()}, fact{Name: "due", Value: date(first)})
	} else if p.order.Count > 0 {
		p.Facts = append(p.Facts, fact{Name: "due from", Value: date(first)}, fact{Name: "to", Value: date(last)})
	}
	return nil
}

func doDelayed(u *UI, ctx context.Context, d *doing) (did, error) {
	chosen, err := delayedOf(d.q, d.order.Before)
	if err != nil {
		return did{}, err
	}
	o, err := chosen.Remove(ctx, u.o.Backend, d.turn, d.tell)
	return did{o, removedText(o.Done, d.order, "delayed message", "delayed messages", "They were promoted, or removed by another program.")}, err
}
