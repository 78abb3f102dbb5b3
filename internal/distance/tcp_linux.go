package distance

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// roundTrip returns how long the server took to accept a new connection (tcp(7), TCP_INFO).
func roundTrip(c net.Conn) (trip time.Duration, ok bool) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0, false // a local socket
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		return 0, false
	}
	return time.Duration(info.Rtt) * time.Microsecond, true
}
