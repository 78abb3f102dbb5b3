// Package recordjson writes records as JSON, for fencepost cat --format json and the HTTP API. One record is one line:
//
//	{"index":7,"id":"065s…","time":"2026-01-31T15:04:05Z","epoch":3,"headers":{"source":"shop"},"payload":"…"}
//
// A payload that is not UTF-8 text is in payload_base64 instead. Untrusted text is made printable.
package recordjson

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/storage"
)

// record is the beginning of a line; the payload follows it.
type record struct {
	Index    uint64            `json:"index"`
	ID       string            `json:"id"`
	Time     time.Time         `json:"time"`
	Epoch    uint64            `json:"epoch"`
	AfterGap bool              `json:"after_gap,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
}

// Gap replaces records that cannot be read.
type Gap struct {
	FromIndex uint64 `json:"from_index"` // the first lost index
	ToIndex   uint64 `json:"to_index"`   // the first index after the gap; from_index if unknown
	Offset    int64  `json:"offset"`     // bytes: [offset, end)
	End       int64  `json:"end"`
	Reason    string `json:"reason"`
}

const piece = 64 << 10 // bytes of a payload encoded at once: some bytes become six

// Write writes a record without a newline. It encodes the payload piece by piece, so it needs little memory for any payload.
func Write(w *bufio.Writer, r *storage.Record) error {
	j := record{Index: r.Index, ID: cli.IDText(r.ID), Time: r.When().UTC(), Epoch: r.Epoch, AfterGap: r.Kind == storage.KindAfterGap}
	if len(r.Headers) > 0 {
		j.Headers = make(map[string]string, len(r.Headers))
		for _, h := range r.Headers {
			j.Headers[h.Key] = h.Value
		}
	}
	head, err := json.Marshal(j)
	if err != nil {
		return err
	}
	text := printable.JSONWriter(w)
	text.Write(head[:len(head)-1])
	payload := r.Payload
	if !utf8.Valid(payload) {
		w.WriteString(`,"payload_base64":"`)
		e := base64.NewEncoder(base64.StdEncoding, w)
		e.Write(payload)
		e.Close()
	} else {
		w.WriteString(`,"payload":"`)
		for len(payload) > 0 {
			n := min(piece, len(payload))
			for n < len(payload) && !utf8.RuneStart(payload[n]) {
				n--
			}
			part, err := json.Marshal(string(payload[:n]))
			if err != nil {
				return err
			}
			text.Write(part[1 : len(part)-1])
			payload = payload[n:]
		}
	}
	_, err = w.WriteString(`"}`)
	return err
}
