package ops

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/httpbody"
)

// Limits on what one client can take from the others, and all clients together from the worker. A client that hangs, maliciously or not, must
// not block a probe: a worker that does not answer /livez gets killed.
const (
	maxConns      = 64               // of all clients together; a worker has few: a scraper or two, probes, a person
	headerTimeout = 5 * time.Second  // to send the head of a request
	readTimeout   = 10 * time.Second // to send a whole request
	writeTimeout  = 10 * time.Second // to take the answer; net/http/pprof adds the time that a profile takes
	idleTimeout   = 2 * time.Minute  // between two requests: more than between two scrapes
	maxHeader     = 16 << 10         // bytes
)

// hosts are the host names that requests may use, in lower case.
type hosts map[string]bool

// hostsOf returns what the machine is called, the host of --listen and those of --listen-host.
func hostsOf(listen string, more []string) hosts {
	h := hosts{canonical(listen): true}
	if name, err := os.Hostname(); err == nil {
		h[canonical(name)] = true
	}
	for _, name := range more {
		h[canonical(name)] = true
	}
	return h
}

// CheckHosts checks the names of --listen-host: others than host names are those of no request.
func CheckHosts(names []string) error {
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, ":/*, ") {
			return cli.Usagef("--listen-host %q is not a host name; write it without port, as in --listen-host worker.example.com", name)
		}
	}
	return nil
}

// canonical is the one way of many to write a host name.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// allow tells whether a request with this Host header may be answered. A web page of a stranger can have its own name lead to this machine, and
// would then be allowed by the browser to read the answers (DNS rebinding). No stranger has an address for a name, nor a name without a dot:
// localhost, a service of Compose or of the same namespace. Browsers always send the header.
func (h hosts) allow(header string) bool {
	name := hostname(header)
	_, err := netip.ParseAddr(name)
	return err == nil || !strings.Contains(name, ".") || h[name]
}

// hostname returns the host of a Host header, without its port.
func hostname(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	return canonical(host)
}

func (h hosts) check(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.allow(r.Host) { // rule: a page of a stranger must not read what is answered here
			httpbody.Take(w, r)
			name := hostname(r.Host)
			http.Error(w, fmt.Sprintf("this program does not answer for %q; if that is a name of its own, start it with --listen-host %s", name, name),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
