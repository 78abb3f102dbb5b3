// Package redact keeps credentials out of logs, errors and status pages.
package redact

import (
	"io"
	"net/url"
	"regexp"
	"strings"
)

// URL returns a backend's URL without user, password and options. It does not use a URL parser, because MongoDB's host lists are
// not valid URLs and because the input may be malformed: a password that is not encoded may contain anything, so the last '@'
// counts.
func URL(raw string) string {
	scheme, rest := split(raw)
	if scheme == "sqlite://" && !MistakenPath(rest) {
		return raw // a path
	}
	at, options := strings.LastIndexByte(rest, '@'), strings.IndexByte(rest, '?')
	if options >= 0 && options < at {
		return scheme + "***" // the end of an unencoded password or of a secret option: impossible to tell
	}
	rest, _, _ = strings.Cut(rest[at+1:], "?")
	return scheme + rest
}

// split splits a URL after the scheme, which is "" if it has none: text that cannot be a scheme may be a password.
func split(raw string) (scheme, rest string) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || strings.ContainsAny(scheme, "@?:/") {
		return "", raw
	}
	return scheme + "://", rest
}

// MistakenPath reports whether the text after sqlite:// is the user, password and host of another kind of URL. Write a file with such a
// name as ./name.
func MistakenPath(path string) bool {
	user, rest, ok := strings.Cut(path, ":")
	return ok && !strings.Contains(user, "/") && strings.Contains(rest, "@")
}

// Userinfo returns user and password of a URL as written there, or "" if there are none.
func Userinfo(raw string) string {
	_, rest := split(raw)
	return rest[:max(strings.LastIndexByte(rest, '@'), 0)]
}

// Password returns text without the password of a URL, both as written there and decoded.
func Password(text, raw string) string {
	_, password, ok := strings.Cut(Userinfo(raw), ":")
	if !ok || password == "" {
		return text
	}
	text = strings.ReplaceAll(text, password, "***")
	if plain, err := url.PathUnescape(password); err == nil && plain != "" {
		text = strings.ReplaceAll(text, plain, "***")
	}
	return text
}

// HasSecret reports whether a URL has a password or a secret option.
func HasSecret(raw string) bool { return Password(raw, raw) != raw || secretOption.MatchString(raw) }

// userinfo matches the text before the last '@' of a word with "://", or with one slash by mistake. secretOption matches an option of a
// MongoDB URL that must stay secret.
var (
	userinfo     = regexp.MustCompile(`:/+[^\s"'<>]*@`)
	secretOption = regexp.MustCompile(`(?i)\b((?:tlsCertificateKeyFile|sslClientCertificateKey|proxy)Password|authMechanismProperties)=[^\s"'&<>]*`)
)

// Text returns text without the credentials of any URL in it. It is the last line of defence, for texts from other sources,
// such as an argument that was a URL by mistake.
func Text(text string) string {
	if strings.Contains(text, ":/") {
		text = userinfo.ReplaceAllString(text, "://***@")
	}
	if strings.Contains(text, "=") {
		text = secretOption.ReplaceAllString(text, "$1=***")
	}
	return text
}

// Writer applies Text to everything written, each Write by itself: it is for logs, which write a line at a time.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

func (w writer) Write(p []byte) (int, error) {
	text := string(p)
	if clean := Text(text); clean != text {
		_, err := io.WriteString(w.w, clean)
		return len(p), err
	}
	return w.w.Write(p)
}
