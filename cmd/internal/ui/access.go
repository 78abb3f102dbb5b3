package ui

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/fencepost/fencepost/cmd/internal/reload"
	"github.com/fencepost/fencepost/internal/printable"
	"golang.org/x/crypto/bcrypt"
)

// Access decides which requests are answered. The zero value admits all.
type Access struct {
	Users   *Users         // requests must have the name and password of one of these; nil: no password required
	Header  string         // header in which a proxy, which checks passwords itself, names the user; "": none
	Proxies []netip.Prefix // proxies whose Header is trusted
}

// bcrypt is slow by design.
const (
	dearChecks = 2  // concurrent password checks
	mostCost   = 15 // highest cost of a hash: a check takes seconds. With a cost of 31 it would take days
)

// Users are names and the bcrypt hashes of their passwords, in a file. Safe for concurrent use.
type Users struct {
	file *reload.Files[*passwords]
	dear chan struct{}
}

// passwords are the content of a file of users.
type passwords struct {
	hashes map[string][]byte // by name
	nobody []byte            // hash that is compared for an unknown name, so that the check takes as long
	key    []byte

	mu    sync.Mutex
	known map[[sha256.Size]byte]bool // HMACs, under key, of names with their correct passwords
}

// LoadUsers reads a file with lines of name:hash, as htpasswd -B prints them, and at least one of them. It skips empty lines and lines that begin
// with #. A changed file is read again; an empty or removed one admits nobody.
func LoadUsers(path string) (*Users, error) {
	file, err := reload.Load(func(texts [][]byte) (*passwords, error) { return parsePasswords(texts[0]) }, func(p *passwords) string {
		if len(p.hashes) > 0 {
			return ""
		}
		return "the file no longer names a user: every request gets 401 until it does"
	}, path)
	if err == nil && len(file.Get().hashes) == 0 {
		err = fmt.Errorf("%s names no user; htpasswd -nB name prints a line for it", path)
	}
	return &Users{file: file, dear: make(chan struct{}, dearChecks)}, err
}

func parsePasswords(text []byte) (*passwords, error) {
	hashes, cost, err := parseHashes(text)
	if err != nil {
		return nil, err
	}
	p := &passwords{hashes: hashes, key: make([]byte, 32), known: map[[sha256.Size]byte]bool{}}
	rand.Read(p.key)
	p.nobody, err = bcrypt.GenerateFromPassword(p.key[:16], cost)
	return p, err
}

// parseHashes returns the hashes by name, and the highest cost among them.
func parseHashes(text []byte) (hashes map[string][]byte, cost int, err error) {
	hashes, cost = map[string][]byte{}, bcrypt.MinCost
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		// rule: no error quotes a line.
		name, hash, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, 0, fmt.Errorf("line %d is not a user: write lines as in name:$2y$10$…, which htpasswd -nB name prints", n)
		}
		c, err := bcrypt.Cost([]byte(hash))
		if err != nil {
			return nil, 0, fmt.Errorf("line %d has no bcrypt hash behind the name; htpasswd -nB name prints a line with one", n)
		}
		if c > mostCost {
			return nil, 0, fmt.Errorf("line %d has a hash of cost %d, which takes too long to check: the maximum is %d; htpasswd -nB -C 12 name prints a line with 12", n, c, mostCost)
		}
		if hashes[name] != nil {
			return nil, 0, fmt.Errorf("line %d repeats a user of an earlier line; leave one line for each user", n)
		}
		hashes[name], cost = []byte(hash), max(cost, c)
	}
	return hashes, cost, lines.Err()
}

// Has reports whether there is a user with a name.
func (u *Users) Has(name string) bool { return u.file.Get().hashes[name] != nil }

// right reports whether a password is that of a user.
func (u *Users) right(ctx context.Context, name, password string) bool {
	p := u.file.Get()
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(fmt.Sprint(len(name), ":", name, password)))
	key := [sha256.Size]byte(mac.Sum(nil))
	p.mu.Lock()
	ok := p.known[key]
	p.mu.Unlock()
	if ok {
		return true
	}
	select {
	case u.dear <- struct{}{}:
		defer func() { <-u.dear }()
	case <-ctx.Done():
		return false
	}
	hash, there := p.hashes[name]
	if !there {
		hash = p.nobody
	}
	// bcrypt uses at most 72 bytes; a longer password was never hashed completely.
	if len(password) > 72 || bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !there {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[key] = true // at most one per user
	return true
}

// asks reports whether requests must identify a user.
func (a Access) asks() bool { return a.Users != nil || a.Header != "" }

type userKey struct{}

// userOf returns the name of a request's user, "" if users are not identified.
func userOf(r *http.Request) string {
	name, _ := r.Context().Value(userKey{}).(string)
	return name
}

// check passes on the requests that may be answered, and refuses the others.
func (a Access) check(u *UI, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		switch {
		case a.Header != "":
			// rule: a user name in a header counts only if a trusted proxy has set it.
			if name = r.Header.Get(a.Header); !a.believed(r.RemoteAddr) || name == "" || len(r.Header.Values(a.Header)) > 1 {
				u.o.Log.Warn().Str("from", r.RemoteAddr).Msg("a request was refused: it did not come from a trusted proxy, or named no user")
				http.Error(w, "this page answers only to the proxy in front of it, for a user that the proxy names", http.StatusForbidden)
				return
			}
		case a.Users != nil:
			given, password, _ := r.BasicAuth()
			if given == "" || !a.Users.right(r.Context(), given, password) {
				if given != "" {
					u.o.Log.Warn().Str("from", r.RemoteAddr).Str("user", printable.Short(given)).Msg("a request was refused: wrong name or password")
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="Fencepost", charset="UTF-8"`)
				http.Error(w, "name and password required", http.StatusUnauthorized)
				return
			}
			name = given
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, name)))
	})
}

// stillAdmits reports whether the user of a request that check has passed may still see the pages.
func (a Access) stillAdmits(r *http.Request) bool {
	if a.Users == nil {
		return true
	}
	name, password, _ := r.BasicAuth()
	return a.Users.right(r.Context(), name, password)
}

// believed reports whether an address is that of a trusted proxy.
func (a Access) believed(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(a.Proxies, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}
