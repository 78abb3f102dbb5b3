package s3slots

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Check refuses a bucket whose lifecycle rules would remove values or make them unreadable, and a gateway that does
// not encrypt as the address requests. [slots.Probe] calls it.
func (s *Store) Check(ctx context.Context) error {
	if err := s.checkLifecycle(ctx); err != nil {
		return err
	}
	return s.checkEncryption(ctx)
}

// checkEncryption creates an object, and removes it. S3 answers with the encryption of the object; many gateways accept the
// header and do nothing.
func (s *Store) checkEncryption(ctx context.Context) error {
	if s.addr.sse == "" {
		return nil
	}
	name := ".probe/" + strings.ToLower(rand.Text())
	out, err := s.client.PutObject(ctx, s.object(name, []byte("is this encrypted?")))
	if err != nil {
		return s.explainCreate(err)
	}
	if err := s.Delete(ctx, name); err != nil {
		return err
	}
	// rule: a store that does not confirm that it encrypted an object as requested is not used.
	if out.ServerSideEncryption != s.addr.sse {
		return s.refused(fmt.Sprintf("it was asked to encrypt with sse=%s, and does not confirm that it did", s.addr.sse),
			"leave out sse= if the gateway encrypts by other means, or use a store that knows the header x-amz-server-side-encryption", nil)
	}
	return nil
}

// checkLifecycle checks the lifecycle rules. Only some stores report them, and only to users with s3:GetLifecycleConfiguration.
// Without an answer nothing is refused.
func (s *Store) checkLifecycle(ctx context.Context) error {
	out, err := s.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: s.bucket()})
	if err != nil {
		return ctx.Err()
	}
	for _, r := range out.Rules {
		if does := doesTo(s.addr.prefix, &r); does != "" {
			return s.refused(fmt.Sprintf("the lifecycle rule %q of its bucket %s", aws.ToString(r.ID), does),
				"take the prefix out of the rule: what a rule removes is lost; rules for noncurrent versions are allowed", nil)
		}
	}
	return nil
}

// doesTo says what a lifecycle rule does to current objects below a prefix; "" if it does no harm.
func doesTo(prefix string, r *types.LifecycleRule) string {
	below := aws.ToString(r.Prefix) //lint:ignore SA1019 rules that were made before there were filters have it
	if f := r.Filter; f != nil {
		if f.Tag != nil || f.And != nil && len(f.And.Tags) > 0 {
			return "" // values have no tags
		}
		below = aws.ToString(f.Prefix)
		if f.And != nil {
			below = aws.ToString(f.And.Prefix)
		}
	}
	if r.Status != types.ExpirationStatusEnabled || !strings.HasPrefix(prefix, below) && !strings.HasPrefix(below, prefix) {
		return ""
	}
	if e := r.Expiration; e != nil && (e.Date != nil || aws.ToInt32(e.Days) > 0) { // otherwise it only removes delete markers
		return "removes objects by their age"
	}
	for _, t := range r.Transitions {
		if t.StorageClass == types.TransitionStorageClassGlacier || t.StorageClass == types.TransitionStorageClassDeepArchive {
			return "archives objects, which cannot be read then"
		}
	}
	return ""
}
