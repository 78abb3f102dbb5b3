package conform

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongowire"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
)

var (
	start = time.UnixMilli(1_700_000_000_000)
	body  = sha256.Sum256([]byte("a document"))
)

func key(producer, n uint64) string { return "t/" + queue.NewID(start, producer, n).String() }

func insertOf(keys ...string) *insertion {
	in := &insertion{keys: keys}
	for range keys {
		in.sums = append(in.sums, body)
	}
	return in
}

// Each rule about the traffic, with violations and with valid traffic.
func TestTrafficIsJudged(t *testing.T) {
	a1, a2, a3, b1 := key(1, 1), key(1, 2), key(1, 3), key(2, 1)
	for name, tc := range map[string]struct {
		play func(r *record)
		want string // "": no violation
	}{
		"in order, confirmed": {func(r *record) {
			r.insert(insertOf(a1, a2), start)
			r.stored([]string{a1, a2}, start)
			r.insert(insertOf(a3), start)
		}, ""},
		"repeated, with the rest behind it": {func(r *record) { r.insert(insertOf(a1, a2), start); r.insert(insertOf(a1, a2, a3), start) }, ""},
		"not confirmed":                     {func(r *record) { r.insert(insertOf(a1), start); r.insert(insertOf(a2), start) }, "before the server had confirmed"},
		"confirmed in part": {func(r *record) {
			r.insert(insertOf(a1, a2), start)
			r.stored([]string{a1}, start)
			r.insert(insertOf(a3), start)
		}, "before the server had confirmed"},
		"behind, in the same insert": {func(r *record) { r.insert(insertOf(a1), start); r.insert(insertOf(a2, a1), start) }, "before the server had confirmed"},
		"a gap":                      {func(r *record) { r.insert(insertOf(a1, a3), start) }, "without a gap"},
		"does not begin with 1":      {func(r *record) { r.insert(insertOf(a2), start) }, "without a gap"},
		"time goes back": {func(r *record) {
			r.insert(insertOf(a1, "t/"+queue.NewID(start.Add(-time.Millisecond), 1, 2).String()), start)
		}, "is before that of"},
		"other bytes": {func(r *record) {
			in := insertOf(a1)
			in.sums[0][0]++
			r.insert(insertOf(a1), start)
			r.insert(in, start)
		}, "the same bytes"},
		"unordered": {func(r *record) { in := insertOf(a1); in.unordered = true; r.insert(in, start) }, "insert in order"},
		"relaxed":   {func(r *record) { in := insertOf(a1); in.relaxed = "{}"; r.insert(in, start) }, "majority"},
		"retryable": {func(r *record) { in := insertOf(a1); in.retryable = true; r.insert(in, start) }, "retryWrites=false"},
		"no ID":     {func(r *record) { r.insert(insertOf("t/x"), start) }, "with an ID"},
		"number 0":  {func(r *record) { r.insert(insertOf(key(1, 0)), start) }, "with an ID"},
		"no type":   {func(r *record) { r.insert(insertOf("T"+a1[1:]), start) }, "with an ID"},
		"a new number at once": {func(r *record) {
			r.insert(insertOf(a1), start)
			r.stored([]string{a1}, start)
			r.insert(insertOf(b1), start.Add(numberPause-time.Second))
		}, "new producer number"},
		"a new number later": {func(r *record) {
			r.insert(insertOf(a1), start)
			r.stored([]string{a1}, start)
			r.insert(insertOf(b1), start.Add(numberPause))
		}, ""},
		"a new number when nothing is stored": {func(r *record) { r.insert(insertOf(a1), start); r.insert(insertOf(b1), start) }, ""},
		"a new number of the next run": {func(r *record) {
			r.insert(insertOf(a1), start)
			r.stored([]string{a1}, start)
			r.began()
			r.insert(insertOf(b1), start)
		}, ""},
	} {
		r := newRecord(&violations{})
		r.began()
		tc.play(r)
		expect(t, name, r.violations, tc.want)
	}
}

func expect(t *testing.T, name string, v *violations, want string) {
	t.Helper()
	texts, _ := v.all()
	if want == "" && len(texts) > 0 || want != "" && !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, want) }) {
		t.Errorf("%s: %q, want %q", name, texts, want)
	}
}

// Each rule about the files.
func TestFilesAreJudged(t *testing.T) {
	id := func(n uint64) queue.ID { return queue.NewID(start, 1, n) }
	one, two := line{n: 1, run: 1, typ: "t", said: ok, id: id(1)}, line{n: 2, run: 1, typ: "t", said: ok, id: id(2)}
	saying := func(l line, s status) line { l.said = s; return l }
	keyed := func(l line) line { l.key = "k"; return l }
	type place struct {
		line int
		id   uint64
	}
	for name, tc := range map[string]struct {
		lines []line
		file  []place
		want  string
	}{
		"as it should be":            {[]line{one, two}, []place{{1, 1}, {2, 2}}, ""},
		"missing":                    {[]line{one, two}, []place{{1, 1}}, "line 2 (type t, run 1) was confirmed"},
		"twice":                      {[]line{one, two}, []place{{1, 1}, {2, 2}, {2, 3}}, "is in the file 2 times"},
		"order":                      {[]line{one, two}, []place{{2, 2}, {1, 1}}, "in the opposite order"},
		"order of two runs":          {[]line{one, {n: 2, run: 2, typ: "t", said: ok, id: id(2)}}, []place{{2, 2}, {1, 1}}, ""},
		"another ID":                 {[]line{one}, []place{{1, 7}}, "the program said"},
		"rejected, and there":        {[]line{saying(one, rejected)}, []place{{1, 1}}, "was rejected, but is in the file"},
		"rejected":                   {[]line{saying(one, rejected)}, nil, ""},
		"unknown, and there":         {[]line{saying(one, unknown)}, []place{{1, 1}}, ""},
		"unknown, and not":           {[]line{saying(one, unknown)}, nil, ""},
		"unknown, under another ID":  {[]line{saying(one, unknown)}, []place{{1, 2}}, "the program said"},
		"without an answer, twice":   {[]line{{n: 1, typ: "t"}}, []place{{1, 1}, {1, 2}}, "is in the file 2 times"},
		"not rejected":               {[]line{{n: 1, typ: "t", said: ok, id: id(1), refuse: "it is too large"}}, []place{{1, 1}}, "was not rejected, although it is too large"},
		"one of two with a key":      {[]line{keyed(one), keyed(two)}, []place{{1, 1}}, ""},
		"none of two with a key":     {[]line{keyed(one), keyed(two)}, nil, "0 messages with the idempotency key"},
		"both of two with one key":   {[]line{keyed(one), keyed(two)}, []place{{1, 1}, {2, 2}}, "2 messages with the idempotency key"},
		"one with a key of its type": {[]line{keyed(one), {n: 2, run: 1, typ: "u", said: ok, key: "k"}}, []place{{1, 1}}, "0 messages with the idempotency key"},
	} {
		v := &violations{}
		var lines []*line
		for i := range tc.lines {
			lines = append(lines, &tc.lines[i])
		}
		var file []entry
		for _, p := range tc.file {
			file = append(file, entry{lines[p.line-1], id(p.id)})
		}
		judgeLines(lines, map[string][]entry{"t": file}, v)
		expect(t, name, v, tc.want)
	}
	v := &violations{}
	l := line{n: 1, headers: map[string]string{"line": "1"}, payload: []byte("x"), key: "k"}
	l.compare([]byte("x"), map[string]string{"line": "1", queue.KeyHeader: "k"}, v)
	expect(t, "the same", v, "")
	l.compare([]byte("x"), map[string]string{"line": "1"}, v)
	expect(t, "no key", v, "different headers")
}

func TestAnswersAreParsed(t *testing.T) {
	id := queue.NewID(start, 1, 1)
	for text, want := range map[string]answer{
		"ok 7 " + id.String():           {ok, 7, id},
		"unknown 7 " + id.String():      {unknown, 7, id},
		"unknown 7":                     {unknown, 7, queue.ID{}},
		"rejected 7":                    {rejected, 7, queue.ID{}},
		"rejected 7 it is too long ok ": {rejected, 7, queue.ID{}},
	} {
		if got, err := parseAnswer(text); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "ok", "ok 7", "ok x " + id.String(), "ok 7 " + id.String()[1:], "ok 7 " + id.String() + " x", "stored 7 x", "hello world"} {
		if got, err := parseAnswer(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// message builds a message of the wire protocol; documents, if any, are in a section of their own.
func message(t *testing.T, body bson.D, documents ...bson.D) wireMessage {
	t.Helper()
	marshal := func(d bson.D) []byte {
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	m := append(make([]byte, mongowire.HeaderSize+4), 0)
	m = append(m, marshal(body)...)
	if len(documents) > 0 {
		section := []byte("\x00\x00\x00\x00documents\x00")
		for _, d := range documents {
			section = append(section, marshal(d)...)
		}
		binary.LittleEndian.PutUint32(section, uint32(len(section)))
		m = append(append(m, 1), section...)
	}
	binary.LittleEndian.PutUint32(m, uint32(len(m)))
	binary.LittleEndian.PutUint32(m[12:], mongowire.OpMsg)
	return m
}

func TestWireIsRead(t *testing.T) {
	durable := bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}
	docs := []bson.D{{{Key: "_id", Value: "t/1"}}, {{Key: "_id", Value: "t/2"}}}
	command := func(more ...bson.E) bson.D { return append(bson.D{{Key: "insert", Value: "messages"}}, more...) }
	for name, m := range map[string]wireMessage{
		"beside": message(t, command(bson.E{Key: "writeConcern", Value: durable}), docs...),
		"inside": message(t, command(bson.E{Key: "writeConcern", Value: durable}, bson.E{Key: "documents", Value: docs})),
	} {
		in := parseInsert(m)
		if in == nil || !slices.Equal(in.keys, []string{"t/1", "t/2"}) || in.sums[0] == in.sums[1] || in.relaxed != "" || in.unordered || in.retryable {
			t.Fatalf("%s: %+v", name, in)
		}
		for i := range m { // arbitrary bytes
			parseInsert(m[:max(i, mongowire.HeaderSize)])
		}
		for want, reply := range map[int]bson.D{
			2: {{Key: "ok", Value: 1.0}, {Key: "n", Value: 2}},
			1: {{Key: "ok", Value: 1.0}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: codeDuplicateKey}}}}},
			0: {{Key: "ok", Value: 1.0}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 121}}}}},
		} {
			if got := in.stored(message(t, reply)); len(got) != want {
				t.Errorf("%s: %v proves %q, want %d", name, reply, got, want)
			}
		}
		for _, reply := range []bson.D{{{Key: "ok", Value: 0.0}}, {{Key: "ok", Value: 1.0}, {Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}}}}} {
			if got := in.stored(message(t, reply)); len(got) != 0 {
				t.Errorf("%s: %v proves %q", name, reply, got)
			}
		}
	}
	in := parseInsert(message(t, command(bson.E{Key: "ordered", Value: false}, bson.E{Key: "txnNumber", Value: int64(1)}), docs...))
	if in.relaxed == "" || !in.unordered || !in.retryable {
		t.Errorf("%+v", in)
	}
	in = parseInsert(message(t, command(bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}), docs...))
	if in.relaxed == "" {
		t.Error("a write concern without j: true is taken")
	}
	if parseInsert(message(t, bson.D{{Key: "insert", Value: "types"}}, docs...)) != nil {
		t.Error("an insert into types is judged")
	}
	find := func(collection, level string) request {
		return parseRequest(message(t, bson.D{{Key: "find", Value: collection}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: level}}}}))
	}
	if r := find("messages", "majority"); !r.reads || r.asks {
		t.Errorf("%+v", r)
	}
	if r := find("messages", "local"); r.reads {
		t.Error("a read that a failover may undo proves something")
	}
	if r := find("types", "local"); r.reads || !r.asks {
		t.Errorf("%+v", r)
	}
	keys := found(message(t, bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: docs}}}, {Key: "ok", Value: 1.0}}))
	if !slices.Equal(keys, []string{"t/1", "t/2"}) {
		t.Errorf("found %q", keys)
	}
}
