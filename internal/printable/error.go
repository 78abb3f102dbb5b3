package printable

import (
	"errors"
	"slices"
	"strings"
)

// Error returns the text of an error. Errors joined by errors.Join, at any depth, are on separate lines.
func Error(err error) string {
	if parts := Joined(err); parts != nil {
		lines := make([]string, len(parts))
		for i, part := range parts {
			lines[i] = Error(part)
		}
		return strings.Join(lines, "\n")
	}
	// rule: no other line feed begins a line. It came with a value.
	var b strings.Builder
	text := err.Error()
	for _, part := range wrapped(err) {
		if before, after, ok := strings.Cut(text, part.Error()); ok {
			b.WriteString(Text(before) + Error(part))
			text = after
		}
	}
	return b.String() + Text(text)
}

// wrapped returns the errors that err wraps directly.
func wrapped(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.DeleteFunc(slices.Clone(all.Unwrap()), func(part error) bool { return part == nil })
	}
	if one := errors.Unwrap(err); one != nil {
		return []error{one}
	}
	return nil
}

// Joined returns the errors that errors.Join combined into err, if it did: the text of err is theirs, line by line. Other errors that wrap
// several, such as those of fmt.Errorf with two %w, count as one.
func Joined(err error) []error {
	parts := wrapped(err)
	lines := make([]string, len(parts))
	for i, part := range parts {
		lines[i] = part.Error()
	}
	if len(parts) < 2 || err.Error() != strings.Join(lines, "\n") {
		return nil
	}
	return parts
}
