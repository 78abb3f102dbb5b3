package ui

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// A request without a name waits for no check of a password, and costs none. A long name does not fill the log.
func TestRequestsThatAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte("\ufeffanna:$2a$04$ABCDEFGHIJKLMNOPQRSTUuABCDEFGHIJKLMNOPQRSTUVWXYZabcde"), 0o600); err != nil {
		t.Fatal(err)
	}
	users, err := LoadUsers(path)
	if err != nil || !users.Has("anna") {
		t.Fatalf("a file with a byte order mark has no user, %v", err)
	}
	var log strings.Builder
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/types", nil)
	r.SetBasicAuth(strings.Repeat("x", 10_000), "wrong")
	Access{Users: users}.check(&UI{o: Options{Log: zerolog.New(&log)}}, nil).ServeHTTP(w, r)
	if n := log.Len(); w.Code != 401 || n == 0 || n > 1000 {
		t.Errorf("%d, and %d bytes in the log", w.Code, n)
	}
	for range dearChecks {
		users.dear <- struct{}{} // all places are taken
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, header := range []string{"", "Basic", "Basic ?", "Bearer fpt_x", "Basic Og=="} {
		r := httptest.NewRequestWithContext(ctx, "GET", "/types", nil)
		r.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		Access{Users: users}.check(nil, nil).ServeHTTP(w, r)
		if w.Code != 401 || ctx.Err() != nil {
			t.Fatalf("%q: %d, %v", header, w.Code, ctx.Err())
		}
	}
}
