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

// Limits on what one client can take from the others, and on what all clients together can take from the worker. A client that hangs,
// maliciously or not, must not block a probe: a worker that does not answer /livez gets killed.
const (
	maxConns      = 64               // connections of all clients; a worker has few clients: a scraper or two, probes, a user
	headerTimeout = 5 * time.Second  // time to send the head of a request
	readTimeout   = 10 * time.Second // time to send a whole request
	writeTimeout  = 10 * time.Second // time to receive the response; net/http/pprof adds the duration of a profile
	idleTimeout   = 2 * time.Minute  // pause between two requests: longer than between two scrapes
	maxHeader     = 16 << 10         // bytes of a head
)

// hosts are the host names accepted in requests, in lower case.
type hosts map[string]bool

// hostsOf returns the machine's name, the host of --listen and the names of --listen-host.
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

// CheckHosts refuses values of --listen-host that are not host names: no request could match them.
func CheckHosts(names []string) error {
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, ":/*, ") {
			return cli.Usagef("--listen-host %q is not a host name; write it without port, as in --listen-host worker.example.com", name)
		}
	}
	return nil
}

// canonical returns the canonical form of a host name.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// allow reports whether a request with this Host header may be answered. A malicious web page can make its own host name resolve to this
// machine, and the browser would then let it read the responses (DNS rebinding). It cannot do that with an IP address, nor with a name without
// a dot, such as localhost or a service of Compose or of the same namespace. Browsers always send the header.
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
		if !h.allow(r.Host) { // rule: a page of another site must not read responses of this program
			httpbody.Take(w, r)
			name := hostname(r.Host)
			http.Error(w, fmt.Sprintf("this program does not answer for host %q; if that is its name, start it with --listen-host %s", name, name),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
