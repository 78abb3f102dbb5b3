package ui

import (
	"net"
	"net/netip"
	"regexp"
	"strings"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// Flags configure the users, the visibility of payloads and the path of the pages. All programs that serve pages have them.
type Flags struct {
	BasePath     string
	HidePayloads bool
	Access       Access // set by Check

	authFile, header string
	proxies          []string
}

// Add adds the flags to a command. with is a prefix of their descriptions.
func (f *Flags) Add(cmd *cobra.Command, with string) {
	c := cmd.Flags()
	c.StringVar(&f.BasePath, "base-path", "", with+"path under which a proxy shows the pages, as in /fencepost")
	c.BoolVar(&f.HidePayloads, "hide-payloads", false, with+"show no payloads and no values of headers")
	c.StringVar(&f.authFile, "auth-file", "", with+"file of users: lines of name and bcrypt hash, as htpasswd -nB prints them; it is read again when it changes")
	c.StringVar(&f.header, "user-header", "", with+"header in which a trusted proxy names the user, as in X-Forwarded-User; requests without it are refused")
	c.StringSliceVar(&f.proxies, "proxy", []string{"127.0.0.1", "::1"}, with+"address or network of a proxy whose --user-header is trusted; repeatable")
}

// Names returns the names of the flags that Add adds.
func (f *Flags) Names() []string {
	return []string{"base-path", "hide-payloads", "auth-file", "user-header", "proxy"}
}

// basePath matches valid base paths.
var basePath = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)

// Check checks the flags for pages at an address, and reads the users.
func (f *Flags) Check(cmd *cobra.Command, listen string) error {
	f.BasePath = strings.TrimSuffix(f.BasePath, "/")
	switch {
	case f.BasePath != "" && !basePath.MatchString(f.BasePath):
		return cli.Usagef("--base-path %q is not a valid path; use letters, digits, dots and dashes, as in /fencepost", f.BasePath)
	case f.BasePath != "" && ownPath(f.BasePath) != "":
		return cli.Usagef("--base-path %s begins like the path of a page, /%s; put another name in front, as in /fencepost%s", f.BasePath, ownPath(f.BasePath), f.BasePath)
	case f.authFile != "" && f.header != "":
		return cli.Usagef("--auth-file and --user-header cannot be combined: either this program checks the password, or the proxy does")
	case f.header == "" && cmd.Flags().Changed("proxy"):
		return cli.Usagef("--proxy requires --user-header: it says whose header is trusted")
	}
	if err := f.checkAccess(); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil // ops.Open reports the error
	}
	// rule: pages that other machines can reach require a password. Without one, anyone could read every message.
	if !f.Access.asks() && !cli.Loopback(host) {
		return cli.Sourced(cmd.Flags().Lookup("listen"), cli.Usagef("--listen %s is reachable from other machines, where anyone could read the messages; "+
			"require a password with --auth-file, let a proxy do it with --user-header, or listen on 127.0.0.1", listen))
	}
	return nil
}

func (f *Flags) checkAccess() error {
	f.Access = Access{Header: f.header}
	if f.header != "" && !regexp.MustCompile(`^[A-Za-z0-9-]+$`).MatchString(f.header) {
		return cli.Usagef("--user-header %q is not the name of a header; write it as in X-Forwarded-User", f.header)
	}
	for _, p := range f.proxies {
		prefix, err := netip.ParsePrefix(p)
		if addr, errAddr := netip.ParseAddr(p); errAddr == nil {
			prefix, err = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
		}
		if err != nil {
			return cli.Usagef("--proxy %q is neither an address nor a network; write it as in 10.1.2.3 or 10.0.0.0/8", p)
		}
		f.Access.Proxies = append(f.Access.Proxies, prefix)
	}
	if f.authFile == "" {
		return nil
	}
	var err error
	if f.Access.Users, err = LoadUsers(f.authFile); err != nil {
		return cli.Usagef("--auth-file: %w", err)
	}
	return nil
}

// CheckWriters checks the names of the users that may act. Call it after Check.
func (f *Flags) CheckWriters(names []string) error {
	if len(names) > 0 && !f.Access.asks() {
		return cli.Usagef("--writers requires --auth-file or --user-header: without them users are not identified")
	}
	for _, name := range names {
		if f.Access.Users != nil && !f.Access.Users.Has(name) {
			return cli.Usagef("--writers %q: --auth-file %s has no such user", name, f.authFile)
		}
	}
	return nil
}
