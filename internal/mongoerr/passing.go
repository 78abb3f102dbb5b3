package mongoerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// ErrNoPrimary is wrapped by errors about a member of a replica set that currently has no primary.
var ErrNoPrimary = errors.New("the replica set has no primary, an election may be under way")

// Answers of a member while it starts or stops, or while another member becomes the primary.
// https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml
var passingCodes = map[int]string{
	91:    "the server is shutting down",              // ShutdownInProgress
	133:   "the shard has no primary",                 // FailedToSatisfyReadPreference, of a mongos
	189:   "the primary has stepped down",             // PrimarySteppedDown
	10058: "the server is not the primary any more",   // LegacyNotPrimary
	10107: "the server is not the primary any more",   // NotWritablePrimary
	11600: "the server is shutting down",              // InterruptedAtShutdown
	11602: "the primary has stepped down",             // InterruptedDueToReplStateChange
	13435: "the server is not the primary any more",   // NotPrimaryNoSecondaryOk
	13436: "the server is starting, or is recovering", // NotPrimaryOrSecondary
}

// Passing returns why there is no usable server, if the cause is usually temporary: the replica set elects a primary, a server restarts, or
// no server answers. reason is "" for permanent causes, which a person has to correct (TLS, credentials, an unknown host, a server that
// is not a member of the set). heard reports that some machine answered, so the cause is an election or a restart and not silence.
func Passing(err error) (reason string, heard bool) {
	if err == nil || TLS(err) != "" {
		return "", false
	}
	if errors.Is(err, ErrNoPrimary) {
		return ErrNoPrimary.Error(), true
	}
	var selection topology.ServerSelectionError
	if errors.As(err, &selection) {
		return passingTopology(selection.Desc)
	}
	return passingAnswer(err)
}

// passingTopology examines what the driver knows about each server. One that may come back is enough.
func passingTopology(desc description.Topology) (reason string, heard bool) {
	for _, s := range desc.Servers {
		switch {
		case s.Kind&description.ServerKindRSMember != 0 && s.Kind != description.ServerKindRSPrimary:
			return ErrNoPrimary.Error(), true
		case s.Kind != 0:
			// A usable server that came a moment too late.
			return fmt.Sprintf("%s has just come back", s.Addr), true
		}
		why, answered := passingAnswer(s.LastError)
		if why == "" && s.LastError == nil {
			why = "no answer"
		}
		if why != "" && (reason == "" || answered && !heard) {
			reason, heard = fmt.Sprintf("%s: %s", s.Addr, why), answered
		}
	}
	return reason, heard
}

// passingAnswer classifies an answer, or the lack of one.
func passingAnswer(err error) (reason string, heard bool) {
	var code int
	var server mongo.ServerError
	var inside driver.Error // of the driver's own requests
	switch {
	case errors.As(err, &server):
		if codes := server.ErrorCodes(); len(codes) > 0 {
			code = codes[0]
		}
	case errors.As(err, &inside):
		code = int(inside.Code)
	}
	if code != 0 {
		reason, heard = passingCodes[code]
		return reason, heard
	}
	return passingNetwork(err)
}

// passingNetwork classifies the error of one connection.
func passingNetwork(err error) (reason string, heard bool) {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &dns):
		if dns.IsNotFound {
			return "", false
		}
		return "the name service does not answer", false
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection closed by the server", true
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return "host unreachable", false
	// The driver closes its connections to a server that no longer answers its monitor.
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, net.ErrClosed):
		return "no answer", false
	}
	return "", false
}
