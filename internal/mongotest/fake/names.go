package fake

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// Answers of a name server.
const (
	NameServerFails = 2 // it has a problem of its own
	NoSuchName      = 3
)

// Names makes this process ask a name server of the test's own, until the test ends. answer gets a context that ends when the caller
// no longer waits. Tests with it must not run in parallel.
func Names(t testing.TB, answer func(ctx context.Context) byte) {
	t.Helper()
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		code := answer(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		client, server := net.Pipe()
		go answerName(server, code)
		return client, nil
	}}
}

// answerName returns a question with the bits of an answer, in the form of DNS over TCP (RFC 1035, 4.1.1 and 4.2.2).
func answerName(c net.Conn, code byte) {
	defer c.Close()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, message); err != nil || len(message) < 12 {
		return
	}
	message[2] |= 0x80            // a response
	message[3] = 0x80 | code&0x0f // from a server that asks others
	_, _ = c.Write(append(size[:], message...))
}
