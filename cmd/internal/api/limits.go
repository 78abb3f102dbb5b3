package api

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/fencepost/fencepost/queue"
)

// Bounds on what one client can take from the others, and on what all clients together can take from the machine.
const (
	headerTimeout = 5 * time.Second // time to send the head of a request
	idleTimeout   = 2 * time.Minute // longest pause between two requests of a connection
	maxHeader     = 128 << 10       // bytes of a head: the headers of a message may take 64 KiB

	slowestClient = 32 << 10 // bytes per second at which a body must arrive, or a response from files be received, once Options.ClientTimeout is used up

	// Clients choose the types, and each takes memory until it has been idle for this long. Not much shorter: the next message of the type then begins
	// a new producer, which its file remembers.
	idleType = 5 * time.Minute
	maxTypes = 10_000 // types in memory

	stopWait = time.Second // how long a server that stops waits for another line

	maxLines     = 20_000                     // lines of one request
	maxLine      = 2*queue.MaxPayload + 1<<20 // bytes of one line: a payload in base64 or with escapes, and headers
	chunkLines   = 1000                       // lines stored together
	chunkBytes   = 512 << 10                  // payload bytes stored together
	roomSize     = 64 << 10                   // bytes allocated for payloads at once
	bufferSize   = 64 << 10                   // bytes of a body read at once, and of a response written at once
	mediumBody   = 64 << 10                   // bytes of a body, line or chunk from which on it needs one of the mediumBodies places
	mediumBodies = 64                         // such bodies held concurrently
	largeBody    = 1 << 20                    // bytes of a body or line from which on it also needs one of the largeBodies places
	largeBodies  = 4                          // large bodies held concurrently

	maxReaders = 8                // responses read from files concurrently
	maxTails   = 64               // open tails
	pageBytes  = 1 << 20          // payload bytes after which a response ends; the last payload may exceed it
	findTime   = 10 * time.Second // longest search in files
	askTimeout = 10 * time.Second // longest time that one response spends querying the queue
	placeWait  = 2 * time.Second  // longest wait for a place among readers or large bodies
)

// patience is how long a client may keep the server waiting: at most so long, of which some is left.
type patience struct{ most, left time.Duration }

// spend takes off the time since began, and grants the time that n bytes may take at slowestClient.
func (p *patience) spend(began time.Time, n int) {
	p.left = min(p.most, p.left-time.Since(began)+time.Duration(n)*time.Second/slowestClient)
}

// body is the body of a request, which must arrive in time.
type body struct {
	r io.Reader
	c *http.ResponseController
	patience
	n int64 // bytes read

	stopped context.Context // when done, a client may keep the server waiting for stopWait only; nil: never done
}

// Read counts only the time spent waiting for the client, not the time that the server takes between two reads.
func (b *body) Read(p []byte) (int, error) {
	began := time.Now()
	// rule: a client that sends too slowly loses its connection.
	b.c.SetReadDeadline(began.Add(b.left))
	if b.stopped != nil && b.stopped.Err() != nil {
		b.most, b.left = min(b.most, stopWait), min(b.left, stopWait)
		b.c.SetReadDeadline(time.Now().Add(b.left)) // hurry may have come before the other one
	}
	n, err := b.r.Read(p)
	b.n += int64(n)
	b.spend(began, n)
	if err == io.EOF {
		b.c.SetReadDeadline(time.Time{}) // net/http would take an expired deadline for a disconnected client
	}
	return n, err
}

// hurry ends the Read in progress soon.
func (b *body) hurry() { b.c.SetReadDeadline(time.Now().Add(stopWait)) }

// answer is a response that the client must receive in time. It records what was sent.
type answer struct {
	http.ResponseWriter
	c *http.ResponseController
	patience
	reader  bool // the response holds one of the maxReaders places, so patience runs out; otherwise each write gets all of it
	status  int
	bytes   int64
	failed  error   // of writing
	pattern string  // of the route; "": none
	client  *client // nil: none was admitted
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
	// rule: a client that does not read its response holds it for a limited time.
	began := time.Now()
	if !a.reader {
		a.left = a.most
	}
	a.c.SetWriteDeadline(began.Add(a.left))
	n, err := a.ResponseWriter.Write(p)
	a.spend(began, n)
	a.bytes += int64(n)
	if err != nil {
		a.failed = err
	}
	return n, err
}

// Flush sends buffered data to the client.
func (a *answer) Flush() error {
	a.c.SetWriteDeadline(time.Now().Add(a.most))
	if err := a.c.Flush(); err != nil {
		a.failed = err
	}
	return a.failed
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// space is the memory of a request's body beyond mediumBody. Requests share it, so that bodies of all connections together have a bound.
type space struct {
	s      *Server
	leaves []func() // a medium place, then a large one
}

// grow takes the places that so many bytes need.
func (sp *space) grow(ctx context.Context, size int) error {
	if size >= mediumBody && len(sp.leaves) == 0 {
		// The client waits for the outcome of its message anyway, which may take as long.
		leave, err := sp.s.placeIn(ctx, sp.s.o.Wait/2, sp.s.medium, "too many bodies at a time")
		if err != nil {
			return err
		}
		sp.leaves = append(sp.leaves, leave)
	}
	if size >= largeBody && len(sp.leaves) == 1 {
		leave, err := sp.s.place(ctx, sp.s.large, "too many large bodies at a time")
		if err != nil {
			return err
		}
		sp.leaves = append(sp.leaves, leave)
	}
	return nil
}

// tryMedium is grow for a medium body, without waiting.
func (sp *space) tryMedium() bool {
	if len(sp.leaves) > 0 {
		return true
	}
	select {
	case sp.s.medium <- struct{}{}:
		sp.leaves = append(sp.leaves, func() { <-sp.s.medium })
		return true
	default:
		return false
	}
}

// leave returns the places.
func (sp *space) leave() {
	for _, leave := range sp.leaves {
		leave()
	}
	sp.leaves = nil
}

// typesInUse are the types for which the publisher may hold memory. Safe for concurrent use.
type typesInUse struct {
	keep time.Duration // how long the publisher may hold memory for a type after it was last given messages

	mu    sync.Mutex
	since map[string]time.Time // when it was last given messages
	swept time.Time
}

// take reports whether the publisher may be given messages of a type.
func (u *typesInUse) take(typ string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if _, there := u.since[typ]; !there && len(u.since) >= maxTypes {
		if now.Sub(u.swept) < time.Second { // a refusal costs little
			return false
		}
		u.swept = now
		maps.DeleteFunc(u.since, func(_ string, since time.Time) bool { return now.Sub(since) > u.keep })
		if len(u.since) >= maxTypes {
			return false
		}
	}
	u.since[typ] = now
	return true
}
