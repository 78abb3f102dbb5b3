package api

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/reload"
	"github.com/fencepost/fencepost/internal/globs"
	"github.com/fencepost/fencepost/queue"
	"github.com/rs/zerolog"
)

// scope is one kind of permission.
type scope string

const (
	scopePublish scope = "publish"
	scopeRead    scope = "read"
)

// client is the sender of a request.
type client struct {
	name   string
	scopes []scope  // nil: all
	types  []string // names and globs; nil: all
}

func (c *client) may(s scope) bool { return c.scopes == nil || slices.Contains(c.scopes, s) }

func (c *client) mayUse(typ string) bool {
	return c.types == nil || globs.Match(c.types, typ)
}

// token is a client and the hash of the token that it must present.
type token struct {
	client
	hash [sha256.Size]byte
}

// Tokens are the accepted tokens. Safe for concurrent use.
type Tokens struct{ file *reload.Files[[]token] }

// LoadTokens reads a token file, which must have at least one token. A changed file is read again; an empty or removed one admits no client.
func LoadTokens(path string) (*Tokens, error) {
	file, err := reload.Load(func(texts [][]byte) ([]token, error) { return parseTokens(texts[0]) }, func(tokens []token) string {
		if len(tokens) > 0 {
			return ""
		}
		return "the file no longer contains a token: every request gets 401 until it does"
	}, path)
	if err == nil && len(file.Get()) == 0 {
		err = fmt.Errorf("%s contains no token", path)
	}
	return &Tokens{file}, err
}

// NewToken returns a new random token, and the line that admits it in a token file.
func NewToken(name string, scopes, types []string) (secret, line string, err error) {
	for _, s := range scopes {
		if s := scope(s); s != scopePublish && s != scopeRead {
			return "", "", fmt.Errorf("there is no scope %q; use publish, read, or both", string(s))
		}
	}
	for _, typ := range types {
		if err := checkTypes(typ); err != nil {
			return "", "", err
		}
	}
	secret = "fpt_" + base64.RawURLEncoding.EncodeToString(random(32))
	hash := sha256.Sum256([]byte(secret))
	fields := []string{name, hex.EncodeToString(hash[:]), strings.Join(scopes, ",")}
	if len(types) > 0 {
		fields = append(fields, strings.Join(types, ","))
	}
	line = strings.Join(fields, " ")
	if len(strings.Fields(line)) != len(fields) {
		return "", "", errors.New("names, scopes and types must not be empty or contain spaces")
	}
	tokens, err := parseTokens([]byte(line))
	if err == nil && len(tokens) == 0 {
		err = fmt.Errorf("the name %s would make the line a comment; use one that does not begin with #", name)
	}
	return secret, line, err
}

// checkTypes refuses names and globs that no type can have.
func checkTypes(typ string) error {
	if !globs.Is(typ) {
		return queue.ValidateType(typ)
	}
	if typ != strings.ToLower(typ) || globs.Check(typ) != nil {
		return fmt.Errorf("%q matches no type; names of types have small letters, digits, '.', '_' and '-', as in orders.*", typ)
	}
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// parseTokens reads lines of name, SHA-256 of the token in hex, scopes and, unless all types are meant, types.
func parseTokens(text []byte) (tokens []token, err error) {
	in := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; in.Scan(); n++ {
		fields := strings.Fields(in.Text())
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if len(fields) != 3 && len(fields) != 4 {
			return nil, fmt.Errorf("line %d does not have 3 or 4 fields: name, SHA-256 of the token, scopes, and types if not all are meant", n)
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if slices.ContainsFunc(tokens, func(o token) bool { return o.name == t.name && o.hash == t.hash }) {
			return nil, fmt.Errorf("line %d repeats an earlier line; remove one of them", n)
		}
		tokens = append(tokens, t)
	}
	return tokens, in.Err()
}

// parseToken parses the three or four fields of a line.
func parseToken(fields []string) (t token, err error) {
	// rule: no error quotes a line: it may be a token itself.
	t.name = fields[0]
	hash, err := hex.DecodeString(fields[1])
	if err != nil || len(hash) != len(t.hash) {
		return t, errors.New("the second field is not the SHA-256 of a token, in 64 hex digits")
	}
	t.hash = [sha256.Size]byte(hash)
	for _, s := range strings.Split(fields[2], ",") {
		if s := scope(s); s != scopePublish && s != scopeRead {
			return t, errors.New("the third field is scopes: publish, read, or both with a comma between")
		}
		t.scopes = append(t.scopes, scope(s))
	}
	if len(fields) == 4 {
		t.types = strings.Split(fields[3], ",")
	}
	for _, glob := range t.types {
		if glob == "" || globs.Check(glob) != nil {
			return t, errors.New("the fourth field is types with commas between, as in orders,audit.*")
		}
	}
	return t, nil
}

// Access decides which requests are answered. The zero value admits all.
type Access struct {
	Tokens *Tokens // each request must present one of these; nil: no token required
	TLS    *TLS    // nil: plain HTTP
}

func (a *Access) logTo(log zerolog.Logger) {
	if a.Tokens != nil {
		a.Tokens.file.LogTo(log)
	}
	if a.TLS != nil {
		a.TLS.logTo(log)
	}
}

// certified reports whether a request came with the certificate that it needs, if it needs one.
func (a *Access) certified(r *http.Request) bool {
	return a.TLS == nil || a.TLS.clients == nil || r.TLS != nil && slices.ContainsFunc(r.TLS.VerifiedChains, a.TLS.trusts)
}

// client returns the sender of a request, or nil if the request must be refused.
func (a *Access) client(r *http.Request) *client {
	if a.Tokens == nil {
		c := &client{}
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			c.name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		return c
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(r.Header.Values("Authorization")) != 1 {
		return nil
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(secret)))
	var found *client
	for _, t := range a.Tokens.file.Get() {
		// rule: the time taken does not reveal how much of a token is right: hashes are compared, all of them and each in full.
		if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			found = &t.client
		}
	}
	return found
}
