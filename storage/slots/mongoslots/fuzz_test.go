package mongoslots

import (
	"bytes"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

// FuzzDecodeValue: documents of slots. A value has the length that its document states, and a listing has only valid names.
func FuzzDecodeValue(f *testing.F) {
	id := bson.E{Key: "_id", Value: "orders/generations/00000001"}
	for _, doc := range []bson.D{{id, {Key: "n", Value: int64(3)}, {Key: "b", Value: bson.Binary{Data: []byte("abc")}}}, {id, {Key: "n", Value: int64(4)}, {Key: "b", Value: bson.Binary{Data: []byte("abc")}}},
		{id, {Key: "n", Value: int64(-1)}}, {id, {Key: "n", Value: int32(3)}, {Key: "b", Value: "abc"}}, {{Key: "_id", Value: "orders/../x"}, {Key: "n", Value: int64(0)}, {Key: "b", Value: bson.Binary{Subtype: 2}}},
		{{Key: "_id", Value: 7}}, {}} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		data, ok := decodeValue(raw)
		if n, isLong := bson.Raw(raw).Lookup("n").Int64OK(); ok && (!isLong || int64(len(data)) != n || !bytes.Contains(raw, data)) {
			t.Fatalf("%d bytes of %x", len(data), raw)
		}
		e, ok := decodeEntry(raw, "orders/")
		if rest := strings.TrimPrefix(e.Name, "orders/"); ok && (!slotname.Valid(e.Name) || strings.Contains(rest, "/") || strings.Contains(e.Name, "..")) {
			if part := strings.Split(e.Name, "/"); len(part) > 2 || !slotname.Valid(e.Name) {
				t.Fatalf("listed %+v", e)
			}
		}
	})
}
