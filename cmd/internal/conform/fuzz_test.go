package conform

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/internal/mongowire"
	"github.com/fencepost/fencepost/queue"
)

// FuzzWire: messages of a publisher and of a server, as the proxy of fencepost conform sees them. It finds in them only what they contain.
func FuzzWire(f *testing.F) {
	message := func(op uint32, flags uint32, kind byte, section []byte) []byte {
		m := binary.LittleEndian.AppendUint32(nil, uint32(mongowire.HeaderSize+5+len(section)))
		m = binary.LittleEndian.AppendUint32(append(m, make([]byte, 8)...), op)
		return append(append(binary.LittleEndian.AppendUint32(m, flags), kind), section...)
	}
	for _, doc := range []bson.D{
		{{Key: "insert", Value: "messages"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "a/1"}}, 7}}, {Key: "ordered", Value: false}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}},
		{{Key: "insert", Value: "messages"}, {Key: "txnNumber", Value: int64(1)}}, {{Key: "find", Value: "messages"}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}},
		{{Key: "ok", Value: 1}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: int64(-5)}, {Key: "code", Value: 11000}}}}},
		{{Key: "ok", Value: 1.0}, {Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{bson.D{{Key: "_id", Value: "a/1"}}}}}}},
	} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message(mongowire.OpMsg, 0, 0, raw))
		f.Add(message(mongowire.OpMsg, 1, 0, raw))
		f.Add(message(mongowire.OpMsg, 0, 1, append(binary.LittleEndian.AppendUint32(nil, uint32(len(raw)+14)), append([]byte("documents\x00"), raw...)...)))
		f.Add(message(mongowire.OpReply, 0, 0, raw)[:20])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := mongowire.Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(m) > len(b) || !bytes.Equal(m, b[:len(m)]) {
			t.Fatalf("%d bytes of %d", len(m), len(b))
		}
		r := parseRequest(m)
		for _, key := range found(m) {
			if !bytes.Contains(m, []byte(key)) {
				t.Fatalf("found %q", key)
			}
		}
		if r.insert == nil {
			return
		}
		if len(r.insert.keys) != len(r.insert.sums) {
			t.Fatalf("%d keys and %d sums", len(r.insert.keys), len(r.insert.sums))
		}
		if stored := r.insert.stored(m); len(stored) > len(r.insert.keys) {
			t.Fatalf("%d of %d are stored", len(stored), len(r.insert.keys))
		}
	})
}

// FuzzAnswer: lines that a publisher under test prints.
func FuzzAnswer(f *testing.F) {
	id := queue.ID{1, 19: 1}.String()
	for _, s := range []string{"ok 7 " + id, "unknown 7", "unknown 7 " + id, "rejected 7 why so", "rejected 7", "ok 7", "ok x " + id, "ok -7 " + id, "", "OK 7 " + id, "ok 7 " + id + " x", "ok 7 x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseAnswer(text)
		if err == nil && (a.status == ok && a.id.IsZero() && !bytes.Contains([]byte(text), []byte(queue.ID{}.String())) || a.status == rejected && !a.id.IsZero()) {
			t.Fatalf("%q is %+v", text, a)
		}
	})
}
