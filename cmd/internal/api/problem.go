package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/lines"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/internal/redact"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
)

const codeUnknown = "unknown_outcome"

// problem is an error in the format of RFC 9457 (application/problem+json). Code is for programs, Detail and Remedy are for people.
type problem struct {
	Title  string `json:"title"` // the status text
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
	ID     string `json:"id,omitempty"`                  // with unknown_outcome: the ID that the message has if it is stored
	Retry  int    `json:"retry_after_seconds,omitempty"` // when a retry makes sense
	To     uint64 `json:"to_index,omitempty"`            // with removed: the index to continue with, as in the event gap
}

func (p *problem) Error() string { return p.Detail + "; " + p.Remedy }

func newProblem(status int, code, remedy, format string, args ...any) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Code: code, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// after sets in how many seconds a retry makes sense.
func (p *problem) after(seconds int) *problem {
	p.Retry = seconds
	return p
}

func malformed(remedy, format string, args ...any) *problem {
	return newProblem(http.StatusBadRequest, "malformed", remedy, format, args...)
}

func notFound(code, remedy, format string, args ...any) *problem {
	return newProblem(http.StatusNotFound, code, remedy, format, args...)
}

func stopping() *problem {
	return newProblem(http.StatusServiceUnavailable, "stopping", "send it again to another replica, or when this one is back", "the server is stopping").after(5)
}

func unavailable(why string) *problem {
	return newProblem(http.StatusServiceUnavailable, "unavailable", "send the request again later", "%s", why).after(5)
}

func busy(what string) *problem {
	return newProblem(http.StatusServiceUnavailable, "busy", "send the request again later", "the server has %s", what).after(1)
}

// problem translates an error of package queue or storage, or of a request, for a client.
func (s *Server) problem(err error) *problem {
	if told, ok := errors.AsType[*problem](err); ok {
		return told
	}
	text := s.clean(err)
	switch {
	// rule: a message that may be stored is reported neither as a success nor as a failure.
	case errors.Is(err, queue.ErrUnknown):
		return newProblem(http.StatusGatewayTimeout, codeUnknown,
			"send it again with the Idempotency-Key that it had: the file then has it once; without a key a repetition may be stored twice, so look for the id first", "%s", text).after(5)
	case errors.Is(err, queue.ErrTooLarge):
		return newProblem(http.StatusRequestEntityTooLarge, "too_large", "make the message smaller", "%s", text)
	case errors.Is(err, queue.ErrInvalidType), errors.Is(err, queue.ErrInvalidHeader), errors.Is(err, queue.ErrInvalidDue):
		return newProblem(http.StatusUnprocessableEntity, "invalid", "correct what the detail names", "%s", text)
	case errors.Is(err, queue.ErrPaused):
		return newProblem(http.StatusConflict, "paused", "send it again when an operator has resumed publishing to the type", "%s", text).after(60)
	case errors.Is(err, queue.ErrBacklogFull):
		return newProblem(http.StatusTooManyRequests, "backlog_full", "send it again later: workers have to catch up first", "%s", text).after(2)
	case errors.Is(err, queue.ErrPermission), errors.Is(err, queue.ErrUnsupported), errors.Is(err, queue.ErrReplaced), errors.Is(err, queue.ErrDamaged):
		return newProblem(http.StatusInternalServerError, "refused", "tell the operator of this server: a repetition will not help", "%s", text)
	case errors.Is(err, storage.ErrIntegrity), errors.Is(err, storage.ErrRefused):
		return newProblem(http.StatusInternalServerError, "damaged", "tell the operator of this server: fencepost verify says what is wrong with the file", "%s", text)
	case errors.Is(err, queue.ErrClosed) && s.isStopping():
		return stopping()
	case errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable, "canceled", "send the request again", "the request was given up: %s", text).after(1)
	}
	return unavailable(text)
}

// bodyProblem translates an error of reading a body.
func (s *Server) bodyProblem(err error) *problem {
	var told *problem
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &tooLong):
		return newProblem(http.StatusRequestEntityTooLarge, "too_large", reference, "the body has more than %d bytes", tooLong.Limit)
	case errors.Is(err, lines.ErrTooLong):
		return newProblem(http.StatusRequestEntityTooLarge, "too_large", reference, "the line has more than %d bytes", maxLine)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, "too_slow", "send it again, without pauses", "the body did not arrive in time")
	}
	return malformed("send it again, with the length that the request says", "the body ended early: %s", s.clean(err))
}

const reference = "store the data elsewhere and publish a reference, or split it into several messages"

// clean returns the text of an error without secrets, in which files of a store are named by their name and the store's.
func (s *Server) clean(err error) string {
	return redact.Text(cli.StoreText(err.Error(), s.files.Name))
}

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
	p.head(w)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	printable.EncodeJSON(w, p, "")
}

// head sets the headers that belong to the status.
func (p *problem) head(w http.ResponseWriter) {
	if p.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.Retry))
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="fencepost"`)
	}
}
