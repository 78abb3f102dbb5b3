package conform

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/worker"
)

// entry is a message in a file.
type entry struct {
	line *line // nil: no line of this test
	id   queue.ID
}

// readFile reads the file of a type, in order.
func readFile(ctx context.Context, dir, typ string, lines []*line, v *violations) (entries []entry, err error) {
	var audit worker.Audit
	report, err := storage.Verify(ctx, filepath.Join(dir, storage.FileName(typ)), storage.VerifyOptions{Visit: func(r storage.Record) error {
		if err := audit.Record(r); err != nil {
			return err
		}
		if r.Kind != storage.KindMessage && r.Kind != storage.KindAfterGap {
			return nil
		}
		e := entry{}
		if len(r.ID) == len(e.id) {
			copy(e.id[:], r.ID)
		}
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = h.Value
		}
		if n, err := strconv.Atoi(headers[lineHeader]); err == nil && n >= 1 && n <= len(lines) && lines[n-1].typ == typ {
			e.line = lines[n-1]
			e.line.compare(r.Payload, headers, v)
		} else {
			v.add("type %s: the message %v in the file was not given to the program", typ, e.id)
		}
		entries = append(entries, e)
		return nil
	}})
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, err
	}
	problems, _ := audit.Problems()
	for _, p := range problems {
		v.add("type %s: %v", typ, p)
	}
	for _, p := range audit.Producers() {
		if !p.Contiguous() {
			v.add("type %s: numbers of the producer %016x are missing: the file has %v", typ, p.Number, p.Ranges)
		}
	}
	return entries, nil
}

// compare checks that a message in the file equals its line.
func (l *line) compare(payload []byte, headers map[string]string, v *violations) {
	want := maps.Clone(l.headers)
	if l.key != "" {
		want[queue.KeyHeader] = l.key
	}
	if !bytes.Equal(payload, l.payload) || !maps.Equal(headers, want) {
		v.add("%v has a different payload or different headers in the file", l)
	}
}

// judgeLines checks the outcomes that the program reported against the files.
func judgeLines(lines []*line, files map[string][]entry, v *violations) {
	places := map[*line][]entry{}
	for typ, entries := range files {
		last := map[int]*line{} // the last confirmed line of each run
		for _, e := range entries {
			l := e.line
			if l == nil {
				continue
			}
			if places[l] = append(places[l], e); l.said != ok {
				continue
			}
			if before := last[l.run]; before != nil && before.n > l.n {
				v.add("type %s: line %d is after line %d in the file; the program was given them in the opposite order", typ, l.n, before.n)
			}
			last[l.run] = l
		}
	}
	keyed := map[string][]*line{} // confirmed lines, by type and key
	for _, l := range lines {
		there := places[l]
		if len(there) > 1 {
			v.add("%v is in the file %d times, as %v and %v; after an unclear response, repeat the same documents under the same IDs", l, len(there), there[0].id, there[1].id)
		}
		switch {
		case l.refuse != "" && l.said != rejected && l.said != nothing:
			v.add("%v was not rejected, although %s", l, l.refuse)
		case l.said == rejected && len(there) > 0:
			v.add("%v was rejected, but is in the file as %v", l, there[0].id)
		case l.said == ok && l.key != "":
			keyed[l.typ+"/"+l.key] = append(keyed[l.typ+"/"+l.key], l)
		case l.said == ok && len(there) == 0:
			v.add("%v was confirmed as %v, but is not in the file", l, l.id)
		}
		if len(there) > 0 && !l.id.IsZero() && there[0].id != l.id {
			v.add("%v is in the file as %v, but the program said %v", l, there[0].id, l.id)
		}
	}
	for _, same := range keyed {
		n := 0
		for _, l := range same {
			n += len(places[l])
		}
		if n != 1 {
			v.add("%d messages with the idempotency key of line %d are in the file, want one of the %d that were confirmed", n, same[0].n, len(same))
		}
	}
}

// totals counts the reported outcomes.
func totals(lines []*line) string {
	var by [rejected + 1]int
	for _, l := range lines {
		by[l.said]++
	}
	return fmt.Sprintf("%d lines: %d ok, %d rejected, %d unknown, %d without an outcome", len(lines), by[ok], by[rejected], by[unknown], by[nothing])
}
