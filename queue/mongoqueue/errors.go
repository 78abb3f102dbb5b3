package mongoqueue

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/queue"
)

// Error codes of the server, from
// https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml
const (
	codeBadValue                  = 2
	codeFailedToParse             = 9
	codeUnauthorized              = 13
	codeTypeMismatch              = 14
	codeInvalidLength             = 16
	codeAuthenticationFailed      = 18
	codeIllegalOperation          = 20
	codeInvalidBSON               = 22
	codeDollarPrefixedFieldName   = 52
	codeDottedFieldName           = 57
	codeCommandNotFound           = 59
	codeInvalidNamespace          = 73
	codeCommandNotSupported       = 115
	codeDocumentValidationFailure = 121
	codeCommandNotSupportedOnView = 166
	codeNotImplemented            = 238
	codeAPIVersion                = 322
	codeAPIStrict                 = 323
	codeAPIDeprecation            = 324
	codeAtlas                     = 8000
	codeBSONObjectTooLarge        = 10334
	codeDuplicateKey              = 11000
	codeKeyTooLong                = 17280
	codeUnknownStage              = 40324
)

// verdict is what an error says about the documents of a write.
type verdict struct {
	refused   bool  // they are certainly not stored
	temporary bool  // … but a retry may succeed
	document  bool  // … because of this one document
	sentinel  error // of package queue; nil if none fits
}

// judge classifies an error. rule: whatever is not known to be a refusal is unclear.
func judge(err error) verdict {
	if errors.Is(err, mongo.ErrClientDisconnected) {
		return verdict{refused: true, sentinel: queue.ErrClosed}
	}
	// No server was found, so nothing was sent. An inner error can only stem from the search.
	var selection topology.ServerSelectionError
	if errors.As(err, &selection) {
		return verdict{refused: true, temporary: true, sentinel: queue.ErrUnreachable}
	}
	if code := errorCode(err); code != 0 {
		return judgeCode(code)
	}
	if mongo.IsNetworkError(err) {
		return verdict{sentinel: queue.ErrUnreachable} // it was sent perhaps
	}
	return verdict{}
}

// judgeCode classifies a server's error code. The codes listed are only returned before anything is
// written.
func judgeCode(code int) verdict {
	switch code {
	case codeUnauthorized, codeAuthenticationFailed:
		return verdict{refused: true, sentinel: queue.ErrPermission}
	case codeBadValue, codeFailedToParse, codeTypeMismatch, codeInvalidLength, codeIllegalOperation, codeInvalidBSON,
		codeDollarPrefixedFieldName, codeDottedFieldName, codeCommandNotFound, codeInvalidNamespace, codeCommandNotSupported,
		codeDocumentValidationFailure, codeCommandNotSupportedOnView, codeAPIVersion, codeAPIStrict, codeAPIDeprecation,
		codeAtlas, codeBSONObjectTooLarge, codeKeyTooLong:
		return verdict{refused: true, sentinel: queue.ErrUnsupported}
	}
	return verdict{}
}

// judgeDocument classifies the code with which a server refuses one document of an insert after accepting those before it.
//
// rule: only codes that are about the document may make a dead letter of it. A missing permission, or an operation that this server does
// not support, affects every document.
func judgeDocument(code int) verdict {
	v := judgeCode(code)
	switch code {
	case codeBadValue, codeInvalidLength, codeInvalidBSON, codeDollarPrefixedFieldName, codeDottedFieldName, codeDocumentValidationFailure,
		codeBSONObjectTooLarge, codeKeyTooLong:
		v.document = true
	}
	return v
}

// documentError is the certain refusal of one document: the first that an *InsertError does not count as stored.
type documentError struct {
	why string // in the server's words
	err error
}

func (e *documentError) Error() string { return e.err.Error() }
func (e *documentError) Unwrap() error { return e.err }

// refusedDocument reports whether an insert ended because the server refuses one document: which message, and why. The messages before it
// are stored; it and those after it are not.
func refusedDocument(err error) (message int, why string, ok bool) {
	var ie *queue.InsertError
	var one *documentError
	if !errors.As(err, &ie) || !ie.Refused || ie.Temporary || !errors.As(err, &one) {
		return 0, "", false
	}
	return ie.Stored, one.why, true
}

// errorCode returns the server's code, or 0. An authentication failure while connecting has the code inside.
func errorCode(err error) int {
	var server mongo.ServerError
	if !errors.As(err, &server) {
		return 0
	}
	if codes := server.ErrorCodes(); len(codes) > 0 {
		return codes[0]
	}
	return 0
}

func hasCode(err error, code int) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && server.HasErrorCode(code)
}

// explainURL adds to an error of package mongourl whether a retry may help.
func explainURL(err error) error {
	if reason, _ := mongoerr.Passing(err); reason != "" { // DNS does not answer
		return fmt.Errorf("mongoqueue: %w: %w", queue.ErrUnreachable, err)
	}
	return fmt.Errorf("%w %w", queue.ErrInvalidURL, err)
}

// explain adds what failed and what to do about it. The driver's errors name hosts, never credentials.
func (q *Queue) explain(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("mongoqueue: %s: %w (%w)", op, context.Cause(ctx), mongoerr.Brief(err))
	}
	switch sentinel := judge(err).sentinel; sentinel {
	case nil:
		return fmt.Errorf("mongoqueue: %s: %w", op, err)
	case queue.ErrUnreachable:
		err = mongoerr.Brief(q.failures.Recall(err))
		if search, ok := errors.AsType[*mongoerr.Search](err); ok {
			return fmt.Errorf("mongoqueue: %s: %w: no usable server at %s within %v: %w; %s", op, sentinel, q.name, q.connectFor, search, search.Check)
		}
		if remedy := mongoerr.TLS(err); remedy != "" {
			return fmt.Errorf("mongoqueue: %s: %w: no connection to %s: %s: %w", op, sentinel, q.name, remedy, err)
		}
		return fmt.Errorf("mongoqueue: %s: %w: no answer from %s within %v; check that the server runs, that host and port are right, and that replicaSet and tls in the URI fit it (a server may want tls=true): %w",
			op, sentinel, q.name, q.connectFor, err)
	case queue.ErrPermission:
		return fmt.Errorf("mongoqueue: %s: %w: %s; check user name and password, that authSource names the database in which the user is defined (often admin), and that it has the role readWrite: %w",
			op, sentinel, q.name, err)
	default:
		return fmt.Errorf("mongoqueue: %s: %w: %w", op, sentinel, err)
	}
}
