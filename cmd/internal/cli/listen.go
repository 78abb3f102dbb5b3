package cli

import (
	"net/netip"
	"strings"
)

// Loopback reports whether a host of --listen is reachable from this machine only.
func Loopback(host string) bool {
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
