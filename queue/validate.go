package queue

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// ValidateType checks a type name against [a-z0-9][a-z0-9._-]{0,63}. The error is a *TypeError.
func ValidateType(typ string) error {
	switch {
	case typ == "":
		return &TypeError{typ, "it is empty"}
	case len(typ) > MaxTypeLen:
		return &TypeError{typ, fmt.Sprintf("it has %d characters", len(typ))}
	}
	for i := range len(typ) {
		c := typ[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		case 'A' <= c && c <= 'Z':
			return &TypeError{typ, "it has an upper-case letter"}
		default:
			verb := "contains"
			if i == 0 {
				verb = "starts with"
			}
			r, _ := utf8.DecodeRuneInString(typ[i:])
			return &TypeError{typ, fmt.Sprintf("it %s %q", verb, r)}
		}
	}
	return nil
}

// Validate checks type, sizes and headers. The error is a *TypeError, *SizeError or *HeaderError.
func (m *Message) Validate() error {
	if err := ValidateType(m.Type); err != nil {
		return err
	}
	return m.validateBody()
}

// validateBody checks everything but the type.
func (m *Message) validateBody() error {
	if len(m.Payload) > MaxPayload {
		return &SizeError{"payload", len(m.Payload), MaxPayload}
	}
	most, mostCount := MaxHeaders, MaxHeaderCount
	if !m.Due.IsZero() {
		most, mostCount = most-delayedHeaderSize, mostCount-1 // of PromotedHeaders
	}
	if n := len(m.Headers); n > mostCount {
		return &SizeError{"number of headers", n, mostCount}
	}
	for k, v := range m.Headers {
		switch {
		case k == "":
			return &HeaderError{k, "the key is empty"}
		case !utf8.ValidString(k):
			return &HeaderError{k, "the key is not valid UTF-8"}
		case strings.IndexByte(k, 0) >= 0:
			return &HeaderError{k, "the key contains a NUL byte"}
		case !utf8.ValidString(v):
			return &HeaderError{k, "the value is not valid UTF-8"}
		case k == KeyHeader && (v == "" || len(v) > MaxKeyLen):
			return &HeaderError{k, fmt.Sprintf("an idempotency key has 1 to %d bytes, not %d", MaxKeyLen, len(v))}
		}
	}
	if size := headerBytes(m.Headers); size > most {
		return &SizeError{"headers", size, most}
	}
	return nil
}

// Size is how much a message counts towards all byte limits: an upper estimate of its memory. It is
// the length of the payload and of all header keys and values, plus a fixed number of bytes for the
// message and for each header.
func (m *Message) Size() int {
	return len(m.Payload) + headerBytes(m.Headers) + len(m.Headers)*headerOverhead + messageOverhead
}

func headerBytes(headers map[string]string) (n int) {
	for k, v := range headers {
		n += len(k) + len(v)
	}
	return n
}
