package sqlitequeue

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Rows that other programs have written: a decoder may refuse them, and says which column is wrong. A row that it accepts, encoded again,
// decodes to the same value.

// FuzzDecodeHeaders: the columns id and headers of messages, dead letters and delayed messages.
func FuzzDecodeHeaders(f *testing.F) {
	id := queue.NewID(time.UnixMilli(1_700_000_000_000), 9, 1)
	many := `{"a":"b"`
	for i := range queue.MaxHeaderCount {
		many += fmt.Sprintf(`,"%d":""`, i)
	}
	many += `}`
	for _, headers := range []string{`{"a":"b","c.d":"","$e":"\u0001"}`, `{"fencepost-loose":"1"}`, `{}`, `null`, `["k","v"]`, `{"k":7}`, `{"k":null}`, `{"k":{"l":[1,2]}}`, "k=v", `{"a":"b"`,
		many, many[:len(many)-9], tooLong + "999999", "{\"a\":\"\xff\"}"} {
		f.Add(id[:], headers)
	}
	f.Add([]byte("short"), `{}`)
	f.Fuzz(func(t *testing.T, id []byte, headers string) {
		m := queue.Message{Type: "orders", Payload: []byte("x")}
		if err := decode(&m, id, &headers); err != nil {
			if len(id) == len(m.ID) || !strings.Contains(err.Error(), "orders") {
				t.Fatalf("ID %x, headers %q: %v", id, headers, err)
			}
			return
		}
		switch {
		case len(id) != len(m.ID) || string(m.ID[:]) != string(id):
			t.Fatalf("ID %x became %v", id, m.ID)
		case m.Incomplete && (!strings.Contains(m.Why, "column headers") || m.Payload != nil || m.Headers != nil):
			t.Fatalf("headers %q: %+v", headers, m)
		case m.Incomplete:
			return
		case m.Why != "" || len(m.Headers) > queue.MaxHeaderCount:
			t.Fatalf("%d headers of %q, %q", len(m.Headers), headers, m.Why)
		}
		again := queue.Message{Type: "orders"}
		var column *string
		text, err := encodeHeaders(m.Headers)
		if s, ok := text.(string); ok {
			column = &s
		}
		if err = errors.Join(err, decode(&again, id, column)); err != nil || again.Incomplete || !maps.Equal(again.Headers, m.Headers) {
			t.Fatalf("%q became %+v, and then %+v, %v", headers, m, again, err)
		}
	})
}

// FuzzDecodeMember: the column member of members.
func FuzzDecodeMember(f *testing.F) {
	b, err := encodeMember(queue.Member{Host: "h", PID: 4711, Version: "v1", Started: time.UnixMilli(1_700_000_000_000), Types: []string{"a", "b-*"}, MaxTypes: 3,
		Held: []string{"a"}, Stopping: true, Errors: map[string]string{"a.b": "why"}, Beat: 9})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{string(b), `{"host":"h","stopping":true,"max_types":3,"idle":["a"],"leaving":["b"],"version":"v","beat":7,"pid":8}`, `{}`, `null`, `{"types":"a"}`, `{"pid":1e300}`, `{"errors":{"a":null}}`, `{"started":-9223372036854775808}`, `{"HELD":["\ud800"]}`} {
		f.Add([]byte(s), int64(1_700_000_000_000))
	}
	f.Fuzz(func(t *testing.T, member []byte, seen int64) {
		m, ok := decodeMember("w1", member, seen)
		if !ok {
			return
		}
		b, err := encodeMember(m)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", m, err)
		}
		if again, ok := decodeMember("w1", b, m.Seen.UnixMilli()); !ok || m.Instance != "w1" || len(again.Errors) != len(m.Errors) || !maps.Equal(again.Errors, m.Errors) {
			t.Fatalf("%s became %+v, and then %+v", member, m, again)
		} else if again.Errors = m.Errors; !reflect.DeepEqual(again, m) {
			t.Fatalf("%s became %+v, and then %+v", member, m, again)
		}
	})
}

// FuzzForeignKey: keys that operators enter. An accepted key is written as it was read, and does not belong to a message if isForeign says
// so.
func FuzzForeignKey(f *testing.F) {
	for _, key := range []string{"x'00ff'", "x''", "x'0'", "X'00'", "x'00FF'", "00", "x'" + strings.Repeat("00", 20) + "'", "x'" + strings.Repeat("01", 20) + "'"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		id, ok := parseForeignKey(key)
		if ok && (foreignKey(id) != key || len(key) != 2*len(id)+3) {
			t.Fatalf("%q is %x, which is %q", key, id, foreignKey(id))
		}
		if back, ok := parseForeignKey(foreignKey([]byte(key))); !ok || string(back) != key {
			t.Fatalf("%x became %x, %v", key, back, ok)
		}
		if m := (queue.Message{}); ok && !isForeign(id) && (copy(m.ID[:], id) != len(m.ID) || m.ID.IsZero()) {
			t.Fatalf("%q is a message's key", key)
		}
	})
}
