package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/chain"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

// recordRow is a record in a list, or the damage in its place.
type recordRow struct {
	Index, Link, Time, ID, Epoch, Size, Preview string
	Kind                                        string // set if it is not an ordinary message
	Damage                                      string
	Unsettled                                   bool // the registry does not know it yet
}

// recordList is a part of the list of records.
type recordList struct {
	rows []recordRow
	next uint64 // the index to continue with
	end  bool   // there are no more records
}

// each calls do with the records from an index on, or with an error in place of damaged ones, until do returns false. end: there are no
// more records.
func (u *UI) each(ctx context.Context, f files, index uint64, do func(*storage.Record, error) bool) (end bool, err error) {
	r, err := chain.Open(f.Chain, storage.ReaderOptions{FS: u.o.Files.FS(ctx), From: index})
	if err != nil {
		return false, err
	}
	defer r.Close()
	last := ""
	for {
		rec, err := r.Next()
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil && (!errors.Is(err, storage.ErrIntegrity) || err.Error() == last): // the same error twice: the reader cannot continue
			return false, err
		case err != nil:
			last = err.Error()
			if !do(nil, err) {
				return false, nil
			}
		default:
			if !do(&rec, nil) {
				return false, nil
			}
		}
	}
}

// readRecords reads a part of the list.
func (u *UI) readRecords(ctx context.Context, f files, index uint64, most int, t *typeState) (page recordList, err error) {
	page.next = index
	read := int64(0)
	page.end, err = u.each(ctx, f, index, func(rec *storage.Record, wrong error) bool {
		if len(page.rows) == most || read > pageLimit.Bytes {
			return false
		}
		if wrong != nil {
			page.rows = append(page.rows, recordRow{Damage: u.clean(wrong)})
			return true
		}
		read += int64(len(rec.Payload))
		page.next = rec.Index + 1
		page.rows = append(page.rows, u.recordRow(rec, t))
		return true
	})
	return page, err
}

func (u *UI) recordRow(rec *storage.Record, t *typeState) recordRow {
	row := recordRow{Index: count(rec.Index), Link: u.link("types", t.name, "records", strconv.FormatUint(rec.Index, 10)), Time: date(rec.When()), ID: cli.IDText(rec.ID), Epoch: strconv.FormatUint(rec.Epoch, 10),
		Size: size(int64(len(rec.Payload))), Kind: kindText(rec.Kind), Unsettled: t.file.known && rec.Index >= t.file.DurableIndex}
	if !u.o.HidePayloads || !rec.Kind.IsMessage() {
		row.Preview = preview(rec.Payload)
	}
	return row
}

func kindText(k storage.Kind) string {
	switch k {
	case storage.KindSkipped:
		return "put aside (dead letter)"
	case storage.KindAfterGap:
		return "after a declared gap"
	case storage.KindLost:
		return "lost"
	}
	return ""
}

type recordsData struct {
	Row                   typeRow
	Action, At            string
	Missing, Trouble      string
	Rows                  []recordRow
	First, Previous, Next string
	Newest                string
	Found                 string
	GoOn                  string // link that continues a search
	Hidden                bool
	Range                 string
}

// recordsPage shows records, beginning at an index, an ID or a time.
func (u *UI) recordsPage(r *http.Request, s *snapshot) (*view, error) {
	t, err := typeOf(r, s)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	d := &recordsData{Row: u.typeRow(t), Action: u.link("types", t.name, "records"), At: strings.TrimSpace(q.Get("at")), Hidden: u.o.HidePayloads}
	ctx, cancel := u.reachFiles(r.Context())
	defer cancel()
	v := &view{template: "records", Title: "Records of " + t.name, Data: d}
	f, missing := u.chain(ctx, t)
	if d.Missing = missing; missing != "" {
		return v, nil
	}
	link := func(index uint64) string {
		return withQuery(d.Action, "at", strconv.FormatUint(index, 10))
	}
	d.First, d.Newest = link(f.Chain[0].First), d.Action
	end := f.next
	index := end - min(end, pageRows)
	if d.At != "" {
		if index, err = u.find(ctx, d, f, q.Get("from")); err != nil {
			return nil, err
		}
		if d.GoOn != "" || d.Trouble != "" {
			return v, nil
		}
	}
	index = max(index, f.Chain[0].First)
	page, err := u.readRecords(ctx, f, index, pageRows, t)
	if err != nil {
		d.Trouble = u.clean(err)
	}
	d.Rows = page.rows
	if n := len(page.rows); n > 0 {
		d.Range = fmt.Sprintf("%s to %s of %s", count(index), count(max(page.next, 1)-1), count(end))
	}
	if index > f.Chain[0].First {
		d.Previous = link(max(index-min(index, pageRows), f.Chain[0].First))
	}
	if !page.end && page.next > index {
		d.Next = link(page.next)
	}
	return v, nil
}

// placeOf is cli.ParsePlace that also accepts an index with commas, as the pages print it.
func placeOf(text string) (cli.Place, bool) {
	if p, ok := cli.ParsePlace(strings.ReplaceAll(text, ",", "")); ok && p.IsIndex && len(text) < queue.IDLen {
		return p, true
	}
	return cli.ParsePlace(text)
}

// find returns the index of the record that d.At names: by index, by ID, or the first at or after a time. It searches for searchTime, and
// then sets d.GoOn.
func (u *UI) find(ctx context.Context, d *recordsData, f files, from string) (uint64, error) {
	at, ok := placeOf(d.At)
	switch {
	case ok && at.IsIndex:
		if at.Index >= f.next {
			d.Trouble = fmt.Sprintf("There is no record %s yet: the file ends at %s.", count(at.Index), count(f.next))
		}
		return at.Index, nil
	case !ok:
		return 0, badRequest("%q is not an index, an ID or a time. Write it as in 1234, as the 32 characters of an ID, as 2026-01-31T15:04:05Z, or as 90m for the last 90 minutes.", d.At)
	}
	start, err := strconv.ParseUint(from, 10, 64)
	if err != nil {
		start = f.Chain[0].First
	}
	until := time.Now().Add(searchTime)
	found, hit, last := uint64(0), false, start
	end, err := u.each(ctx, f, start, func(rec *storage.Record, wrong error) bool {
		if wrong != nil {
			return true
		}
		last = rec.Index + 1
		hit = at.IDs != nil && slices.Contains(at.IDs, string(rec.ID)) || at.IDs == nil && !rec.When().Before(at.Since)
		found = rec.Index
		return !hit && time.Now().Before(until)
	})
	switch {
	case err != nil:
		d.Trouble = u.clean(err)
	case hit && at.IDs != nil:
		d.Found = fmt.Sprintf("The message with this ID is record %s.", count(found))
	case hit:
		d.Found = fmt.Sprintf("Record %s is the first at %s or later.", count(found), date(at.Since))
	case end && at.IDs != nil:
		d.Trouble = "No record has this ID. The message may still be pending, or be a dead letter."
	case end:
		d.Trouble = fmt.Sprintf("All records are from before %s.", date(at.Since))
	default:
		d.GoOn = withQuery(d.Action, "at", d.At, "from", strconv.FormatUint(last, 10))
		d.Found = fmt.Sprintf("Not among the records up to %s.", count(last-min(last, 1)))
	}
	return found, nil
}

// record returns a copy of the record with an index.
func (u *UI) record(ctx context.Context, f files, index uint64) (rec *storage.Record, err error) {
	var wrong error
	_, err = u.each(ctx, f, index, func(r *storage.Record, e error) bool {
		if wrong = e; e == nil && r.Index == index {
			c := *r
			c.Payload, c.ID, c.Headers = slices.Clone(r.Payload), slices.Clone(r.ID), slices.Clone(r.Headers)
			rec = &c
		}
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case rec != nil:
		return rec, nil
	case wrong != nil:
		return nil, &pageError{http.StatusNotFound, "Record " + count(index) + " cannot be read: " + u.clean(wrong)}
	}
	return nil, notFound("There is no record %s in the files that are here.", count(index))
}

// recordOf returns the record that an address names, and the files that contain it.
func (u *UI) recordOf(r *http.Request, s *snapshot) (t *typeState, f files, rec *storage.Record, err error) {
	if t, err = typeOf(r, s); err != nil {
		return t, f, nil, err
	}
	index, err := indexOf(r)
	if err != nil {
		return t, f, nil, err
	}
	ctx, cancel := u.reachFiles(r.Context())
	defer cancel()
	f, missing := u.chain(ctx, t)
	if missing != "" {
		return t, f, nil, notFound("%s", missing)
	}
	rec, err = u.record(ctx, f, index)
	return t, f, rec, err
}

func (u *UI) recordPage(r *http.Request, s *snapshot) (*view, error) {
	t, f, rec, err := u.recordOf(r, s)
	if err != nil {
		return nil, err
	}
	index := rec.Index
	d := &messageData{Row: u.typeRow(t), Kind: "Record", Name: count(index), Back: withQuery(u.link("types", t.name, "records"), "at", strconv.FormatUint(index, 10)), BackName: "Records from here on",
		Facts: []fact{{Name: "ID", Value: cli.IDText(rec.ID)}, {Name: "published", Value: date(rec.When())}, {Name: "epoch of its writer", Value: strconv.FormatUint(rec.Epoch, 10)}}}
	if k := kindText(rec.Kind); k != "" {
		d.Facts = append(d.Facts, fact{Name: "kind", Value: k})
	}
	if t.file.known {
		state := "yes"
		if index >= t.file.DurableIndex {
			state = "not yet: its writer may be about to"
		}
		d.Facts = append(d.Facts, fact{Name: "acknowledged", Value: state})
	}
	for _, h := range rec.Headers {
		d.Headers = append(d.Headers, header{h.Key, u.headerValue(h.Value)})
	}
	if index > f.Chain[0].First {
		d.Previous = u.link("types", t.name, "records", strconv.FormatUint(index-1, 10))
	}
	if index+1 < f.next {
		d.Next = u.link("types", t.name, "records", strconv.FormatUint(index+1, 10))
	}
	d.Payload, err = u.payload(r, rec.Payload, u.link("types", t.name, "records", strconv.FormatUint(index, 10), "payload"))
	return &view{template: "message", Title: fmt.Sprintf("Record %s of %s", count(index), t.name), Data: d}, err
}

func (u *UI) recordPayload(w http.ResponseWriter, r *http.Request) {
	u.download(w, r, "payload-"+fileSafe(r.PathValue("index")), func(r *http.Request) ([]byte, error) {
		s, _, failed := u.watch.current(r.Context())
		if s == nil {
			return nil, failed
		}
		_, _, rec, err := u.recordOf(r, s)
		if err != nil {
			return nil, err
		}
		return rec.Payload, nil
	})
}
