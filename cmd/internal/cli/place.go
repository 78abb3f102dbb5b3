package cli

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Place is where somebody wants to read a file: an index, an ID, or a time.
type Place struct {
	Index   uint64
	IDs     []string // in bytes, all that the text can stand for
	Since   time.Time
	IsIndex bool
}

// ParsePlace understands an index (1234), an ID (32 characters, or hex digits for one from elsewhere), a time and, as 90m, a time ago.
func ParsePlace(text string) (p Place, ok bool) {
	if i, err := strconv.ParseUint(text, 10, 64); err == nil && len(text) < queue.IDLen {
		return Place{Index: i, IsIndex: true}, true
	}
	if id, err := queue.ParseID(text); err == nil {
		p.IDs = append(p.IDs, string(id[:]))
		p.Since = id.Time() // nothing before that can have it
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
