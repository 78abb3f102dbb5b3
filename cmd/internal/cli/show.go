package cli

// Output that commands and pages share.

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// MemberSilent is how long a worker may be silent before its entry is ignored.
const MemberSilent = 30 * time.Second

// Failures returns the errors that keep workers from draining types, as the workers report them: for each type its
// holder's, or else any live worker's.
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

// IDText returns the text form of a message ID in a file; foreign IDs are printed in hex.
func IDText(b []byte) string {
	if len(b) == len(queue.ID{}) {
		return queue.ID(b).String()
	}
	return fmt.Sprintf("%x", b)
}
