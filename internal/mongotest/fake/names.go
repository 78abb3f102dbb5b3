package fake

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
)

// Answers of a name server.
const (
	HostsFound      = 0 // for mongodb+srv://name.domain: one server, db1.domain:27017, which does not exist
	NameServerFails = 2 // it has a problem of its own
	NoSuchName      = 3
)

// names is the answer of the test's name server; nil: names are looked up as usual.
var names atomic.Pointer[func(ctx context.Context) byte]

// The resolver is replaced before anything uses it: look-ups that a test has abandoned may still read it.
func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		answer := names.Load()
		if answer == nil {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		code := (*answer)(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		client, server := net.Pipe()
		go answerName(server, code)
		return client, nil
	}}
}

// Names makes this process ask a name server of the test's own, until the test ends. answer gets a context that ends when the caller
// no longer waits. Tests with it must not run in parallel.
func Names(t testing.TB, answer func(ctx context.Context) byte) {
	t.Helper()
	before := names.Swap(&answer)
	t.Cleanup(func() { names.Store(before) })
}

// answerName answers a question, in the form of DNS over TCP (RFC 1035, 4.1 and 4.2.2).
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
	end := 12 + bytes.IndexByte(message[12:], 0) + 5 // of the question: the name, 0, type and class
	service := message[end-3] == 33                  // SRV
	if code == HostsFound && !service {
		code = NoSuchName
	}
	message[2] |= 0x80 // a response
	message[3] = 0x80 | code
	if code == HostsFound {
		message = slices.Concat(message[:6], []byte{0, 1, 0, 0, 0, 0}, message[12:end], serviceRecord(message[12:end-4])) // the counts: one answer, and nothing else
	}
	_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
}

// serviceRecord is the answer about _service._protocol.name.domain (RFC 2782), with the name as in a message.
func serviceRecord(name []byte) []byte {
	domain := name
	for range 3 {
		domain = domain[1+domain[0]:]
	}
	target := slices.Concat([]byte{3}, []byte("db1"), domain)
	const port = 27017
	record := []byte{0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, byte(6 + len(target)), 0, 0, 0, 0, port >> 8, port & 0xff} // the name of the question, SRV, for a minute
	return append(record, target...)
}
