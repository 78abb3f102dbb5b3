// Package slotname checks the names of values, see slots.Store.
package slotname

import (
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/storage/slots"
)

const most = 500 // bytes

// Valid reports whether name can be that of a value or of a folder.
func Valid(name string) bool {
	if len(name) > most {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._-/", c)
	})
}

// Check returns the store's error about a name that is not valid.
//
// It is a refusal, and no answer about a value: there is none that exists or does not.
func Check(s slots.Store, name string) error {
	if Valid(name) {
		return nil
	}
	return &slots.RefusedError{Store: s.String(), Reason: fmt.Sprintf("%.600q is not the name of a value", name),
		Remedy: "use 1 to 500 bytes of a-z, 0-9, '.', '_', '-' and '/', and no part between slashes that is empty, '.' or '..'"}
}
