package mongoqueue

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/fencepost/fencepost/queue"
)

const (
	headSeparator  = "/" // between type and ID
	headEnd        = "0" // the character behind it
	pieceSeparator = "#" // between type and ID of a piece: earlier versions stored large messages in several documents
	pieceEnd       = "$" // the character behind it

	typesEnd = "{" // behind all keys that begin as a type does: the character behind z
)

func headKey(typ string, id queue.ID) string { return typ + headSeparator + id.String() }

func headKeys(typ string, ids []queue.ID) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = headKey(typ, id)
	}
	return keys
}

// document is the document of one message.
type document struct {
	key     string
	message int // index in the call
	size    int
	body    bson.D
}

// documents lays messages out as documents, one for each: a document may have 16 MiB, and a message within its limits has less. See
// docs/decisions/0307.
func documents(typ string, msgs []queue.Message) []document {
	docs := make([]document, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		key := headKey(typ, m.ID)
		docs[i] = document{key: key, message: i, size: m.Size() + 64,
			body: append(make(bson.D, 0, 3), bson.E{Key: "_id", Value: key}, bson.E{Key: "b", Value: bson.Binary{Data: m.Payload}})}
		if len(m.Headers) > 0 {
			docs[i].body = append(docs[i].body, bson.E{Key: "h", Value: encodeHeaders(m.Headers)})
		}
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

// decodeHead reads a document of a type's range. ok is false if its _id is no message ID: not ours, and not pending. What
// a foreign publisher wrote in another form than promised is an incomplete message.
func decodeHead(typ string, raw bson.Raw) (h queue.Message, ok bool) {
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
func decodeDocument(raw bson.Raw, isOurs func(key string) bool) (h queue.Message, ok bool) {
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
			} else if v.Type != bson.TypeNull {
				setUnfit(&h, "the payload (field b) is of the type %v, want binary data", v.Type)
			}
		case "p":
			// rule: its payload lies in other documents, where an earlier version has put it
			setUnfit(&h, "an earlier version stored it in pieces, which only that version can read: drain it with that one")
		case "h":
			if h.Headers, err = decodeHeaders(v); err != nil {
				setUnfit(&h, "%v", err)
			}
		}
	}
	return h, ok
}

// setUnfit says of a message that it cannot be decoded, and why.
func setUnfit(m *queue.Message, why string, args ...any) {
	if m.Incomplete = true; m.Why == "" {
		m.Why = fmt.Sprintf(why, args...)
	}
}

func decodeHeaders(v bson.RawValue) (map[string]string, error) {
	headers := map[string]string{}
	if list, ok := v.ArrayOK(); ok {
		values, err := list.Values()
		if err != nil || len(values)%2 != 0 {
			return nil, fmt.Errorf("the headers (field h) are an array of %d elements, want keys and values in turn", len(values))
		}
		for i := 0; i < len(values); i += 2 {
			key, okKey := values[i].StringValueOK()
			value, okValue := values[i+1].StringValueOK()
			if !okKey {
				return nil, fmt.Errorf("header key %d (in field h) is of the type %v, want string", i/2+1, values[i].Type)
			}
			if !okValue {
				return nil, headerError(key, values[i+1])
			}
			headers[key] = value
		}
		return headers, nil
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, fmt.Errorf("the headers (field h) are of the type %v, want embedded document", v.Type)
	}
	elements, err := doc.Elements()
	if err != nil {
		return nil, fmt.Errorf("the headers (field h) are damaged: %w", err)
	}
	for _, e := range elements {
		value, ok := e.Value().StringValueOK()
		if !ok {
			return nil, headerError(e.Key(), e.Value())
		}
		headers[e.Key()] = value
	}
	return headers, nil
}

func headerError(key string, value bson.RawValue) error {
	return fmt.Errorf("the header %.80q (in field h) is of the type %v, want string", key, value.Type)
}
