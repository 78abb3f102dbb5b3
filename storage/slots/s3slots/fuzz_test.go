package s3slots

import (
	"strings"
	"testing"
)

// FuzzAddress: addresses of buckets. No error quotes one, and the name of a store, which is in the registry, is an address of the same place.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"s3://bucket", "s3://bucket/a/b/?region=eu-central-1", "s3://bucket/a?endpoint=http://127.0.0.1:9000&path-style=true", "s3://user:s3cret@bucket/", "s3://host:9000/bucket",
		"s3://bucket/a%3Fb", "s3://bucket/a%23b%25", "s3://bucket//a", "s3://bucket?endpoint=http://h/a%26region=x", "s3://bucket?endpoint=https://u:p@h", "s3://b?path-style=yes", "s3:///x", "s3://b#x", "http://b",
		"s3://b/%0a", "s3://b?region=a&region=b", "s3://%41", "s3://0%25",
		"s3://b/p?sse=AES256", "s3://b?sse=aws:kms&sse-kms-key-id=arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab", "s3://b?sse=aws%3akms%3Adsse&sse-kms-key-id=alias/a", "s3://b?sse-kms-key-id=a",
		"s3://b?sse=aws:kms&sse-kms-key-id=a%0d%0ax-amz-acl:public-read", "s3://b?sse-c=AES256&sse-c-key=s3cret", "s3://b?sse-customer-key=s3cret", "s3://b?sse=s3cret"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parse(text)
		if err != nil {
			if _, rest, _ := strings.Cut(text, "://"); len(rest) > 7 && strings.Contains(err.Error(), rest) && !strings.Contains(addressHelp, rest) {
				t.Fatalf("the error quotes %q: %v", text, err)
			}
			return
		}
		again, err := parse(a.String())
		if err != nil || again.bucket != a.bucket || again.prefix != a.prefix || again.endpoint != a.endpoint {
			t.Fatalf("%q is %+v, whose name %q is %+v, %v", text, a, a.String(), again, err)
		}
		if again.sse != "" || again.kmsKey != "" || strings.ContainsAny(a.kmsKey, "\r\n @") || a.kmsKey != "" && !a.usesKMS() {
			t.Fatalf("%q is %+v, whose name %q is %+v", text, a, a.String(), again)
		}
		if strings.HasPrefix(a.prefix, "/") || strings.Contains(a.prefix, "//") || strings.Contains(a.bucket, "/") {
			t.Fatalf("%q is %+v", text, a)
		}
	})
}
