//go:build !linux

package distance

import (
	"net"
	"time"
)

// roundTrip is unknown: on these systems a server counts as near.
func roundTrip(net.Conn) (time.Duration, bool) { return 0, false }
