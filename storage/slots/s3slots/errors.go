package s3slots

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fencepost/fencepost/storage/slots"
)

// refusals are the codes of permanent errors, which last until an operator changes something.
var refusals = map[string]struct{ reason, remedy string }{
	"AccessDenied":                       {"access is denied", needed},
	"Forbidden":                          {"access is denied", needed},
	"AllAccessDisabled":                  {"access is disabled", needed},
	"AccountProblem":                     {"the account has a problem", "ask the operator of the store"},
	"InvalidAccessKeyId":                 {"the access key is not known", otherKey},
	"XAdminUserNotFound":                 {"the access key is not known", otherKey}, // of versitygw
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
	otherKey    = "set the AWS_ACCESS_KEY_ID of a key of this store"
	otherRegion = "name its region with ?region= in the address"
	neededOfKey = "allow kms:GenerateDataKey and kms:Decrypt on the key to these credentials, in their policy and in the key's"
)

// full are the codes of a full store: of AWS and Ceph, of WebDAV's status, of MinIO's disks and of MinIO's buckets.
var full = []string{"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}

func (s *Store) refused(reason, remedy string, err error) error {
	return &slots.RefusedError{Store: s.String(), Reason: reason, Remedy: remedy, Err: err}
}

func (s *Store) noBucket(err error) error {
	return s.refused("there is no such bucket", "create it, or correct the address", err)
}

// explain translates errors of requests into errors of package slots. All others are unclear: timeouts,
// lost connections, 409 ConditionalRequestConflict, 500, 503 SlowDown.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	code, status := codeOf(err), statusOf(err)
	switch {
	case code == "NoSuchBucket":
		return s.noBucket(brief(err))
	case slices.Contains(full, code), status == 507:
		return slots.Full(s.String(), brief(err))
	case status == 301:
		return s.refused("the bucket is in another region", otherRegion, brief(err))
	case strings.HasPrefix(code, "KMS."):
		return s.refused("the KMS key cannot be used", "enable the key, or put the right one into sse-kms-key-id= or into the settings of the bucket; "+neededOfKey, brief(err))
	// S3 passes on the error of KMS, whose text names the permission.
	case code == "AccessDenied" && strings.Contains(brief(err).Error(), "kms:"):
		return s.refused("access to the KMS key is denied", neededOfKey, brief(err))
	}
	if reason, remedy := untrusted(err); reason != "" {
		return s.refused(reason, remedy, nil)
	}
	if r, ok := refusals[code]; ok {
		return s.refused(r.reason, r.remedy, brief(err))
	}
	if reason := unanswered(err); reason != "" {
		return &slots.UnreachedError{Store: s.String(), Reason: reason, Check: "check that the store runs, and endpoint and region in the address", Err: err}
	}
	return fmt.Errorf("%s: %w", s, err)
}

// unanswered returns why there is no answer of a store; "" if there is one. The client's own text names all its layers and the request.
func unanswered(err error) string {
	var (
		sent   *smithyhttp.RequestSendError
		dns    *net.DNSError
		errno  syscall.Errno
		failed *url.Error
	)
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case statusOf(err) != 0 && codeOf(err) == "":
		return fmt.Sprintf("what answers there, with status %d, is not S3", statusOf(err))
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case !errors.As(err, &sent):
		return ""
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host: " + dns.Name
	case errors.As(err, &errno):
		return errno.Error() // such as connection refused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed without an answer"
	case errors.As(err, &failed):
		return failed.Err.Error()
	}
	return ""
}

// explainCreate is explain for the creation of an object, encrypted or not.
func (s *Store) explainCreate(err error) error {
	switch code := codeOf(err); {
	case s.addr.sse == "" && code == "AccessDenied" && !strings.Contains(brief(err).Error(), "kms:"):
		return s.refused("access is denied", needed+"; if a policy of the bucket wants encryption, ask for it with sse= in the address", brief(err))
	// These codes are not about encryption alone, but the rest of the request is the same with and without it.
	case s.addr.sse != "" && slices.Contains([]string{"InvalidArgument", "InvalidRequest", "InvalidEncryptionAlgorithmError", "NotImplemented"}, code):
		return s.refused(fmt.Sprintf("it does not create an object with sse=%s", s.addr.sse),
			"correct sse= and sse-kms-key-id= in the address, or leave them out: then it encrypts as the bucket says", brief(err))
	}
	return s.explain(err)
}

// untrusted returns the reason and the remedy if the store's certificate was not accepted and nothing was sent to the store; "" otherwise.
func untrusted(err error) (reason, remedy string) {
	var (
		unknown x509.UnknownAuthorityError
		names   x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &unknown):
		return "this machine does not trust the authority that signed the store's certificate",
			"name a PEM file with the certificate of its authority in AWS_CA_BUNDLE, or with ca_bundle in the shared configuration file"
	case errors.As(err, &names):
		return fmt.Sprintf("the store's certificate is for other names (%s)", cmp.Or(strings.Join(names.Certificate.DNSNames, ", "), "none")),
			"name the store in endpoint= as its certificate does, use path-style=true if the name of the bucket is in the way, or have the certificate reissued"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the store's certificate has expired or is not valid yet", "renew it, and check this machine's clock"
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the store does not speak TLS at this port", "begin the endpoint with http://, or name the port that does"
	}
	return "", ""
}

// brief returns only the code and message of an answer; the whole error also contains requests and hosts.
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

// codeOf returns the code of an error answer, such as NoSuchKey; "" if there is none.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// statusOf returns the HTTP status of an error answer; 0 if there is none.
func statusOf(err error) int {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}
