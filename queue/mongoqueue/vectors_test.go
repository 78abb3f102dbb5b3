package mongoqueue

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// vectors are those of docs/protocol.md, which the tests of clients in other languages also read.
type vectors struct {
	IDs []struct {
		TimeMS   int64 `json:"time_ms"`
		Producer string
		N        uint64
		ID       string
	}
	NotIDs         []string            `json:"not_ids"`
	ValidTypes     []string            `json:"valid_types"`
	InvalidTypes   []string            `json:"invalid_types"`
	InvalidHeaders []map[string]string `json:"invalid_headers"`
	Messages       []vectorMessage
	Delayed        []vectorMessage
	Settings       []struct {
		Document      json.RawMessage
		PublishPaused bool `json:"publish_paused"`
		MaxBacklog    int  `json:"max_backlog"`
	}
	BacklogQuery struct{ Type, Greater, Less, Regex string } `json:"backlog_query"`
	Refusals     struct {
		NotPermitted []int `json:"not_permitted"`
		Unsupported  []int
		Unclear      []int
	}
	Notifications struct {
		Documents []string
		Kept      int
		Types     []string
		Update    json.RawMessage
	}
	Limits map[string]int
}

type vectorMessage struct {
	Name    string
	Type    string
	ID      string
	DueMS   int64  `json:"due_ms"`
	Payload []byte `json:"payload_base64"`
	Headers map[string]string
	Size    int
	BSON    string `json:"bson_hex"`
}

// message is the vector's message, and its document.
func (v *vectorMessage) message(t *testing.T) (queue.Message, []byte) {
	t.Helper()
	id, err := queue.ParseID(v.ID)
	if err != nil {
		t.Error(err)
	}
	raw, err := hex.DecodeString(v.BSON)
	if err != nil {
		t.Error(err)
	}
	return queue.Message{Type: v.Type, ID: id, Payload: v.Payload, Headers: v.Headers}, raw
}

// This package writes, byte for byte, and reads what docs/protocol.md specifies for the authors of
// clients.
func TestProtocolVectors(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.IDs) < 8 || len(v.Messages) < 8 || len(v.Delayed) < 3 || len(v.Settings) < 6 {
		t.Fatalf("vectors are missing: %+v", v)
	}
	for _, id := range v.IDs {
		producer, err := strconv.ParseUint(id.Producer, 16, 64)
		if err != nil {
			t.Error(err)
		}
		want := queue.NewID(time.UnixMilli(id.TimeMS), producer, id.N)
		if got, err := queue.ParseID(id.ID); got != want || err != nil || want.String() != id.ID {
			t.Errorf("%+v: %v, want %v; %v", id, got, want, err)
		}
	}
	for _, s := range v.NotIDs {
		if _, err := queue.ParseID(s); err == nil {
			t.Errorf("%q is an ID", s)
		}
	}
	for _, m := range v.Messages {
		msg, want := m.message(t)
		got, err := bson.Marshal(documents(m.Type, []queue.Message{msg})[0].body)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: document %x, want %x; %v", m.Name, got, want, err)
		}
		if msg.Size() != m.Size {
			t.Errorf("%s: size %d, want %d", m.Name, msg.Size(), m.Size)
		}
		if read, ok := decodeHead(m.Type, want); !ok || read.Incomplete || read.ID != msg.ID || !bytes.Equal(read.Payload, m.Payload) || len(read.Headers) != len(m.Headers) {
			t.Errorf("%s: it is read as %+v, %v", m.Name, read, ok)
		}
	}
	for _, m := range v.Delayed {
		msg, want := m.message(t)
		msg.Due = time.UnixMilli(m.DueMS)
		d := documents(m.Type, []queue.Message{msg})[0].body
		d[0].Value = slotKey(queue.ScheduleKeyOf(&msg))
		if got, err := bson.Marshal(d); err != nil || !bytes.Equal(got, want) {
			t.Errorf("due at %d: document %x, want %x; %v", m.DueMS, got, want, err)
		}
		if read, ok := decodeDelayed(want); !ok || read.Incomplete || queue.ScheduleKeyOf(&read).Compare(queue.ScheduleKeyOf(&msg)) != 0 {
			t.Errorf("due at %d: it is read as %+v, %v", m.DueMS, read, ok)
		}
	}
	checkVectorSettings(t, &v)
	checkVectorRules(t, &v)
	checkVectorNotifications(t, &v)
}

func checkVectorNotifications(t *testing.T, v *vectors) {
	t.Helper()
	n := v.Notifications
	var want bson.D
	if err := bson.UnmarshalExtJSON(n.Update, false, &want); err != nil {
		t.Fatal(err)
	}
	got, err := bson.MarshalExtJSON(notification(n.Types), false, false)
	if again, _ := bson.MarshalExtJSON(want, false, false); err != nil || !bytes.Equal(got, again) {
		t.Errorf("the update is %s, want %s; %v", got, again, err)
	}
	if len(n.Documents) != notificationLogs || n.Kept != queuedriver.KeptNotifications {
		t.Errorf("%d documents keep %d, want %d and %d", notificationLogs, queuedriver.KeptNotifications, len(n.Documents), n.Kept)
	}
	for i, log := range n.Documents {
		if log != strconv.Itoa(i) {
			t.Errorf("document %d has the _id %q", i, log)
		}
	}
}

func checkVectorSettings(t *testing.T, v *vectors) {
	t.Helper()
	for _, s := range v.Settings {
		var doc bson.D
		if err := bson.UnmarshalExtJSON(s.Document, false, &doc); err != nil {
			t.Error(err)
		}
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Error(err)
		}
		typ, got := decodeSettings(raw)
		if typ != "orders" || got.PublishPaused != s.PublishPaused || got.MaxBacklog != s.MaxBacklog {
			t.Errorf("%s: %+v", s.Document, got)
		}
	}
	q := v.BacklogQuery
	want := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: q.Greater}, {Key: "$lt", Value: q.Less}, {Key: "$regex", Value: bson.Regex{Pattern: q.Regex}}}}}
	if got := messageKeys(q.Type); !reflect.DeepEqual(got, want) {
		t.Errorf("backlog query %v, want %v", got, want)
	}
}

func checkVectorRules(t *testing.T, v *vectors) {
	t.Helper()
	for _, typ := range v.ValidTypes {
		if err := queue.ValidateType(typ); err != nil {
			t.Error(err)
		}
	}
	for _, typ := range v.InvalidTypes {
		if queue.ValidateType(typ) == nil {
			t.Errorf("type %q is valid", typ)
		}
	}
	valid := func(m queue.Message) bool { m.Type = "orders"; return m.Validate() == nil }
	for _, h := range v.InvalidHeaders {
		if valid(queue.Message{Headers: h}) {
			t.Errorf("headers %q are valid", h)
		}
	}
	for code := range 20_000 {
		var want error
		if slices.Contains(v.Refusals.NotPermitted, code) {
			want = queue.ErrPermission
		} else if slices.Contains(v.Refusals.Unsupported, code) {
			want = queue.ErrUnsupported
		}
		if j := judgeCode(code); j.sentinel != want || j.refused != (want != nil) || j.temporary {
			t.Errorf("code %d: %+v, want %v", code, j, want)
		}
	}
	for _, code := range v.Refusals.Unclear {
		if judgeCode(code).refused {
			t.Errorf("code %d is a refusal", code)
		}
	}
	due := time.UnixMilli(1)
	for name, at := range map[string]func(int) queue.Message{
		"payload_bytes": func(n int) queue.Message { return queue.Message{Payload: make([]byte, n)} },
		"headers_bytes": func(n int) queue.Message {
			return queue.Message{Headers: map[string]string{"k": strings.Repeat("v", n-1)}}
		},
		"headers": func(n int) queue.Message { return queue.Message{Headers: manyHeaders(n)} },
		"key_bytes": func(n int) queue.Message {
			return queue.Message{Headers: map[string]string{queue.KeyHeader: strings.Repeat("k", n)}}
		},
		"delayed_headers_bytes": func(n int) queue.Message {
			return queue.Message{Due: due, Headers: map[string]string{"k": strings.Repeat("v", n-1)}}
		},
		"delayed_headers": func(n int) queue.Message { return queue.Message{Due: due, Headers: manyHeaders(n)} },
	} {
		if n := v.Limits[name]; n == 0 || !valid(at(n)) || valid(at(n+1)) {
			t.Errorf("%s: the limit is not %d", name, n)
		}
	}
	for name, want := range map[string]int{"type_characters": queue.MaxTypeLen, "batch_messages": queue.DefaultBatchMessages, "batch_bytes": queue.DefaultBatchBytes,
		"max_backlog": queue.MaxBacklogLimit} {
		if v.Limits[name] != want {
			t.Errorf("%s: %d, want %d", name, v.Limits[name], want)
		}
	}
}

func manyHeaders(n int) map[string]string {
	headers := make(map[string]string, n)
	for i := range n {
		headers[strconv.Itoa(i)] = ""
	}
	return headers
}
