// Package shorten shortens untrusted texts.
package shorten

// Text shortens s for an error message.
func Text(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
