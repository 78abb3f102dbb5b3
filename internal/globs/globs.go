// Package globs matches names with globs, as in --type 'audit-*'.
package globs

import (
	"path"
	"strings"
)

// Is reports whether text is a glob rather than a name.
func Is(text string) bool { return strings.ContainsAny(text, `*?[\`) }

// Check returns [path.ErrBadPattern] for a malformed glob.
func Check(glob string) error {
	_, err := path.Match(glob, "")
	return err
}

// Literals returns the characters of a well-formed glob that stand for themselves: every match contains them.
func Literals(glob string) string {
	var b strings.Builder
	class := false
	for i := 0; i < len(glob); i++ {
		c := glob[i]
		escaped := c == '\\'
		if escaped {
			i++
			c = glob[i]
		}
		switch {
		case class:
			class = escaped || c != ']'
		case !escaped && c == '[':
			class = true
		case escaped || c != '*' && c != '?':
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Set is a set of names and globs. It is immutable, and safe for concurrent use.
type Set struct {
	names map[string]bool
	globs []string
}

// NewSet returns the set of the names and globs in list.
func NewSet(list []string) Set {
	s := Set{names: map[string]bool{}}
	for _, text := range list {
		if Is(text) {
			s.globs = append(s.globs, text)
		} else {
			s.names[text] = true
		}
	}
	return s
}

// Match is [Match] for a set. It takes no longer if there are many names.
func (s Set) Match(name string) bool { return s.names[name] || Match(s.globs, name) }

// Match reports whether name matches one of globs, which may be plain names: see [path.Match]. A malformed glob matches nothing.
func Match(globs []string, name string) bool {
	for _, glob := range globs {
		if ok, _ := path.Match(glob, name); ok {
			return true
		}
	}
	return false
}
