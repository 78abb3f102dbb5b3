package mongotest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The environment variables of this package.
const (
	// EnvURI names a running server to use.
	EnvURI = "FENCEPOST_TEST_MONGODB_URI"
	// EnvImage names the image for containers. There is no fallback: a named image is used or the
	// start fails.
	EnvImage = "FENCEPOST_TEST_MONGO_IMAGE"
	// EnvRequire set to 1 makes a missing server a failure instead of a skip, and allows building one.
	EnvRequire = "FENCEPOST_TEST_REQUIRE_MONGODB"
	// EnvUnavailable is how withserver, after reporting it, tells its child that no server is available.
	EnvUnavailable = "FENCEPOST_TEST_MONGODB_UNAVAILABLE"
)

// Bounds. A server is ready within a second or two; the bounds are for a machine that is busy with other tests.
const (
	startTimeout = 2 * time.Minute
	buildTimeout = 15 * time.Minute // debootstrap and a compilation, perhaps after another process's build
	dropTimeout  = 30 * time.Second
)

// URI returns the URI of a server shared by all tests of this process, without a database in its path. Tests that
// need the server to themselves use [NewServer]; tests that only need separate data use [Database] or [Fresh]. It
// skips or fails the test if no server is available.
func URI(t testing.TB) string {
	t.Helper()
	uri, err := shared()
	if err != nil {
		unavailable(t, err)
	}
	return uri
}

// shared starts the shared server at the first call. It is the only state of this package: a test binary has no other
// place common to all its tests.
var shared = sync.OnceValues(func() (string, error) {
	if uri := os.Getenv(EnvURI); uri != "" {
		return uri, nil
	}
	s, err := startForTests()
	if err != nil {
		return "", err
	}
	return s.URI(), nil // the guard ends it with this process
})

// startForTests starts a server in the ways that the environment permits.
func startForTests() (*Server, error) {
	if reason := os.Getenv(EnvUnavailable); reason != "" {
		return nil, fmt.Errorf("%w: %s", ErrNone, reason)
	}
	o := Options{Build: required()}
	if o.Build {
		o.Log = os.Stderr // builds are slow: show progress
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout())
	defer cancel()
	return Start(ctx, o)
}

func required() bool { return os.Getenv(EnvRequire) == "1" }

// unavailable skips or fails the test, and says why.
func unavailable(t testing.TB, err error) {
	t.Helper()
	switch {
	case !errors.Is(err, ErrNone):
		t.Fatalf("mongotest: %v", err)
	case required():
		t.Fatalf("%s=1, but no MongoDB is available: %v", EnvRequire, err)
	}
	sayOnce.Do(func() { fmt.Fprintln(os.Stderr, NotRun(thisPackage(), err)) })
	t.Skipf("no MongoDB is available: %v", err)
}

var sayOnce sync.Once

// NotRun returns the one loud line about suites that did not run, and how to run them.
func NotRun(suites string, err error) string {
	why := strings.Join(strings.Fields(err.Error()), " ") // one line, whatever the error looks like
	return fmt.Sprintf("!!! NOT RUN: the MongoDB-backed tests of %s, as no server is available (%s). "+
		"To run them: start Docker (mongo:8 is pulled), or set %s, or as root on Debian run `make test`, which builds a server; "+
		"%s=1 makes this a failure.", suites, why, EnvURI, EnvRequire)
}

// thisPackage names the package under test by its folder, which is the working directory of a test.
func thisPackage() string {
	dir, err := os.Getwd()
	if err != nil {
		return "this package"
	}
	root, err := moduleRoot()
	if err != nil {
		return dir
	}
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return dir
	}
	return "./" + filepath.ToSlash(rel)
}

// Database returns a handle of a fresh database on the shared server. The database is dropped and the handle's client
// closed when the test ends.
func Database(t testing.TB) *mongo.Database {
	t.Helper()
	_, db := Fresh(t)
	return db
}

// Fresh is [Database] for tests that open the product by URL: the URI has the database in its path,
// "mongodb://host:port/database?options".
func Fresh(t testing.TB) (uri string, db *mongo.Database) {
	t.Helper()
	return freshOn(t, URI(t))
}

func freshOn(t testing.TB, server string) (string, *mongo.Database) {
	t.Helper()
	name := "test_" + randomHex()
	uri, err := withDatabase(server, name)
	if err != nil {
		t.Fatalf("mongotest: %v", err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(startTimeout / 4))
	if err != nil {
		t.Fatalf("mongotest: connect to %s: %v", server, err)
	}
	db := client.Database(name)
	t.Cleanup(func() {
		// Not the test's context, which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		// A server that a test killed cannot drop anything, and need not: a private one is removed as a whole.
		if err := db.Drop(ctx); err != nil {
			t.Logf("mongotest: drop database %s: %v", name, err)
		}
		if err := client.Disconnect(ctx); err != nil {
			t.Logf("mongotest: disconnect: %v", err)
		}
	})
	return uri, db
}

func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

// withDatabase puts a database into the path of a connection string. It does not use net/url, which does not support
// several hosts in one authority.
func withDatabase(uri, name string) (string, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok || (scheme != "mongodb" && scheme != "mongodb+srv") {
		return "", fmt.Errorf("%s: want mongodb://host/… or mongodb+srv://host/…, got %q", EnvURI, uri)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	if strings.Contains(authority, "@") && !strings.Contains(query, "authSource=") {
		// Without authSource the path also says where the user is defined, which must not change with it.
		if database == "" {
			database = "admin"
		}
		query = strings.TrimPrefix(query+"&authSource="+database, "&")
	}
	uri = scheme + "://" + authority + "/" + name
	if query != "" {
		uri += "?" + query
	}
	return uri, nil
}
