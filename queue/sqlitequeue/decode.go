package sqlitequeue

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/queuedriver"
)

// encodeHeaders returns a JSON object, or nil, which is NULL.
func encodeHeaders(headers map[string]string) (any, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(headers)
	return string(b), err
}

// blob returns b as a value that is not NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// maxHeaderText is the greatest length of the headers of a message in JSON, in bytes: each of their
// bytes may take six, as \u0001.
const maxHeaderText = 6*queue.MaxHeaders + 6*queue.MaxHeaderCount + 2

const tooLong = "more: " // prefix of the text that headersColumn reads instead of long headers

// headersColumn reads headers of up to maxHeaderText bytes. Instead of longer ones it reads
// tooLong, which is not JSON, and the length.
var headersColumn = fmt.Sprintf(`CASE WHEN octet_length(headers) > %d THEN '%s' || octet_length(headers) ELSE headers END`, maxHeaderText, tooLong)

// decode completes a message that was read.
func decode(m *queue.Message, id []byte, headers *string) error {
	if copy(m.ID[:], id) != len(m.ID) || len(id) != len(m.ID) {
		return fmt.Errorf("the database holds a message of %s with an ID of %d bytes, want %d: it was not written by Fencepost; remove it", m.Type, len(id), len(m.ID))
	}
	if headers == nil {
		return nil
	}
	// rule: headers are counted before they are decoded
	why := ""
	if n, ok := strings.CutPrefix(*headers, tooLong); ok {
		why = fmt.Sprintf("the headers are a text of %s bytes, those of a message have at most %d", n, maxHeaderText)
	} else if strings.Count(*headers, ",") >= queue.MaxHeaderCount { // it may have too many
		why = queuedriver.TooManyHeaders(countHeaders(*headers))
	}
	if why != "" {
		why += " (column headers)"
	} else if json.Unmarshal([]byte(*headers), &m.Headers) != nil {
		why = whyNoHeaders(*headers)
	}
	if why != "" {
		*m = queue.Message{Type: m.Type, ID: m.ID, Incomplete: true, Why: why}
	}
	return nil
}

// countHeaders counts the members of a JSON object up to the first damage; 0 for anything else.
func countHeaders(headers string) (n int) {
	d := json.NewDecoder(strings.NewReader(headers))
	depth, key := 0, false // key: the next token at depth 1 is one
	for {
		t, err := d.Token()
		if err != nil {
			return n
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth == 1 {
				if t != json.Delim('{') {
					return 0
				}
				key = true
				continue
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 1 {
			if key {
				n++
			}
			key = !key
		}
	}
}

// whyNoHeaders says what is wrong with headers that cannot be decoded.
func whyNoHeaders(headers string) string {
	var value any
	if json.Unmarshal([]byte(headers), &value) != nil {
		return "the headers (column headers) are not JSON, want a JSON object"
	}
	object, ok := value.(map[string]any)
	if !ok {
		return fmt.Sprintf("the headers (column headers) are of the JSON type %s, want object", jsonType(value))
	}
	for _, k := range slices.Sorted(maps.Keys(object)) {
		if v := object[k]; v != nil && jsonType(v) != "string" {
			return fmt.Sprintf("the header %.80q (in column headers) is of the JSON type %s, want string", k, jsonType(v))
		}
	}
	return "the headers (column headers) cannot be read, want a JSON object of strings"
}

func jsonType(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}
