package mongoqueue

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

const (
	headSeparator  = "/" // between type and ID
	headEnd        = "0" // the character after it
	pieceSeparator = "#" // between type and ID of a piece: earlier versions stored large messages in several documents
	pieceEnd       = "$" // the character after it

	typesEnd = "{" // after all keys that begin with a type: the character after z
)

// headKey is the _id of a message or a dead letter.
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

// documents encodes messages, one document each. A message within the limits fits into the 16 MiB of a
// document, see docs/decisions/0307.
func documents(typ string, msgs []queue.Message) []document {
	docs := make([]document, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		key := headKey(typ, m.ID)
		docs[i] = document{key: key, message: i, size: m.Size(),
			body: append(make(bson.D, 0, 3), bson.E{Key: "_id", Value: key}, bson.E{Key: "b", Value: bson.Binary{Data: m.Payload}})}
		if len(m.Headers) > 0 {
			docs[i].body = append(docs[i].body, bson.E{Key: "h", Value: encodeHeaders(m.Headers)})
		}
	}
	return docs
}

// encodeHeaders sorts by key, so that a retry sends the same document.
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

// decodeHead decodes a document in the range of a type. ok is false if its _id is not a message ID: a
// foreign key. A message that is not in the form documented for this package is Incomplete.
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

// decodeDocument decodes a document whose _id isOurs accepts, except for its type and ID.
func decodeDocument(raw bson.Raw, isOurs func(key string) bool) (h queue.Message, ok bool) {
	for e, err := range elements(raw) {
		if err != nil {
			return h, false
		}
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
			// rule: its payload is in other documents, written by an earlier version
			setUnfit(&h, "an earlier version stored it in pieces, which only that version can read: drain it with that one")
		case "h":
			headers, err := decodeHeaders(v)
			if err != nil {
				setUnfit(&h, "%v", err)
			}
			h.Headers = headers
		}
	}
	return h, ok
}

// setUnfit makes a message Incomplete and keeps the first reason.
func setUnfit(m *queue.Message, why string, args ...any) {
	if m.Incomplete = true; m.Why == "" {
		m.Why = fmt.Sprintf(why, args...)
	}
}

// decodeHeaders decodes both forms of headers. The error is the reason why the message is Incomplete.
func decodeHeaders(v bson.RawValue) (map[string]string, error) {
	if list, ok := v.ArrayOK(); ok {
		return decodeHeaderList(bson.Raw(list))
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, fmt.Errorf("the headers (field h) are of the type %v, want embedded document", v.Type)
	}
	if _, err := countHeaders(doc, 1); err != nil {
		return nil, err
	}
	headers := map[string]string{}
	for e := range elements(doc) {
		value, ok := e.Value().StringValueOK()
		if !ok {
			return nil, headerError(e.Key(), e.Value())
		}
		headers[e.Key()] = value
	}
	return headers, nil
}

// decodeHeaderList decodes an array of alternating keys and values.
func decodeHeaderList(list bson.Raw) (map[string]string, error) {
	n, err := countHeaders(list, 2)
	if err != nil {
		return nil, err
	}
	if n%2 != 0 {
		return nil, fmt.Errorf("the headers (field h) are an array of %d elements, want keys and values in turn", n)
	}
	headers := map[string]string{}
	i, key := 0, ""
	for e := range elements(list) {
		text, ok := e.Value().StringValueOK()
		switch i++; {
		case !ok && i%2 == 1:
			return nil, fmt.Errorf("header key %d (in field h) is of the type %v, want string", i/2+1, e.Value().Type)
		case !ok:
			return nil, headerError(key, e.Value())
		case i%2 == 1:
			key = text
		default:
			headers[key] = text
		}
	}
	return headers, nil
}

// countHeaders counts headers with each elements per header. The error says that they are damaged or
// too many.
func countHeaders(headers bson.Raw, each int) (n int, err error) {
	for _, err := range elements(headers) {
		if err != nil {
			return 0, fmt.Errorf("the headers (field h) are damaged: %w", err)
		}
		n++
	}
	// rule: headers are counted before they are decoded
	if why := queuedriver.TooManyHeaders(n / each); why != "" {
		return 0, fmt.Errorf("%s (field h)", why)
	}
	return n, nil
}

// elements iterates over the elements of a document or an array, which have the same encoding. It does
// not collect them, because there may be millions. An error ends the iteration.
func elements(doc bson.Raw) iter.Seq2[bson.RawElement, error] {
	return func(yield func(bson.RawElement, error) bool) {
		size, rest, ok := bsoncore.ReadLength(doc)
		if !ok || int(size) != len(doc) {
			yield(nil, errors.New("its length is wrong"))
			return
		}
		for len(rest) > 1 {
			var e bsoncore.Element
			if e, rest, ok = bsoncore.ReadElement(rest); !ok {
				yield(nil, errors.New("it is cut short"))
				return
			}
			if err := e.Validate(); err != nil {
				yield(nil, err)
				return
			}
			if !yield(bson.RawElement(e), nil) {
				return
			}
		}
	}
}

// headerError is the error for a header whose value is not a string.
func headerError(key string, value bson.RawValue) error {
	return fmt.Errorf("the header %.80q (in field h) is of the type %v, want string", key, value.Type)
}
