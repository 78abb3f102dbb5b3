package conform

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/fencepost/fencepost/internal/mongowire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// wireMessage is a message of the wire protocol.
type wireMessage []byte

func (m wireMessage) id() uint32        { return binary.LittleEndian.Uint32(m[4:]) }
func (m wireMessage) answersTo() uint32 { return binary.LittleEndian.Uint32(m[8:]) }
func (m wireMessage) compressed() bool  { return mongowire.Op(m) == mongowire.OpCompressed }

// body returns the command or the reply, and the documents in separate sections; nil if the message has another form.
func (m wireMessage) body() (body bson.Raw, documents []bson.Raw) {
	if mongowire.Op(m) != mongowire.OpMsg || len(m) < mongowire.HeaderSize+4 {
		return nil, nil
	}
	rest := []byte(m[mongowire.HeaderSize+4:])
	if m[mongowire.HeaderSize]&1 != 0 { // a checksum at the end
		rest = rest[:max(len(rest)-4, 0)]
	}
	for len(rest) > 0 {
		kind := rest[0]
		doc, after, ok := section(rest[1:])
		switch {
		case !ok:
			return nil, nil
		case kind == 0:
			body = bson.Raw(doc)
		case kind == 1: // size, name, documents
			inside := doc[4:]
			for len(inside) > 0 && inside[0] != 0 {
				inside = inside[1:]
			}
			for inside = inside[min(1, len(inside)):]; len(inside) > 0; {
				var d []byte
				if d, inside, ok = section(inside); !ok {
					return nil, nil
				}
				documents = append(documents, d)
			}
		}
		rest = after
	}
	return body, documents
}

// section cuts off a section, which begins with its own length.
func section(b []byte) (first, rest []byte, ok bool) {
	n, _, ok := bsoncore.ReadLength(b)
	if !ok || n < 4 || int(n) > len(b) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// parseRequest returns what the proxy must know about a request when its response arrives.
func parseRequest(m wireMessage) request {
	body, _ := m.body()
	find, _ := body.Lookup("find").StringValueOK()
	level, _ := body.Lookup("readConcern", "level").StringValueOK()
	more, _ := body.Lookup("collection").StringValueOK() // of a getMore
	return request{insert: parseInsert(m), reads: find == "messages" && level == "majority" || more == "messages", asks: find == "types"}
}

// succeeded reports whether a reply says that the command was executed.
func succeeded(reply bson.Raw) bool {
	ok, _ := reply.Lookup("ok").AsFloat64OK()
	return ok == 1
}

// insertion is an insert into the collection messages.
type insertion struct {
	keys      []string
	sums      [][sha256.Size]byte
	unordered bool
	relaxed   string // the write concern, if it is not the required one
	retryable bool
}

// parseInsert returns nil if a request is not an insert into messages.
func parseInsert(m wireMessage) *insertion {
	body, documents := m.body()
	name, ok := body.Lookup("insert").StringValueOK()
	if body == nil || !ok || name != "messages" {
		return nil
	}
	if list, ok := body.Lookup("documents").ArrayOK(); ok {
		values, _ := list.Values()
		for _, v := range values {
			d, _ := v.DocumentOK()
			documents = append(documents, d)
		}
	}
	in := &insertion{}
	for _, d := range documents {
		key, _ := d.Lookup("_id").StringValueOK() // "" is reported as an invalid ID later
		in.keys, in.sums = append(in.keys, key), append(in.sums, sha256.Sum256(d))
	}
	if ordered, ok := body.Lookup("ordered").BooleanOK(); ok && !ordered {
		in.unordered = true
	}
	concern := body.Lookup("writeConcern")
	doc, _ := concern.DocumentOK()
	w, _ := doc.Lookup("w").StringValueOK()
	journal, _ := doc.Lookup("j").BooleanOK()
	if w != "majority" || !journal {
		in.relaxed = "none"
		if text, err := bson.MarshalExtJSON(doc, false, false); doc != nil && err == nil {
			in.relaxed = string(text)
		}
	}
	_, err := body.LookupErr("txnNumber")
	in.retryable = err == nil
	return in
}

// stored returns which of the documents a response proves to be stored durably.
func (in *insertion) stored(answer wireMessage) []string {
	reply, _ := answer.body()
	if !succeeded(reply) {
		return nil
	}
	if _, err := reply.LookupErr("writeConcernError"); err == nil {
		return nil
	}
	list, ok := reply.Lookup("writeErrors").ArrayOK()
	if !ok {
		return in.keys
	}
	values, err := list.Values()
	if err != nil || len(values) == 0 {
		return in.keys
	}
	first, _ := values[0].DocumentOK()
	at, _ := first.Lookup("index").AsInt64OK()
	if code, _ := first.Lookup("code").AsInt64OK(); code == codeDuplicateKey {
		at++ // already stored
	}
	return in.keys[:min(max(int(at), 0), len(in.keys))]
}

const codeDuplicateKey = 11000

// found returns the keys of the documents in the response to a find.
func found(answer wireMessage) (keys []string) {
	reply, _ := answer.body()
	cursor, _ := reply.Lookup("cursor").DocumentOK()
	for _, batch := range []string{"firstBatch", "nextBatch"} {
		list, _ := cursor.Lookup(batch).ArrayOK()
		values, _ := list.Values()
		for _, v := range values {
			d, _ := v.DocumentOK()
			if key, ok := d.Lookup("_id").StringValueOK(); ok {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
