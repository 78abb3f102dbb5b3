package cli

// What commands and pages show in the same way.

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// MemberSilent is after how long a worker that was not seen is not believed any more.
const MemberSilent = 30 * time.Second

// Failures is what workers say that keeps them from draining types: of each type its holder, or else any that lives.
func Failures(members []queue.Member, now time.Time) map[string]string {
	found := map[string]string{}
	for _, m := range members {
		if now.Sub(m.Seen) >= MemberSilent {
			continue
		}
		for typ, e := range m.Errors {
			if e != "" && (found[typ] == "" || slices.Contains(m.Held, typ)) {
				found[typ] = e
			}
		}
	}
	return found
}

// IDText is the text form of a message ID in a file; IDs of other origin are printed in hex.
func IDText(b []byte) string {
	if len(b) == len(queue.ID{}) {
		return queue.ID(b).String()
	}
	return fmt.Sprintf("%x", b)
}
