// Package mongourl turns the URL of a MongoDB database into the driver's options. Its errors
// contain no secrets.
package mongourl

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/fencepost/fencepost/internal/mongoerr"
	"github.com/fencepost/fencepost/internal/redact"
)

// DefaultDatabase is the database if the URL names none.
const DefaultDatabase = "fencepost"

// Parse turns a connection string into client options and the database to use. Errors begin with
// the URL, without secrets, and name the problem. If DNS does not answer about the hosts of a
// mongodb+srv:// URL, the error wraps a *net.DNSError that is not about a missing name.
func Parse(ctx context.Context, uri string) (*options.ClientOptions, string, error) {
	scheme, _, ok := strings.Cut(uri, "://")
	if !ok || (scheme != "mongodb" && scheme != "mongodb+srv") {
		return nil, "", fmt.Errorf("%s: want mongodb://host:port/database or mongodb+srv://host/database", redact.URL(uri))
	}
	if err := checkFiles(uri); err != nil {
		return nil, "", fmt.Errorf("%s: %w", redact.URL(uri), err)
	}
	co, err := lookUp(ctx, uri, func() (*options.ClientOptions, error) { return apply(uri) }, func(*options.ClientOptions) {})
	if err != nil {
		return nil, "", err
	}
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:]
	}
	_, database, _ := strings.Cut(rest, "/")
	if database == "" {
		return co, DefaultDatabase, nil
	}
	database, err = url.PathUnescape(database)
	if err != nil || !ValidDatabase(database) {
		return nil, "", fmt.Errorf("%s: the path must be %s", redact.URL(uri), DatabaseRule)
	}
	return co, database, nil
}

// DatabaseRule says which names ValidDatabase accepts.
const DatabaseRule = "a database name of at most 63 bytes without / \\ . \" $ * < > : | ? or a space"

// ValidDatabase reports whether every server accepts name as that of a database.
func ValidDatabase(name string) bool {
	return name != "" && len(name) <= 63 && !strings.ContainsAny(name, "/\\. \"$*<>:|?\x00")
}

// apply lets the driver parse a connection string.
func apply(uri string) (*options.ClientOptions, error) {
	co := options.Client().ApplyURI(uri)
	err := co.Validate()
	if err == nil {
		return co, nil
	}
	if silent := unanswered(uri, err); silent != nil {
		return nil, silent
	}
	return nil, fmt.Errorf("%s: %s", redact.URL(uri), mongoerr.URI(uri))
}

// fileOptions are the options that name files, in lower case. The driver reads these files without
// a size limit, and each client reads them again.
var fileOptions = []string{"tlscafile", "sslcertificateauthorityfile", "tlscertificatekeyfile", "sslclientcertificatekeyfile", "tlscertificatefile",
	"tlsprivatekeyfile"}

// checkFiles rejects pipes and devices: reading one may never end. It leaves files that cannot be
// examined to the driver.
func checkFiles(uri string) error {
	_, query, _ := strings.Cut(uri, "?")
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		path, err := url.QueryUnescape(value)
		if err != nil || !slices.Contains(fileOptions, strings.ToLower(key)) {
			continue
		}
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s=%s is not a regular file; name one, it is read several times", key, path)
		}
	}
	return nil
}
