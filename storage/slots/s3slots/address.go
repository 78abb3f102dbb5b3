package s3slots

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// address says where the values are, how to reach them and how to write them.
type address struct {
	bucket    string
	prefix    string // of all keys: empty, or ending with a slash
	endpoint  string // of a gateway; empty for AWS
	region    string
	pathStyle bool // the bucket is a part of the path, not of the host name

	sse    types.ServerSideEncryption // of created objects; empty: the default of the bucket
	kmsKey string                     // ID, ARN or alias; empty: the key of AWS for S3
}

const addressHelp = "; it looks like s3://bucket/prefix?region=eu-central-1 or s3://bucket/prefix?endpoint=https://host:9000&path-style=true"

// bad returns the error of an invalid address. It does not quote the address, which may contain a secret by mistake.
func bad(what string) error {
	return errors.New("the address of the S3 store is not valid: " + what + addressHelp)
}

func parse(s string) (address, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return address{}, bad("it is not a URL")
	case u.User != nil:
		return address{}, bad("it must not contain credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
	case u.Scheme != "s3":
		return address{}, bad("it does not begin with s3://")
	case u.Host == "" || strings.Contains(u.Host, ":"):
		return address{}, bad("s3:// is followed by a bucket, not by a host: name a gateway with ?endpoint=")
	case strings.ContainsFunc(u.Host, notInBucket):
		return address{}, bad("the name of a bucket has letters, digits, '.', '-' and '_' only")
	case u.Fragment != "":
		return address{}, bad("it has a #")
	}
	a := address{bucket: u.Host}
	if p := strings.Trim(u.Path, "/"); p != "" {
		a.prefix = p + "/"
	}
	if strings.Contains(a.prefix, "//") {
		return address{}, bad("the prefix has two slashes in a row")
	}
	// S3 refuses some such keys. Gateways take them for a path, and list other keys than those that were created.
	if parts := strings.Split(a.prefix, "/"); slices.Contains(parts, ".") || slices.Contains(parts, "..") {
		return address{}, bad("the prefix has . or .. as a part")
	}
	// The name of the store in the registry must be its address.
	if strings.ContainsAny(a.prefix, "?#%") || strings.ContainsFunc(a.prefix, unicode.IsControl) {
		return address{}, bad("the prefix has a ?, # or %, or a control character")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return address{}, bad("the part after ? cannot be parsed")
	}
	for name, values := range query {
		if len(values) != 1 || values[0] == "" {
			return address{}, bad("each setting has one value")
		}
		if err := a.set(name, values[0]); err != nil {
			return address{}, err
		}
	}
	if a.kmsKey != "" && !a.usesKMS() {
		return address{}, bad("sse-kms-key-id needs sse=aws:kms or sse=aws:kms:dsse beside it")
	}
	return a, nil
}

// set applies one setting.
func (a *address) set(name, v string) (err error) {
	switch name {
	case "endpoint":
		e, err := url.Parse(v)
		if err != nil || e.Host == "" || e.Scheme != "https" && e.Scheme != "http" || e.User != nil || strings.ContainsAny(v, "?#%&+;") {
			return bad("endpoint is an http:// or https:// URL, without credentials and without ? # % & + ;")
		}
		a.endpoint = v
	case "region":
		a.region = v
	case "path-style":
		if a.pathStyle, err = strconv.ParseBool(v); err != nil {
			return bad("path-style is true or false")
		}
	case "sse":
		a.sse = types.ServerSideEncryption(v)
		if a.sse != types.ServerSideEncryptionAes256 && !a.usesKMS() {
			return bad("sse is AES256, aws:kms or aws:kms:dsse")
		}
	case "sse-kms-key-id":
		if strings.ContainsFunc(v, notInKey) {
			return bad("sse-kms-key-id is the ID, the ARN or the alias of a KMS key")
		}
		a.kmsKey = v
	default:
		if strings.HasPrefix(name, "sse-c") {
			return bad("keys of your own (SSE-C) are not supported: an address is printed and stored, which a key must not be, and every reader would need the key; " +
				"let KMS keep it, with sse=aws:kms&sse-kms-key-id=")
		}
		return bad("the settings are endpoint, region, path-style, sse and sse-kms-key-id")
	}
	return nil
}

func (a *address) usesKMS() bool {
	return a.sse == types.ServerSideEncryptionAwsKms || a.sse == types.ServerSideEncryptionAwsKmsDsse
}

// notInKey reports whether a character is not allowed in the name of a KMS key.
func notInKey(r rune) bool { return notInBucket(r) && r != ':' && r != '/' }

// notInBucket reports whether a character is not allowed in a bucket name, not even in those of old buckets and of gateways.
func notInBucket(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r))
}

// String returns the address without the settings that only affect how to reach the store or how to write to it.
func (a address) String() string {
	s := strings.TrimSuffix("s3://"+a.bucket+"/"+a.prefix, "/")
	if a.endpoint != "" {
		s += "?endpoint=" + a.endpoint
	}
	return s
}
