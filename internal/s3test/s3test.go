// Package s3test provides in-memory buckets for tests.
package s3test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Secret is the secret key of Environment.
const Secret = "not-to-be-told"

// Environment sets credentials for the test, and hides the settings of this machine.
func Environment(t testing.TB) {
	t.Helper()
	none := t.TempDir() + "/none"
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": Secret, "AWS_SESSION_TOKEN": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_PROFILE": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none,
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CA_BUNDLE": "",
	} {
		t.Setenv(name, value)
	}
}

// Bucket starts a store, and returns the address of an empty bucket in it. first, if not nil, receives each request before the store: it
// may change it, or answer it and return true.
func Bucket(t testing.TB, first func(http.ResponseWriter, *http.Request) bool) (address string) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("types"); err != nil {
		t.Fatal(err)
	}
	store := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first == nil || !first(w, r) {
			store.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return Address(server)
}

// Address returns the address of a store in the bucket of a server.
func Address(server *httptest.Server) string {
	return "s3://types/some/prefix?path-style=true&endpoint=" + server.URL
}
