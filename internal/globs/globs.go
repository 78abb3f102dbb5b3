// Package globs matches names with globs, as in --type 'audit-*'.
package globs

import (
	"path"
	"strings"
)

// Is tells whether text is a glob, and not a name.
func Is(text string) bool { return strings.ContainsAny(text, `*?[\`) }

// Check returns [path.ErrBadPattern] for a malformed glob.
func Check(glob string) error {
	_, err := path.Match(glob, "")
	return err
}

// Match tells whether a name is one of those that globs, or names, stand for: see [path.Match]. A malformed one stands for none.
func Match(globs []string, name string) bool {
	for _, glob := range globs {
		if ok, _ := path.Match(glob, name); ok {
			return true
		}
	}
	return false
}
