package s3slots

import (
	"errors"
	"fmt"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/fencepost/fencepost/storage/slots"
)

// refusals are the codes of permanent errors, which stay until a person changes something.
var refusals = map[string]struct{ reason, remedy string }{
	"AccessDenied":                       {"access is denied", needed},
	"Forbidden":                          {"access is denied", needed},
	"AllAccessDisabled":                  {"access is disabled", needed},
	"AccountProblem":                     {"the account has a problem", "ask who runs the store"},
	"InvalidAccessKeyId":                 {"the access key is not known", "set the AWS_ACCESS_KEY_ID of a key of this store"},
	"SignatureDoesNotMatch":              {"the secret key is wrong", "set the AWS_SECRET_ACCESS_KEY that belongs to AWS_ACCESS_KEY_ID"},
	"ExpiredToken":                       {"the credentials have expired", "get new ones, or use a role that renews them"},
	"TokenRefreshRequired":               {"the credentials have expired", "get new ones, or use a role that renews them"},
	"InvalidToken":                       {"the session token is not valid", "set the AWS_SESSION_TOKEN that belongs to AWS_ACCESS_KEY_ID, or none"},
	"RequestTimeTooSkewed":               {"the clock of this machine is wrong", "set it right: run an NTP client"},
	"AuthorizationHeaderMalformed":       {"the bucket is in another region", otherRegion},
	"PermanentRedirect":                  {"the bucket is in another region", otherRegion},
	"MovedPermanently":                   {"the bucket is in another region", otherRegion},
	"IllegalLocationConstraintException": {"the bucket is in another region", otherRegion},
	"InvalidBucketName":                  {"the name of the bucket is not valid", "correct the address"},
	"NotImplemented":                     {"it cannot create objects only where there are none", "use a store that knows If-None-Match for PutObject"},
}

const (
	needed      = "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket to these credentials"
	otherRegion = "name its region with ?region= in the address"
)

func (s *Store) refused(reason, remedy string, err error) error {
	return &slots.RefusedError{Store: s.String(), Reason: reason, Remedy: remedy, Err: err}
}

func (s *Store) noBucket(err error) error {
	return s.refused("there is no such bucket", "create it, or correct the address", err)
}

// explain translates errors of requests into those of package slots. All others are unclear: timeouts,
// lost connections, 409 ConditionalRequestConflict, 500, 503 SlowDown.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	code, status := codeOf(err), statusOf(err)
	switch {
	case code == "NoSuchBucket":
		return s.noBucket(brief(err))
	case code == "QuotaExceeded", code == "InsufficientStorage", code == "XMinioStorageFull", status == 507:
		return fmt.Errorf("%s: %w: %w", s, slots.ErrFull, brief(err))
	case status == 301:
		return s.refused("the bucket is in another region", otherRegion, brief(err))
	}
	if r, ok := refusals[code]; ok {
		return s.refused(r.reason, r.remedy, brief(err))
	}
	return fmt.Errorf("%s: %w", s, err)
}

// brief returns only the message of an answer; the whole error also has requests and hosts.
func brief(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err
	}
	if api.ErrorMessage() == "" {
		return errors.New(api.ErrorCode())
	}
	return errors.New(api.ErrorCode() + ": " + api.ErrorMessage())
}

// codeOf returns the code of an answer, such as NoSuchKey; "" if there was none.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// statusOf returns the HTTP status of an answer that is an error; 0 if there was none.
func statusOf(err error) int {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}
