package cli

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Place is a place in a file, given by an index, an ID, or a time.
type Place struct {
	Index   uint64
	IDs     []string // as bytes: all IDs that the text can stand for
	Since   time.Time
	IsIndex bool
}

// ParsePlace parses an index (1234), an ID (32 characters, or hex digits for a foreign one), a time, or a duration before now (90m).
func ParsePlace(text string) (p Place, ok bool) {
	if i, err := strconv.ParseUint(text, 10, 64); err == nil && len(text) < queue.IDLen {
		return Place{Index: i, IsIndex: true}, true
	}
	if id, err := queue.ParseID(text); err == nil {
		p.IDs = append(p.IDs, string(id[:]))
		p.Since = id.Time() // no earlier message can have this ID
	}
	if b, err := hex.DecodeString(text); err == nil && len(b) > 0 {
		p.IDs, p.Since = append(p.IDs, string(b)), time.Time{}
	}
	if p.IDs != nil {
		return p, true
	}
	var since Since
	if since.Set(text) != nil {
		return p, false
	}
	p.Since = since.Time
	return p, true
}
