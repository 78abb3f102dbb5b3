// Package s3slots is a store of slots in a bucket of S3, or of a server with the same protocol.
//
//	s3://bucket/prefix?region=eu-central-1                                     AWS
//	s3://bucket/prefix?endpoint=https://minio.example:9000&path-style=true     a gateway
//
// A value is an object. PutObject creates it with the header If-None-Match: *, which S3 decides for
// all clients: if two create the same key, one succeeds, and the other gets 412. A gateway that
// does not know the header would silently replace the value; [slots.Probe] detects that.
//
// Credentials come from the usual places of AWS tools: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
// the shared files, the role of the machine or the pod. They are never part of the address. They
// need s3:GetObject, s3:PutObject and s3:DeleteObject for the keys below the prefix, and
// s3:ListBucket: without it S3 does not report that a key does not exist.
//
// S3 encrypts each object according to the settings of its bucket. ?sse=AES256, ?sse=aws:kms or ?sse=aws:kms:dsse,
// with &sse-kms-key-id= for a key of your own in KMS, request encryption with each created object.
// These settings are not part of the store's name, and readers need none of them.
//
// AWS_CA_BUNDLE, or ca_bundle in the shared configuration file, names the certification authorities of
// a gateway, in place of those of the machine.
//
// Lifecycle rules that expire objects, and tools that remove objects, destroy files.
package s3slots

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/fencepost/fencepost/storage"
	"github.com/fencepost/fencepost/storage/slots"
	"github.com/fencepost/fencepost/storage/slots/internal/slotname"
)

const maxValue = 64 << 20 // S3 accepts more in one request, but a request must end in time

// Linger is what [Store.Linger] returns. Every request costs money: with Linger, a type with few
// messages makes at most one per second, instead of one per message.
const Linger = time.Second

// Store is a bucket, or the objects below a prefix in it. It is safe for concurrent use.
type Store struct {
	client *s3.Client
	addr   address
}

var (
	_ slots.Store  = (*Store)(nil)
	_ slots.Costly = (*Store)(nil)
)

// CheckAddress checks the syntax of an address. It sends no request, and its error does not quote the
// address.
func CheckAddress(url string) error {
	_, err := parse(url)
	return err
}

// Open returns the store at an address. It looks up credentials, and sends no request to the
// bucket.
//
// A *slots.RefusedError means that there are no credentials or no region.
func Open(ctx context.Context, url string) (*Store, error) {
	addr, err := parse(url)
	if err != nil {
		return nil, err
	}
	s := &Store{addr: addr}
	// The client would print warnings to standard error, such as one about the metadata service of the machine, into
	// the program's log or the output of a command. The error of a request says why it failed.
	cfg, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, s.refused("the settings of AWS cannot be read", "correct the shared configuration files or the variables AWS_*", err)
	}
	switch {
	case addr.region != "":
		cfg.Region = addr.region
	case cfg.Region == "" && addr.endpoint != "":
		cfg.Region = "us-east-1" // the default of gateways
	case cfg.Region == "":
		return nil, s.refused("the region is not known", "add ?region= to the address, or set AWS_REGION", nil)
	}
	if cfg.Credentials == nil {
		return nil, s.noCredentials(nil)
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		return nil, s.noCredentials(err)
	}
	s.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		// rule: one attempt per request; the caller retries, and knows that an existing value may be
		// from an earlier attempt.
		o.Retryer = aws.NopRetryer{}
		o.UsePathStyle = addr.pathStyle
		if addr.endpoint != "" {
			o.BaseEndpoint = aws.String(addr.endpoint)
		}
		// Many gateways do not know the checksums that the client adds by default.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return s, nil
}

func (s *Store) noCredentials(err error) error {
	return s.refused("there are no credentials",
		"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with a role that may use the bucket", err)
}

// String returns the address.
func (s *Store) String() string { return s.addr.String() }

// Linger implements slots.Costly.
func (s *Store) Linger() time.Duration { return Linger }

// MaxValue implements slots.Store.
func (s *Store) MaxValue() int { return maxValue }

func (s *Store) key(name string) *string { return aws.String(s.addr.prefix + name) }

func (s *Store) bucket() *string { return aws.String(s.addr.bucket) }

// Create implements slots.Store.
func (s *Store) Create(ctx context.Context, name string, data []byte) error {
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	if len(data) > maxValue {
		return fmt.Errorf("%s: a value of %d bytes; the maximum is %d", s, len(data), maxValue)
	}
	_, err := s.client.PutObject(ctx, s.object(name, data))
	if statusOf(err) == 412 {
		return &fs.PathError{Op: "create", Path: s.String() + ": " + name, Err: fs.ErrExist}
	}
	return s.explainCreate(err)
}

// object returns the request for an object. All objects are created with it.
func (s *Store) object(name string, data []byte) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket: s.bucket(), Key: s.key(name), Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))),
		// rule: an object is created only if its key has none.
		IfNoneMatch: aws.String("*"),
		// rule: every object is encrypted as the address requests.
		ServerSideEncryption: s.addr.sse,
	}
	if s.addr.kmsKey != "" {
		in.SSEKMSKeyId = aws.String(s.addr.kmsKey)
	}
	return in
}

// Read implements slots.Store.
func (s *Store) Read(ctx context.Context, name string) ([]byte, error) {
	if err := slotname.Check(s, name); err != nil {
		return nil, err
	}
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: s.bucket(), Key: s.key(name)})
	// rule: a value is absent only if the store reports its key missing. A 404 can also come from a
	// proxy, or be about the bucket.
	if codeOf(err) == "NoSuchKey" {
		return nil, s.absent("read", name)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	defer out.Body.Close()
	b, err := io.ReadAll(io.LimitReader(out.Body, maxValue+1))
	switch {
	case err != nil:
		return nil, s.explain(err)
	case len(b) > maxValue:
		return nil, fmt.Errorf("%w: %s: %s has more than %d bytes, and was not stored by this program; find out who wrote it, and remove it or restore the right one",
			storage.ErrIntegrity, s, name, maxValue)
	case out.ContentLength == nil:
		return nil, s.noLength(name)
	case *out.ContentLength != int64(len(b)):
		return nil, fmt.Errorf("%s: %s: %d of %d bytes arrived", s, name, len(b), *out.ContentLength)
	}
	return b, nil
}

func (s *Store) absent(op, name string) error {
	return &fs.PathError{Op: op, Path: s.String() + ": " + name, Err: fs.ErrNotExist}
}

func (s *Store) noLength(name string) error {
	return fmt.Errorf("%s: no length of %s arrived", s, name)
}

// Size implements slots.Store.
func (s *Store) Size(ctx context.Context, name string) (int64, error) {
	if err := slotname.Check(s, name); err != nil {
		return 0, err
	}
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: s.bucket(), Key: s.key(name)})
	if statusOf(err) == 404 {
		// rule: without its bucket nothing is known about a value: the answer to HEAD does not tell
		// whether the key or the bucket is missing.
		_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: s.bucket()})
		switch {
		case statusOf(err) == 404:
			return 0, s.noBucket(nil)
		case err != nil:
			return 0, s.explain(err)
		}
		return 0, s.absent("size", name)
	}
	if err != nil {
		return 0, s.explain(err)
	}
	if out.ContentLength == nil {
		return 0, s.noLength(name)
	}
	return *out.ContentLength, nil
}

// pages calls f with each page of a listing of a folder.
func (s *Store) pages(ctx context.Context, folder string, f func(prefix string, page *s3.ListObjectsV2Output)) error {
	prefix := s.addr.prefix
	if folder != "" {
		prefix += folder + "/"
	}
	in := &s3.ListObjectsV2Input{Bucket: s.bucket(), Prefix: aws.String(prefix), Delimiter: aws.String("/")}
	for p := s3.NewListObjectsV2Paginator(s.client, in, func(o *s3.ListObjectsV2PaginatorOptions) { o.StopOnDuplicateToken = true }); p.HasMorePages(); {
		page, err := p.NextPage(ctx)
		if err != nil {
			return s.explain(err)
		}
		f(prefix, page)
	}
	return nil
}

// List implements slots.Store.
func (s *Store) List(ctx context.Context, folder string) ([]slots.Entry, error) {
	var all []slots.Entry
	err := s.pages(ctx, folder, func(prefix string, page *s3.ListObjectsV2Output) {
		for _, o := range page.Contents {
			// Some tools represent a folder by an object with the name of the folder.
			if rest, ok := strings.CutPrefix(aws.ToString(o.Key), prefix); ok && rest != "" {
				all = append(all, slots.Entry{Name: strings.TrimPrefix(*o.Key, s.addr.prefix), Size: aws.ToInt64(o.Size)})
			}
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b slots.Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Folders implements slots.Store.
func (s *Store) Folders(ctx context.Context, folder string) ([]string, error) {
	var all []string
	err := s.pages(ctx, folder, func(prefix string, page *s3.ListObjectsV2Output) {
		for _, p := range page.CommonPrefixes {
			if rest, ok := strings.CutPrefix(aws.ToString(p.Prefix), prefix); ok && rest != "/" {
				all = append(all, strings.TrimSuffix(rest, "/"))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(all) // pages are sorted by names with their slashes
	return slices.Compact(all), nil
}

// Delete implements slots.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := slotname.Check(s, name); err != nil {
		return err
	}
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: s.bucket(), Key: s.key(name)})
	if codeOf(err) == "NoSuchKey" { // S3 does not return this; some gateways do
		return nil
	}
	return s.explain(err)
}
