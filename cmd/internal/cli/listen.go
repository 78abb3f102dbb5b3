package cli

import (
	"net/netip"
	"strings"
)

// Loopback tells whether a host of --listen is this machine only.
func Loopback(host string) bool {
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
