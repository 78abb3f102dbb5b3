package mongoslots

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/storage/slots"
)

// Error codes of the server, from
// https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml
const (
	codeBadValue                    = 2
	codeFailedToParse               = 9
	codeUserNotFound                = 11
	codeUnauthorized                = 13
	codeAuthenticationFailed        = 18
	codeCommandNotFound             = 59
	codeInvalidOptions              = 72
	codeInvalidNamespace            = 73
	codeCommandNotSupported         = 115
	codeDocumentValidationFailure   = 121
	codeNotAReplicaSet              = 123
	codeReadConcernMajorityDisabled = 148
	codeCommandNotSupportedOnView   = 166
	codeNotImplemented              = 238
	codeAPIVersion                  = 322
	codeAPIStrict                   = 323
	codeAPIDeprecation              = 324
	codeMechanismUnavailable        = 334
	codeUserWritesBlocked           = 371
	codeAtlas                       = 8000
	codeBSONObjectTooLarge          = 10334
	codeQuotaExceeded               = 12501 // of hosts that serve versions before 4.0
	codeOutOfDiskSpace              = 14031
)

// explain says what failed and what to do about it. The driver's errors name hosts, never
// credentials.
//
// rule: an error is a refusal only if it is known to be one. All others are unclear: the request
// may have been applied, or may be applied later.
func (s *Store) explain(ctx context.Context, doing, name string, err error) error {
	unclear := func(why string) error {
		return fmt.Errorf("%s: %s %s: %s%w", s.address, doing, name, why, mongoerr.Brief(err))
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %s %s: %w (%w)", s.address, doing, name, context.Cause(ctx), mongoerr.Brief(err))
	// rule: a write that missed its write concern is still a write; a later answer tells whether it lasts
	case onlyHere(err):
		return unclear("written, but it may not be durable: ")
	}
	err = s.failures.Recall(err)
	if remedy := mongoerr.TLS(err); remedy != "" {
		return unclear(remedy + ": ")
	}
	// rule: a server that is shutting down, or a set that is electing a primary, refuses nothing permanently, whatever it
	// cannot do meanwhile, such as authenticating a user
	if reason, _ := mongoerr.Passing(err); reason != "" {
		if _, search := mongoerr.Brief(err).(*mongoerr.Search); search { // its text says why
			return unclear("no usable server: ")
		}
		return unclear(reason + ": ")
	}
	if isFull(err) {
		return slots.Full(fmt.Sprintf("%s: %s %s", s.address, doing, name), err)
	}
	if reason, remedy := s.refusal(err); reason != "" {
		return s.refused(doing, name, reason, remedy, err)
	}
	return unclear("")
}

func (s *Store) refused(doing, name, reason, remedy string, err error) error {
	reason = doing + " " + name + ": " + reason
	return &slots.RefusedError{Store: s.address, Reason: reason, Remedy: remedy, Err: err}
}

// onlyHere reports whether the server answered a write without satisfying its write concern.
func onlyHere(err error) bool {
	var we mongo.WriteException
	return errors.As(err, &we) && we.WriteConcernError != nil
}

// isFull reports whether the server has no space. Servers return these codes before they write anything.
func isFull(err error) bool {
	return hasCode(err, codeOutOfDiskSpace) || hasCode(err, codeQuotaExceeded) ||
		// Atlas has one code for all its own errors, and blocks writes if a disk is nearly full.
		hasCode(err, codeAtlas) && strings.Contains(err.Error(), "space quota") ||
		hasCode(err, codeUserWritesBlocked) && strings.Contains(strings.ToLower(err.Error()), "disk")
}

// refusal returns why the server refuses a request, and what an operator has to do; "" if the refusal is uncertain or may
// be temporary. Servers return these codes before they write anything.
func (s *Store) refusal(err error) (reason, remedy string) {
	const (
		who   = "check user, password, authMechanism and authSource in the URL"
		where = "make it an ordinary collection, without a validator, or name another one"
	)
	role := "give the user the role readWrite on the database " + s.db.Name()
	_, login := errors.AsType[*auth.Error](err)
	switch codeOf(err) {
	case codeAuthenticationFailed, codeUserNotFound, codeMechanismUnavailable:
		return "the server does not accept the user", who
	case codeUnauthorized:
		if login {
			return "the server does not accept the user", who
		}
		return "the user may not do that", role
	case codeAtlas:
		switch text := strings.ToLower(err.Error()); {
		case strings.Contains(text, "bad auth"):
			return "the server does not accept the user", who
		case strings.Contains(text, "not allowed"), strings.Contains(text, "not authorized"):
			return "the user may not do that", role
		}
	case codeUserWritesBlocked:
		return "the server blocks user writes now (setUserWriteBlockMode)", "unblock them"
	case codeDocumentValidationFailure, codeCommandNotSupportedOnView, codeInvalidNamespace:
		return "the collection " + s.collection + " does not take it", where
	case codeBSONObjectTooLarge:
		return "the document is larger than this server takes", "store it in parts"
	case codeReadConcernMajorityDisabled:
		return "the server cannot tell what a majority has", "leave out enableMajorityReadConcern: false there"
	case codeCommandNotFound, codeCommandNotSupported,
		codeAPIVersion, codeAPIStrict, codeAPIDeprecation:
		return "the server does not support the request", "use MongoDB 4.4 or later, without a strict version of its API"
	}
	return "", ""
}

// isConcernUnknown reports whether the server permanently refuses linearizable reads.
func isConcernUnknown(err error) bool {
	switch codeOf(err) {
	case codeNotAReplicaSet, codeBadValue, codeFailedToParse, codeInvalidOptions,
		codeCommandNotSupported, codeNotImplemented:
		return true
	}
	return false
}

// codeOf returns the server's code, or 0.
func codeOf(err error) int {
	var server mongo.ServerError
	if errors.As(err, &server) {
		if codes := server.ErrorCodes(); len(codes) > 0 {
			return codes[0]
		}
	}
	return 0
}

func hasCode(err error, code int) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && server.HasErrorCode(code)
}
