package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/queue"
)

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
	return k, errUnknownPlace
}
