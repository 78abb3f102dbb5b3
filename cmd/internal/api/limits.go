package api

import (
	"io"
	"net/http"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Bounds on what one client can take from the others, and all clients together from the machine.
const (
	headerTimeout = 5 * time.Second // to send the head of a request
	idleTimeout   = 2 * time.Minute // between two requests of a connection
	maxHeader     = 128 << 10       // bytes of a head: the headers of a message have 64 KiB

	slowestBody = 32 << 10 // bytes per second that a body has to come with, once Options.ClientTimeout is used up

	maxLines    = 20_000                     // of one request
	maxLine     = 2*queue.MaxPayload + 1<<20 // bytes: a payload in base64 or with escapes, and headers
	chunkLines  = 1000                       // that are stored together
	chunkBytes  = 512 << 10                  // the same, of payloads
	roomSize    = 64 << 10                   // bytes for payloads that are taken at once
	bufferSize  = 64 << 10                   // bytes of a body that are read at once, and of an answer that are written
	largeBody   = 1 << 20                    // bytes of a body or line that are held without a place among largeBodies
	largeBodies = 4                          // at a time

	maxReaders = 8                // answers made of files at a time
	maxTails   = 64               // open ones
	pageBytes  = 1 << 20          // of payloads in one answer; the last one may be larger
	findTime   = 10 * time.Second // of a search in files
	askTimeout = 10 * time.Second // of what one answer asks the queue
	placeWait  = 2 * time.Second  // for a place among readers or large bodies
)

// body is the body of a request, which has to arrive in time.
type body struct {
	r    io.Reader
	c    *http.ResponseController
	most time.Duration // that a client may keep the server waiting
	left time.Duration // of it
	n    int64         // bytes read
}

// Read counts only the time spent waiting for the client, and not what the server takes between two reads.
func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	// rule: a client that sends too slowly loses its connection.
	b.c.SetReadDeadline(began.Add(b.left))
	n, err := b.r.Read(p)
	b.n += int64(n)
	b.left = min(b.most, b.left-time.Since(began)+time.Duration(n)*time.Second/slowestBody)
	if err == io.EOF {
		b.c.SetReadDeadline(time.Time{}) // or net/http takes it for the end of the client
	}
	return n, err
}

// answer is a response that has to be taken in time, and knows what was answered.
type answer struct {
	http.ResponseWriter
	c       *http.ResponseController
	timeout time.Duration
	status  int
	bytes   int64
	failed  error // of writing
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	// rule: a client that does not read its answer holds it for a while, and not for good.
	a.c.SetWriteDeadline(time.Now().Add(a.timeout))
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	if err != nil {
		a.failed = err
	}
	return n, err
}

// Flush sends what was written.
func (a *answer) Flush() error {
	a.c.SetWriteDeadline(time.Now().Add(a.timeout))
	if err := a.c.Flush(); err != nil {
		a.failed = err
	}
	return a.failed
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
