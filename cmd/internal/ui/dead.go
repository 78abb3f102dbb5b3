package ui

import (
	"context"
	"net/http"
	"strings"

	"github.com/fencepost/fencepost/queue"
)

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
		return "", id, errUnknownPlace
	}
	return typ, id, nil
}
