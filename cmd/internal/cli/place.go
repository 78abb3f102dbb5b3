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

// ParsePlace parses an index (1234), an ID (32 characters, or hex digits for a foreign one), a time, or a duration before now (90m, 7d).
func ParsePlace(text string) (p Place, ok bool) {
	if i, err := strconv.ParseUint(text, 10, 64); err == nil && len(text) < queue.IDLen {
		return Place{Index: i, IsIndex: true}, true
	}
	if id, err := queue.ParseID(text); err == nil {
		p.IDs = append(p.IDs, string(id[:]))
		p.Since = id.Time() // no earlier message can have this ID
	}
	var since Since
	timed := p.IDs == nil && since.Set(text) == nil // 7d is a week, though it is hex, too
	if b, err := hex.DecodeString(text); err == nil && len(b) > 0 && !timed {
		p.IDs, p.Since = append(p.IDs, string(b)), time.Time{}
	}
	if timed {
		p.Since = since.Time
	}
	return p, timed || p.IDs != nil
}
