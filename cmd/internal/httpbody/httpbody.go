// Package httpbody discards the bodies of HTTP requests whose handlers do not read them.
package httpbody

import (
	"io"
	"net/http"
	"time"
)

const (
	takeTime = time.Second // longest time to read a body
	takeMost = 256 << 10   // most bytes of a body; the same limit as in net/http
	restMost = 64 << 20    // the same for the body of an admitted client, which may send all of it before it reads
)

// Take reads and discards the body of a request that is refused or needs none, if it arrives within takeTime. Call it before writing the
// response: net/http would otherwise wait for the body first, for as long as a client may take to send one.
func Take(w http.ResponseWriter, r *http.Request) { take(w, r, takeMost) }

// TakeRest is Take for an admitted request that is answered before its body has ended.
func TakeRest(w http.ResponseWriter, r *http.Request) { take(w, r, restMost) }

func take(w http.ResponseWriter, r *http.Request, most int64) {
	c := http.NewResponseController(w)
	if r.Body == http.NoBody {
		c.SetReadDeadline(time.Time{}) // net/http would take an expired deadline for a disconnected client
		return
	}
	c.SetReadDeadline(time.Now().Add(takeTime))
	if r.Header.Get("Expect") != "" {
		return // the client sends the body only when told to
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r.Body, most)); err != nil || n == most {
		w.Header().Set("Connection", "close")
		return
	}
	c.SetReadDeadline(time.Time{})
}
