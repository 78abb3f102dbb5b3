//go:build unix

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fencepost/fencepost/internal/mongowire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// protocol is what a link knows about the messages that pass through it. On one connection a request follows the answer to the
// previous one.
type protocol interface {
	// read reads the next message of a direction, unchanged or with the same meaning.
	read(w *wire, direction int) (message []byte, err error)
	// operation distinguishes the product's requests, and their answers, from a driver's messages about the connection itself.
	operation(message []byte) bool
	// isStore reports whether a request is about files, and isCreate whether it creates a slot.
	isStore(request []byte) bool
	isCreate(request []byte) bool
	// isDone reports whether a create succeeded according to its answer, isTaken whether another value exists.
	isDone(answer []byte) bool
	isTaken(answer []byte) bool
	// answer returns the answer of a server in trouble.
	answer(request []byte, t trouble) []byte
}

// trouble is why a store does not execute a request.
type trouble int

const (
	none        trouble = iota
	unavailable         // temporarily
	revoked             // the credentials are no longer good
	full                // it accepts nothing more
)

func (t trouble) String() string {
	return [...]string{"", "an error of the server", "credentials revoked", "store full"}[t]
}

// wireProtocol is MongoDB's.
type wireProtocol struct{}

func (wireProtocol) read(w *wire, direction int) ([]byte, error) {
	return mongowire.Read(w.from[direction])
}

func head(message []byte) string { return string(message[:min(len(message), 400)]) }

func (wireProtocol) operation(message []byte) bool {
	for _, talk := range []string{"isWritablePrimary", "ismaster", "isMaster", "\x10hello\x00", "helloOk", "\x10ping\x00", "saslStart", "saslContinue", "endSessions"} {
		if strings.Contains(head(message), talk) {
			return false
		}
	}
	return true
}

// slotsValue is the name of the collection, as encoded in a command.
const slotsValue = "\x00\x06\x00\x00\x00slots\x00"

func (wireProtocol) isStore(request []byte) bool { return strings.Contains(head(request), slotsValue) }
func (wireProtocol) isCreate(request []byte) bool {
	return strings.Contains(head(request), "\x02insert"+slotsValue)
}
func (wireProtocol) isDone(answer []byte) bool {
	// ok: 1.0
	return strings.Contains(head(answer), "\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f") && !strings.Contains(head(answer), "writeErrors")
}
func (wireProtocol) isTaken(answer []byte) bool { return strings.Contains(head(answer), "E11000") }

// answer returns an error with a code of https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml.
func (wireProtocol) answer(request []byte, t trouble) []byte {
	code, name := 11600, "InterruptedAtShutdown"
	switch t {
	case revoked:
		code, name = 13, "Unauthorized"
	case full:
		code, name = 14031, "OutOfDiskSpace"
	}
	body, err := bson.Marshal(bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "chaos: " + t.String()}, {Key: "code", Value: int32(code)}, {Key: "codeName", Value: name}})
	if err != nil {
		panic(err) // it is the same every time
	}
	// Length, number, number of the request, operation, flags, kind of section.
	message := binary.LittleEndian.AppendUint32(nil, uint32(mongowire.HeaderSize+4+1+len(body)))
	message = append(message, 0, 0, 0, 0)
	message = append(message, request[4:8]...)
	message = binary.LittleEndian.AppendUint32(message, mongowire.OpMsg)
	message = append(message, 0, 0, 0, 0, 0)
	return append(message, body...)
}

// objectProtocol is S3's, over HTTP/1.1.
type objectProtocol struct{}

func (objectProtocol) read(w *wire, direction int) ([]byte, error) {
	var out bytes.Buffer
	if direction == toServer {
		r, err := http.ReadRequest(w.from[toServer])
		if err != nil {
			return nil, err
		}
		// A client that waits for a request for the body gets one.
		if strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
			r.Header.Del("Expect")
			if _, err := io.WriteString(w.ends[toClient], "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return nil, err
			}
		}
		err = r.Write(&out)
		return out.Bytes(), err
	}
	// The length of an answer depends on its request, which is known once a byte of the answer arrives.
	if _, err := w.from[toClient].Peek(1); err != nil {
		return nil, err
	}
	w.mu.Lock()
	method, _, _ := bytes.Cut(w.request.message, []byte(" "))
	w.mu.Unlock()
	r, err := http.ReadResponse(w.from[toClient], &http.Request{Method: string(method)})
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	err = r.Write(&out)
	return out.Bytes(), err
}

func (objectProtocol) operation([]byte) bool        { return true }
func (objectProtocol) isStore([]byte) bool          { return true }
func (objectProtocol) isCreate(request []byte) bool { return bytes.HasPrefix(request, []byte("PUT ")) }
func (objectProtocol) isDone(answer []byte) bool {
	return bytes.HasPrefix(answer, []byte("HTTP/1.1 200"))
}
func (objectProtocol) isTaken(answer []byte) bool {
	return bytes.HasPrefix(answer, []byte("HTTP/1.1 412"))
}

// answer returns an error of https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the one for a full store is
// MinIO's.
func (objectProtocol) answer(request []byte, t trouble) []byte {
	status, code := http.StatusInternalServerError, "InternalError"
	switch t {
	case revoked:
		status, code = http.StatusForbidden, "AccessDenied"
	case full:
		status, code = http.StatusInsufficientStorage, "XMinioStorageFull"
	}
	body := fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>chaos: %s</Message></Error>", code, t)
	answer := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n", status, http.StatusText(status), len(body))
	if !bytes.HasPrefix(request, []byte("HEAD ")) {
		answer += body
	}
	return []byte(answer)
}
