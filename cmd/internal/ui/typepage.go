package ui

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/queue"
)

// someRows is the number of rows shown of a list that has its own page.
const someRows = 10

// typeData is the data of a type's page.
type typeData struct {
	Row      typeRow
	Lock     []fact
	Queue    []fact
	Workers  []servingRow
	LockLink string
	Acts     actLinks // on the type
	LockActs actLinks
	Limit    *limitForm

	File    *filePicture
	Records []recordRow
	All     string // link to the records
	Trouble string // why the records cannot be shown
	Pending *pendingList
}

type fact struct{ Name, Value, Link string }

// servingRow is a worker that would take the type.
type servingRow struct {
	Instance, Host, Role, Seen string
	Holds                      bool
}

// typeOf returns the type that an address names.
func typeOf(r *http.Request, s *snapshot) (*typeState, error) {
	return s.mustHave(r.PathValue("type"))
}

// mustHave returns the state of a type. The error for one that is not in the snapshot does not deny that it exists: it may be newer.
func (s *snapshot) mustHave(name string) (*typeState, error) {
	t := s.typ(name)
	if t == nil {
		return nil, notFound("There was no type %s when the queue was last read, a few seconds ago. A new type appears shortly. Otherwise the name is spelled differently, or nothing was ever published to it.", name)
	}
	return t, nil
}

func (u *UI) typePage(r *http.Request, s *snapshot) (*view, error) {
	t, err := typeOf(r, s)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	d := &typeData{Row: u.typeRow(t), All: u.link("types", t.name, "records"), LockLink: withQuery(u.link("locks"), "all", "1", "q", t.name)}
	d.describeLock(t, s)
	u.typeActs(r, d, t)
	if err := u.describeQueue(ctx, d, t, s); err != nil {
		return nil, err
	}
	for _, m := range s.members {
		if !serves(m, t.name) {
			continue
		}
		row := servingRow{Instance: m.Instance, Host: fmt.Sprintf("%s pid %d", m.Host, m.PID), Role: "stands by", Seen: span(max(s.now.Sub(m.Seen), 0)) + " ago", Holds: slices.Contains(m.Held, t.name)}
		switch {
		case s.now.Sub(m.Seen) >= cli.MemberSilent:
			row.Role, row.Holds = "not seen", false
		case row.Holds && slices.Contains(m.Leaving, t.name):
			row.Role = "releasing it"
		case row.Holds:
			row.Role = "holds it"
		case m.Stopping:
			row.Role = "stopping"
		}
		d.Workers = append(d.Workers, row)
	}
	fromFiles, cancel := u.reachFiles(ctx)
	defer cancel()
	chain, missing := u.chain(fromFiles, t)
	d.File = u.picture(fromFiles, t, chain, missing, r.URL.Query().Get("scan") == "1")
	if missing == "" {
		end := chain.next
		page, err := u.readRecords(fromFiles, chain, end-min(end, someRows), someRows, t)
		if err != nil {
			d.Trouble = u.clean(err)
		}
		d.Records = page.rows
		slices.Reverse(d.Records) // the newest first
	}
	if d.Pending, err = u.pending(ctx, t, queue.ID{}, someRows, s); err != nil {
		return nil, err
	}
	return &view{template: "type", Title: t.name, Data: d}, nil
}

func (d *typeData) describeLock(t *typeState, s *snapshot) {
	add := func(name, format string, args ...any) {
		d.Lock = append(d.Lock, fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	holds := t.lock.Holds()
	if len(holds) == 0 {
		state := "free"
		if t.lock.Name == "" {
			state = "never used"
		}
		add("lock", "%s", state)
	} else {
		h := holds[0]
		add("holder", "%s pid %d", h.Owner.Host, h.Owner.PID)
		add("instance", "%s", h.Owner.Instance)
		lease := span(h.Lease)
		if !t.lock.At.IsZero() {
			lease = fmt.Sprintf("%s, renewed %s ago", lease, span(t.renewed))
		}
		add("lease", "%s", lease)
		if !t.lock.Since.IsZero() {
			add("held for", "%s", span(max(s.now.Sub(t.lock.Since), 0)))
		}
		if h.Why != "" {
			add("why", "%s", h.Why)
		}
		if h.Asked != "" {
			add("asked to release", "%s", h.Asked)
		}
	}
	if t.lock.Token != 0 {
		add("token", "%d", t.lock.Token)
	}
	if n := len(t.lock.Queue); n > 0 {
		add("in line", "%s", count(n))
	}
	if t.lock.Forced != nil {
		add("taken by force", "%s", t.lock.Forced.Why)
	}
}

func (u *UI) describeQueue(ctx context.Context, d *typeData, t *typeState, s *snapshot) error {
	q := u.o.Backend.Queue
	add := func(name, value, link string) { d.Queue = append(d.Queue, fact{name, value, link}) }
	pending, oldest := t.backlogText()
	add("pending", pending, u.link("types", t.name, "pending"))
	add("oldest", oldest, "")
	letters, err := q.DeadLetters(ctx, t.name, queue.ID{}, queue.Limit{Messages: 100, Bytes: pageLimit.Bytes})
	if err != nil {
		return err
	}
	n := count(len(letters))
	if len(letters) > 0 {
		more, err := q.DeadLetters(ctx, t.name, letters[len(letters)-1].ID, queue.Limit{Messages: 1})
		if err != nil {
			return err
		}
		if len(more) > 0 {
			n += "+"
		}
	}
	add("dead letters", n, withQuery(u.link("dead"), "type", t.name))
	add("delayed", "list", withQuery(u.link("delayed"), "type", t.name))
	set := t.settings
	switch {
	case set.DrainPaused && set.PublishPaused:
		add("paused", "draining and publishing", "")
	case set.DrainPaused:
		add("paused", "draining", "")
	case set.PublishPaused:
		add("paused", "publishing", "")
	}
	if set.MaxBacklog > 0 {
		add("limit", plural(set.MaxBacklog, "message", "messages"), "")
	}
	if set.Why != "" {
		add("why", set.Why, "")
	}
	if !set.Changed.IsZero() {
		add("settings changed", span(max(s.now.Sub(set.Changed), 0))+" ago", "")
	}
	return nil
}

// pendingList is a list of pending messages.
type pendingList struct {
	Rows        []pendingRow
	All         string
	First, Next string
	Hidden      bool
}

type pendingRow struct{ ID, Link, Producer, N, Age, Size, Preview, Wrong string }

func (u *UI) pending(ctx context.Context, t *typeState, after queue.ID, most int, s *snapshot) (*pendingList, error) {
	d := &pendingList{All: u.link("types", t.name, "pending"), Hidden: u.o.HidePayloads}
	msgs, err := u.o.Backend.Queue.Fetch(ctx, t.name, after, queue.Limit{Messages: most, Bytes: pageLimit.Bytes})
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		m := &msgs[i]
		row := pendingRow{ID: m.ID.String(), Link: u.link("types", t.name, "pending", m.ID.String()), Producer: fmt.Sprintf("%016x", m.ID.Producer()), N: count(m.ID.N()),
			Age: span(max(s.now.Sub(m.ID.Time()), 0)), Size: size(int64(len(m.Payload)))}
		if why := m.Unfit(); why != "" {
			row.Wrong = "cannot be appended: " + why
		} else if !d.Hidden {
			row.Preview = preview(m.Payload)
		}
		d.Rows = append(d.Rows, row)
	}
	if len(msgs) > 0 {
		last := msgs[len(msgs)-1].ID
		more, err := u.o.Backend.Queue.Fetch(ctx, t.name, last, queue.Limit{Messages: 1})
		if err != nil {
			return nil, err
		}
		if len(more) > 0 {
			d.Next = withQuery(d.All, "after", last.String())
		}
	}
	return d, nil
}

type pendingData struct {
	Row     typeRow
	Pending *pendingList
}

func (u *UI) pendingPage(r *http.Request, s *snapshot) (*view, error) {
	t, err := typeOf(r, s)
	if err != nil {
		return nil, err
	}
	var after queue.ID
	text := r.URL.Query().Get("after")
	if text != "" {
		if after, err = queue.ParseID(text); err != nil {
			return nil, errUnknownPlace
		}
	}
	list, err := u.pending(r.Context(), t, after, pageRows, s)
	if err != nil {
		return nil, err
	}
	if text != "" {
		list.First = list.All
	}
	return &view{template: "pending", Title: "Pending messages of " + t.name, Data: &pendingData{u.typeRow(t), list}}, nil
}

// messageData is the data of a message's page: pending, dead or in a file.
type messageData struct {
	Row            typeRow
	Kind           string
	Name           string
	Facts          []fact
	Wrong          string
	Headers        []header
	Payload        *payloadView
	Previous, Next string
	Back, BackName string
	Acts           actLinks
}

func (u *UI) pendingMessagePage(r *http.Request, s *snapshot) (*view, error) {
	t, err := typeOf(r, s)
	if err != nil {
		return nil, err
	}
	m, err := u.pendingMessage(r)
	if err != nil {
		return nil, err
	}
	d := &messageData{Row: u.typeRow(t), Kind: "Pending message", Name: m.ID.String(), Wrong: m.Unfit(), Back: u.link("types", t.name, "pending"), BackName: "All pending messages of " + t.name,
		Facts: []fact{{Name: "published", Value: date(m.ID.Time())}, {Name: "pending for", Value: span(max(s.now.Sub(m.ID.Time()), 0))},
			{Name: "producer", Value: fmt.Sprintf("%016x", m.ID.Producer())}, {Name: "number", Value: count(m.ID.N())}}, Headers: u.headersOf(m.Headers)}
	if u.readOnly(r) == "" {
		d.Acts = actLinks{u.actLink("Remove it…", "purge", "type", t.name, "id", m.ID.String())}
	}
	if !m.Incomplete {
		d.Payload, err = u.payload(r, m.Payload, u.link("types", t.name, "pending", m.ID.String(), "payload"))
	}
	return &view{template: "message", Title: "Message " + d.Name, Data: d}, err
}

// named returns the message whose ID an address names. list returns the messages after an ID; gone is the text of the page if it is not there.
func named[M any](r *http.Request, list func(ctx context.Context, typ string, after queue.ID, limit queue.Limit) ([]M, error), idOf func(M) queue.ID, gone string) (m M, err error) {
	id, err := queue.ParseID(r.PathValue("id"))
	if err != nil {
		return m, badRequest("%s is not a message ID.", r.PathValue("id"))
	}
	found, err := list(r.Context(), r.PathValue("type"), id.Prev(), queue.Limit{Messages: 1})
	switch {
	case err != nil:
		return m, err
	case len(found) == 0 || idOf(found[0]) != id:
		return m, notFound(gone, id)
	}
	return found[0], nil
}

func (u *UI) pendingMessage(r *http.Request) (queue.Message, error) {
	return named(r, u.o.Backend.Queue.Fetch, func(m queue.Message) queue.ID { return m.ID },
		"No message %s is pending. A worker may have appended it in the meantime: look for its ID among the records of the file.")
}

func (u *UI) pendingPayload(w http.ResponseWriter, r *http.Request) {
	u.download(w, r, "payload-"+fileSafe(r.PathValue("id")), func(r *http.Request) ([]byte, error) {
		m, err := u.pendingMessage(r)
		return m.Payload, err
	})
}

func (u *UI) letter(r *http.Request) (queue.DeadLetter, error) {
	return named(r, u.o.Backend.Queue.DeadLetters, func(l queue.DeadLetter) queue.ID { return l.ID },
		"There is no dead letter %s. It may have been requeued or removed in the meantime.")
}

func (u *UI) letterPage(r *http.Request, s *snapshot) (*view, error) {
	l, err := u.letter(r)
	if err != nil {
		return nil, err
	}
	row := typeRow{Name: l.Type, Link: u.typeLink(l.Type).Link}
	if t := s.typ(l.Type); t != nil {
		row = u.typeRow(t)
	}
	d := &messageData{Row: row, Kind: "Dead letter", Name: l.ID.String(), Back: withQuery(u.link("dead"), "type", l.Type), BackName: "All dead letters of " + l.Type,
		Facts: []fact{{Name: "reason", Value: l.Reason}, {Name: "died", Value: date(l.Time)}, {Name: "attempts", Value: count(l.Attempts)}, {Name: "given up by", Value: cmp.Or(l.Worker, "–")},
			{Name: "published", Value: date(l.ID.Time())}}, Headers: u.headersOf(l.Headers)}
	if u.readOnly(r) == "" {
		d.Acts = actLinks{u.actLink("Requeue it…", "requeue", "type", l.Type, "id", l.ID.String()), u.actLink("Remove it…", "remove-letters", "type", l.Type, "id", l.ID.String())}
	}
	if l.Damaged != "" {
		d.Wrong = "damaged: " + l.Damaged
	}
	if l.Incomplete {
		d.Wrong = strings.TrimPrefix(d.Wrong+"; its payload cannot be read: "+l.Why, "; ")
		return &view{template: "message", Title: "Dead letter " + d.Name, Data: d}, nil
	}
	d.Payload, err = u.payload(r, l.Payload, u.link("dead", l.Type, l.ID.String(), "payload"))
	return &view{template: "message", Title: "Dead letter " + d.Name, Data: d}, err
}

func (u *UI) letterPayload(w http.ResponseWriter, r *http.Request) {
	u.download(w, r, "payload-"+fileSafe(r.PathValue("id")), func(r *http.Request) ([]byte, error) {
		l, err := u.letter(r)
		return l.Payload, err
	})
}

// headersOf returns headers, sorted. Values are hidden if payloads are.
func (u *UI) headersOf(m map[string]string) []header {
	var all []header
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, header{k, u.headerValue(m[k])})
	}
	return all
}

func (u *UI) headerValue(v string) string {
	if u.o.HidePayloads {
		return "hidden, " + size(int64(len(v)))
	}
	if len(v) > 2000 {
		return printable.Text(v[:2000]) + " … " + size(int64(len(v)))
	}
	return printable.Text(v)
}

// fileSafe returns a text for use in a file name.
func fileSafe(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s[:min(len(s), 40)])
}

// indexOf reads the index in an address.
func indexOf(r *http.Request) (uint64, error) {
	i, err := strconv.ParseUint(r.PathValue("index"), 10, 64)
	if err != nil {
		return 0, badRequest("%s is not the index of a record.", r.PathValue("index"))
	}
	return i, nil
}

// searchTime bounds the search for a record on one page; the next page continues from there.
const searchTime = 3 * time.Second
