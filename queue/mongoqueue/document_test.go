package mongoqueue

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
)

// Documents are read as they were written, whatever the headers.
func TestHeadRoundTrip(t *testing.T) {
	for _, headers := range []map[string]string{nil, {"a": "b"}, {"a.b": "c", "$d": "", "e": "f"}, {"_id": "x", "b": "y", "p": "z"}} {
		m := queue.Message{Type: "orders", Payload: []byte("payload"), Headers: headers}
		m.ID[19] = 1
		raw, err := bson.Marshal(documents("orders", []queue.Message{m})[0].body)
		if err != nil {
			t.Fatal(err)
		}
		h, ok := decodeHead("orders", raw)
		if !ok || h.Incomplete || h.ID != m.ID || !bytes.Equal(h.Payload, m.Payload) || !maps.Equal(h.Headers, headers) {
			t.Errorf("headers %v: got %+v, %v", headers, h, ok)
		}
	}
}

func FuzzSkip(f *testing.F) {
	f.Add("orders/abc")
	f.Add("orders#abc")
	f.Add("\U0010ffff")
	f.Fuzz(func(t *testing.T, key string) {
		typ, next, _ := skip(key)
		if typ != "" && (queue.ValidateType(typ) != nil || !strings.HasPrefix(key, typ+"/")) {
			t.Errorf("skip(%q) found type %q", key, typ)
		}
		if next < key {
			t.Errorf("skip(%q) goes back to %q", key, next)
		}
	})
}
