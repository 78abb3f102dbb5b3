package mongoqueue

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
)

const (
	// pieceSize is the largest piece of a payload. A message up to it is one document: a document is limited to 16 MiB with
	// all its fields.
	pieceSize = 8 << 20

	headSeparator  = "/" // between type and ID
	headEnd        = "0" // the character behind it
	pieceSeparator = "#" // between type and ID of a piece
	pieceEnd       = "$" // the character behind it

	typesEnd = "{" // behind all keys that begin as a type does: the character behind z
)

func headKey(typ string, id queue.ID) string { return typ + headSeparator + id.String() }

// pieceKey names the k-th piece, counted from 1. There are fewer than 10.
func pieceKey(typ string, id queue.ID, k int) string {
	return typ + pieceSeparator + id.String() + "+" + string(rune('0'+k))
}

func pieceKeys(typ string, id queue.ID, pieces int) []string {
	keys := make([]string, 0, pieces)
	for k := 1; k <= pieces; k++ {
		keys = append(keys, pieceKey(typ, id, k))
	}
	return keys
}

// document is one document to be inserted, and the message that is stored once it and all before it are.
type document struct {
	key     string
	message int // index in the call
	size    int
	body    bson.D
}

// documents lays messages out as documents. rule: pieces come before their head, so a head means a whole message.
func documents(typ string, msgs []queue.Message) []document {
	docs := make([]document, 0, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		head := document{key: headKey(typ, m.ID), message: i, size: m.Size() + 64}
		if len(m.Payload) <= pieceSize {
			head.body = append(make(bson.D, 0, 3), bson.E{Key: "_id", Value: head.key}, bson.E{Key: "b", Value: bson.Binary{Data: m.Payload}})
		} else {
			k := 0
			for piece := range slices.Chunk(m.Payload, pieceSize) {
				k++
				key := pieceKey(typ, m.ID, k)
				docs = append(docs, document{key: key, message: i, size: len(piece) + 64,
					body: bson.D{{Key: "_id", Value: key}, {Key: "b", Value: bson.Binary{Data: piece}}}})
			}
			head.size -= len(m.Payload)
			head.body = bson.D{{Key: "_id", Value: head.key}, {Key: "p", Value: int32(k)}, {Key: "s", Value: int32(len(m.Payload))}}
		}
		if len(m.Headers) > 0 {
			head.body = append(head.body, bson.E{Key: "h", Value: encodeHeaders(m.Headers)})
		}
		docs = append(docs, head)
	}
	return docs
}

// encodeHeaders sorts by key, so that a repeated document is the same document.
func encodeHeaders(headers map[string]string) any {
	keys := slices.Sorted(maps.Keys(headers))
	if !slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, "$") || strings.Contains(k, ".") }) {
		doc := make(bson.D, 0, len(keys))
		for _, k := range keys {
			doc = append(doc, bson.E{Key: k, Value: headers[k]})
		}
		return doc
	}
	list := make(bson.A, 0, 2*len(keys))
	for _, k := range keys {
		list = append(list, k, headers[k])
	}
	return list
}

// head is a message as it was read, before its pieces are.
type head struct {
	queue.Message
	pieces int
	size   int // of the whole payload
}

// decodeHead reads a document of a type's range. ok is false if its _id is no message ID: not ours, and not pending. What
// a foreign publisher wrote in another form than promised is an incomplete message.
func decodeHead(typ string, raw bson.Raw) (h head, ok bool) {
	var id queue.ID
	h, ok = decodeDocument(raw, func(key string) bool {
		if len(key) != len(typ)+1+queue.IDLen {
			return false
		}
		var err error
		id, err = queue.ParseID(key[len(typ)+1:])
		return err == nil && !id.IsZero()
	})
	h.Type, h.ID = typ, id
	return h, ok
}

// decodeDocument reads a document whose _id isOurs accepts, except for its type and ID.
func decodeDocument(raw bson.Raw, isOurs func(key string) bool) (h head, ok bool) {
	elements, err := raw.Elements()
	if err != nil {
		return h, false
	}
	for _, e := range elements {
		v := e.Value()
		switch e.Key() {
		case "_id":
			key, isString := v.StringValueOK()
			if !isString || !isOurs(key) {
				return h, false
			}
			ok = true
		case "b":
			if _, data, isBinary := v.BinaryOK(); isBinary {
				h.Payload = bytes.Clone(data)
			} else if s, isString := v.StringValueOK(); isString {
				h.Payload = []byte(s)
			} else {
				h.Incomplete = v.Type != bson.TypeNull
			}
		case "p":
			if n, isInt := v.AsInt64OK(); isInt && n > 0 && n < 10 {
				h.pieces = int(n)
			} else {
				h.Incomplete = true
			}
		case "s":
			if n, isInt := v.AsInt64OK(); isInt && n >= 0 && n <= queue.MaxPayload {
				h.size = int(n)
			} else {
				h.Incomplete = true
			}
		case "h":
			if h.Headers, err = decodeHeaders(v); err != nil {
				h.Incomplete = true
			}
		}
	}
	if h.pieces == 0 {
		h.size = len(h.Payload)
	}
	return h, ok
}

func decodeHeaders(v bson.RawValue) (map[string]string, error) {
	headers := map[string]string{}
	if list, ok := v.ArrayOK(); ok {
		values, err := list.Values()
		if err != nil || len(values)%2 != 0 {
			return nil, errHeaders
		}
		for i := 0; i < len(values); i += 2 {
			key, okKey := values[i].StringValueOK()
			value, okValue := values[i+1].StringValueOK()
			if !okKey || !okValue {
				return nil, errHeaders
			}
			headers[key] = value
		}
		return headers, nil
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, errHeaders
	}
	elements, err := doc.Elements()
	if err != nil {
		return nil, errHeaders
	}
	for _, e := range elements {
		value, ok := e.Value().StringValueOK()
		if !ok {
			return nil, errHeaders
		}
		headers[e.Key()] = value
	}
	return headers, nil
}

var errHeaders = errors.New("headers are neither a document nor an array of strings")
