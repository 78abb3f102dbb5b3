package printable

import (
	"errors"
	"slices"
	"strings"
)

// Error returns the text of an error. Errors joined by errors.Join, at any depth, are on separate lines.
func Error(err error) string {
	text, parts := err.Error(), wrapped(err)
	if joined(text, parts) {
		lines := make([]string, len(parts))
		for i, part := range parts {
			lines[i] = Error(part)
		}
		return strings.Join(lines, "\n")
	}
	// rule: no other line feed begins a line. It came with a value.
	var b strings.Builder
	for _, part := range parts {
		if before, after, ok := strings.Cut(text, part.Error()); ok {
			b.WriteString(Text(before) + Error(part))
			text = after
		}
	}
	return b.String() + Text(text)
}

// wrapped returns the errors that err wraps itself.
func wrapped(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.DeleteFunc(slices.Clone(all.Unwrap()), func(part error) bool { return part == nil })
	}
	if one := errors.Unwrap(err); one != nil {
		return []error{one}
	}
	return nil
}

// joined tells whether a text is that of some errors, line by line.
func joined(text string, parts []error) bool {
	lines := make([]string, len(parts))
	for i, part := range parts {
		lines[i] = part.Error()
	}
	return len(parts) > 1 && text == strings.Join(lines, "\n")
}
