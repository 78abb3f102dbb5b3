// Package httpbody takes the bodies of HTTP requests that nothing reads.
package httpbody

import (
	"io"
	"net/http"
	"time"
)

const (
	takeTime = time.Second // for the body of a request that nothing reads
	takeMost = 256 << 10   // bytes of it; net/http takes as many
)

// Take takes the body of a request that is refused or needs none, if it comes at once. Call it before the answer: net/http would wait for the
// body first, for as long as a client may take to send one.
func Take(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	if r.Body == http.NoBody {
		c.SetReadDeadline(time.Time{}) // or net/http takes it for the end of the client
		return
	}
	c.SetReadDeadline(time.Now().Add(takeTime))
	if r.Header.Get("Expect") != "" {
		return // the client waits to be asked for it
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r.Body, takeMost)); err != nil || n == takeMost {
		w.Header().Set("Connection", "close")
		return
	}
	c.SetReadDeadline(time.Time{})
}
